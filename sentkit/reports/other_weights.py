"""Whether two encodings of the same texts are of one model with other weights, or of two models.

Axes: n texts, d the width.
"""

import numpy as np

from sentkit.arrays import Float32, Float64
from sentkit.metrics.similarity import exact_similarities
from sentkit.metrics.statistics import spearman

FEWEST = 8  # texts
SAME_MODEL = 0.6  # mean cosine of the centered vectors of a text
SMOOTH = 2.0  # largest singular value of the differences, by that of noise
ORDERS = 199  # of the texts, by chance; the observed correlation has to be above that of each


def centered(vectors: Float32) -> Float64:
    return vectors.astype(np.float64) - vectors.mean(axis=0, dtype=np.float64)


def keeps_directions(a: Float32, b: Float32) -> bool:
    """Whether the vectors of a text are similar, apart from a common direction of all texts."""
    centered_a = centered(a)
    centered_b = centered(b)
    norms = np.linalg.norm(centered_a, axis=1) * np.linalg.norm(centered_b, axis=1)
    cosines = np.vecdot(centered_a, centered_b) / np.maximum(norms, 1e-12)
    return bool(cosines.mean() >= SAME_MODEL)


def other_weights(a: Float32, b: Float32) -> bool:
    """Whether other weights of one model can have given two encodings (n, d).

    The vectors of a text are then similar, and their differences are not noise: weights change
    similar texts in a similar way, so that few directions have most of the difference.
    """
    count, width = a.shape
    if count < FEWEST or not keeps_directions(a, b):
        return False
    differences = a.astype(np.float64) - b
    # The largest singular value of noise with the same squares is near this (Marchenko-Pastur).
    largest_of_noise = np.sqrt((differences**2).mean()) * (np.sqrt(count) + np.sqrt(width))
    return bool(np.linalg.norm(differences, 2) >= SMOOTH * largest_of_noise)


def mostly_repeated(vectors: Float32) -> bool:
    """Whether most vectors are equal to one of another text."""
    _, counts = np.unique(vectors, axis=0, return_counts=True)
    return int(counts[counts > 1].sum()) > len(vectors) / 2


def another_model(a: Float32, b: Float32) -> bool:
    """Whether two encodings (n, d) and (n, e) rank the similarities of the texts alike.

    A Mantel test: noise has a correlation as high as this once in 200 times.
    """
    count = len(a)
    if count < FEWEST or keeps_directions(a, b) or mostly_repeated(a) or mostly_repeated(b):
        return False
    pairs = np.triu_indices(count, 1)
    similarities_a = exact_similarities("cosine", a, a, pairs)
    first, second = pairs
    matrix_b = np.zeros((count, count))
    matrix_b[pairs] = exact_similarities("cosine", b, b, pairs)
    matrix_b += matrix_b.T
    observed = spearman(similarities_a, matrix_b[pairs])
    if np.isnan(observed):  # equal similarities, as of one vector for all texts
        return False
    random = np.random.default_rng(0)
    for _ in range(ORDERS):
        order = random.permutation(count)
        if spearman(similarities_a, matrix_b[order[first], order[second]]) >= observed:
            return False
    return True
