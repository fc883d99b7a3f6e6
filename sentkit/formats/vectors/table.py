"""Rows with vectors that can be read in any order: those of a vector file stay in the file."""

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from shlex import quote
from typing import Protocol

import numpy as np

from sentkit.errors import NoRowsError, UsageError
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.lines import json_object
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.fingerprint import SIGN, edition_advice, short_label, space_of, target_space
from sentkit.formats.vectors.folders import is_vector_folder
from sentkit.formats.vectors.storage import FLOATS, StoredVectors, Vectors, finite_halves
from sentkit.formats.vectors.store import Store, fields_of, is_store
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
    names: tuple[str, ...]  # standard names of the k vector fields
    fields: Mapping[str, str]  # standard name -> name in these rows
    emb: str | None
    row: Callable[[int], Row]  # the row at a place, counted from 0, without its vectors
    numbers: Sequence[int]  # of the rows in the file, from 1
    origin: str | None = None  # how the vectors were encoded, if the file records it
    files: Sequence[str] = ()  # of the rows, if they are encoded from several files
    digest: str = ""  # of the whole folder, if these are the vectors of a part

    def __len__(self) -> int:
        return len(self.vectors)

    def check_space(self, other: VectorRow, emb: str | None, what: str, *, fits: bool = False) -> None:
        """Refuse vectors of another space, unless they were trained to match the space of this table.

        `fits` is true if the caller accepts this other space.
        """
        if emb is None or self.emb is None:
            fits = fits or emb == self.emb
        else:
            fits = fits or space_of(self.emb) in (space_of(emb), target_space(emb))
        if not fits:
            ours, theirs = short_label(emb), short_label(self.emb)
            problem = f"the vectors of the {what} are {ours}, the vectors of {self.path} are {theirs}"
            raise other.row.error(problem, advice=edition_advice(emb, self.emb) or self.origin)
        width, wanted = other.vectors.shape[1], self.vectors.shape[-1]
        if width != wanted:
            raise other.row.error(f"the {what} has {width} numbers, the vectors of {self.path} have {wanted}")


def read_table(
    inputs: Inputs, check: Callable[[VectorRow], object], part: tuple[int, int] | None = None
) -> VectorTable:
    """Read one file. `check` gets the rows that must be parsed: all, but of a vector file only the first.

    If bad rows are rejected, all rows of a vector file are parsed, too. `part` is the number of a part of a
    vector folder, and the number of parts.
    """
    path = inputs.paths[0]
    if part is not None and not is_vector_folder(path):
        problem = f"a part of {path}: it is not a vector folder"
        raise UsageError(problem, advice="use encode -o DIR/, which makes one")
    mapped = part is not None or (is_store(path) and not inputs.rejects.skip)
    return stored(inputs, path, check, part) if mapped else in_memory(inputs, VectorReader(inputs), check)


def stored(
    inputs: Inputs, path: str, check: Callable[[VectorRow], object], part: tuple[int, int] | None
) -> VectorTable:
    refuse_renamed_vectors(inputs, path)
    store = Store(path)
    if part is not None:
        store.keep_part(*part)
    vectors = store.vectors()
    if not len(vectors):
        raise NoRowsError([path])
    check(VectorRow(store.row(0), vectors[:1][0], store.names))
    for start in range(0, len(vectors) if store.kind in FLOATS else 0, CHECKED):
        span = slice(start, start + CHECKED)
        halves = vectors.codes(span) if isinstance(vectors, StoredVectors) else np.empty(0)
        if halves.dtype == np.float16 and finite_halves(halves):
            continue
        block = vectors[span]
        if not np.isfinite(block).all():
            place = start + int(np.flatnonzero(~np.isfinite(block).all(axis=(1, 2)))[0])
            check_finite(store.row(place), block[place - start])
    fields = fields_of(inputs, path)
    numbers = range(store.before + 1, store.before + len(vectors) + 1)
    row, origin = store.row, origin_of(store)
    return VectorTable(
        path, vectors, store.names, fields, store.emb, row, numbers, origin, digest=store.digest
    )


def origin_of(store: Store) -> str | None:
    """The flags of `encode` that made a vector file, for advice; steps have their label names."""
    if not isinstance(store.spec.get("model"), str):
        return None
    flags = [f"-m {quote(store.spec['model'])}"]
    if isinstance(store.spec.get("readout"), str):
        flags.append(f"--readout {quote(store.spec['readout'])}")
    steps = store.spec.get("steps")
    names = [str(step).rpartition(":")[0] for step in steps] if isinstance(steps, list) else []
    if names := [name for name in names if name != SIGN]:  # queries of a binary corpus are not binary
        flags.append("and the steps " + " ".join(names))
    return f"encode the queries with {' '.join(flags)}"


class VectorRows(Protocol):
    """Rows with vectors; the names of their vectors and `_emb` are known after the first row."""

    emb: str | None
    names: tuple[str, ...]

    def read(self, then: Callable[[VectorRow], VectorRow]) -> Iterator[VectorRow]: ...


def in_memory(
    inputs: Inputs, reader: VectorRows, check: Callable[[VectorRow], object], *, named: bool = False
) -> VectorTable:
    """Read the vectors and the bytes of the rows into memory, without an object for each row.

    `named`: with the file of each row.
    """
    vectors, lines, sizes, numbers = bytearray(), bytearray(), array("q"), array("q")
    files: list[str] = []
    path, width = inputs.paths[0], 1

    def take(row: VectorRow) -> VectorRow:
        check(row)
        return row

    for row in reader.read(take):
        vectors += row.vectors.tobytes()
        line = without_vectors(row.row, row.names).line
        lines += line
        sizes.append(len(line))
        numbers.append(row.row.number)
        width = row.vectors.shape[1]
        if named:
            files.append(row.row.source)
    if not sizes:
        raise NoRowsError(inputs.paths)
    starts = array("q", accumulate(sizes, initial=0))

    def row_at(place: int) -> Row:
        line, values = json_object(bytes(lines[starts[place] : starts[place + 1]]))
        return Row(line, values, files[place] if named else path, numbers[place])

    flat = np.frombuffer(vectors, "<f4").reshape(len(sizes), len(reader.names) or 1, width)
    fields = fields_of(inputs, path)
    return VectorTable(path, flat, reader.names, fields, reader.emb, row_at, numbers, files=files)
