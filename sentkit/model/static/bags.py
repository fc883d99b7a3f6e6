"""Converts lists of row indexes to vectors: reduced rows of a table, or an indicator vector of the set."""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from sentkit.formats.lexicons.model2vec import Table

Matrix = NDArray[np.float32]
Lists = Sequence[Sequence[int]]
REDUCTIONS: Mapping[str, np.ufunc] = {"mean": np.add, "max": np.maximum}


class Bag:
    """Reduces the table rows of each text to one (b, d) array per reduction. Empty lists give zeros."""

    def __init__(self, table: Table, reductions: Sequence[str]) -> None:
        self.table, self.reductions = table, reductions
        self.width = table.rows.shape[1]

    @property
    def hash(self) -> str:
        return arrays_hash(self.table.arrays)

    def __call__(self, texts: Lists) -> list[Matrix]:
        return [self._reduced(texts, name) for name in self.reductions]

    def _reduced(self, texts: Lists, reduction: str) -> Matrix:
        # The loop adds the first words of all texts, then the second words, and so on. The order of additions
        # within a text is fixed, so its vector does not depend on the batch.
        lengths = np.array([len(ids) for ids in texts])
        order = np.argsort(-lengths, kind="stable")  # longest first: texts with more words stay a prefix
        lengths = lengths[order]
        ids = np.fromiter(chain.from_iterable(texts[i] for i in order), np.int64, lengths.sum())
        starts, going = np.cumsum(lengths) - lengths, np.count_nonzero(lengths)
        join, found = REDUCTIONS[reduction], np.zeros((len(texts), self.width), np.float32)
        found[:going] = self._vectors(ids[starts[:going]])
        for place in range(1, lengths[0]):
            while lengths[going - 1] <= place:
                going -= 1
            join(found[:going], self._vectors(ids[starts[:going] + place]), out=found[:going])
        if reduction == "mean":
            found /= np.maximum(lengths, 1).astype(np.float32)[:, None]
        back = np.empty_like(found)
        back[order] = found
        return back

    def _vectors(self, ids: NDArray[np.int64]) -> Matrix:
        table = self.table
        rows = table.rows[ids if table.places is None else table.places[ids]]
        return rows if table.weights is None else rows * table.weights[ids, None]


class Sets:
    """Indicator vectors over the vocabulary. The cosine of two vectors is the cosine of the word sets."""

    def __init__(self, places: Mapping[str, int]) -> None:
        self.width = max(1, len(places))
        self.columns = np.empty(len(places), np.int64)
        # Columns are in alphabetical order, so that the space depends only on the vocabulary.
        self.columns[[places[word] for word in sorted(places)]] = np.arange(len(places))
        self.hash = "sets"

    def __call__(self, texts: Lists) -> list[Matrix]:
        found = np.zeros((len(texts), self.width), np.float32)
        for row, ids in zip(found, texts, strict=True):
            row[self.columns[list(ids)]] = 1
        return [found]


def arrays_hash(arrays: Mapping[str, NDArray[np.generic]]) -> str:
    """Return 32 hex digits that depend only on names, shapes and values, not on the file format."""
    whole = hashlib.blake2b(digest_size=16)
    for name, array in sorted(arrays.items()):
        whole.update(f"{name} {array.shape}\n".encode())
        whole.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return whole.hexdigest()
