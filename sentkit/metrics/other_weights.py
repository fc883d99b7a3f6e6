"""Whether two encodings of the same texts are of one model with other weights, or of two models.

Axes: n texts, d the width.
"""

import numpy as np

from sentkit.arrays import Float32, Float64
from sentkit.metrics.similarity import exact
from sentkit.metrics.statistics import spearman

FEWEST = 8  # texts
SAME_MODEL = 0.6  # mean cosine of the centered vectors of a text
SMOOTH = 2.0  # largest singular value of the differences, by that of noise
RELATED = 0.2  # rank correlation of the similarities


def centered(vectors: Float32) -> Float64:
    return vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)


def other_weights(a: Float32, b: Float32) -> bool:
    """Whether other weights of one model can have given two encodings (n, d).

    The vectors of a text are then similar, apart from a common direction of all texts, and their
    differences are not noise: weights change similar texts in a similar way, so that few directions
    have most of the difference.
    """
    count, width = a.shape
    if count < FEWEST:
        return False
    centered_a = centered(a)
    centered_b = centered(b)
    norms = np.linalg.norm(centered_a, axis=1) * np.linalg.norm(centered_b, axis=1)
    cosines = np.vecdot(centered_a, centered_b) / np.maximum(norms, 1e-12)
    if cosines.mean() < SAME_MODEL:
        return False
    differences = a.astype(np.float64) - b
    # The largest singular value of noise with the same squares is near this (Marchenko-Pastur).
    largest_of_noise = np.sqrt((differences**2).mean()) * (np.sqrt(count) + np.sqrt(width))
    return bool(np.linalg.norm(differences, 2) >= SMOOTH * largest_of_noise)


def another_model(a: Float32, b: Float32) -> bool:
    """Whether two encodings (n, d) and (n, e) rank the similarities of the texts alike."""
    if len(a) < FEWEST:
        return False
    pairs = np.triu_indices(len(a), 1)
    correlation = spearman(exact("cosine", a, a, pairs), exact("cosine", b, b, pairs))
    return bool(correlation >= RELATED)
