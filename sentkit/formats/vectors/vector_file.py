"""Read and write vector files: vectors and their rows in one safetensors file, in constant memory.

The tensors are `embeddings` (n, d), or (n, k, d) for pairs and triplets; `row_offsets` (n + 1,) int64; and
`rows` uint8, the JSONL lines. With int8 there is also `scales` (d,). The metadata key `sentkit` contains the
spec, the names of the vectors, and the kind of storage if it is not float32. `digest` is of all other bytes.
"""

import hashlib
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from shlex import quote
from struct import unpack
from typing import Any, BinaryIO

import numpy as np
import orjson
from numpy.typing import NDArray

from sentkit.errors import DataError
from sentkit.formats.files import digest_of, local_path, open_file
from sentkit.formats.outputs.outputs import open_output
from sentkit.formats.outputs.temporary import open_side_file, sync
from sentkit.formats.rows.block import BadLine, Row, RowBlock
from sentkit.formats.rows.kinds import FIELDS, KINDS
from sentkit.formats.rows.lines import object_of
from sentkit.formats.vectors.fingerprint import emb_problem, spec_of_signs, without_machine
from sentkit.formats.vectors.tensors import (
    DTYPES,
    ITEM_SIZES,
    STORES,
    Header,
    Placed,
    Storage,
    header_bytes,
    laid_out,
    note_in,
    read_array,
    read_header,
    scales_of,
)

BLOCK, BLOCK_BYTES = 4096, 1 << 23  # rows and bytes of rows per read
RECORDED_FIELDS = (*FIELDS, "entry", "definition")  # fields with a name that a vector file records

NO_DIGEST = "0" * 64


def again(path: str) -> str:
    """How to repair a folder with damaged blocks."""
    command = f"sentkit check {quote(path)} --deep --remove"
    return f"{command} removes damaged blocks; encode --resume writes them again"


