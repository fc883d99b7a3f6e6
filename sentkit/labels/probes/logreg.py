"""Logistic regression with scikit-learn."""

from sentkit.labels.probes.fits import Data, Fit, Outcome, outcome

ITERATIONS = 1000  # maximum; scikit-learn's default of 100 is too small for vectors of hundreds of numbers


def logreg(data: Data, fit: Fit) -> Outcome:
    """Fit and test with L-BFGS, which is deterministic. The penalty is C: a larger value regularises less."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=fit.penalty, max_iter=ITERATIONS)
    model.fit(data.features[fit.train], data.codes[fit.train])
    return outcome(data, fit, model.predict(data.features[fit.test]))
