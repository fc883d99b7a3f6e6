"""Vectors that repeat those of a few rows are no other order of the rows, and no other model."""

import numpy as np
import pytest

from sentkit.metrics.comparison import differences
from sentkit.metrics.comparison.differences import find_row_order, neighbours
from sentkit.metrics.comparison.matches import Matches
from sentkit.metrics.similarity import exact_similarities
from sentkit.reports.other_weights import another_model

ROWS = 96  # a multiple of each batch


def vectors():
    return np.random.default_rng(0).standard_normal((ROWS, 16)).astype(np.float32)


def of_first_row(batch):
    """For each row, the first row of its batch."""
    return np.arange(ROWS) // batch * batch


def order(a, b):
    labels = np.array([{"row": row} for row in range(1, ROWS + 1)], object)
    return find_row_order(Matches(labels, a, b), ROWS)


@pytest.mark.parametrize("batch", [2, 3, 8, 48])
def test_the_vectors_of_the_first_rows_of_batches_are_no_order(batch):
    b = vectors()
    assert order(b[of_first_row(batch)], b) is None


def test_an_order_of_most_rows_is_found():
    """The rows are shifted by one, and every twentieth one is a repetition of the row above it."""
    b = vectors()
    rows = np.roll(np.arange(ROWS), 1)
    rows[20::20] = rows[19:-1:20]
    assert order(b[rows], b).kind == "shifted"


@pytest.mark.parametrize("batch", [1, 8, 48, ROWS])
def test_equal_rows_are_compared_only_as_often_as_they_can_be_neighbours(batch, monkeypatch):
    """The nearest rows are those of all pairs, ties in the order of the rows."""
    compared = []

    class CountingSearcher(differences.Searcher):
        def __init__(self, corpus):
            compared.append(len(corpus))
            super().__init__(corpus)

    monkeypatch.setattr(differences, "Searcher", CountingSearcher)
    repeated = vectors()[of_first_row(batch)]
    rows, cosines = neighbours(repeated, 3)
    expected = exact_similarities(
        "cosine", repeated, repeated, np.indices((ROWS, ROWS)).reshape(2, -1)
    )
    expected = expected.reshape(ROWS, ROWS)
    for row in range(ROWS):
        others = np.delete(np.arange(ROWS), row)
        order = np.argsort(-expected[row, others], kind="stable")[:3]
        assert rows[row].tolist() == others[order].tolist()
        assert cosines[row].tolist() == expected[row, others[order]].tolist()

    assert compared == [ROWS // batch * min(batch, 4)]


@pytest.mark.parametrize("batch", [2, 3, 8, 48])
def test_vectors_that_mostly_repeat_others_are_not_of_another_model(batch):
    """Rows of one batch are similar, so that the vectors of the first rows rank texts alike."""
    b = vectors() + 2 * vectors()[::-1][of_first_row(batch)]
    rotation, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((16, 16)))
    rotated = (b @ rotation).astype(np.float32)
    assert another_model(rotated, b)
    assert not another_model(rotated[of_first_row(batch)], b)
