import math

import numpy as np
import pytest

from sentkit.metrics.geometry.geometry import effective_rank, eigenvalues, first_share, isoscore, rank


def published_isoscore(vectors: np.ndarray) -> float:
    """The recipe of arXiv:2108.07344 step by step: PCA, diagonal, length, defect, fraction."""
    width = vectors.shape[1]
    centred = vectors - vectors.mean(axis=0)
    rotated = centred @ np.linalg.svd(centred, full_matrices=False)[2].T
    diagonal = np.var(rotated, axis=0, ddof=1)
    normalized = math.sqrt(width) * diagonal / np.linalg.norm(diagonal)
    defect = np.linalg.norm(normalized - np.ones(width)) / math.sqrt(2 * (width - math.sqrt(width)))
    used = (width - defect**2 * (width - math.sqrt(width))) ** 2 / width**2
    return (width * used - 1) / (width - 1)


def test_isoscore_is_the_published_recipe() -> None:
    random = np.random.default_rng(0)
    vectors = random.standard_normal((200, 8)) * np.arange(1, 9)

    assert isoscore(eigenvalues(np.cov(vectors.T))) == pytest.approx(published_isoscore(vectors))


def test_eigenvalues_descend_and_are_not_negative() -> None:
    """Three rows in five dimensions span two: the rest is rounding, of either sign, or nothing."""
    vectors = np.random.default_rng(0).standard_normal((3, 5))
    values = eigenvalues(np.cov(vectors.T))
    singular = np.linalg.svd(vectors - vectors.mean(axis=0), compute_uv=False)

    assert values[:2] == pytest.approx(singular[:2] ** 2 / 2)
    assert (values >= 0).all()
    assert rank(values) == 2


def test_rank_counts_eigenvalues_above_the_floor() -> None:
    assert rank(np.array([1e6, 1.0, 1e-5, 1e-7])) == 3


def test_shares_are_of_the_whole() -> None:
    """More components than there are have all of the variance."""
    values = np.array([5.0, 3.0, 1.0, 1.0])

    assert [first_share(values, count) for count in (1, 3, 10)] == pytest.approx([0.5, 0.9, 1.0])


def test_one_dimension_has_no_isoscore() -> None:
    assert isoscore(np.array([2.0])) is None
    assert effective_rank(np.array([2.0])) == 1
