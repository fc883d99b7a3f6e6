"""Select vectors of vector files without a copy of all of them."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentkit.formats.vectors.tensors import FEWEST_SIGNS, ONE, Storage
from sentkit.formats.vectors.vector_file import VectorFile, VectorSource

OPEN_MAPS = 32  # files of a vector folder that are memory-mapped at a time
ZERO_ROWS = 4096  # rows that are compared with zero at a time


class StoredVectors:
    """The vectors of one or more files, (n, ..., d), decoded to float32 when rows are selected."""

    def __init__(
        self,
        files: Sequence[VectorFile],
        select: Callable[[NDArray[Any]], NDArray[Any]] = lambda codes: codes,
        per_row: int = 1,
    ) -> None:
        """`select` changes the codes (count, k, columns) of a file to (count * per_row, ...,
        columns).
        """
        self.files = files
        # of each file; the end
        self.starts = np.cumsum([0, *(file.count * per_row for file in files)])
        self.codes_of_file = lru_cache(OPEN_MAPS)(lambda number: select(files[number].codes()))
        self.kind = files[0].storage.kind
        self.shape = (
            int(self.starts[-1]),
            *self.codes_of_file(0).shape[1:-1],
            files[0].storage.width,
        )

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | NDArray[np.intp]) -> NDArray[np.float32]:
        if isinstance(rows, slice):
            return concatenated(storage.decode(codes) for codes, storage in self.pieces(rows))
        vectors = np.empty((len(rows), *self.shape[1:]), np.float32)
        file_numbers = np.searchsorted(self.starts, rows, side="right") - 1
        for number in np.unique(file_numbers).tolist():
            of_file = file_numbers == number
            rows_of_file = rows[of_file] - self.starts[number]
            codes = self.codes_of_file(number)[rows_of_file]
            vectors[of_file] = self.files[number].storage.decode(codes)
        return vectors

    def codes(self, rows: slice) -> NDArray[Any]:
        """The codes of a span of rows, (n', ..., columns)."""
        return concatenated(codes for codes, _ in self.pieces(rows))

    def unscaled(self, rows: slice) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Numbers and factors as in `Storage.unscaled`; several files of int8 have several
        factors.
        """
        if self.kind == "int8" and len(self.files) > 1:
            return self[rows], ONE
        return self.files[0].storage.unscaled(self.codes(rows))

    def pieces(self, rows: slice) -> Iterator[tuple[NDArray[Any], Storage]]:
        """The codes of a span of rows, and how they are stored, from one file after the other."""
        start, stop, _ = rows.indices(len(self))
        first = min(int(np.searchsorted(self.starts, start, side="right")), len(self.files)) - 1
        last = max(int(np.searchsorted(self.starts, stop, side="left")), first + 1)
        for number in range(first, last):
            file_start = int(self.starts[number])
            codes = self.codes_of_file(number)[
                max(0, start - file_start) : max(0, stop - file_start)
            ]
            yield codes, self.files[number].storage


def concatenated(arrays: Iterator[NDArray[Any]]) -> NDArray[Any]:
    """One array. Each of several arrays is copied before the next one is mapped."""
    first = next(arrays)
    copies = [array.copy() for array in arrays]
    if not copies:
        return first
    return np.concatenate([first, *copies])


Vectors = NDArray[np.float32] | StoredVectors


def array_of(source: VectorSource) -> Vectors:
    """All vectors (n, k, d), memory-mapped and decoded when rows are selected."""
    files = [file for file in source.files if file.count]
    if len(files) < 2 and source.kind == "float32":
        return source.memory_mapped()
    return StoredVectors(files or source.files)


class SelectedVectors:
    """The vectors (n, d) at some indices, in order, without a copy of all of them."""

    def __init__(self, vectors: Vectors, indices: NDArray[np.intp]) -> None:
        self.vectors = vectors
        self.indices = indices
        self.shape = len(indices), vectors.shape[1]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, rows: slice | NDArray[np.intp], /) -> NDArray[np.float32]:
        return self.vectors[self.indices[rows]]

    def codes(self, rows: slice) -> NDArray[Any]:
        """The codes of a span of rows, as of `StoredVectors`."""
        assert isinstance(self.vectors, StoredVectors), "only stored vectors have codes"
        indices = self.indices[rows]
        if not len(indices):
            return self.vectors.codes(slice(0, 0))[indices]
        start = indices[0]
        return self.vectors.codes(slice(start, indices[-1] + 1))[indices - start]


def places_of_texts(vectors: Vectors) -> NDArray[np.intp] | None:
    """The indices of the vectors (n, d) that are not zero, as those of texts without tokens; None
    for all.

    Sign bits have no zero: there, all numbers of such a vector are negative.
    """
    codes_of = vectors.codes if isinstance(vectors, StoredVectors) else vectors.__getitem__
    if getattr(vectors, "kind", None) == "binary" and vectors.shape[1] < FEWEST_SIGNS:
        return None
    is_zero = np.zeros(len(vectors), bool)
    for start in range(0, len(vectors), ZERO_ROWS):
        codes = codes_of(slice(start, start + ZERO_ROWS))
        candidates = np.flatnonzero(codes[:, 0] == 0)  # of most rows, one number is enough
        is_zero[start + candidates] = ~codes[candidates].any(axis=1)
    if not is_zero.any():
        return None
    return np.flatnonzero(~is_zero)


def first_vectors(vectors: Vectors) -> Vectors:
    """The first vector of each row, (n, k, d) -> (n, d)."""
    if isinstance(vectors, StoredVectors):
        return StoredVectors(vectors.files, lambda codes: codes[:, 0])
    return vectors[:, 0]


def every_vector(vectors: Vectors) -> Vectors:
    """All vectors of all rows, (n, k, d) -> (n * k, d)."""
    if isinstance(vectors, StoredVectors):
        k = vectors.shape[1]
        return StoredVectors(vectors.files, lambda codes: codes.reshape(-1, codes.shape[-1]), k)
    return vectors.reshape(-1, vectors.shape[-1])
