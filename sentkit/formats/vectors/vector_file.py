"""Read one vector file."""

import math
from collections.abc import Callable, Iterator
from mmap import ACCESS_READ, mmap
from struct import unpack_from
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from sentkit.errors import DataError
from sentkit.formats.files import open_file
from sentkit.formats.rows.kinds import FIELDS, KINDS
from sentkit.formats.rows.lines import BadLine, json_object
from sentkit.formats.rows.rows import Row
from sentkit.formats.vectors.fingerprint import emb_problem
from sentkit.formats.vectors.safetensors_header import Header, read_array, read_header
from sentkit.formats.vectors.storage import DTYPES, STORES, Storage

BLOCK = 4096  # rows per read
RECORDED_FIELDS = (*FIELDS, "entry", "definition")  # fields with a name that a vector file records


class VectorFile:
    """A vector file for reading. The constructor reads the spec; iteration reads the rows."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.header: Header = read_header(path)
        self.spec = self._spec()
        kind = self._kind()
        shape = self._shape("embeddings", DTYPES[kind])
        if len(shape) not in (2, 3) or self._shape("row_offsets", "I64") != (shape[0] + 1,):
            raise DataError("not a vector file: embeddings and row_offsets do not agree", source=path)
        self._shape("rows", "U8")
        self.storage = self._storage(kind, shape[-1])
        self.count, self.width = shape[0], self.storage.width
        if self.count and not self.width:
            raise DataError("not a vector file: its vectors are empty", source=path)
        names = self.spec.get("vectors", ["embedding"])
        if names not in [list(kind.vectors) for kind in KINDS] or len(names) != math.prod(shape[1:-1]):
            raise DataError("not a vector file: its vector names do not match their shape", source=path)
        self.names: tuple[str, ...] = tuple(names)
        self.fields = self._fields()

    @property
    def emb(self) -> str | None:
        emb: str | None = self.spec.get("_emb")
        return emb

    def _kind(self) -> str:
        kind = self.spec.pop("store", "float32")  # a file of an older version or another program has no entry
        if kind not in STORES:
            problem = f'"store" is {orjson.dumps(kind).decode():.40}, expected {", ".join(STORES)}'
            raise DataError(f"not a vector file: {problem}", source=self.path)
        return kind

    def _storage(self, kind: str, columns: int) -> Storage:
        if kind == "binary":
            width = self.spec.pop("width", None)
            if type(width) is int and width >= 0 and -(-width // 8) == columns:
                return Storage(kind, width)
            raise DataError('not a vector file: its "width" and embeddings do not agree', source=self.path)
        if kind != "int8":
            return Storage(kind, columns)
        if self._shape("scales", "F32") != (columns,):
            raise DataError("not a vector file: scales and embeddings do not agree", source=self.path)
        scales = read_array(self.path, "scales")
        if not (np.isfinite(scales) & (scales > 0)).all():
            raise DataError("damaged: a scale is not a positive number", source=self.path)
        return Storage(kind, columns, scales)

    def _fields(self) -> dict[str, str]:
        fields = self.spec.get("fields", {})
        if not isinstance(fields, dict) or not all(
            ours in RECORDED_FIELDS and isinstance(theirs, str) and theirs for ours, theirs in fields.items()
        ):
            raise DataError("not a vector file: its field mapping is invalid", source=self.path)
        return fields

    def _spec(self) -> dict[str, Any]:
        try:
            spec = orjson.loads(self.header.metadata.get("sentkit", "{}"))
        except orjson.JSONDecodeError:
            spec = None
        if not isinstance(spec, dict):
            raise DataError("not a vector file: its spec is not JSON", source=self.path)
        if problem := emb_problem(spec.get("_emb")):
            raise DataError(problem, source=self.path)
        return spec

    def _shape(self, name: str, dtype: str) -> tuple[int, ...]:
        entry = self.header.entries.get(name)
        if entry is None or entry.dtype != dtype:
            held = ", ".join(list(self.header.entries)[:4]) or "nothing"
            raise DataError(
                f'not a vector file: no {dtype} tensor "{name}" (it has {held})', source=self.path
            )
        return entry.shape

    def blocks(self) -> Iterator[NDArray[np.float32]]:
        """The vectors without rows, in arrays of (up to BLOCK, k, d)."""
        with open_file(self.path) as file:
            file.seek(self.header.entries["embeddings"].start)
            for first in range(0, self.count, BLOCK):
                shape = (min(BLOCK, self.count - first), len(self.names), self.storage.columns)
                codes = np.fromfile(file, self.storage.dtype, math.prod(shape))
                yield self.storage.decode(codes.reshape(shape))

    def codes(self) -> NDArray[Any]:
        """The stored numbers (n, k, columns), memory-mapped. Changes stay in this process (copy on write)."""
        shape = self.count, len(self.names), self.storage.columns
        start = self.header.entries["embeddings"].start
        return np.memmap(self.path, self.storage.dtype, "c", start, shape).view(np.ndarray)

    def __iter__(self) -> Iterator[tuple[Row, NDArray[np.float32]]]:
        number, size = 0, self.header.entries["rows"].size
        with open_file(self.path) as offsets, open_file(self.path) as rows:
            offsets.seek(self.header.entries["row_offsets"].start)
            place = int.from_bytes(offsets.read(8), "little", signed=True)
            rows.seek(self.header.entries["rows"].start)
            for block in self.blocks():
                ends = np.fromfile(offsets, "<i8", len(block)).tolist()
                for vectors, end in zip(block, ends, strict=True):
                    number += 1
                    if not 0 <= place <= end <= size or (number == 1 and place > 0):
                        raise DataError("row_offsets and rows do not agree", source=self.path, line=number)
                    yield self._row(rows.read(end - place), number), vectors
                    place = end

    def row_reader(self) -> Callable[[int], Row]:
        """A function that returns the row at a place, counted from 0, without its vectors.

        The file is memory-mapped.
        """
        with open_file(self.path) as file:
            content = mmap(file.fileno(), 0, access=ACCESS_READ)
        offsets, rows = self.header.entries["row_offsets"].start, self.header.entries["rows"]

        def row(place: int) -> Row:
            start, end = unpack_from("<2q", content, offsets + 8 * place)
            if not 0 <= start <= end <= rows.size:
                raise DataError("row_offsets and rows do not agree", source=self.path, line=place + 1)
            return self._row(content[rows.start + start : rows.start + end], place + 1)

        return row

    def _row(self, raw: bytes, number: int) -> Row:
        try:
            line, values = json_object(raw)
        except BadLine as error:
            raise DataError(str(error), source=self.path, line=number) from error
        if b"\n" in line:  # JSON allows newlines between fields, but in JSONL this would be two rows
            raise DataError("a row has more than one line", source=self.path, line=number)
        if values.get("_emb", self.emb) != self.emb:
            raise DataError(
                '"_emb" of this row differs from "_emb" in the metadata of the file',
                source=self.path,
                line=number,
            )
        return Row(line, values, self.path, number)
