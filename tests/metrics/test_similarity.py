import math

import numpy as np
import pytest

from sentkit.metrics.similarity import BLOCKS, SIMILARITIES
from support import BY_HAND, dot, normal_rows

SHAPES = [(0, 3), (1, 1), (2, 5), (7, 33), (70, 1000)]  # the last one is more than a chunk


def pairwise(metric, rows_a, rows_b):
    blocks = BLOCKS[metric]
    return blocks.compare(blocks.prepare(rows_a), blocks.prepare(rows_b))


def by_loop(metric, row_a, row_b):
    a = row_a.tolist()
    b = row_b.tolist()
    if metric != "cosine":
        return BY_HAND[metric](a, b)
    lengths = [max(math.sqrt(dot(side, side)), 1e-8) for side in (a, b)]
    return dot(a, b) / (lengths[0] * lengths[1])


@pytest.mark.parametrize("metric", SIMILARITIES)
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_agree_with_a_loop(metric, shape):
    rows_a = normal_rows(*shape)
    rows_b = normal_rows(*shape, seed=1)

    similarities = SIMILARITIES[metric](rows_a, rows_b)

    assert similarities.dtype == np.float64
    assert similarities == pytest.approx(
        [by_loop(metric, a, b) for a, b in zip(rows_a, rows_b, strict=True)], rel=1e-12
    )


@pytest.mark.parametrize("metric", SIMILARITIES)
@pytest.mark.parametrize("shape", SHAPES)
def test_blocks_agree_with_a_loop(metric, shape):
    rows_a = normal_rows(*shape)
    rows_b = normal_rows(9, shape[1], seed=1)

    similarities = pairwise(metric, rows_a, rows_b)

    expected = np.array([[by_loop(metric, a, b) for b in rows_b] for a in rows_a]).reshape(
        shape[0], 9
    )
    assert similarities.dtype == np.float32
    # A sum of d products in float32, in any order, differs by at most d * 2**-24 of the sum of
    # their sizes. Rounding of the inputs (cosine) and of the result adds three more.
    sizes = np.abs(rows_a.astype(np.float64)) @ np.abs(rows_b.astype(np.float64)).T
    if metric == "cosine":
        lengths = [np.linalg.norm(side.astype(np.float64), axis=1) for side in (rows_a, rows_b)]
        sizes /= np.maximum(np.outer(*lengths), 1e-30)
    rounding = (shape[1] + 3) * 2.0**-24
    assert (
        np.abs(similarities - expected) <= 1.01 * rounding * np.maximum(sizes, np.abs(expected))
    ).all()


@pytest.mark.parametrize("metric", SIMILARITIES)
def test_a_row_is_the_same_anywhere(metric):
    rows_a = normal_rows(300, 37)
    rows_b = normal_rows(300, 37, seed=1)
    together = SIMILARITIES[metric](rows_a, rows_b)

    alone = [SIMILARITIES[metric](rows_a[k : k + 1], rows_b[k : k + 1])[0] for k in range(300)]

    assert together.tolist() == alone
    assert SIMILARITIES[metric](rows_b, rows_a).tolist() == alone


@pytest.mark.parametrize("metric", ["cosine", "euclidean", "manhattan"])
def test_equal_rows_are_most_alike(metric):
    """A row and itself have cosine 1 and distance 0, exactly, without a sign on the zero."""
    rows = normal_rows(200, 77)

    similarities = SIMILARITIES[metric](rows, rows.copy())

    assert similarities.tolist() == [1.0 if metric == "cosine" else 0.0] * 200
    assert not np.signbit(similarities).any()


def test_cosine_counts_a_row_of_zeros_or_a_tiny_row_as_longer():
    """A norm below 1e-8 counts as 1e-8: 1e-9 against 1 gives a tenth, and 0 gives 0."""
    short = np.array([[0.0], [1e-9]], np.float32)
    one = np.ones((2, 1), np.float32)

    assert SIMILARITIES["cosine"](short, one) == pytest.approx([0, 0.1], rel=1e-6)
    assert pairwise("cosine", short, one[:1]) == pytest.approx(np.array([[0], [0.1]]), rel=1e-6)
    assert pairwise("cosine", short[:1], short[:1]).tolist() == [[0.0]]


def test_cosine_stays_within_its_bounds():
    rows = np.repeat(normal_rows(50, 100), 2, axis=0)

    assert pairwise("cosine", rows, rows).max() <= 1.0
    assert SIMILARITIES["cosine"](rows, rows * np.float32(3.0)).max() <= 1.0


def test_small_distances_between_long_rows_survive():
    rows = np.array([[1000.0, 0.0, 0.0], [1000.0, 0.01, 0.0]], np.float32)

    similarities = pairwise("euclidean", rows, rows)

    assert similarities == pytest.approx(np.array([[0.0, -0.01], [-0.01, 0.0]]), abs=1e-4)
