"""The scores of classes: worked values, and scikit-learn."""

import numpy as np
import pytest

from sentkit.metrics.classification import class_scores, f1, number_scores


@pytest.mark.parametrize("classes", [2, 3, 6])
@pytest.mark.parametrize("seed", range(4))
def test_scores_are_those_of_scikit_learn(classes, seed):
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    random = np.random.default_rng(seed)
    truth = random.integers(classes, size=50)
    predicted = np.where(random.random(50) < 0.6, truth, random.integers(classes, size=50))
    average = "binary" if classes == 2 else "macro"

    assert class_scores(predicted, truth, classes) == pytest.approx(
        {
            "accuracy": accuracy_score(truth, predicted),
            "f1": f1_score(truth, predicted, average=average),
            "matthews": matthews_corrcoef(truth, predicted),
        }
    )


def test_a_single_predicted_class():
    truth, predicted = np.array([0, 1, 1, 0]), np.zeros(4, int)

    assert class_scores(predicted, truth, 2) == {"accuracy": 0.5, "f1": 0.0, "matthews": 0.0}
    assert f1(predicted, truth, 0) == pytest.approx(2 / 3)


def test_numbers():
    """On a line the linear correlation is 1; the last value only keeps the order."""
    truth = np.arange(4.0)

    assert number_scores(2 * truth + 3, truth) == pytest.approx({"pearson": 1.0, "spearman": 1.0})
    assert number_scores(np.array([0.0, 1.0, 2.0, 30.0]), truth)["pearson"] < 0.9
    assert number_scores(np.array([0.0, 1.0, 2.0, 30.0]), truth)["spearman"] == pytest.approx(1.0)
    assert np.isnan(number_scores(np.ones(4), truth)["pearson"])
