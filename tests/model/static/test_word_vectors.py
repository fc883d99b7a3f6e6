"""Word tables and word sets give the vectors of a plain loop."""

import numpy as np
import pytest

from sentkit.formats.lexicons.model2vec import Table
from sentkit.model.static.models import WordSets, WordTable, arrays_hash
from sentkit.model.text.tokens import TokenBlock, Tokens

ROWS = np.random.default_rng(0).standard_normal((20, 6)).astype(np.float32)
TEXTS = [[3], [], [1, 1, 4], [19, *range(19)], [2, 0], [], [7] * 50]
PLACES = np.arange(30) % 20
WEIGHTS = np.linspace(0.5, 2, 30).astype(np.float32)


def block(texts):
    return TokenBlock.of([Tokens(ids, len(ids)) for ids in texts])


def looped(texts, table, reduction):
    """In float64, word by word."""
    found = np.zeros((len(texts), table.rows.shape[1]))
    for text, vector in zip(texts, found, strict=True):
        rows = []
        for token in text:
            row = table.rows[token if table.places is None else table.places[token]].astype(np.float64)
            rows.append(row if table.weights is None else row * float(table.weights[token]))
        if rows and reduction == "mean":
            vector[:] = sum(rows) / len(rows)
        elif rows:
            vector[:] = [max(column) for column in zip(*rows, strict=True)]
    return found


@pytest.mark.parametrize("reduction", ["mean", "max"])
@pytest.mark.parametrize(
    "table",
    [Table(ROWS), Table(ROWS, PLACES), Table(ROWS, None, WEIGHTS[:20]), Table(ROWS, PLACES, WEIGHTS)],
    ids=["rows", "mapping", "weights", "both"],
)
def test_texts_of_any_length_get_the_reduction_of_their_rows(table, reduction):
    """A text without words gets zeros, even for max, and even if no text of the batch has words."""
    (found,) = WordTable(table, [reduction])(block(TEXTS))

    assert found.dtype == np.float32
    assert found == pytest.approx(looped(TEXTS, table, reduction), abs=1e-6)
    assert np.array_equal(WordTable(table, [reduction])(block([[], []]))[0], np.zeros((2, 6)))


def test_an_empty_vocabulary_gives_one_column():
    assert WordSets({})(block([[]]))[0].tolist() == [[0]]


def test_the_hash_depends_on_names_shapes_and_values():
    same = arrays_hash({"b": PLACES, "a": ROWS})

    assert same == arrays_hash({"a": np.asfortranarray(ROWS), "b": PLACES})
    assert same != arrays_hash({"a": ROWS, "b": PLACES[::-1]})
    assert same != arrays_hash({"c": ROWS, "b": PLACES})
    assert same != arrays_hash({"a": ROWS.reshape(6, 20), "b": PLACES})