class VectorFile:
    """A vector file for reading. The constructor reads the spec; iteration reads the rows."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.source, self.before = path, 0  # of its rows: the folder, and the rows before them
        self.record: Mapping[str, Any] = {}  # of a block
        self.header: Header = read_header(path)
        self.spec = note_in(self.header, path)
        self.emb: str | None = self.spec.get("_emb")
        if problem := emb_problem(self.emb):
            raise DataError(problem, source=path)
        kind = self.spec.pop("store", "float32")  # a file of an older version or another program has no entry
        if kind not in STORES:
            shown = orjson.dumps(kind).decode()
            raise self._other(f'"store" is {shown:.40}, expected {", ".join(STORES)}')
        shape, ends = self._shape("embeddings", DTYPES[kind]), self._shape("row_offsets", "I64")
        self._shape("rows", "U8")
        names = self.spec.get("vectors", ["embedding"])
        fitting = [list(kind.vectors) for kind in KINDS if len(kind.vectors) == math.prod(shape[1:-1])]
        if len(shape) not in (2, 3) or ends != (shape[0] + 1,) or names not in fitting:
            raise self._other("its tensors and the names of its vectors do not agree")
        self.names: tuple[str, ...] = tuple(names)
        self.storage = self._storage(kind, shape[-1])
        self.count, self.width = shape[0], self.storage.width
        if self.count and not self.width:
            raise self._other("its vectors are empty")
        self.fields: dict[str, str] = self.spec.get("fields", {})
        if not isinstance(self.fields, dict) or {*map(type, self.fields.values())} - {str}:
            raise self._other("its field mapping is invalid")

    def _other(self, problem: str) -> DataError:
        return DataError(f"not a vector file: {problem}", source=self.path)

    def damage(self) -> str | None:
        """The reason why these are not the bytes that were written; None for a file with the right digest.

        The digest in the header is that of the data, followed by the header with NO_DIGEST in its place.
        """
        digest = self.header.metadata.get("digest")
        if digest is None:
            return "it has no digest"
        with open_file(self.path) as file:
            head = file.read(self.header.end)
            actual = digest_of(file, head.replace(digest.encode(), NO_DIGEST.encode(), 1))
        return None if actual == digest else "its digest is wrong"

    def verify(self) -> None:
        """Raise a DataError for a damaged file. Only a block of a folder must have a digest."""
        if (self.record or "digest" in self.header.metadata) and (damage := self.damage()):
            advice = None if self.source == self.path else again(self.source)
            raise DataError(f"damaged: {damage}", source=self.path, advice=advice)

    def refuse_difference(self, first: "VectorFile") -> None:
        """Raise a DataError if these vectors do not fit to those of another block of the same folder."""
        own, others = ((without_machine(each.spec), each.width) for each in (self, first))
        differs = self.count and first.count and own != others
        if differs or self.storage.kind != first.storage.kind:
            problem = f"its space, fields or storage differ from {first.path}"
            raise DataError(problem, source=self.path)

    def _storage(self, kind: str, columns: int) -> Storage:
        if kind == "binary":
            width = self.spec.pop("width", None)
            if type(width) is int and width >= 0 and -(-width // 8) == columns:
                return Storage(kind, width)
            raise self._other('its "width" and embeddings do not agree')
        if kind != "int8":
            return Storage(kind, columns)
        if self._shape("scales", "F32") != (columns,):
            raise self._other("scales and embeddings do not agree")
        scales = read_array(self.path, "scales")
        if not (np.isfinite(scales) & (scales > 0)).all():
            raise DataError("damaged: a scale is not a positive number", source=self.path)
        return Storage(kind, columns, scales)

    def _shape(self, name: str, dtype: str) -> tuple[int, ...]:
        entry = self.header.entries.get(name)
        if entry is None or entry.dtype != dtype:
            held = ", ".join(list(self.header.entries)[:4]) or "nothing"
            raise self._other(f'no {dtype} tensor "{name}" (it has {held})')
        return entry.shape

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """The vectors without rows, in arrays of (up to BLOCK, k, d)."""
        with open_file(self.path) as file:
            file.seek(self.header.entries["embeddings"].start)
            for first in range(0, self.count, BLOCK):
                yield self.next_vectors(file, min(BLOCK, self.count - first))

    def next_vectors(self, file: BinaryIO, count: int) -> NDArray[np.float32]:
        """The next `count` vectors of the opened file, (count, k, d)."""
        shape = count, len(self.names), self.storage.columns
        return self.storage.decode(numbers_in(file, self.storage.dtype, math.prod(shape)).reshape(shape))

    def codes(self) -> NDArray[Any]:
        """The stored numbers (n, k, columns), memory-mapped. Changes stay in this process (copy on write)."""
        shape = self.count, len(self.names), self.storage.columns
        start = self.header.entries["embeddings"].start
        return np.memmap(local_path(self.path), self.storage.dtype, "c", start, shape).view(np.ndarray)

    def row_blocks(self) -> Iterator[RowBlock]:
        """The rows without their vectors, which are not read."""
        size = self.header.entries["rows"].size
        with open_file(self.path) as offsets, open_file(self.path) as rows:
            offsets.seek(self.header.entries["row_offsets"].start)
            place = int.from_bytes(offsets.read(8), "little", signed=True)
            rows.seek(self.header.entries["rows"].start)
            for first in range(0, self.count, BLOCK):
                ends = numbers_in(offsets, "<i8", min(BLOCK, self.count - first))
                starts = np.append(place, ends[:-1])
                if ((starts < 0) | (starts > ends) | (ends > size)).any() or (first == 0 and place > 0):
                    raise DataError("row_offsets and rows do not agree", source=self.path)
                yield from self._blocks(rows, ends - starts, first)
                place = int(ends[-1])

    def _blocks(self, file: BinaryIO, sizes: NDArray[np.int64], first: int) -> Iterator[RowBlock]:
        """The next rows of the file in blocks of at most BLOCK_BYTES, or of one row."""
        parts = np.cumsum(sizes) // BLOCK_BYTES
        for own in np.split(sizes, np.flatnonzero(np.diff(parts)) + 1):
            if not len(own):
                continue
            raw, ends = file.read(int(own.sum())), np.cumsum(own).tolist()
            lines = [raw[start:end] for start, end in pairwise([0, *ends])]
            yield self._block(lines, first)
            first += len(lines)

    def _block(self, lines: list[bytes], first: int) -> RowBlock:
        """The rows, of which the first has the number `first` + 1; the error of the first bad one."""
        stripped, emb = [line.strip() for line in lines], self.emb
        try:
            values = list(map(orjson.loads, stripped))
        except orjson.JSONDecodeError:
            values = []
        if (
            {*map(type, values)} != {dict}
            or any(b"\n" in line for line in stripped)
            or any(each.get("_emb", emb) != emb for each in values)
        ):
            for number, line in enumerate(stripped, first + 1):
                own = object_of(line)
                if isinstance(own, dict) and b"\n" in line:  # between fields; two rows of JSONL
                    own = BadLine("a row has more than one line")
                elif isinstance(own, dict) and own.get("_emb", emb) != emb:
                    own = BadLine('"_emb" of this row differs from "_emb" in the metadata of the file')
                if isinstance(own, BadLine):
                    raise own.at(self.path, number)
        numbers = [*range(self.before + first + 1, self.before + first + len(lines) + 1)]
        return RowBlock(stripped, values, [self.source] * len(lines), numbers, stripped)

    def row_reader(self) -> Callable[[int], Row]:
        """A function that returns the row at a place, counted from 0, without its vectors."""
        offsets, rows = self.header.entries["row_offsets"].start, self.header.entries["rows"]
        file = open_file(self.path)

        def row(place: int) -> Row:
            file.seek(offsets + 8 * place)
            start, end = unpack("<2q", file.read(16))
            if not 0 <= start <= end <= rows.size:
                raise DataError("row_offsets and rows do not agree", source=self.path, line=place + 1)
            file.seek(rows.start + start)
            return self._block([file.read(end - start)], place).row(0)

        return row


def numbers_in(file: BinaryIO, dtype: str, count: int) -> NDArray[Any]:
    """The next numbers of a file."""
    numbers = np.empty(count, dtype)
    size: int = file.readinto(numbers)  # type: ignore[attr-defined]
    return numbers[: size // numbers.itemsize]


ROWS_PER_PASS = 4096  # vectors of the second pass of int8


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
            self.metadata["block"] = orjson.dumps(record).decode()
        self.metadata["digest"] = NO_DIGEST
        self.hashed = hashlib.sha256()  # of the data
        self.kind, self.names, self.width, self.count, self.place = kind, names, width, 0, 0
        self.offsets.write(bytes(8))
        # Reserve space for the longest header. Some numbers of rows also need the padding entry.
        self.room = max(len(self._header(10**12 + more, 10**18)) for more in range(8))
        self.file.write(bytes(self.room))

    def write(self, lines: Sequence[bytes], vectors: NDArray[np.float32]) -> None:
        """Write rows and their vectors, (n, k, d)."""
        if not lines:
            return
        if self.kind == "int8":
            np.maximum(self.largest, np.abs(vectors).max(axis=(0, 1)), out=self.largest)
        codes = np.ascontiguousarray(self.storage.encode(vectors)).data
        if self.kind == "int8":
            self.vectors.write(codes)
        else:
            self._put(codes)
        self.rows.write(b"\n".join([*lines, b""]))
        ends = np.cumsum(np.array([*map(len, lines)]) + 1) + self.place
        self.offsets.write(ends.astype("<i8").tobytes())
        self.place, self.count = int(ends[-1]), self.count + len(lines)

    def _put(self, data: bytes | memoryview) -> None:
        self.file.write(data)
        self.hashed.update(data)

    def _entries(self, count: int, rows: int) -> dict[str, Placed]:
        """The tensors in file order."""
        columns = Storage(self.kind, self.width).columns
        shape: tuple[int, ...] = (count, *([len(self.names)] if len(self.names) > 1 else []), columns)
        tensors: list[tuple[str, str, tuple[int, ...]]] = [("embeddings", DTYPES[self.kind], shape)]
        if self.kind == "int8":
            tensors.insert(0, ("scales", "F32", (self.width,)))
        size = sum(math.prod(shape) * ITEM_SIZES[dtype] for _, dtype, shape in tensors)
        if size % 8:  # torch needs int64 at a multiple of eight bytes
            tensors.append(("padding", "U8", (-size % 8,)))
        return laid_out([*tensors, ("row_offsets", "I64", (count + 1,)), ("rows", "U8", (rows,))])

    def _header(self, count: int, rows: int, room: int = 0) -> bytes:
        return header_bytes(self._entries(count, rows), self.metadata, room)

    def finish(self) -> None:
        if self.kind == "int8":  # the second pass: scales, and the codes of all vectors
            scales = scales_of(self.largest)
            self._put(scales.data)
            final = Storage("int8", self.width, scales)
            self.vectors.seek(0)
            while part := self.vectors.read(4 * self.width * ROWS_PER_PASS):
                self._put(final.encode(np.frombuffer(part, "<f4").reshape(-1, self.width)).data)
        if "padding" in (entries := self._entries(self.count, self.place)):
            self._put(bytes(math.prod(entries["padding"][1])))
        for side in (self.offsets, self.rows):
            side.seek(0)
            while part := side.read(1 << 20):
                self._put(part)
        if self.record is not None:
            self.metadata["block"] = orjson.dumps(self.record).decode()
        self.hashed.update(self._header(self.count, self.place, self.room))
        self.metadata["digest"] = self.hashed.hexdigest()
        self.file.seek(0)
        self.file.write(self._header(self.count, self.place, self.room))


@contextmanager
def create_vector_file(
    path: str,
    spec: Mapping[str, Any],
    names: Sequence[str],
    *,
    width: int,
    force: bool,
    record: Mapping[str, Any] | None = None,
    kind: str = "float32",
) -> Iterator[VectorFileWriter]:
    """Yield a writer for a vector file. The file appears only if the block succeeds."""
    folder = Path(os.path.realpath(path)).parent
    with ExitStack() as stack:
        files = [stack.enter_context(open_output(path, force=force))]
        for _ in range(3 if kind == "int8" else 2):
            files.append(stack.enter_context(open_side_file(folder, path)))
        writer = VectorFileWriter(files, spec, names, width, record, kind)
        yield writer
        writer.finish()


def copy_block(file: VectorFile, path: str, record: Mapping[str, Any]) -> None:
    """Copy a block of another vector folder. `record` replaces its record; the data stay equal."""
    header = file.header
    file.verify()
    if file.record == record:
        with suppress(OSError):
            os.link(file.path, path)
            sync(Path(path).parent)
            return
    base, hashed = header.end, hashlib.sha256()
    entries = {
        name: (each.dtype, each.shape, each.start - base, each.end - base)
        for name, each in header.entries.items()
    }
    metadata = {**header.metadata, "block": orjson.dumps(record).decode(), "digest": NO_DIGEST}
    with open_output(path, force=True) as out, open_file(file.path) as old:
        old.seek(out.write(bytes(base)))
        while part := old.read(1 << 20):
            out.write(part)
            hashed.update(part)
        hashed.update(header_bytes(entries, metadata, base))
        out.seek(0)
        out.write(header_bytes(entries, {**metadata, "digest": hashed.hexdigest()}, base))
