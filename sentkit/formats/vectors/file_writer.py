"""Write vector files in constant memory: vectors and their rows in one safetensors file.

`vector_file.py` describes the tensors and the metadata.
"""

import hashlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson
from numpy.typing import NDArray

from sentkit.errors import UsageError
from sentkit.formats.files import open_file
from sentkit.formats.outputs.outputs import open_output
from sentkit.formats.outputs.temporary import open_side_file, sync
from sentkit.formats.vectors.fingerprint import spec_of_signs
from sentkit.formats.vectors.tensors import (
    DTYPES,
    ITEM_SIZES,
    Placed,
    Storage,
    header_bytes,
    laid_out,
    scales_of,
)
from sentkit.formats.vectors.vector_file import NO_DIGEST, VectorFile

ROWS_PER_PASS = 4096  # vectors of the second pass of int8
COPY_BYTES = 1 << 20  # per read


class VectorFileWriter:
    """Writes a vector file. Temporary files hold offsets and rows, and `finish` appends them.

    The scales of int8 depend on all rows, so a fourth file holds the vectors as float32 until then.
    """

    def __init__(
        self,
        files: Sequence[BinaryIO],
        spec: Mapping[str, Any],
        names: Sequence[str],
        width: int,
        block_record: Mapping[str, Any] | None,
        kind: str,
    ) -> None:
        """`files` are those of the output, of the offsets, of the rows and, for int8, of the
        vectors. See `create_vector_file` for the others.
        """
        self.file, self.offsets, self.rows = files[:3]
        self.vectors = files[-1] if kind == "int8" else self.file
        self.kind = kind  # the number format: float32, float16, int8 or binary
        self.names = names
        self.width = width
        # How `write` stores the rows as they come. `finish` converts them to int8.
        self.storage = Storage("float32" if kind == "int8" else kind, width)
        self.largest = np.zeros(width, np.float32)  # magnitude of each dimension
        self.count = 0  # rows
        self.row_bytes = 0  # of all lines with their newlines
        self.hashed = hashlib.sha256()  # of the data

        # The metadata. The digest follows when all data are written.
        stored: dict[str, Any] = {}
        if kind != "float32":
            stored["store"] = kind
        if kind == "binary":
            spec = spec_of_signs(spec)
            stored["width"] = width
        self.metadata = {
            "sentkit": orjson.dumps({**spec, "vectors": list(names), **stored}).decode()
        }
        self.block_record = block_record
        if block_record is not None:
            self.metadata["block"] = orjson.dumps(block_record).decode()
        self.metadata["digest"] = NO_DIGEST

        # Reserve space for the longest header. Some numbers of rows also need the padding entry.
        self.offsets.write(bytes(8))
        self.header_size = max(len(self._header(10**12 + more, 10**18)) for more in range(8))
        self.file.write(bytes(self.header_size))

    def write(self, lines: Sequence[bytes], vectors: NDArray[np.float32]) -> None:
        """Write rows and their vectors, (n, k, d)."""
        if not lines:
            return
        codes = np.ascontiguousarray(self.storage.encode(vectors)).data
        if self.kind == "int8":
            np.maximum(self.largest, np.abs(vectors).max(axis=(0, 1)), out=self.largest)
            self.vectors.write(codes)
        else:
            self._write_data(codes)
        self.rows.write(b"\n".join([*lines, b""]))
        ends = np.cumsum(np.array([*map(len, lines)]) + 1) + self.row_bytes
        self.offsets.write(ends.astype("<i8").tobytes())
        self.row_bytes = int(ends[-1])
        self.count += len(lines)

    def set_block_record(self, record: Mapping[str, Any]) -> None:
        """Replace the record of the block, by one that is not longer."""
        self.block_record = record  # `finish` writes it

    def _write_data(self, data: bytes | memoryview) -> None:
        self.file.write(data)
        self.hashed.update(data)

    def _entries(self, count: int, row_bytes: int) -> dict[str, Placed]:
        """The tensors in file order."""
        columns = Storage(self.kind, self.width).columns
        shape: tuple[int, ...] = (count, columns)
        if len(self.names) > 1:
            shape = (count, len(self.names), columns)
        tensors: list[tuple[str, str, tuple[int, ...]]] = [("embeddings", DTYPES[self.kind], shape)]
        if self.kind == "int8":
            tensors.insert(0, ("scales", "F32", (self.width,)))
        size = sum(math.prod(shape) * ITEM_SIZES[dtype] for _, dtype, shape in tensors)
        if size % 8:  # torch needs int64 at a multiple of eight bytes
            tensors.append(("padding", "U8", (-size % 8,)))
        tensors.append(("row_offsets", "I64", (count + 1,)))
        tensors.append(("rows", "U8", (row_bytes,)))
        return laid_out(tensors)

    def _header(self, count: int, row_bytes: int, size: int = 0) -> bytes:
        return header_bytes(self._entries(count, row_bytes), self.metadata, size)

    def finish(self) -> None:
        """Write what follows the vectors, and then the header with the digest, at the start."""
        # The second pass of int8: scales, and the codes of all vectors.
        if self.kind == "int8":
            scales = scales_of(self.largest)
            self._write_data(scales.data)
            storage = Storage("int8", self.width, scales)
            self.vectors.seek(0)
            first = 0  # index of a vector
            while data := self.vectors.read(4 * self.width * ROWS_PER_PASS):
                vectors = np.frombuffer(data, "<f4").reshape(-1, self.width)
                codes = storage.encode(vectors)
                zero_indices = np.flatnonzero(vectors.any(axis=1) & ~codes.any(axis=1))
                if len(zero_indices):
                    raise lost_vector((first + zero_indices[0]) // len(self.names) + 1)
                self._write_data(codes.data)
                first += len(vectors)

        # The offsets and the rows.
        entries = self._entries(self.count, self.row_bytes)
        if "padding" in entries:
            _, padding_shape, _, _ = entries["padding"]  # of bytes, before aligned numbers
            self._write_data(bytes(math.prod(padding_shape)))
        for side_file in (self.offsets, self.rows):
            side_file.seek(0)
            while data := side_file.read(COPY_BYTES):
                self._write_data(data)

        # The header with the digest, which is of the data and of the header without it.
        if self.block_record is not None:
            self.metadata["block"] = orjson.dumps(self.block_record).decode()
        self.hashed.update(self._header(self.count, self.row_bytes, self.header_size))
        self.metadata["digest"] = self.hashed.hexdigest()
        self.file.seek(0)
        self.file.write(self._header(self.count, self.row_bytes, self.header_size))


def lost_vector(row: int) -> UsageError:
    """The error of a vector whose int8 codes are zero, as one beside much longer ones."""
    problem = f"--store int8: a vector of row {row} would be zero, as its numbers are too small"
    return UsageError(problem, advice="use --store float16 for another file or folder")


@contextmanager
def create_vector_file(
    path: str,
    spec: Mapping[str, Any],
    names: Sequence[str],
    *,
    width: int,
    force: bool,
    block_record: Mapping[str, Any] | None = None,
    kind: str = "float32",
) -> Iterator[VectorFileWriter]:
    """Yield a writer for a vector file. The file appears only if the `with` statement succeeds.

    `spec` has `_emb` and the settings that made the vectors, `names` their standard names.
    `block_record` is that of a block of a vector folder. `kind` is how the numbers are stored
    (--store).
    """
    # The temporary files of `VectorFileWriter`, beside the file itself and not beside a link to it,
    # which can be on another file system. int8 needs a third.
    folder = Path(os.path.realpath(path)).parent
    count = 3 if kind == "int8" else 2
    with ExitStack() as stack:
        files = [stack.enter_context(open_output(path, force=force))]
        for _ in range(count):
            files.append(stack.enter_context(open_side_file(folder, path)))
        writer = VectorFileWriter(files, spec, names, width, block_record, kind)
        yield writer
        writer.finish()


def copy_block(file: VectorFile, path: str, block_record: Mapping[str, Any]) -> None:
    """Copy a block of another vector folder; the data stay equal. `block_record` replaces its
    record.
    """
    file.verify()

    # An equal file is a hard link. A copy follows if the file system has no links, or it is another
    # one. `os.link` does not follow a symbolic link, whose target can be relative to its folder.
    if file.record == block_record:
        with suppress(OSError):
            os.link(os.path.realpath(file.path), path)
            sync(Path(path).parent)
            return

    # The header, with offsets from the start of the data.
    header_size = file.header.end
    entries: dict[str, Placed] = {}
    for name, entry in file.header.entries.items():
        entries[name] = (
            entry.dtype,
            entry.shape,
            entry.start - header_size,
            entry.end - header_size,
        )
    metadata = {
        **file.header.metadata,
        "block": orjson.dumps(block_record).decode(),
        "digest": NO_DIGEST,
    }

    # The data, and then the header with the digest of both, as in `VectorFileWriter.finish`. The
    # header keeps its size, because `VectorFileWriter` reserves room for larger numbers.
    hashed = hashlib.sha256()
    with open_output(path, force=True) as copy, open_file(file.path) as original:
        original.seek(header_size)
        copy.write(bytes(header_size))
        while data := original.read(COPY_BYTES):
            copy.write(data)
            hashed.update(data)
        hashed.update(header_bytes(entries, metadata, header_size))
        copy.seek(0)
        copy.write(header_bytes(entries, {**metadata, "digest": hashed.hexdigest()}, header_size))
