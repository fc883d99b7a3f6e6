"""Read and write vector files: vectors and their rows in one safetensors file, in constant memory.

The tensors are `embeddings` (n, d), or (n, k, d) for pairs and triplets; `row_offsets` (n + 1,) int64; and
`rows` uint8, the JSONL lines. With int8 there is also `scales` (d,). The metadata key `sentkit` contains the
spec, the names of the k vectors, and the kind of storage if it is not float32.
"""

import io
import math
import os
import shutil
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryFile, gettempdir
from typing import Any, BinaryIO

import numpy as np
import orjson
from numpy.typing import NDArray

from sentkit.errors import DataError
from sentkit.formats.outputs.outputs import open_output
from sentkit.formats.outputs.temporary import NamedFile
from sentkit.formats.rows.rows import Inputs, Row
from sentkit.formats.vectors.fingerprint import spec_of_signs
from sentkit.formats.vectors.folders import SUFFIX, VectorFolder, digest_of, is_vector_folder
from sentkit.formats.vectors.safetensors_header import ITEM_SIZES, header_bytes
from sentkit.formats.vectors.storage import DTYPES, Storage, StoredVectors, Vectors, scales_of
from sentkit.formats.vectors.vector_file import RECORDED_FIELDS, VectorFile

ROWS_PER_PASS = 4096  # vectors of the second pass of int8


def is_store(path: str) -> bool:
    """Whether a path is a vector file or a vector folder."""
    return Path(path).suffix.lower() == SUFFIX or is_vector_folder(path)


