"""Read vectors from rows (lists or base64), vector files and .npy. A stream has one space and one shape."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
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
class VectorBlock:
    """Rows with their vectors. A bad row has any vectors."""

    rows: RowBlock
    vectors: Vector  # (n, k, d)
    names: tuple[str, ...]
    emb: str | None = None
    apart: bool = False  # a file has the vectors separately from the rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: slice) -> "VectorBlock":
        return self.take(rows)

    def take(self, places: Sequence[int] | slice) -> "VectorBlock":
        return replace(self, rows=self.rows.take(places), vectors=self.vectors[places])

    def good_places(self, rejects: Rejects) -> Iterator[Sequence[int] | slice]:
        """Yield the places of the good rows. The others go to the rejects with their vectors and `_emb`."""
        for place in self.rows.bad if self.apart else ():
            values, vectors = self.rows.values[place], self.vectors[place]
            encode = as_list if np.isfinite(vectors).all() else as_base64
            new = [(b"_emb", orjson.dumps(self.emb))] if self.emb and "_emb" not in values else []
            new += [(name.encode(), encode(each)) for name, each in zip(self.names, vectors, strict=True)]
            self.rows.raws[place] = append_fields(self.rows.raws[place], new, empty=not values)
        yield from rejects.good_places(self.rows)


Read = tuple[RowBlock, Vector | None, tuple[str, ...], str | None]  # rows; vectors, names, _emb if apart


class VectorReader:
    """Reads rows with vectors from JSONL and vector files.

    The first row that is accepted determines the vector fields, their length and their space. A later row
    that differs is a DataError, also in another file, because different spaces are not comparable.
    """

    def __init__(self, inputs: Inputs, *, optional: bool = False) -> None:
        """`optional`: all rows have vectors, or none has."""
        self.inputs, self.optional = inputs, optional
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
        for rows, vectors, names, emb in self.read(path):
            start = 0
            while start < len(rows):
                # Before a row is accepted, one after the other, because a bad one determines nothing.
                stop = len(rows) if self.begun and most is None else start + 1
                before, own = vars(self).copy(), rows.part(start, stop)
                if vectors is None:
                    block = check(self.parsed(own))
                else:
                    embs = [emb] * len(own)
                    stored = self.admitted(own, vectors[start:stop], names, embs)
                    block = check(replace(stored, apart=True))
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
                start = stop

    def read(self, path: str) -> Iterator[Read]:
        """The rows of a file, and their vectors if a file has them apart."""
        if is_array(path):
            count, names, emb = len(read_array_file(path)), VECTOR_NAMES[-1], None
            blocks = array_blocks(path, count)
        elif store.is_store(path):
            refuse_renamed_vectors(self.inputs, path)
            file = store.Store(path)
            count, names, emb = file.count, file.names, file.emb
            blocks = file.row_blocks_with_vectors(verify=self.verifies)
        else:
            with self.inputs.raw_blocks(path) as raw:
                yield from ((rows, None, (), None) for rows in raw)
            return
        for rows, vectors in self.inputs.meter.counted(path, blocks, count):
            yield rows, vectors, names, emb

    def parsed(self, rows: RowBlock) -> VectorBlock:
        """The rows with the vectors in their fields."""
        if self.optional and not self.names and all(map(self._all_theirs.isdisjoint, rows.values)):
            return VectorBlock(rows, np.zeros((len(rows), 0, 0), np.float32), ())
        vectors = None
        with suppress(DataError):  # of the first row; the loop marks it
            names = self.names or self._names_in(rows.row(0))
            vectors = None if rows.bad else vectors_in(rows, self._names_there(names))
        embs = [values.get("_emb") for values in rows.values]
        if vectors is not None and not any(map(emb_problem, {*embs} if all_hashable(embs) else [0])):
            rows.refuse_duplicates()
            if not rows.bad:
                return self.admitted(rows, vectors, names, embs)
        good = dict[int, Vector]()
        for place, row in enumerate(rows):
            if place not in rows.bad:
                try:
                    good[place] = self.parse(row)
                except DataError as error:
                    rows.bad[place] = error
        first = next(iter(good), 0)
        vectors = np.zeros((len(rows), *good.get(first, np.zeros((1, 1))).shape), np.float32)
        for place, own in good.items():
            vectors[place] = own
        return VectorBlock(rows, vectors, self.theirs, embs[first] if good else None)

    def parse(self, row: Row) -> Vector:
        """The vectors of a row (k, d)."""
        if self.optional and not self.names and not self._all_theirs & row.values.keys():
            return np.empty((0, 0), np.float32)
        names, emb = self.names or self._names_in(row), row.values.get("_emb")
        row.refuse_duplicates()
        vectors = parse_vectors(row, self._names_there(names))
        if problem := emb_problem(emb):
            raise row.error(problem)
        self.admit(row, names, vectors, emb)
        return vectors

    @property
    def _all_theirs(self) -> set[str]:
        """The names in these rows of all fields that can have a vector."""
        return {*self._names_there(VECTORS)}

    def _names_there(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(self.inputs.fields.get(name, name) for name in names)

    def _names_in(self, row: Row) -> tuple[str, ...]:
        for names in VECTOR_NAMES:
            if all(name in row.values for name in self._names_there(names)):
                return names
        file = None if row.source == "-" else shlex.quote(row.source)
        command = f"sentkit encode {file} -o vectors.safetensors" if file else "... | sentkit encode | ..."
        advice = f"encode the texts first: {command}"
        if "hits" in row.values:
            advice = "these are hits of sentkit search: sentkit score --qrels FILE judges them"
        elif "cluster" in row.values:
            advice = "add --keep-vectors to sentkit cluster, which leaves out the vectors of its rows"
        raise row.error("this row has no vector", advice=advice)

    def admitted(
        self, rows: RowBlock, vectors: Vector, names: tuple[str, ...], embs: list[str | None]
    ) -> VectorBlock:
        """Check the rows as `admit` does."""
        alike = not rows.bad and len({*embs}) == 1 and bool(np.isfinite(vectors).all())
        for place in range(len(rows)):
            if place not in rows.bad:
                try:
                    self.admit(rows.row(place), names, vectors[place], embs[place])
                except DataError as error:
                    rows.bad[place] = error
            if alike and not rows.bad:
                break  # the others are like the first
        return VectorBlock(rows, vectors, self._names_there(names), embs[0])

    def admit(self, row: Row, names: tuple[str, ...], vectors: Vector, emb: str | None) -> None:
        """Check the vectors of a row, and compare their names, space and length with the first row."""
        if self.optional and self.begun and not self.names:
            raise row.error("this row has a vector, the first row has none")
        self.check(row, vectors)
        if not self.names:
            self.names, self.width, self.emb = names, vectors.shape[1], emb
            self.theirs = self._names_there(names)
        if names != self.names:
            raise row.error(f"this row has {', '.join(names)}, the first row has {', '.join(self.names)}")
        if emb != self.emb and (emb is None or self.emb is None or space_of(emb) != space_of(self.emb)):
            ours, first = short_label(emb), short_label(self.emb)
            problem = f"the vectors of this row are {ours}, the vectors of the first row are {first}"
            raise row.error(problem, advice=edition_advice(emb, self.emb))
        if vectors.shape[1] != self.width:
            width = vectors.shape[1]
            raise row.error(f"this vector has {width} numbers, the vector of the first row has {self.width}")

    def check(self, row: Row, vectors: Vector) -> None:
        check_finite(row, vectors)

    def arrays(self, path: str, size: int) -> Iterator[Vector]:
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
            for place in np.flatnonzero(~np.isfinite(vectors).all(axis=(1, 2))).tolist():
                raise file.row(count + place).error(NOT_FINITE)
            yield vectors
            count += len(vectors)


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


def array_blocks(path: str, count: int) -> Iterator[tuple[RowBlock, Vector]]:
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


def check_finite(row: Row, vectors: Vector) -> None:
    if not np.isfinite(vectors).all():
        raise row.error(NOT_FINITE)


def parse_vectors(row: Row, names: Sequence[str]) -> Vector:
    """The vectors of a row (k, d). Different lengths are an error."""
    raw = [raw_vector(row, name) for name in names]
    if len(set(map(len, raw))) > 1:
        raise row.error("the vectors of this row have different lengths")
    return np.frombuffer(b"".join(raw), dtype="<f4").reshape(len(names), -1)


def vectors_in(rows: RowBlock, names: Sequence[str]) -> Vector | None:
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
