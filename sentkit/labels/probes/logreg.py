"""Logistic regression as scikit-learn has it."""

from sentkit.labels.probes.fits import Data, Fit, Outcome, outcome

ITERATIONS = 1000  # at most; scikit-learn's own 100 is too few for vectors of hundreds of numbers


def logreg(data: Data, fit: Fit) -> Outcome:
    """By L-BFGS, which draws nothing at random. The penalty is C: the larger, the weaker."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=fit.penalty, max_iter=ITERATIONS)
    model.fit(data.features[fit.train], data.codes[fit.train])
    return outcome(data, fit, model.predict(data.features[fit.test]))