class Store:
    """A vector file, or the blocks of a vector folder as one file, for reading."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_folder = is_vector_folder(path)
        paths = folder_blocks(path) if self.is_folder else [path]
        if not paths:
            raise DataError("no block is complete", source=path, advice=f"see: sentkit check {path}")
        self.files = [VectorFile(each) for each in paths]
        first = next((file for file in self.files if file.count), self.files[0])
        self.spec, self.emb, self.fields = first.spec, first.emb, first.fields
        self.kind = first.storage.kind
        self.names, self.width = first.names, first.width
        self.starts = [0, *accumulate(file.count for file in self.files)]
        self.count = self.starts[-1]
        for file in self.files:
            if file.count and (file.spec != first.spec or file.width != first.width):
                raise DataError(f"its space or fields differ from {first.path}", source=file.path)
            if file.storage.kind != self.kind:
                problem = f"its vectors are {file.storage.kind}, those of {first.path} are {self.kind}"
                raise DataError(problem, source=file.path)

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """The vectors without rows, in arrays of (up to BLOCK, k, d)."""
        for file in self.files:
            yield from file.blocks()

    def vectors(self) -> Vectors:
        """All vectors (n, k, d), memory-mapped and decoded when rows are selected."""
        files = [file for file in self.files if file.count]
        if len(files) < 2 and self.kind == "float32":
            return self.mapped()
        return StoredVectors([(file.codes(), file.storage) for file in files or self.files])

    def mapped(self) -> NDArray[np.float32]:
        """All vectors (n, k, d) as float32, memory-mapped.

        If the file has other numbers, or there are several files, a temporary file gets the vectors.
        """
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
        row = self.files[file].row(place - self.starts[file])
        if self.is_folder:
            row.source, row.number = self.path, place + 1
        return row

    def __iter__(self) -> Iterator[tuple[Row, NDArray[np.float32]]]:
        number = 0
        for file in self.files:
            for row, vectors in file:
                number += 1
                if self.is_folder:
                    row.source, row.number = self.path, number
                yield row, vectors


_snapshots: dict[str, list[str]] = {}  # the blocks that the current command reads, by folder


def folder_blocks(path: str) -> list[str]:
    """The blocks of a vector folder in input order, as of the last `take_snapshot`."""
    if path not in _snapshots:
        take_snapshot(path)
    return _snapshots[path]


def take_snapshot(path: str, *, partial: bool = False) -> None:
    """List the blocks of a vector folder. All reads of one command then see the same blocks.

    A folder with missing blocks is an error unless `partial` is true.
    """
    folder = VectorFolder(path)
    status = folder.status()
    if not status.complete and not partial:
        count = len(status.missing) + len(status.unknown)
        problem = f"an incomplete vector folder, missing blocks: {count}"
        advice = f"sentkit check {path} shows which; --partial reads the {len(status.done)} complete blocks"
        raise DataError(problem, source=path, advice=advice)
    _snapshots[path] = [folder.file(name) for name in status.done]


def rows_in(path: str) -> tuple[Iterator[Row], int] | None:
    """The rows of a vector file without their vectors, and their number; None for other files."""
    if not is_store(path):
        return None
    store = Store(path)
    return (row for row, _ in store), store.count


def recorded_fields(fields: Mapping[str, str]) -> dict[str, str]:
    """The part of a field mapping that a vector file records. Vectors always have their standard names."""
    return {
        ours: theirs for ours, theirs in sorted(fields.items()) if ours in RECORDED_FIELDS and theirs != ours
    }


def fields_of(inputs: Inputs, path: str) -> dict[str, str]:
    """Standard name -> name in the rows of one file. --field overrides the record of a vector file."""
    recorded = Store(path).fields if is_store(path) else {}
    return {**recorded, **inputs.fields}


def common_fields(inputs: Inputs) -> dict[str, str]:
    """The field mapping of all files of a command; a DataError if they differ."""
    first, *others = ((path, fields_of(inputs, path)) for path in inputs.paths)
    for path, fields in others:
        if recorded_fields(fields) != recorded_fields(first[1]):
            ours = next(
                name for name in RECORDED_FIELDS if fields.get(name, name) != first[1].get(name, name)
            )
            one, other = fields.get(ours, ours), first[1].get(ours, ours)
            raise DataError(
                f'"{ours}" is read from the field "{one}", but in {first[0]} from the field "{other}"',
                source=path,
                advice=f"to use one field for all files, add --field {ours}={other}",
            )
    return first[1]


class StoreWriter:
    """Writes a vector file row by row. Temporary files hold offsets and rows, and `finish` appends them.

    The scales of int8 depend on all rows, so a fourth file holds the vectors as float32 until then.
    """

    def __init__(
        self,
        files: Sequence[BinaryIO],
        spec: Mapping[str, Any],
        names: Sequence[str],
        width: int,
        record: Mapping[str, Any] | None = None,
        kind: str = "float32",
    ) -> None:
        self.file, self.offsets, self.rows = files[:3]
        self.vectors = files[-1] if kind == "int8" else self.file
        self.storage = Storage("float32" if kind == "int8" else kind, width)  # of the rows as they come
        self.largest = np.zeros(width, np.float32)  # magnitude of each dimension
        stored: dict[str, Any] = {} if kind == "float32" else {"store": kind}
        if kind == "binary":
            spec, stored = spec_of_signs(spec), {**stored, "width": width}
        self.metadata = {"sentkit": orjson.dumps({**spec, "vectors": list(names), **stored}).decode()}
        self.record = record  # of a block; the caller can replace it by a shorter one
        if record is not None:
            self.metadata |= {"block": orjson.dumps(record).decode(), "content": "0" * 64}
        self.kind, self.names, self.width, self.count, self.place = kind, names, width, 0, 0
        self.offsets.write(bytes(8))
        # Reserve space for the longest header. Some numbers of rows also need the padding entry.
        self.room = max(len(self._header(10**12 + more, 10**18)) for more in range(8))
        self.file.write(bytes(self.room))

    def write(self, line: bytes, vectors: NDArray[np.float32]) -> None:
        if self.kind == "int8":
            np.maximum(self.largest, np.abs(vectors).max(axis=0), out=self.largest)
        self.vectors.write(np.ascontiguousarray(self.storage.encode(vectors)).data)
        self.place += self.rows.write(line + b"\n")
        self.offsets.write(self.place.to_bytes(8, "little"))
        self.count += 1

    def _entries(self, count: int, rows: int) -> dict[str, tuple[str, tuple[int, ...], int, int]]:
        """The tensors in file order, as (type, shape, start, end)."""
        columns = Storage(self.kind, self.width).columns
        shape: tuple[int, ...] = (count, *([len(self.names)] if len(self.names) > 1 else []), columns)
        tensors: list[tuple[str, str, tuple[int, ...]]] = [("embeddings", DTYPES[self.kind], shape)]
        if self.kind == "int8":
            tensors.insert(0, ("scales", "F32", (self.width,)))
        size = sum(math.prod(shape) * ITEM_SIZES[dtype] for _, dtype, shape in tensors)
        if size % 8:  # torch needs int64 at a multiple of eight bytes
            tensors.append(("padding", "U8", (-size % 8,)))
        tensors += [("row_offsets", "I64", (count + 1,)), ("rows", "U8", (rows,))]
        entries: dict[str, tuple[str, tuple[int, ...], int, int]] = {}
        end = 0
        for name, dtype, shape in tensors:
            start, end = end, end + math.prod(shape) * ITEM_SIZES[dtype]
            entries[name] = dtype, shape, start, end
        return entries

    def _header(self, count: int, rows: int, room: int = 0) -> bytes:
        return header_bytes(self._entries(count, rows), self.metadata, room)

    def _write_int8(self) -> None:
        """The second pass: scales, and the codes of all vectors."""
        scales = scales_of(self.largest)
        self.file.write(scales.data)
        final = Storage("int8", self.width, scales)
        self.vectors.seek(0)
        while part := self.vectors.read(4 * self.width * ROWS_PER_PASS):
            self.file.write(final.encode(np.frombuffer(part, "<f4").reshape(-1, self.width)).data)

    def finish(self) -> None:
        if self.kind == "int8":
            self._write_int8()
        if "padding" in (entries := self._entries(self.count, self.place)):
            self.file.write(bytes(math.prod(entries["padding"][1])))
        for side in (self.offsets, self.rows):
            side.seek(0)
            shutil.copyfileobj(side, self.file, 1 << 20)
        if self.record is not None:
            self.file.seek(self.room)
            content = digest_of(self.file)
            self.metadata |= {"block": orjson.dumps(self.record).decode(), "content": content}
        self.file.seek(0)
        self.file.write(self._header(self.count, self.place, self.room))


@contextmanager
def open_side_file(folder: Path, path: str) -> Iterator[BinaryIO]:
    """Yield a temporary file without a name. Its write errors name the output."""
    with (
        TemporaryFile(dir=folder) as file,
        io.BufferedRandom(NamedFile(os.dup(file.fileno()), "w+b", path)) as named,
    ):
        yield named


@contextmanager
def open_store(
    path: str,
    spec: Mapping[str, Any],
    names: Sequence[str],
    *,
    width: int,
    force: bool,
    record: Mapping[str, Any] | None = None,
    kind: str = "float32",
) -> Iterator[StoreWriter]:
    """Yield a writer for a vector file. The file appears only if the block succeeds.

    `record` makes the file a block of a vector folder. `kind` is the storage of the vectors.
    """
    folder = Path(os.path.realpath(path)).parent
    with ExitStack() as stack:
        files = [stack.enter_context(open_output(path, force=force))]
        for _ in range(3 if kind == "int8" else 2):
            files.append(stack.enter_context(open_side_file(folder, path)))
        writer = StoreWriter(files, spec, names, width, record, kind)
        yield writer
        writer.finish()
