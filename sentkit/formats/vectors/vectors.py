"""Read vectors from rows (lists or base64), vector files and .npy. A stream has one space and one shape."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from tokenize import TokenError
from typing import Any, Protocol, TypeVar

import numpy as np
import orjson
import pybase64
from numpy.typing import NDArray

from sentkit.errors import DataError, UsageError
from sentkit.formats.files import open_file
from sentkit.formats.rows.block import Row, RowBlock, append_fields, block_of, empty_block
from sentkit.formats.rows.kinds import FIELDS, VECTOR_NAMES, VECTORS, wrong_field
from sentkit.formats.rows.lines import json_type
from sentkit.formats.rows.rows import Inputs, Rejects
from sentkit.formats.vectors import store
from sentkit.formats.vectors.fingerprint import edition_advice, emb_problem, short_label, space_of

T = TypeVar("T")
Vector = NDArray[np.float32]

ARRAY_ROWS = 1024  # of a .npy file that are read at a time
VECTOR_FIELDS = (*VECTORS, *FIELDS)
NOT_FINITE = "a vector contains NaN or infinity"


@dataclass(frozen=True, slots=True)
class VectorRow:
    row: Row
    vectors: NDArray[np.float32]  # (k, d): k is 1 for a sentence, 2 for a pair, 3 for a triplet
    names: tuple[str, ...]  # names of the vector fields in these rows
    emb: str | None = None
    apart: bool = False  # a file has the vectors separately from the row

    @property
    def input_line(self) -> bytes:
        """The line that was read, with the vectors and `_emb` of a file that has them separately."""
        line = self.row.input_line
        if not self.apart:
            return line
        encode = as_list if np.isfinite(self.vectors).all() else as_base64
        new = [(b"_emb", orjson.dumps(self.emb))] if self.emb and "_emb" not in self.row.values else []
        new += [(name.encode(), encode(each)) for name, each in zip(self.names, self.vectors, strict=True)]
        return append_fields(line, new, empty=not self.row.values)


@dataclass(frozen=True, slots=True)
class VectorBlock:
    """Rows with their vectors. A bad row has any vectors."""

    rows: RowBlock
    vectors: NDArray[np.float32]  # (n, k, d)
    names: tuple[str, ...]
    emb: str | None = None
    apart: bool = False  # a file has the vectors separately from the rows

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[VectorRow]:
        pairs = zip(self.rows, self.vectors, strict=True)
        return (VectorRow(*pair, self.names, self.emb, self.apart) for pair in pairs)

    def __getitem__(self, rows: slice) -> "VectorBlock":
        return self.take(rows)

    def take(self, places: Sequence[int] | slice) -> "VectorBlock":
        return replace(self, rows=self.rows.take(places), vectors=self.vectors[places])

    def good_places(self, rejects: Rejects) -> Iterator[Sequence[int] | slice]:
        """Yield the places of the good rows. The others go to the rejects with their vectors."""
        for place in self.rows.bad if self.apart else ():
            row = VectorRow(self.rows.row(place), self.vectors[place], self.names, self.emb, apart=True)
            self.rows.raws[place] = row.input_line
        yield from rejects.good_places(self.rows)


Parser = Callable[[slice], VectorBlock]  # parses some rows, and marks bad ones


class VectorReader:
    """Reads rows with vectors from JSONL and vector files.

    The first row that is accepted determines the vector fields, their length and their space. A later row
    that differs is a DataError, also in another file, because different spaces are not comparable.
    """

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self.begun = False  # whether a row was accepted
        self.names: tuple[str, ...] = ()  # standard names: embedding, or embedding_a and embedding_b, ...
        self.theirs: tuple[str, ...] = ()  # names in these rows
        self.width = 0
        self.emb: str | None = None
        self.verifies = False  # whether the digests of vector files are checked

    def blocks(
        self, check: Callable[[VectorBlock], VectorBlock] = lambda block: block, most: int | None = None
    ) -> Iterator[VectorBlock]:
        """Yield the rows of all files in blocks, the first `most` of them. `check` can mark rows as bad."""
        for path in self.inputs.paths:
            for block in self.blocks_of(path, check, most):
                most = None if most is None else most - len(block)
                yield block

    def blocks_of(
        self,
        path: str,
        check: Callable[[VectorBlock], VectorBlock] = lambda block: block,
        most: int | None = None,
    ) -> Iterator[VectorBlock]:
        """Do the same for one file."""
        if most == 0:
            return
        for rows, parse in self.raw_blocks(path):
            for part in self.parts(rows, alone=most is not None):
                before = vars(self).copy()
                block = check(parse(part))
                if not self.begun and block.rows.bad:  # of one row
                    vars(self).update(before)
                self.begun = self.begun or not block.rows.bad
                self.inputs.meter.bad += len(block.rows.bad)
                for places in block.good_places(self.inputs.rejects):
                    good = block.take(places)
                    self.inputs.meter.took(len(good))
                    most = None if most is None else most - len(good)
                    yield good
                if most == 0:
                    return

    def parts(self, rows: RowBlock, *, alone: bool = False) -> Iterator[slice]:
        """All rows; before one is accepted, one after the other, because a bad one determines nothing.

        `alone`: all of them one after the other.
        """
        start = 0
        while start < len(rows):
            stop = len(rows) if self.begun and not alone else start + 1
            yield slice(start, stop)
            start = stop

    def raw_blocks(self, path: str) -> Iterator[tuple[RowBlock, Parser]]:
        """The rows of a file, and a function that parses a part of them."""
        if is_array(path):
            count = len(read_array_file(path))
            for rows, vectors in self.inputs.meter.counted(path, array_blocks(path, count), count):
                yield rows, self.admitter(rows, vectors, VECTOR_NAMES[-1], None)
        elif store.is_store(path):
            refuse_renamed_vectors(self.inputs, path)
            file = store.Store(path)
            blocks = file.row_blocks_with_vectors(verify=self.verifies)
            for rows, vectors in self.inputs.meter.counted(path, blocks, file.count):
                yield rows, self.admitter(rows, vectors, file.names, file.emb)
        else:
            with self.inputs.raw_blocks(path) as raw:
                for rows in raw:
                    yield rows, self.parser(rows)

    def admitter(
        self, rows: RowBlock, vectors: NDArray[np.float32], names: tuple[str, ...], emb: str | None
    ) -> Parser:
        def parse(part: slice) -> VectorBlock:
            own = rows.part(*part.indices(len(rows))[:2])
            return replace(self.admitted(own, vectors[part], names, [emb] * len(own)), apart=True)

        return parse

    def parser(self, rows: RowBlock) -> Parser:
        return lambda part: self.parsed(rows.part(*part.indices(len(rows))[:2]))

    def parsed(self, rows: RowBlock) -> VectorBlock:
        """The rows with the vectors in their fields."""
        vectors = None
        try:
            names = self.names or self._names_in(rows.row(0))
            theirs = [self.inputs.fields.get(each, each) for each in names]
            vectors = None if rows.bad else vectors_in(rows, theirs)
        except DataError:
            pass  # of the first row; the loop marks it
        embs = [values.get("_emb") for values in rows.values]
        if vectors is not None and not any(map(emb_problem, {*embs} if all_hashable(embs) else [0])):
            rows.refuse_duplicates()
            if not rows.bad:
                return self.admitted(rows, vectors, names, embs)
        return self.one_by_one(rows, lambda place: self.parse(rows.row(place)))

    def admitted(
        self, rows: RowBlock, vectors: NDArray[np.float32], names: tuple[str, ...], embs: list[str | None]
    ) -> VectorBlock:
        """Check the rows as `admit` does."""
        theirs = tuple(self.inputs.fields.get(name, name) for name in names)
        if rows.bad or len({*embs}) > 1 or not self.admits(rows.row(0), names, vectors, embs[0]):
            for place in range(len(rows)):
                if place not in rows.bad:
                    try:
                        self.admit(rows.row(place), names, vectors[place], embs[place])
                    except DataError as error:
                        rows.bad[place] = error
        return VectorBlock(rows, vectors, theirs, embs[0])

    def admits(self, row: Row, names: tuple[str, ...], vectors: Vector, emb: str | None) -> bool:
        """Whether all rows pass `admit`, of which the first is `row`; they have one `_emb`."""
        try:
            self.admit(row, names, vectors[0], emb)
        except DataError:
            return False
        return bool(np.isfinite(vectors).all())

    def one_by_one(self, rows: RowBlock, parse: Callable[[int], VectorRow]) -> VectorBlock:
        """Parse each row by its place, and mark those with a DataError."""
        good: dict[int, VectorRow] = {}
        for place in range(len(rows)):
            if place not in rows.bad:
                try:
                    good[place] = parse(place)
                except DataError as error:
                    rows.bad[place] = error
        first = next(iter(good.values()), VectorRow(rows.row(0), np.zeros((1, 1), np.float32), self.theirs))
        vectors = np.zeros((len(rows), *first.vectors.shape), np.float32)
        for place, each in good.items():
            vectors[place] = each.vectors
        return VectorBlock(rows, vectors, first.names, first.emb)

    def arrays(self, path: str, size: int) -> Iterator[NDArray[np.float32]]:
        """Yield the vectors (n, k, d) of `size` rows at a time; the last block can be smaller.

        The rows of a vector file are not parsed, unless bad rows are skipped.
        """
        if not store.is_store(path) or self.inputs.rejects.skip:
            yield from resized((block.vectors for block in self.blocks_of(path)), np.concatenate, size)
            return
        refuse_renamed_vectors(self.inputs, path)
        file, count = store.Store(path), 0
        for vectors in resized(file.blocks(), np.concatenate, size):
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
        elif "cluster" in row.values:
            advice = "these are rows of sentkit cluster, which keeps the vectors with --keep-vectors"
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


def one_vector(block: VectorBlock) -> VectorBlock:
    """Refuse pairs and triplets."""
    if block.vectors.shape[1] != 1:
        block.rows.refuse_all(f"expected 1 vector, this row has {block.vectors.shape[1]}")
    return block


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


def array_blocks(path: str, count: int) -> Iterator[tuple[RowBlock, NDArray[np.float32]]]:
    """Empty rows with their vectors (n, 1, d) as float32."""
    for start in range(0, count, ARRAY_ROWS):
        with np.errstate(over="ignore"):  # one map of the whole file would keep all its pages in memory
            block = read_array_file(path)[start : start + ARRAY_ROWS, None].astype(np.float32, "C")
        yield block_of(Row(b"{}", {}, path, start + place) for place in range(1, len(block) + 1)), block


class Sized(Protocol):
    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Any: ...


S = TypeVar("S", bound=Sized)


def resized(parts: Iterable[S], join: Callable[[list[S]], S], most: int, first: int = 0) -> Iterator[S]:
    """The same rows in parts of `first`, 4 * `first` ... and up to `most` rows, by default of `most` rows.

    So a result does not depend on the rows that each read of a pipe returned.
    """
    held, count, size = list[S](), 0, first or most
    for part in parts:
        held.append(part)
        count += len(part)
        while count >= size:
            whole = join(held) if len(held) > 1 else held[0]
            yield whole[:size]
            held, count, size = [whole[size:]], count - size, min(4 * size, most)
    if count:
        yield join(held)


def joined(blocks: list[VectorBlock]) -> VectorBlock:
    rows = empty_block()
    for block in blocks:
        rows.extend(block.rows)
    first = blocks[0]
    return VectorBlock(
        rows, np.concatenate([block.vectors for block in blocks]), first.names, first.emb, first.apart
    )


def refuse_renamed_vectors(inputs: Inputs, path: str) -> None:
    """Refuse --field for the vectors of a vector file, which have their standard names."""
    named = sorted(inputs.fields.keys() & set(VECTORS))
    if named:
        raise UsageError(f"{path}: --field {named[0]} cannot rename the vectors of a vector file")


def check_finite(row: Row, vectors: NDArray[np.float32]) -> None:
    if not np.isfinite(vectors).all():
        raise row.error(NOT_FINITE)


def parse_vectors(row: Row, names: Sequence[str]) -> NDArray[np.float32]:
    """The vectors of a row (k, d). Different lengths are an error."""
    raw = [raw_vector(row, name) for name in names]
    if len(set(map(len, raw))) > 1:
        raise row.error("the vectors of this row have different lengths")
    return np.frombuffer(b"".join(raw), dtype="<f4").reshape(len(names), -1)


def vectors_in(rows: RowBlock, names: Sequence[str]) -> NDArray[np.float32] | None:
    """The vectors of all rows (n, k, d); None if they must be parsed one by one for an error."""
    columns = []
    for name in names:
        column: list[Any] = [values.get(name) for values in rows.values]
        kinds, sizes = {*map(type, column)}, {len(value) for value in column if isinstance(value, str | list)}
        if len(sizes) != 1 or 0 in sizes:
            return None
        if kinds == {str}:
            try:
                raw = [pybase64.b64decode(value, validate=True) for value in column]
            except ValueError:
                return None
            if {*map(len, raw)} != {len(raw[0])} or not raw[0] or len(raw[0]) % 4:
                return None
            columns.append(np.frombuffer(b"".join(raw), "<f4").reshape(len(rows), -1))
        elif kinds == {list} and {*map(type, chain.from_iterable(column))} <= {float, int}:
            with np.errstate(over="ignore"):
                columns.append(np.array(column, "<f4"))
        else:
            return None
    same = len({column.shape for column in columns}) == 1
    return np.stack(columns, 1) if same else None


def all_hashable(values: Sequence[object]) -> bool:
    return {*map(type, values)} <= {str, type(None)}


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
