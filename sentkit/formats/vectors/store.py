"""Read a vector file, or all blocks of a vector folder as one file; select stored vectors without a copy.

A command opens each of them once, through `Inputs.vector_file`, so all reads see the same blocks.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import cache, lru_cache
from itertools import accumulate, chain
from pathlib import Path
from shlex import quote
from tempfile import gettempdir
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentkit.errors import DataError, UsageError
from sentkit.formats.files import is_safetensors, open_file
from sentkit.formats.outputs.temporary import open_side_file
from sentkit.formats.rows.block import Row, RowBlock
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.fingerprint import digest
from sentkit.formats.vectors.folders import VectorFolder, find_folder
from sentkit.formats.vectors.tensors import ONE, Storage
from sentkit.formats.vectors.vector_file import RECORDED_FIELDS, VectorFile


class Store:
    """A vector file, or the blocks of a vector folder as one file, for reading."""

    def __init__(self, path: str, folder: VectorFolder | None = None) -> None:
        """`folder` is the vector folder at `path`; None for a file."""
        self.path = path
        self.folder = folder
        self.files = [VectorFile(path)] if folder is None else files_of(folder)
        first = next((file for file in self.files if file.count), self.files[0])
        self.spec, self.emb, self.fields = first.spec, first.emb, first.fields
        self.kind = first.storage.kind
        self.names, self.width = first.names, first.width
        self.starts = [0, *accumulate(file.count for file in self.files)]
        self.before, self.count = 0, self.starts[-1]  # rows of the folder before these files, and of them
        self.digest = ""  # of all blocks, if only a part of them is kept
        self.row_reader = lru_cache(OPEN_MAPS)(VectorFile.row_reader)
        for file, start in zip(self.files, self.starts, strict=False):
            file.refuse_difference(first)
            file.before = start

    def part(self, number: int, count: int) -> "Store":
        """Consecutive blocks, part `number` of `count`. The rows keep their numbers."""
        first, last = ((k * len(self.files)) // count for k in (number - 1, number))
        if first == last:
            problem = f"part {number} of {count}: {self.path} has {len(self.files)} blocks"
            raise UsageError(problem, advice="use at most as many parts as blocks")
        part = copy(self)
        part.digest = digest([[file.header.metadata, file.count] for file in self.files])
        part.before = self.starts[first]
        part.starts = [start - part.before for start in self.starts[first : last + 1]]
        part.files = self.files[first:last]
        part.count = part.starts[-1]
        return part

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """The vectors without rows, in arrays of (up to BLOCK, k, d)."""
        return chain.from_iterable(file.blocks() for file in self.files)

    def vectors(self) -> "Vectors":
        """All vectors (n, k, d), memory-mapped and decoded when rows are selected."""
        files = [file for file in self.files if file.count]
        if len(files) < 2 and self.kind == "float32":
            return self.mapped()
        return StoredVectors(files or self.files)

    def mapped(self) -> NDArray[np.float32]:
        """All vectors (n, k, d) as float32, memory-mapped."""
        shape = self.count, len(self.names), self.width
        if not self.count:
            return np.empty(shape, np.float32)
        if len(self.files) == 1 and self.kind == "float32":
            return self.files[0].codes()
        with open_side_file(Path(gettempdir()), gettempdir()) as file:
            for block in self.blocks():
                file.write(np.ascontiguousarray(block, "<f4").data)
            file.flush()
            return np.memmap(file, "<f4", "c", 0, shape).view(np.ndarray)

    def row(self, place: int) -> Row:
        """The row at a place, counted from 0, without its vectors."""
        file = bisect_right(self.starts, place) - 1
        return self.row_reader(self.files[file])(place - self.starts[file])

    def row_blocks(self) -> Iterator[RowBlock]:
        """The rows without their vectors, which are not read."""
        return chain.from_iterable(file.row_blocks() for file in self.files)

    def row_blocks_with_vectors(self, *, verify: bool) -> Iterator[tuple[RowBlock, NDArray[np.float32]]]:
        """The rows with their vectors (n, k, d). With `verify`, the digest of each file is checked before."""
        for file in self.files:
            if verify:
                file.verify()
            with open_file(file.path) as vectors:
                vectors.seek(file.header.entries["embeddings"].start)
                for block in file.row_blocks():
                    yield block, file.next_vectors(vectors, len(block))


def files_of(folder: VectorFolder) -> list[VectorFile]:
    """The blocks of a vector folder in input order. A folder with missing blocks is an error."""
    status = folder.status()
    if not status.complete:
        count = "an unknown number" if status.unknown else len(status.missing)
        problem = f"an incomplete vector folder, missing blocks: {count}"
        path = quote(folder.path.rstrip("/"))
        advice = f"encode --resume writes them; the complete blocks are {path}/*.safetensors"
        raise DataError(problem, source=folder.path, advice=advice)
    return list(map(folder.opened, status.done))


def open_store(path: str) -> Store | None:
    """Open a vector file or a vector folder; None for other files."""
    folder = find_folder(path)
    return Store(path, folder) if folder is not None or is_safetensors(path) else None


def open_inputs(paths: Sequence[str], **options: Any) -> Inputs:
    """The rows of files, which can be vector files or folders."""
    return Inputs(paths, vector_file=cache(open_store), **options)


def encoded_files(inputs: Inputs) -> set[str]:
    """The vector files and folders among the inputs that name the space of their vectors."""
    stores = map(inputs.vector_file, inputs.paths)
    return {store.path for store in stores if store is not None and store.emb}


def recorded_fields(fields: Mapping[str, str]) -> dict[str, str]:
    """The part of a field mapping that a vector file records. Vectors always have their standard names."""
    return {
        ours: theirs for ours, theirs in sorted(fields.items()) if ours in RECORDED_FIELDS and theirs != ours
    }


def fields_of(inputs: Inputs, path: str) -> dict[str, str]:
    """Standard name -> name in the rows of one file. --field overrides the record of a vector file."""
    store = inputs.vector_file(path)
    recorded = {} if store is None else store.fields
    return {**recorded, **inputs.fields}


def common_fields(inputs: Inputs) -> dict[str, str]:
    """The field mapping of all files of a command; a DataError if they differ."""
    first, *others = ((path, fields_of(inputs, path)) for path in inputs.paths)
    for path, fields in others:
        for ours in RECORDED_FIELDS:
            one, other = fields.get(ours, ours), first[1].get(ours, ours)
            if one != other:
                problem = (
                    f'"{ours}" is read from the field "{one}", but in {first[0]} from the field "{other}"'
                )
                advice = f"to use one field for all files, add --field {quote(f'{ours}={other}')}"
                raise DataError(problem, source=path, advice=advice)
    return first[1]


OPEN_MAPS = 32  # files of a vector folder that are memory-mapped at a time


class StoredVectors:
    """The vectors of one or more files, (n, ..., d), decoded to float32 when rows are selected."""

    def __init__(
        self,
        parts: Sequence[VectorFile],
        select: Callable[[NDArray[Any]], NDArray[Any]] = lambda codes: codes,
        per_row: int = 1,
    ) -> None:
        """`select` changes the codes (count, k, columns) of a file to (count * per_row, ..., columns)."""
        self.parts = parts
        self.starts = np.cumsum([0, *(part.count * per_row for part in parts)])
        self.codes_of = lru_cache(OPEN_MAPS)(lambda number: select(parts[number].codes()))
        self.kind = parts[0].storage.kind
        self.shape = int(self.starts[-1]), *self.codes_of(0).shape[1:-1], parts[0].storage.width

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | NDArray[np.intp]) -> NDArray[np.float32]:
        if isinstance(rows, slice):
            return joined(storage.decode(codes) for codes, storage in self.pieces(rows))
        vectors = np.empty((len(rows), *self.shape[1:]), np.float32)
        owner = np.searchsorted(self.starts, rows, side="right") - 1
        for number in np.unique(owner).tolist():
            own = owner == number
            codes, storage = self.codes_of(number), self.parts[number].storage
            vectors[own] = storage.decode(codes[rows[own] - self.starts[number]])
        return vectors

    def codes(self, rows: slice) -> NDArray[Any]:
        """The codes of a span of rows, (n', ..., columns)."""
        return joined(codes for codes, _ in self.pieces(rows))

    def unscaled(self, rows: slice) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Numbers and factors as in `Storage.unscaled`; several files of int8 have several factors."""
        if self.kind == "int8" and len(self.parts) > 1:
            return self[rows], ONE
        return self.parts[0].storage.unscaled(self.codes(rows))

    def pieces(self, rows: slice) -> Iterator[tuple[NDArray[Any], Storage]]:
        """The codes of a span of rows, and how they are stored, from one file after the other."""
        start, stop, _ = rows.indices(len(self))
        first = min(int(np.searchsorted(self.starts, start, side="right")), len(self.parts)) - 1
        last = max(int(np.searchsorted(self.starts, stop, side="left")), first + 1)
        for number in range(first, last):
            begin = int(self.starts[number])
            codes = self.codes_of(number)[max(0, start - begin) : max(0, stop - begin)]
            yield codes, self.parts[number].storage


def joined(parts: Iterator[NDArray[Any]]) -> NDArray[Any]:
    """One array. Each part is copied before the next one is mapped."""
    first, *others = (part if not number else part.copy() for number, part in enumerate(parts))
    return np.concatenate([first, *others]) if others else first


Vectors = NDArray[np.float32] | StoredVectors


ZERO_ROWS = 4096  # rows that are compared with zero at a time


FEWEST_SIGNS = 64  # numbers of a vector that surely has one above zero


class SelectedVectors:
    """The vectors (n, d) at some places, in order, without a copy of all of them."""

    def __init__(self, vectors: Vectors, places: NDArray[np.intp]) -> None:
        self.vectors, self.places = vectors, places
        self.shape = len(places), vectors.shape[1]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, rows: slice | NDArray[np.intp], /) -> NDArray[np.float32]:
        return self.vectors[self.places[rows]]

    def codes(self, rows: slice) -> NDArray[Any]:
        """The codes of a span of rows, as of `StoredVectors`."""
        assert isinstance(self.vectors, StoredVectors), "only stored vectors have codes"
        places = self.places[rows]
        start = places[0] if len(places) else 0
        return self.vectors.codes(slice(start, places[-1] + 1 if len(places) else 0))[places - start]


def places_of_texts(vectors: Vectors) -> NDArray[np.intp] | None:
    """The places of the vectors (n, d) that are not zero, as those of texts without tokens; None for all.

    Sign bits have no zero: there, all numbers of such a vector are negative.
    """
    codes = vectors.codes if isinstance(vectors, StoredVectors) else vectors.__getitem__
    if getattr(vectors, "kind", None) == "binary" and vectors.shape[1] < FEWEST_SIGNS:
        return None
    zero = np.zeros(len(vectors), bool)
    for start in range(0, len(vectors), ZERO_ROWS):
        span = slice(start, start + ZERO_ROWS)
        block = codes(span)
        maybe = np.flatnonzero(block[:, 0] == 0)  # of most rows, one number is enough
        zero[start + maybe] = ~block[maybe].any(axis=1)
    return np.flatnonzero(~zero) if zero.any() else None


def first_vectors(vectors: Vectors) -> Vectors:
    """The first vector of each row, (n, k, d) -> (n, d)."""
    if isinstance(vectors, StoredVectors):
        return StoredVectors(vectors.parts, lambda codes: codes[:, 0])
    return vectors[:, 0]


def every_vector(vectors: Vectors) -> Vectors:
    """All vectors of all rows, (n, k, d) -> (n * k, d)."""
    if isinstance(vectors, StoredVectors):
        k = vectors.shape[1]
        return StoredVectors(vectors.parts, lambda codes: codes.reshape(-1, codes.shape[-1]), k)
    return vectors.reshape(-1, vectors.shape[-1])


def common_spec(inputs: Inputs, kind: str | None = None) -> dict[str, Any]:
    """The part of the spec that is equal in all input files. Empty if one input is not a vector file.

    "rounded" has the kind of an input whose numbers an output of this kind stores in another form.
    """
    stores = [inputs.vector_file(path) for path in inputs.paths]
    if None in stores:
        return {}
    first, *others = (store.spec for store in stores)
    common = {n: value for n, value in first.items() if all(other.get(n) == value for other in others)}
    common.pop("fields", None)
    common.pop("rounded", None)
    kinds = {store.kind for store in stores} | {str(store.spec.get("rounded")) for store in stores}
    rounded = kinds & {"float16", "int8"} - {kind}
    return {**common, "rounded": min(rounded)} if rounded else common


def with_fields(spec: Mapping[str, Any], inputs: Inputs) -> dict[str, Any]:
    """The spec with the recorded field names of the inputs, which must agree."""
    fields = recorded_fields(common_fields(inputs))
    return {**spec, "fields": fields} if fields else dict(spec)
