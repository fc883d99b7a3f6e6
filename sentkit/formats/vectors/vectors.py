"""Read vectors from rows (lists or base64), vector files and .npy. A stream has one space and one
shape.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from tokenize import TokenError
from typing import Any

import numpy as np
import orjson
import pybase64
from numpy.typing import NDArray

from sentkit.errors import DataError, NoVectorError, OtherSpaceError, UsageError
from sentkit.formats.counted import counted
from sentkit.formats.files import local_path, open_file, suffix_of
from sentkit.formats.rows.block import Row, RowBlock, append_fields, block_of_rows, empty_block
from sentkit.formats.rows.kinds import (
    FIELDS,
    VECTOR_NAMES,
    VECTORS,
    field_of_text,
    missing_field,
    wrong_field,
)
from sentkit.formats.rows.lines import json_type
from sentkit.formats.rows.rows import Inputs, Rejects
from sentkit.formats.vectors.fingerprint import (
    MAPPED_NOTE,
    advice_on_spaces,
    emb_problem,
    is_comparable,
    short_label,
)
from sentkit.formats.vectors.vector_file import VectorSource

Vector = NDArray[np.float32]

ARRAY_ROWS = 1024  # of a .npy file that are read at a time
VECTOR_FIELDS = (*VECTORS, *FIELDS)
NOT_FINITE = "a vector contains NaN or infinity"
TOO_LARGE = "a vector contains a number that is too large for float32"  # JSON has no infinity
UNEXPECTED = "this row has a vector, the first row has none"


@dataclass(frozen=True, slots=True)
class VectorBlock:
    """Rows with their vectors. A bad row has any vectors."""

    rows: RowBlock
    vectors: Vector  # (n, k, d)
    names: tuple[str, ...]  # of the k vectors in these rows
    space_name: str | None = None  # the name of their space, the field "_emb"
    separate: bool = False  # a file has the vectors separately from the rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: slice) -> "VectorBlock":
        return self.take(rows)

    def take(self, indices: Sequence[int] | slice) -> "VectorBlock":
        return replace(self, rows=self.rows.take(indices), vectors=self.vectors[indices])

    def good_indices(self, rejects: Rejects) -> Iterator[Sequence[int] | slice]:
        """Yield the indices of the good rows. The others go to the rejects with their vectors and
        `_emb`.
        """
        if self.separate:
            self.add_vectors_to_raws(self.rows.error_of_row)
        yield from rejects.good_indices(self.rows)

    def add_vectors_to_raws(self, indices: Iterable[int]) -> None:
        """Add separate vectors and their `_emb` to the lines that the rejects get."""
        for index in indices:
            self.rows.raws[index] = self._line_with_vectors(index)

    def _line_with_vectors(self, index: int) -> bytes:
        values = self.rows.values[index]
        vectors = self.vectors[index]
        encode = as_list if np.isfinite(vectors).all() else as_base64
        new_fields = [
            (name.encode(), encode(vector))
            for name, vector in zip(self.names, vectors, strict=True)
        ]
        if self.space_name and "_emb" not in values:
            new_fields.insert(0, (b"_emb", orjson.dumps(self.space_name)))
        return append_fields(self.rows.raws[index], new_fields, empty=not values)


class VectorReader:
    """Reads rows with vectors from JSONL and vector files.

    The first row that is accepted determines the vector fields, their length and their space. A
    later row that differs is a DataError, also in another file, because different spaces are not
    comparable.
    """

    def __init__(
        self,
        inputs: Inputs,
        *,
        vectors_optional: bool = False,
        finite: bool = True,
        verify: bool = False,
    ) -> None:
        """`vectors_optional`: all rows have vectors, or none has. `finite`: refuse NaN and
        infinity.

        With `verify`, the digests of vector files are checked.
        """
        self.inputs = inputs
        self.vectors_optional = vectors_optional
        self.finite = finite
        self.verify = verify
        self.has_noted_map = False  # whether a note has said that spaces are mapped

        # What the first accepted row determines.
        self.has_accepted = False  # whether a row was accepted
        self.names: tuple[str, ...] = ()  # standard names, such as embedding_a and embedding_b
        self.width = 0
        self.space_name: str | None = None  # the name of the space; None if the row has none

    @property
    def names_in_rows(self) -> tuple[str, ...]:
        """The names of the vectors in rows without a vector file."""
        return self._as_in_rows(self.names)

    def blocks(
        self,
        check: Callable[[VectorBlock], VectorBlock] = lambda block: block,
        limit: int | None = None,
        paths: Sequence[str] | None = None,
    ) -> Iterator[VectorBlock]:
        """Yield the rows of all files in blocks, the first `limit` of them. `check` can mark rows
        as bad.
        """
        if limit == 0:
            return
        remaining = limit
        for path in paths or self.inputs.paths:
            for rows in self.read(path):
                start = 0
                while start < len(rows):
                    # Before a row is accepted, one after the other, because a bad one determines
                    # nothing.
                    if not self.has_accepted:
                        stop = start + 1
                    elif remaining is not None:
                        stop = min(start + remaining, len(rows))
                    else:
                        stop = len(rows)
                    block = self._parsed_and_checked(rows, start, stop, check)
                    for indices in block.good_indices(self.inputs.rejects):
                        good = block.take(indices)
                        self.inputs.counter.add_rows(len(good))
                        if remaining is not None:
                            remaining -= len(good)
                        yield good
                    if remaining == 0:
                        return
                    start = stop

    def read(self, path: str) -> Iterator[RowBlock | VectorBlock]:
        """The rows of a file before their vectors are parsed; with vectors if a file has them
        separately.
        """
        names = VECTOR_NAMES[-1]  # of sentences: embedding
        emb = None
        if is_array(path):
            count = len(read_array_file(path))
            blocks = array_blocks(path, count)
        elif (file := self.inputs.open_vector_file(path)) is not None:
            refuse_renamed_vectors(self.inputs, path)
            count = file.count
            names = file.names
            emb = file.space_name
            blocks = file.row_blocks_with_vectors(verify=self.verify)
        else:
            with self.inputs.raw_blocks(path) as row_blocks:
                yield from row_blocks
            return
        vector_blocks = (
            VectorBlock(rows, vectors, names, emb, separate=True) for rows, vectors in blocks
        )
        yield from self.inputs.counter.count_blocks(path, vector_blocks, count)

    def _parsed_and_checked(
        self,
        read_block: RowBlock | VectorBlock,
        start: int,
        stop: int,
        check: Callable[[VectorBlock], VectorBlock],
    ) -> VectorBlock:
        """The rows from `start` to `stop` of a block of `read`, with their vectors. `check` is that
        of `blocks`.

        Before a row is accepted, they are one row. If it is bad, it does not determine the names,
        the width and the space of the vectors.
        """
        block = check(self._with_vectors(read_block, start, stop))
        bad_rows = block.rows.error_of_row
        if not self.has_accepted:
            if bad_rows:
                self._forget_first_row()
            else:
                self.has_accepted = True
        self.inputs.counter.bad_count += len(bad_rows)
        return block

    def _with_vectors(
        self, read_block: RowBlock | VectorBlock, start: int, stop: int
    ) -> VectorBlock:
        if isinstance(read_block, RowBlock):
            return self.with_parsed_vectors(read_block.between(start, stop))
        rows = read_block.rows.between(start, stop)
        vectors = read_block.vectors[start:stop]
        embs = [read_block.space_name] * len(rows)
        return self.with_checked_vectors(rows, vectors, read_block.names, embs, separate=True)

    def _forget_first_row(self) -> None:
        """Undo what `with_checked_vectors` has set for a row that was refused afterwards."""
        self.names = ()
        self.width = 0
        self.space_name = None

    def with_parsed_vectors(self, rows: RowBlock) -> VectorBlock:
        """The rows with the vectors in their fields, as one array (n, k, d)."""
        if self.vectors_optional and not self._first_row_has_vectors(rows):
            return without_vectors(rows, self._as_in_rows(VECTORS))
        rows.refuse_duplicate_names()
        names = self.names or self._names_of_first_row(rows)
        bytes_of_rows = raw_vectors(rows, self._as_in_rows(names))

        # The spaces. A bad row has that of the others.
        embs = [values.get("_emb") for values in rows.values]
        for index, emb in enumerate(embs):
            if emb != self.space_name and (problem := emb_problem(emb)):
                rows.refuse(index, problem)
                embs[index] = self.space_name

        # One array (n, k, d). A row whose vectors have another width has zeros until it is refused.
        k = max(1, len(names))
        width = self.width or max(1, max(map(len, bytes_of_rows)) // (4 * k))
        size = 4 * k * width
        joined = bytearray().join(
            content if len(content) == size else bytes(size) for content in bytes_of_rows
        )
        vectors = np.frombuffer(joined, "<f4").reshape(len(rows), k, width)
        block = self.with_checked_vectors(rows, vectors, names, embs)
        for index, content in enumerate(bytes_of_rows):
            if len(content) != size:
                self._refuse_width(rows, [index], len(content) // (4 * k))
        return block

    def _first_row_has_vectors(self, rows: RowBlock) -> bool:
        """Whether the first accepted row has vectors; before there is one, whether rows[0] has."""
        if self.has_accepted or self.names:
            return bool(self.names)
        fields_of_vectors = set(self._as_in_rows(VECTORS))
        return not fields_of_vectors.isdisjoint(rows.values[0])

    def _as_in_rows(self, names: Sequence[str]) -> tuple[str, ...]:
        """The names of the fields in the rows, which --field can change."""
        return tuple(self.inputs.fields.get(name, name) for name in names)

    def _names_of_first_row(self, rows: RowBlock) -> tuple[str, ...]:
        """The standard names of the vectors of the first row; without them, it is bad."""
        values = rows.values[0]
        for names in VECTOR_NAMES:
            if all(name in values for name in self._as_in_rows(names)):
                return names
        fields = self.inputs.fields
        for standard, name in fields.items():
            if standard in VECTOR_FIELDS and name not in values:
                rows.error_of_row.setdefault(0, missing_field(rows.row(0), name, standard))
                return ()
        problem = "this row has no vector"
        if "cluster" in values:
            advice = (
                "add --keep-vectors to sentkit cluster, which leaves out the vectors of its rows"
            )
            rows.refuse(0, problem, advice=advice)
            return ()
        field = field_of_text(rows.row(0), fields)
        error = NoVectorError(
            problem,
            source=rows.sources[0],
            line=rows.numbers[0],
            field=field,
            has_hits="hits" in values or {"row_b", "rank"} <= values.keys(),  # also of --flat
        )
        rows.error_of_row.setdefault(0, error)
        return ()

    def with_checked_vectors(
        self,
        rows: RowBlock,
        vectors: Vector,
        names: tuple[str, ...],
        embs: Sequence[str | None],
        *,
        separate: bool = False,
    ) -> VectorBlock:
        """The rows with their vectors. Rows are bad if names, space or length of their vectors are
        not those of the first accepted row, or if a number is not finite.
        """
        if self.has_accepted and not self.names:
            rows.refuse_all(UNEXPECTED)
        if self.finite:
            refuse_not_finite(rows, vectors, () if separate else self._as_in_rows(names))

        # The first row that is accepted sets what the others are compared with.
        if not self.names and not rows.error_of_row:
            self.names = names
            self.width = vectors.shape[2]
            self.space_name = embs[0]
        if names != self.names:
            rows.refuse_all(
                f"this row has {', '.join(names)}, the first row has {', '.join(self.names)}"
            )
        for emb in {*embs} - {self.space_name}:
            if not is_comparable(emb, self.space_name, mapped=self.inputs.accepts_mapped):
                self._refuse_space(
                    rows, [index for index, other in enumerate(embs) if other == emb], emb
                )
            elif not (self.has_noted_map or is_comparable(emb, self.space_name)):
                self.inputs.rejects.note(MAPPED_NOTE)
                self.has_noted_map = True
        if vectors.shape[2] != self.width:
            self._refuse_width(rows, range(len(rows)), vectors.shape[2])
        return VectorBlock(rows, vectors, self._as_in_rows(names), embs[0], separate)

    def _refuse_space(self, rows: RowBlock, indices: Sequence[int], emb: str | None) -> None:
        problem = f"the vectors of this row are {short_label(emb)}, "
        problem += f"the vectors of the first row are {short_label(self.space_name)}"
        advice = advice_on_spaces(emb, self.space_name)
        for index in indices:
            error = OtherSpaceError(
                problem,
                source=rows.sources[index],
                line=rows.numbers[index],
                advice=advice,
                wanted=self.space_name,
            )
            rows.error_of_row.setdefault(index, error)

    def _refuse_width(self, rows: RowBlock, indices: Sequence[int], width: int) -> None:
        numbers = counted(width, "number")
        problem = f"this vector has {numbers}, the vector of the first row has {self.width}"
        for index in indices:
            rows.refuse(index, problem)

    def arrays(self, path: str, size: int) -> Iterator[Vector]:
        """Yield the vectors (n, k, d) of `size` rows at a time; the last block can be smaller."""
        file: VectorSource | None = self.inputs.open_vector_file(path)
        if file is None or self.inputs.rejects.skip:
            yield from in_blocks_of_size(
                (block.vectors for block in self.blocks(paths=[path])), np.concatenate, size
            )
            return
        refuse_renamed_vectors(self.inputs, path)
        count = 0
        for vectors in in_blocks_of_size(file.blocks(), np.concatenate, size):
            if count == 0:
                first = block_of_rows([file.row(0)])
                self.with_checked_vectors(first, vectors[:1], file.names, [file.space_name])
                if first.error_of_row:
                    raise first.error_of_row[0]
            not_finite = ~np.isfinite(vectors).all(axis=(1, 2))
            if not_finite.any():
                raise file.row(count + int(not_finite.argmax())).error(NOT_FINITE)
            yield vectors
            count += len(vectors)


def without_vectors(rows: RowBlock, names_in_rows: Iterable[str]) -> VectorBlock:
    """Rows that have no vectors, as the first row; a row with one is bad."""
    fields_of_vectors = set(names_in_rows)
    for index, values in enumerate(rows.values):
        if not fields_of_vectors.isdisjoint(values):
            rows.refuse(index, UNEXPECTED)
    return VectorBlock(rows, np.zeros((len(rows), 0, 0), np.float32), ())


def one_vector(block: VectorBlock) -> VectorBlock:
    """Refuse pairs and triplets."""
    if block.vectors.shape[1] != 1:
        block.rows.refuse_all(f"expected 1 vector, this row has {block.vectors.shape[1]}")
    return block


def is_array(path: str) -> bool:
    """Whether a path is an array of numpy, whose rows have a vector and no fields."""
    return suffix_of(path) == ".npy"


def read_array_file(path: str) -> NDArray[Any]:
    """The numbers of a .npy file (n, d), memory-mapped."""
    open_file(path).close()  # for its errors: a missing file, or one that cannot be read
    try:
        # It refuses pickled objects and archives. A damaged header raises any of these errors.
        array = np.lib.format.open_memmap(local_path(path), mode="r")
    except (
        ValueError,
        TypeError,
        SyntaxError,
        OverflowError,
        MemoryError,
        OSError,
        TokenError,
    ) as error:
        raise DataError("not an array of numbers in the format of numpy", source=path) from error
    if array.ndim != 2 or array.dtype.kind not in "fiu" or not array.shape[1]:
        problem = (
            f"an array of {array.dtype} and shape {array.shape}, expected numbers (rows, width)"
        )
        raise DataError(problem, source=path)
    return array


def array_blocks(path: str, count: int) -> Iterator[tuple[RowBlock, Vector]]:
    """Empty rows with their vectors (n, 1, d) as float32."""
    for start in range(0, count, ARRAY_ROWS):
        # one map of the whole file would keep all its pages in memory
        with np.errstate(over="ignore"):
            block = read_array_file(path)[start : start + ARRAY_ROWS, None].astype(np.float32, "C")
        rows = block_of_rows(
            Row(b"{}", {}, path, number) for number in range(start + 1, start + len(block) + 1)
        )
        yield rows, block


def in_blocks_of_size(
    blocks: Iterable[Any], join: Callable[[list[Any]], Any], size: int, first: int = 0
) -> Iterator[Any]:
    """The same rows in blocks of `first`, 4 * `first` ... and up to `size` rows, by default of
    `size` rows.

    So a result does not depend on the rows that each read of a pipe returned.
    """
    waiting = list[Any]()  # blocks whose rows were not yielded yet
    count = 0  # of their rows
    next_size = first or size
    for block in blocks:
        waiting.append(block)
        count += len(block)
        while count >= next_size:
            rows = join(waiting) if len(waiting) > 1 else waiting[0]
            yield rows[:next_size]
            waiting = [rows[next_size:]]
            count -= next_size
            next_size = min(4 * next_size, size)
    if count:
        yield join(waiting)


def joined_vector_blocks(blocks: list[VectorBlock]) -> VectorBlock:
    all_separate = all(block.separate for block in blocks)
    rows = empty_block()
    for block in blocks:
        if block.separate and not all_separate:
            block.add_vectors_to_raws(range(len(block)))
        rows.extend(block.rows)
    vectors = np.concatenate([block.vectors for block in blocks])
    return replace(blocks[0], rows=rows, vectors=vectors, separate=all_separate)


def refuse_renamed_vectors(inputs: Inputs, path: str) -> None:
    """Refuse --field for the vectors of a vector file, which have their standard names."""
    renamed_vectors = sorted(inputs.fields.keys() & set(VECTORS))
    if renamed_vectors:
        raise UsageError(
            f"{path}: --field {renamed_vectors[0]} cannot rename the vectors of a vector file"
        )


def refuse_not_finite(rows: RowBlock, vectors: Vector, names: Sequence[str] = ()) -> None:
    """Mark rows with NaN or infinity. `names` are the fields of the vectors in the rows."""
    if not np.isfinite(vectors).all():
        for index in np.flatnonzero(~np.isfinite(vectors).all(axis=(1, 2))).tolist():
            problem = NOT_FINITE
            if any(isinstance(rows.values[index].get(name), list) for name in names):
                problem = TOO_LARGE
            rows.refuse(index, problem)


def raw_vectors(rows: RowBlock, names: Sequence[str]) -> list[bytes]:
    """The bytes of the vectors of each row as float32, one vector after the other.

    A field is base64 or a list of numbers. A row with another value is bad.
    """
    vectors_of_rows: list[bytes] = []
    for index, values in enumerate(rows.values):
        vectors: list[bytes] = []
        for name in names:
            vector = raw_vector(values.get(name))
            if not holds_numbers(vector):
                rows.error_of_row.setdefault(index, wrong_vector(rows.row(index), name))
                vector = b""
            vectors.append(vector)
        if len(vectors) > 1 and len({*map(len, vectors)}) > 1:
            rows.refuse(index, "the vectors of this row have different lengths")
        vectors_of_rows.append(b"".join(vectors))
    return vectors_of_rows


def wrong_vector(row: Row, name: str) -> DataError:
    """The error for a field that is not read as a vector."""
    value = row.values.get(name)
    if value in ([], ""):
        return row.error(f'"{name}" is empty')
    if isinstance(value, str):
        return row.error(f'"{name}" is a string that is not the base64 of float32 numbers')
    if isinstance(value, list):
        for index, item in enumerate(value):
            if type(item) not in (float, int):
                return row.error(f'"{name}" has {json_type(item)} at index {index}')
    return wrong_field(row, name, "a vector: a list of numbers, or base64")


def holds_numbers(vector: bytes) -> bool:
    return len(vector) > 0 and len(vector) % 4 == 0


def is_vector(value: object) -> bool:
    """Whether the value of a field is read as a vector."""
    return holds_numbers(raw_vector(value))


def raw_vector(value: object) -> bytes:
    """A vector as float32; empty for a value that is none."""
    if isinstance(value, str):
        try:
            return pybase64.b64decode(value, validate=True)
        except ValueError:
            return b""
    if isinstance(value, list) and {*map(type, value)} <= {float, int}:
        with np.errstate(over="ignore"):
            return np.array(value, dtype="<f4").tobytes()
    return b""


def as_list(vector: NDArray[np.floating]) -> bytes:
    """JSON list with the shortest digits that restore each number exactly."""
    return orjson.dumps(vector, option=orjson.OPT_SERIALIZE_NUMPY)


def as_base64(vector: Vector) -> bytes:
    return b'"%b"' % pybase64.b64encode(vector.astype("<f4", copy=False).tobytes())


ENCODINGS: Mapping[str, Any] = {"list": as_list, "base64": as_base64}
