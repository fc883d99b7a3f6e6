"""Read and write vector files: vectors and their rows in one safetensors file, in constant memory.

The tensors are `embeddings` (n, d), or (n, k, d) for pairs and triplets; `row_offsets` (n + 1,) int64; and
`rows` uint8, the JSONL lines. The metadata key `sentkit` contains the spec and the names of the k vectors.
"""

import io
import math
import os
import shutil
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO

import numpy as np
import orjson
from numpy.typing import NDArray

from sentkit.errors import DataError
from sentkit.formats.outputs.outputs import open_output
from sentkit.formats.outputs.temporary import NamedFile
from sentkit.formats.rows.rows import Inputs, Row
from sentkit.formats.vectors.folders import SUFFIX, VectorFolder, digest_of, is_vector_folder
from sentkit.formats.vectors.safetensors_header import header_bytes
from sentkit.formats.vectors.vector_file import RECORDED_FIELDS, VectorFile


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
        self.names, self.width = first.names, first.width
        self.starts = [0, *accumulate(file.count for file in self.files)]
        self.count = self.starts[-1]
        for file in self.files:
            if file.count and (file.spec != first.spec or file.width != first.width):
                raise DataError(f"its space or fields differ from {first.path}", source=file.path)

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """The vectors without rows, in arrays of (up to BLOCK, k, d)."""
        for file in self.files:
            yield from file.blocks()

    def mapped(self) -> NDArray[np.float32]:
        """All vectors (n, k, d): memory-mapped if they are in one file, else in memory."""
        if len(self.files) == 1:
            return self.files[0].mapped()
        vectors = np.empty((self.count, len(self.names), self.width), "<f4")
        place = 0
        for block in self.blocks():
            vectors[place : place + len(block)] = block
            place += len(block)
        return vectors

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
    """Writes a vector file row by row. Temporary files hold offsets and rows, and `finish` appends them."""

    def __init__(
        self,
        files: Sequence[BinaryIO],
        spec: Mapping[str, Any],
        names: Sequence[str],
        width: int,
        record: Mapping[str, Any] | None = None,
    ) -> None:
        self.file, self.offsets, self.rows = files
        self.metadata = {"sentkit": orjson.dumps({**spec, "vectors": list(names)}).decode()}
        self.record = record  # of a block; the caller can replace it by a shorter one
        if record is not None:
            self.metadata |= {"block": orjson.dumps(record).decode(), "content": "0" * 64}
        self.names, self.width, self.count, self.place = names, width, 0, 0
        self.offsets.write(bytes(8))
        # Reserve space for the longest header. An odd number of rows can also need the padding entry.
        self.room = len(self._header(10**12 + 1, 10**18))
        self.file.write(bytes(self.room))

    def write(self, line: bytes, vectors: NDArray[np.float32]) -> None:
        self.file.write(np.ascontiguousarray(vectors, dtype="<f4").data)
        self.place += self.rows.write(line + b"\n")
        self.offsets.write(self.place.to_bytes(8, "little"))
        self.count += 1

    def _header(self, count: int, rows: int, room: int = 0) -> bytes:
        shape = (count, self.width) if len(self.names) == 1 else (count, len(self.names), self.width)
        end = math.prod(shape) * 4
        entries: dict[str, tuple[str, tuple[int, ...], int, int]] = {"embeddings": ("F32", shape, 0, end)}
        if end % 8:  # torch needs int64 at a multiple of eight bytes
            entries["padding"] = ("U8", (4,), end, end + 4)
            end += 4
        entries["row_offsets"] = ("I64", (count + 1,), end, end + 8 * (count + 1))
        entries["rows"] = ("U8", (rows,), end + 8 * (count + 1), end + 8 * (count + 1) + rows)
        return header_bytes(entries, self.metadata, room)

    def finish(self) -> None:
        if self.count * len(self.names) * self.width % 2:
            self.file.write(bytes(4))
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
) -> Iterator[StoreWriter]:
    """Yield a writer for a vector file. The file appears only if the block succeeds.

    `record` makes the file a block of a vector folder.
    """
    folder = Path(os.path.realpath(path)).parent
    with (
        open_output(path, force=force) as file,
        open_side_file(folder, path) as offsets,
        open_side_file(folder, path) as rows,
    ):
        writer = StoreWriter((file, offsets, rows), spec, names, width, record)
        yield writer
        writer.finish()
