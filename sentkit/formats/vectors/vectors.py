"""Read vectors from rows (lists or base64), vector files and .npy. A stream has one space and one shape."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from tokenize import TokenError
from typing import Any, TypeVar

import numpy as np
import orjson
import pybase64
from numpy.typing import NDArray

from sentkit.errors import DataError, UsageError
from sentkit.formats.files import open_file
from sentkit.formats.rows.kinds import FIELDS, VECTOR_NAMES, VECTORS, wrong_field
from sentkit.formats.rows.lines import json_type
from sentkit.formats.rows.rows import Inputs, Row, blocks
from sentkit.formats.rows.splice import append
from sentkit.formats.vectors import store
from sentkit.formats.vectors.fingerprint import edition_advice, emb_problem, short_label, space_of

T = TypeVar("T")
Vector = NDArray[np.float32]

ARRAY_ROWS = 1024  # of a .npy file that are read at a time
VECTOR_FIELDS = (*VECTORS, *FIELDS)


@dataclass(frozen=True, slots=True)
class VectorRow:
    row: Row
    vectors: NDArray[np.float32]  # (k, d): k is 1 for a sentence, 2 for a pair, 3 for a triplet
    names: tuple[str, ...]  # names of the vector fields in these rows
    emb: str | None = None

    @property
    def input_line(self) -> bytes:
        """The line that was read, with the vectors and `_emb` of a vector file, which has them separately."""
        line = self.row.input_line
        if not self.names or self.names[0] in self.row.values:
            return line
        encode = as_list if np.isfinite(self.vectors).all() else as_base64
        new = [(b"_emb", orjson.dumps(self.emb))] if self.emb and "_emb" not in self.row.values else []
        new += [(name.encode(), encode(each)) for name, each in zip(self.names, self.vectors, strict=True)]
        return append(line, new, empty=not self.row.values)


class VectorReader:
    """Reads rows with vectors from JSONL and vector files.

    The first row determines the vector fields, their length and their space. A later row that differs is a
    DataError, also in another file, because vectors of different spaces are not comparable.
    """

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self.begun = False  # whether a row was accepted
        self.names: tuple[str, ...] = ()  # standard names: embedding, or embedding_a and embedding_b, ...
        self.theirs: tuple[str, ...] = ()  # names in these rows
        self.width = 0
        self.emb: str | None = None
        self.verifies = False  # whether the digests of vector files are checked

    def read(self, then: Callable[[VectorRow], T]) -> Iterator[T]:
        for path in self.inputs.paths:
            yield from self.read_file(path, then)

    def read_file(self, path: str, then: Callable[[VectorRow], T]) -> Iterator[T]:
        """Yield `then(row)` for each row. A row with a DataError goes to the rejects."""
        if is_array(path):
            array = read_array_file(path)
            rows, count = array_rows(path, len(array)), len(array)
            names, emb = VECTOR_NAMES[-1], None
        elif store.is_store(path):
            refuse_renamed_vectors(self.inputs, path)
            file = store.Store(path)
            rows, count = file.rows(verify=self.verifies), file.count
            names, emb = file.names, file.emb
        else:
            yield from self.inputs.read_file(path, lambda row: self.accept(lambda: then(self.parse(row))))
            return

        def take(pair: tuple[Row, NDArray[np.float32]]) -> T:
            return self.accept(lambda: then(self.admit(pair[0], names, pair[1], emb)))

        yield from self.inputs.read_vector_file(
            path, rows, count, take, lambda pair: VectorRow(*pair, names, emb).input_line
        )

    def accept(self, row: Callable[[], T]) -> T:
        """The value of a row. A row that is rejected is not the first row, which determines the others."""
        if self.begun:
            return row()
        before = vars(self).copy()
        try:
            value = row()
        except DataError:
            vars(self).update(before)
            raise
        self.begun = True
        return value

    def read_blocks(self, path: str, size: int) -> Iterator[NDArray[np.float32]]:
        """Yield the vectors (n, k, d) of `size` rows at a time; the last block can be smaller.

        The rows of a vector file are not parsed, unless bad rows are skipped.
        """
        if not store.is_store(path) or self.inputs.rejects.skip:
            for block in blocks(self.read_file(path, lambda row: row.vectors), size):
                yield np.stack(block)
            return
        refuse_renamed_vectors(self.inputs, path)
        file, count = store.Store(path), 0
        for block in blocks(chain.from_iterable(file.blocks()), size):
            vectors = np.stack(block)
            if not count:
                self.admit(file.row(0), file.names, vectors[0], file.emb)
            bad = np.flatnonzero(~np.isfinite(vectors).all(axis=(1, 2)))
            if len(bad):
                self.check(file.row(count + int(bad[0])), vectors[bad[0]])
            yield vectors
            count += len(vectors)

    def parse(self, row: Row) -> VectorRow:
        names = self.names or self._names_in(row)
        theirs = self.theirs or [self.inputs.fields.get(name, name) for name in names]
        row.refuse_duplicates()
        vectors = parse_vectors(row, theirs)
        emb = row.values.get("_emb")
        if problem := emb_problem(emb):
            raise row.error(problem)
        return self.admit(row, names, vectors, emb)

    def _names_in(self, row: Row) -> tuple[str, ...]:
        for names in VECTOR_NAMES:
            if all(self.inputs.fields.get(name, name) in row.values for name in names):
                return names
        file = None if row.source == "-" else shlex.quote(row.source)
        command = f"sentkit encode {file} -o vectors.safetensors" if file else "... | sentkit encode | ..."
        advice = f"encode the texts first: {command}"
        if "hits" in row.values:
            advice = "these are hits of sentkit search: sentkit score --qrels FILE judges them"
        raise row.error("this row has no vector", advice=advice)

    def admit(
        self, row: Row, names: tuple[str, ...], vectors: NDArray[np.float32], emb: str | None
    ) -> VectorRow:
        """Call `check` for a row, and compare its vector names, space and length with the first row."""
        self.check(row, vectors)
        if not self.names:
            self.names, self.width, self.emb = names, vectors.shape[1], emb
            self.theirs = tuple(self.inputs.fields.get(name, name) for name in names)
        if names != self.names:
            raise row.error(f"this row has {', '.join(names)}, the first row has {', '.join(self.names)}")
        if emb != self.emb and (emb is None or self.emb is None or space_of(emb) != space_of(self.emb)):
            ours, first = short_label(emb), short_label(self.emb)
            problem = f"the vectors of this row are {ours}, the vectors of the first row are {first}"
            raise row.error(problem, advice=edition_advice(emb, self.emb))
        if vectors.shape[1] != self.width:
            width = vectors.shape[1]
            raise row.error(f"this vector has {width} numbers, the vector of the first row has {self.width}")
        return VectorRow(row, vectors, self.theirs, emb)

    def check(self, row: Row, vectors: NDArray[np.float32]) -> None:
        check_finite(row, vectors)


def expect_one(row: VectorRow) -> None:
    """Raise an error for a pair or a triplet."""
    if len(row.vectors) != 1:
        raise row.row.error(f"expected 1 vector, this row has {len(row.vectors)}")


def is_array(path: str) -> bool:
    """Whether a path is an array of numpy, whose rows have a vector and no fields."""
    return path.endswith(".npy")


def read_array_file(path: str) -> NDArray[Any]:
    """The numbers of a .npy file (n, d), memory-mapped."""
    open_file(path).close()
    try:
        array = np.lib.format.open_memmap(path, mode="r")  # refuses pickled objects and archives
    except (ValueError, TypeError, SyntaxError, OverflowError, MemoryError, OSError, TokenError) as error:
        raise DataError("not an array of numbers in the format of numpy", source=path) from error
    if array.ndim != 2 or array.dtype.kind not in "fiu" or not array.shape[1]:
        problem = f"an array of {array.dtype} and shape {array.shape}, expected numbers (rows, width)"
        raise DataError(problem, source=path)
    return array


def array_rows(path: str, count: int) -> Iterator[tuple[Row, NDArray[np.float32]]]:
    """Empty rows with their vectors (1, d) as float32."""
    for start in range(0, count, ARRAY_ROWS):
        with np.errstate(over="ignore"):  # one map of the whole file would keep all its pages in memory
            block = read_array_file(path)[start : start + ARRAY_ROWS, None].astype(np.float32, "C")
        for place, vectors in enumerate(block, start=start + 1):
            yield Row(b"{}", {}, path, place), vectors


def refuse_renamed_vectors(inputs: Inputs, path: str) -> None:
    """Refuse --field for the vectors of a vector file, which have their standard names."""
    named = sorted(inputs.fields.keys() & set(VECTORS))
    if named:
        raise UsageError(f"{path}: --field {named[0]} cannot rename the vectors of a vector file")


def check_finite(row: Row, vectors: NDArray[np.float32]) -> None:
    if not np.isfinite(vectors).all():
        raise row.error("a vector contains NaN or infinity")


def parse_vectors(row: Row, names: Sequence[str]) -> NDArray[np.float32]:
    """The vectors of a row (k, d). Different lengths are an error."""
    raw = [raw_vector(row, name) for name in names]
    if len(set(map(len, raw))) > 1:
        raise row.error("the vectors of this row have different lengths")
    return np.frombuffer(b"".join(raw), dtype="<f4").reshape(len(names), -1)


def raw_vector(row: Row, name: str) -> bytes:
    """A vector field as little-endian float32. The field is base64 or a list of numbers."""
    value = row.values.get(name)
    if not isinstance(value, str):
        return _from_list(row, name, value)
    try:
        raw = pybase64.b64decode(value, validate=True)
    except ValueError as error:
        raise row.error(f'"{name}" is a string that is not base64') from error
    if not raw or len(raw) % 4:
        raise row.error(f'"{name}" is base64 of {len(raw)} bytes, expected float32')
    return raw


def _from_list(row: Row, name: str, value: object) -> bytes:
    if not isinstance(value, list):
        raise wrong_field(row, name, "a vector: a list of numbers, or base64")
    strange = set(map(type, value)) - {float, int}
    if strange:
        odd = next(item for item in value if type(item) in strange)
        raise row.error(f'"{name}" contains {json_type(odd)}, expected numbers')
    if not value:
        raise row.error(f'"{name}" is empty')
    with np.errstate(over="ignore"):
        return np.array(value, dtype="<f4").tobytes()


def as_list(vector: Vector) -> bytes:
    """JSON list with the shortest digits that restore each float32 exactly."""
    return orjson.dumps(vector, option=orjson.OPT_SERIALIZE_NUMPY)


def as_base64(vector: Vector) -> bytes:
    return b'"%b"' % pybase64.b64encode(vector.astype("<f4", copy=False).tobytes())


ENCODINGS: Mapping[str, Any] = {"list": as_list, "base64": as_base64}


def without_vectors(row: Row, names: Sequence[str]) -> Row:
    """The row without these vector fields and without `_emb`."""
    gone = {*names, "_emb"}
    return row.without(gone) if gone & row.values.keys() else row
