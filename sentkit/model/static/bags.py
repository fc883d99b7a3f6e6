"""Lists of places -> vectors: the rows of a table, reduced to one for each list; or the set itself."""

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
    """One (b, d) for each reduction of the rows that a text names; of a text that names none, zeros."""

    def __init__(self, table: Table, reductions: Sequence[str]) -> None:
        self.table, self.reductions = table, reductions
        self.width = table.rows.shape[1]

    @property
    def hash(self) -> str:
        return arrays_hash(self.table.arrays)

    def __call__(self, texts: Lists) -> list[Matrix]:
        return [self._reduced(texts, name) for name in self.reductions]

    def _reduced(self, texts: Lists, reduction: str) -> Matrix:
        """First words, then second ones, and so on: of each text in its order, whatever it is beside."""
        lengths = np.array([len(ids) for ids in texts])
        order = np.argsort(-lengths, kind="stable")  # so that those which go on stand first
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
    """A number for each word of the vocabulary: 1 where the text has it. Their cosine is that of the sets."""

    def __init__(self, places: Mapping[str, int]) -> None:
        self.width = max(1, len(places))
        self.columns = np.empty(len(places), np.int64)
        # In the order of the alphabet: one vocabulary is one space, in whatever order its words come.
        self.columns[[places[word] for word in sorted(places)]] = np.arange(len(places))
        self.hash = "sets"

    def __call__(self, texts: Lists) -> list[Matrix]:
        found = np.zeros((len(texts), self.width), np.float32)
        for row, ids in zip(found, texts, strict=True):
            row[self.columns[list(ids)]] = 1
        return [found]


def arrays_hash(arrays: Mapping[str, NDArray[np.generic]]) -> str:
    """32 hex digits: the same for the same numbers, however a file stored them."""
    whole = hashlib.blake2b(digest_size=16)
    for name, array in sorted(arrays.items()):
        whole.update(f"{name} {array.shape}\n".encode())
        whole.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return whole.hexdigest()
