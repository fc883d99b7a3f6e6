"""Scores of predicted classes, and of predicted numbers: accuracy, F1, Matthews, Pearson, Spearman."""

import numpy as np

from sentkit.arrays import Floats, Indices
from sentkit.metrics.sts.correlation import pearson, spearman


def class_scores(predicted: Indices, truth: Indices, classes: int) -> dict[str, float]:
    """Return accuracy, F1 and Matthews. F1 is that of class 1, or of more classes their mean."""
    from sklearn.metrics import matthews_corrcoef

    each = [f1(predicted, truth, number) for number in range(classes)]
    return {
        "accuracy": float(np.mean(predicted == truth)),
        "f1": each[1] if classes == 2 else float(np.mean(each)),
        "matthews": float(matthews_corrcoef(truth, predicted)),  # 0 if all are of one class
    }


def number_scores(predicted: Floats, truth: Floats) -> dict[str, float]:
    """Return Pearson and Spearman; NaN if one of the columns is constant or not finite."""
    return {"pearson": pearson(predicted, truth), "spearman": spearman(predicted, truth)}


def f1(predicted: Indices, truth: Indices, number: int = 1) -> float:
    """F1 of a class; 0 if no prediction is correct."""
    from sklearn.metrics import f1_score

    return float(f1_score(truth == number, predicted == number, zero_division=0))
