"""Rows with vectors that can be read in any order: those of a vector file stay in the file."""

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from sentkit.errors import DataError
from sentkit.formats.rows.lines import json_object
from sentkit.formats.rows.rows import Inputs, Row
from sentkit.formats.vectors.storage import FLOATS, Vectors
from sentkit.formats.vectors.store import Store, is_store
from sentkit.formats.vectors.vectors import (
    VectorReader,
    VectorRow,
    check_finite,
    refuse_renamed_vectors,
    without_vectors,
)

CHECKED = 4096  # vectors of a file that are checked at a time


@dataclass(frozen=True, slots=True)
class VectorTable:
    path: str
    vectors: Vectors  # (n, k, d), memory-mapped if they are in a vector file
    names: tuple[str, ...]  # names of the k vector fields
    emb: str | None
    row: Callable[[int], Row]  # the row at a place, counted from 0, without its vectors
    store: Store | None = None

    def __len__(self) -> int:
        return len(self.vectors)


def read_table(inputs: Inputs, check: Callable[[VectorRow], object]) -> VectorTable:
    """Read one file. `check` gets the rows that must be parsed: all, but of a vector file only the first."""
    path = inputs.paths[0]
    table = stored(inputs, path, check) if is_store(path) else parsed(inputs, path, check)
    if not len(table):
        raise DataError("no rows", source=path)
    return table


def stored(inputs: Inputs, path: str, check: Callable[[VectorRow], object]) -> VectorTable:
    refuse_renamed_vectors(inputs, path)
    store = Store(path)
    vectors = store.vectors()
    names = tuple(inputs.fields.get(name, name) for name in store.names)
    if len(vectors):
        check(VectorRow(store.row(0), vectors[:1][0], names))
    for start in range(0, len(vectors) if store.kind in FLOATS else 0, CHECKED):
        block = vectors[start : start + CHECKED]
        if not np.isfinite(block).all():
            place = start + int(np.flatnonzero(~np.isfinite(block).all(axis=(1, 2)))[0])
            check_finite(store.row(place), block[place - start])
    return VectorTable(path, vectors, names, store.emb, store.row, store)


def parsed(inputs: Inputs, path: str, check: Callable[[VectorRow], object]) -> VectorTable:
    """Read the vectors and the bytes of the rows into memory, without an object for each row."""
    reader = VectorReader(inputs)
    vectors, lines, sizes, numbers = bytearray(), bytearray(), array("q"), array("q")

    def take(row: VectorRow) -> VectorRow:
        check(row)
        return row

    for row in reader.read(take):
        vectors += row.vectors.tobytes()
        line = without_vectors(row.row, row.names).line
        lines += line
        sizes.append(len(line))
        numbers.append(row.row.number)
    starts = array("q", accumulate(sizes, initial=0))

    def row_at(place: int) -> Row:
        line, values = json_object(bytes(lines[starts[place] : starts[place + 1]]))
        return Row(line, values, path, numbers[place])

    shape = len(sizes), len(reader.names) or 1, reader.width or 1
    return VectorTable(path, np.frombuffer(vectors, "<f4").reshape(shape), reader.theirs, reader.emb, row_at)
