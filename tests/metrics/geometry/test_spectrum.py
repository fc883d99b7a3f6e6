import math

import numpy as np
import pytest

from sentkit.metrics.geometry.geometry import effective_rank, eigenvalues, first_share, isoscore, rank


@pytest.mark.parametrize(
    ("values", "score"),
    [
        ([3, 2, 1], (36 / 14 - 1) / 2),  # .785714
        ([4, 1], 25 / 17 - 1),  # .470588
        ([1, 1, 0], 0.5),
        ([1, 0, 0], 0.0),
        ([2, 2, 2, 2], 1.0),
    ],
)
def test_isoscore_is_that_of_the_formula(values: list[float], score: float) -> None:
    assert isoscore(np.array(values, float)) == pytest.approx(score)


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


def test_equal_eigenvalues_are_counted_by_the_effective_rank() -> None:
    """Of k equal ones it is k; of (2, 1, 1) the entropy is 1.5 bits."""
    assert effective_rank(np.array([5.0, 5.0, 5.0, 0.0])) == pytest.approx(3)
    assert effective_rank(np.array([2.0, 1.0, 1.0])) == pytest.approx(2**1.5)


def test_rank_counts_eigenvalues_above_the_floor() -> None:
    assert rank(np.array([1e6, 1.0, 1e-5, 1e-7])) == 3


def test_shares_are_of_the_whole() -> None:
    """More components than there are have all of the variance."""
    values = np.array([5.0, 3.0, 1.0, 1.0])

    assert [first_share(values, count) for count in (1, 3, 10)] == pytest.approx([0.5, 0.9, 1.0])


@pytest.mark.parametrize("values", [[], [0.0], [0.0, 0.0]])
def test_without_variance_nothing_is_defined(values: list[float]) -> None:
    given = np.array(values)

    assert (isoscore(given), effective_rank(given), first_share(given, 1), rank(given)) == (
        None,
        None,
        None,
        0,
    )


def test_one_dimension_has_no_isoscore() -> None:
    assert isoscore(np.array([2.0])) is None
    assert effective_rank(np.array([2.0])) == 1
