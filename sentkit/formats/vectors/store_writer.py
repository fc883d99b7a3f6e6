"""Write vector files in constant memory. `store.py` describes the format."""

import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson
from numpy.typing import NDArray

from sentkit.formats.outputs.outputs import open_output
from sentkit.formats.outputs.temporary import open_side_file
from sentkit.formats.vectors.fingerprint import spec_of_signs
from sentkit.formats.vectors.folders import digest_of
from sentkit.formats.vectors.safetensors_header import ITEM_SIZES, header_bytes
from sentkit.formats.vectors.storage import DTYPES, Storage, scales_of

ROWS_PER_PASS = 4096  # vectors of the second pass of int8


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
        record: Mapping[str, Any] | None,
        kind: str,
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
