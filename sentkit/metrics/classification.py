"""Scores of predicted classes, and of predicted numbers: accuracy, F1, Matthews, Pearson, Spearman."""

import numpy as np

from sentkit.arrays import Floats, Indices
from sentkit.metrics.sts.correlation import pearson, spearman


def class_scores(predicted: Indices, truth: Indices, classes: int) -> dict[str, float]:
    """Return accuracy, F1 and Matthews. F1 is that of class 1, or of more classes their mean."""
    each = [f1(predicted, truth, number) for number in range(classes)]
    return {
        "accuracy": float(np.mean(predicted == truth)),
        "f1": each[1] if classes == 2 else float(np.mean(each)),
        "matthews": matthews(predicted, truth, classes),
    }


def matthews(predicted: Indices, truth: Indices, classes: int) -> float:
    """The correlation of Matthews, for several classes that of Gorodkin (2004); 0 if all are of one class."""
    ours, theirs = (np.bincount(each, minlength=classes) for each in (predicted, truth))
    rows, right = len(truth), np.sum(predicted == truth)
    spread = float(rows * rows - ours @ ours) * float(rows * rows - theirs @ theirs)
    return float(right * rows - ours @ theirs) / spread**0.5 if spread else 0.0


def number_scores(predicted: Floats, truth: Floats) -> dict[str, float]:
    """Return Pearson and Spearman; NaN if one of the columns is constant or not finite."""
    return {"pearson": pearson(predicted, truth), "spearman": spearman(predicted, truth)}


def f1(predicted: Indices, truth: Indices, number: int = 1) -> float:
    """F1 of a class; 0 if no prediction is correct."""
    own, theirs = predicted == number, truth == number
    return float(2 * np.sum(own & theirs) / max(np.sum(own) + np.sum(theirs), 1))
