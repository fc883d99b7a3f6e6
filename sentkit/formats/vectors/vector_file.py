"""Read vector files: vectors and their rows in one safetensors file, in constant memory.

The tensors are `embeddings` (n, d), or (n, k, d) for pairs and triplets; `row_offsets` (n + 1,)
int64; and `rows` uint8, the JSONL lines. With int8 there is also `scales` (d,). The metadata key
`sentkit` contains the spec, the names of the vectors, and the kind of storage if it is not float32.
`digest` is of all other bytes.
"""

import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from shlex import quote
from struct import unpack
from tempfile import gettempdir
from typing import Any, BinaryIO

import numpy as np
import orjson
from numpy.typing import NDArray

from sentkit.errors import DataError
from sentkit.formats.files import digest_of, local_path, open_file
from sentkit.formats.outputs.temporary import open_side_file
from sentkit.formats.rows.block import BadLine, Row, RowBlock
from sentkit.formats.rows.kinds import FIELDS, KINDS
from sentkit.formats.rows.lines import object_of
from sentkit.formats.vectors.fingerprint import emb_problem, without_machine
from sentkit.formats.vectors.tensors import (
    DTYPES,
    STORES,
    Header,
    Storage,
    note_in,
    read_array,
    read_header,
)

BLOCK = 4096  # rows per read
BLOCK_BYTES = 1 << 23  # the same, of rows without their vectors
RECORDED_FIELDS = (*FIELDS, "entry", "definition")  # fields with a name that a vector file records

NO_DIGEST = "0" * 64


def again(path: str) -> str:
    """How to repair a folder with damaged blocks."""
    command = f"sentkit check {quote(path)} --deep --remove"
    return f"{command} removes damaged blocks; encode --resume writes them again"


class VectorSource(ABC):
    """Rows with vectors on the disk: what `VectorFile` and `VectorFolder` have in common."""

    path: str
    metadata: Mapping[str, Any]  # where the vectors come from, as it is recorded
    space_name: str | None  # of their space
    fields: Mapping[str, str]  # standard name -> name in the rows, of the fields that were encoded
    names: tuple[str, ...]  # of the vectors of a row
    kind: str  # of the stored numbers
    width: int  # numbers of a vector
    count: int  # rows
    rows_before: int = 0  # rows of the folder before these
    digest: str = ""  # of all blocks of a folder, if these are only some of them

    @property
    @abstractmethod
    def files(self) -> Sequence["VectorFile"]:
        """The files in the order of their rows."""

    @abstractmethod
    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """The vectors without rows, in arrays of (up to BLOCK, k, d)."""

    @abstractmethod
    def row_blocks(self) -> Iterator[RowBlock]:
        """The rows without their vectors, which are not read."""

    @abstractmethod
    def row(self, index: int) -> Row:
        """The row at an index, counted from 0, without its vectors."""

    def row_blocks_with_vectors(
        self, *, verify: bool
    ) -> Iterator[tuple[RowBlock, NDArray[np.float32]]]:
        """The rows with their vectors (n, k, d). With `verify`, the digest of each file is checked
        before.
        """
        for file in self.files:
            if verify:
                file.verify()
            with open_file(file.path) as opened:
                opened.seek(file.header.entries["embeddings"].start)
                for rows in file.row_blocks():
                    yield rows, file.next_vectors(opened, len(rows))

    def memory_mapped(self) -> NDArray[np.float32]:
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


class VectorFile(VectorSource):
    """A vector file for reading. The constructor reads the spec."""

    def __init__(
        self,
        path: str,
        *,
        folder: str | None = None,
        record_of: Callable[[Header], Mapping[str, Any]] = lambda header: {},
        before: int = 0,
    ) -> None:
        """Of a block of a folder: the path of the folder, how its record is read, and the rows
        before it.
        """
        self.path = path
        self.source = path if folder is None else folder  # of the rows, for messages
        self.rows_before = before
        self.header = read_header(path)
        self.metadata: dict[str, Any] = note_in(self.header, path)
        self.space_name: str | None = self.metadata.get("_emb")
        if problem := emb_problem(self.space_name):
            raise DataError(problem, source=path)

        # The kind of storage. A file of an older version or another program has no entry.
        kind = self.metadata.pop("store", "float32")
        if kind not in STORES:
            shown = orjson.dumps(kind).decode()
            raise self._other(f'"store" is {shown:.40}, expected {", ".join(STORES)}')
        self.kind = kind

        # The tensors, and the names of the vectors.
        shape = self._shape("embeddings", DTYPES[kind])
        shape_of_offsets = self._shape("row_offsets", "I64")
        self._shape("rows", "U8")
        names = self.metadata.get("vectors", ["embedding"])
        per_row = math.prod(shape[1:-1])
        possible_names = [
            list(kind.vector_names) for kind in KINDS if len(kind.vector_names) == per_row
        ]
        if (
            len(shape) not in (2, 3)
            or shape_of_offsets != (shape[0] + 1,)
            or names not in possible_names
        ):
            raise self._other("its tensors and the names of its vectors do not agree")
        self.names = tuple(names)
        self.storage = self._storage(kind, shape[-1])
        self.count = shape[0]
        self.width = self.storage.width
        if self.count and not self.width:
            raise self._other("its vectors are empty")
        self.fields: dict[str, str] = self.metadata.get("fields", {})
        if not isinstance(self.fields, dict) or {*map(type, self.fields.values())} - {str}:
            raise self._other("its field mapping is invalid")
        self.record = record_of(self.header)  # of a block; empty for other files

    def _other(self, problem: str) -> DataError:
        return DataError(f"not a vector file: {problem}", source=self.path)

    def _shape(self, name: str, dtype: str) -> tuple[int, ...]:
        entry = self.header.entries.get(name)
        if entry is None or entry.dtype != dtype:
            first_names = ", ".join(list(self.header.entries)[:4]) or "nothing"
            raise self._other(f'no {dtype} tensor "{name}" (it has {first_names})')
        return entry.shape

    def _storage(self, kind: str, columns: int) -> Storage:
        if kind == "binary":
            width = self.metadata.pop("width", None)
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

    # Checks.

    def damage(self) -> str | None:
        """The reason why these are not the bytes that were written; None for a file with the right
        digest.

        The digest in the header is that of the data, followed by the header with NO_DIGEST in its
        place.
        """
        digest = self.header.metadata.get("digest")
        if digest is None:
            return "it has no digest"
        with open_file(self.path) as file:
            header = file.read(self.header.end)
            actual = digest_of(file, header.replace(digest.encode(), NO_DIGEST.encode(), 1))
        if actual != digest:
            return "its digest is wrong"
        return None

    def verify(self) -> None:
        """Raise a DataError for a damaged file. Only a block of a folder must have a digest."""
        if not self.record and "digest" not in self.header.metadata:
            return
        damage = self.damage()
        if damage is not None:
            advice = None if self.source == self.path else again(self.source)
            raise DataError(f"damaged: {damage}", source=self.path, advice=advice)

    def refuse_difference(self, first: "VectorFile") -> None:
        """Raise a DataError if these vectors do not fit to those of another block of the same
        folder.
        """
        differs = False
        if self.count and first.count:  # an empty block may have no width
            differs = (
                without_machine(self.metadata) != without_machine(first.metadata)
                or self.width != first.width
            )
        if differs or self.kind != first.kind:
            problem = f"its space, fields or storage differ from {first.path}"
            raise DataError(problem, source=self.path)

    # Vectors.

    @property
    def files(self) -> Sequence["VectorFile"]:
        return [self]

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        with open_file(self.path) as file:
            file.seek(self.header.entries["embeddings"].start)
            for first in range(0, self.count, BLOCK):
                yield self.next_vectors(file, min(BLOCK, self.count - first))

    def next_vectors(self, file: BinaryIO, count: int) -> NDArray[np.float32]:
        """The next `count` vectors of the opened file, (count, k, d)."""
        shape = count, len(self.names), self.storage.columns
        codes = numbers_in(file, self.storage.dtype, math.prod(shape))
        return self.storage.decode(codes.reshape(shape))

    def codes(self) -> NDArray[Any]:
        """The stored numbers (n, k, columns), memory-mapped. Changes stay in this process (copy on
        write).
        """
        shape = self.count, len(self.names), self.storage.columns
        start = self.header.entries["embeddings"].start
        return np.memmap(local_path(self.path), self.storage.dtype, "c", start, shape).view(
            np.ndarray
        )

    # Rows.

    def row_blocks(self) -> Iterator[RowBlock]:
        size = self.header.entries["rows"].size
        with open_file(self.path) as offsets, open_file(self.path) as rows:
            offsets.seek(self.header.entries["row_offsets"].start)
            rows.seek(self.header.entries["rows"].start)
            start = int.from_bytes(offsets.read(8), "little", signed=True)
            if self.count and start > 0:
                raise self._wrong_offsets()
            for first in range(0, self.count, BLOCK):
                ends = numbers_in(offsets, "<i8", min(BLOCK, self.count - first))
                starts = np.append(start, ends[:-1])
                if ((starts < 0) | (starts > ends) | (ends > size)).any():
                    raise self._wrong_offsets()
                yield from self._blocks(rows, ends - starts, first)
                start = int(ends[-1])

    def _wrong_offsets(self, line: int | None = None) -> DataError:
        return DataError("row_offsets and rows do not agree", source=self.path, line=line)

    def _blocks(self, file: BinaryIO, sizes: NDArray[np.int64], first: int) -> Iterator[RowBlock]:
        """The next rows of the file in blocks of at most BLOCK_BYTES, or of one row."""
        block_numbers = np.cumsum(sizes) // BLOCK_BYTES
        for block_sizes in np.split(sizes, np.flatnonzero(np.diff(block_numbers)) + 1):
            if not len(block_sizes):
                continue
            raw = file.read(int(block_sizes.sum()))
            ends = np.cumsum(block_sizes).tolist()
            lines = [raw[start:end] for start, end in pairwise([0, *ends])]
            yield self._block(lines, first)
            first += len(lines)

    def _block(self, lines: list[bytes], first: int) -> RowBlock:
        """The rows, of which the first has the number `first` + 1; the error of the first
        bad one.
        """
        stripped = [line.strip() for line in lines]
        emb = self.space_name
        try:
            values = list(map(orjson.loads, stripped))
        except orjson.JSONDecodeError:
            values = []
        if (
            {*map(type, values)} != {dict}
            or any(b"\n" in line for line in stripped)
            or any(row.get("_emb", emb) != emb for row in values)
        ):
            self._refuse_bad_lines(stripped, first)
        first_number = self.rows_before + first + 1
        numbers = [*range(first_number, first_number + len(lines))]
        return RowBlock(stripped, values, [self.source] * len(lines), numbers, stripped)

    def _refuse_bad_lines(self, lines: list[bytes], first: int) -> None:
        """Raise the error of the first bad line, if one is bad."""
        for number, line in enumerate(lines, first + 1):
            values = object_of(line)
            if isinstance(values, dict) and b"\n" in line:  # between fields; two rows of JSONL
                values = BadLine("a row has more than one line")
            elif (
                isinstance(values, dict) and values.get("_emb", self.space_name) != self.space_name
            ):
                values = BadLine(
                    '"_emb" of this row differs from "_emb" in the metadata of the file'
                )
            if isinstance(values, BadLine):
                raise values.at(self.path, number)

    def row(self, index: int) -> Row:
        return self._row_reader(index)

    @cached_property
    def _row_reader(self) -> Callable[[int], Row]:
        return self.row_reader()

    def row_reader(self) -> Callable[[int], Row]:
        """A function that returns the row at an index. It keeps the file open as long as it
        exists.
        """
        offsets = self.header.entries["row_offsets"].start
        rows = self.header.entries["rows"]
        file = open_file(self.path)

        def row(index: int) -> Row:
            # The offsets of the row and of the next one, each an int64.
            file.seek(offsets + 8 * index)
            start, end = unpack("<2q", file.read(16))
            if not 0 <= start <= end <= rows.size:
                raise self._wrong_offsets(index + 1)
            file.seek(rows.start + start)
            return self._block([file.read(end - start)], index).row(0)

        weakref.finalize(row, file.close)
        return row


def numbers_in(file: BinaryIO, dtype: str, count: int) -> NDArray[Any]:
    """The next numbers of a file."""
    numbers = np.empty(count, dtype)
    size: int = file.readinto(numbers)  # type: ignore[attr-defined]
    return numbers[: size // numbers.itemsize]
