"""Write JSON lines as a Parquet file, in row groups. Needs pyarrow.

The rows of the first row group determine the columns and their types. A later row that does not fit is an
error. Vectors become lists of float32 of a fixed size; a field that a row does not have becomes null.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from decimal import Context, Decimal
from itertools import chain
from typing import Any, BinaryIO

import numpy as np
import orjson
import pybase64

from sentkit.errors import DataError
from sentkit.formats.files import import_pyarrow
from sentkit.formats.rows.block import DuplicateName, is_plain
from sentkit.formats.rows.kinds import VECTORS
from sentkit.formats.rows.lines import json_type

GROUP_ROWS, GROUP_BYTES = 1 << 16, 1 << 25  # maximum of a row group; the bytes are those of its lines
LEVELS = 99  # of a schema, which readers accept: one for the field, one for each object, two for each list
LONG = re.compile(rb"\d[\d.]{15}")  # may be a number with more digits than float64 or int64 surely have


class Misfit(Exception):
    """Values that a column cannot hold."""


def levels(values: object) -> int:
    """The number of levels that a JSON value adds to a schema."""
    deepest, stack = 0, [(values, 0)]
    while stack:
        value, level = stack.pop()
        deepest = max(deepest, level)
        if isinstance(value, dict):
            stack += [(each, level + 1) for each in value.values()]
        elif isinstance(value, list):
            stack += [(each, level + 2) for each in value or [None]]
    return deepest


def unique(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object with these fields; two with the same name are an error."""
    values = dict(fields)
    if len(values) < len(fields):
        names = [name for name, _ in fields]
        raise DuplicateName(max(names, key=names.count))
    return values


def lost(value: object) -> str | None:
    """The first number in an exact JSON value that a column cannot hold, in words; None if there is none."""
    if isinstance(value, dict | list):
        inside = value.values() if isinstance(value, dict) else value
        return next(filter(None, map(lost, inside)), None)
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return "a whole number of more than 64 bits"
    if isinstance(
        value, Decimal
    ):  # the shortest form of the nearest float64, or this float64 rounded, is kept
        nearest = float(value)
        rounded = Context(len(value.as_tuple().digits)).plus(Decimal(nearest))
        if value not in (Decimal(repr(nearest)), rounded):
            return "a number with more digits than float64 has"
    return None


class ParquetOutput:
    """A file for lines of JSON objects. `finish` writes the last row group and the footer."""

    def __init__(self, path: str, file: BinaryIO) -> None:
        self.path, self.file = path, file
        self.rest = b""  # start of an incomplete line
        self.rows: list[Mapping[str, Any]] = []
        self.bytes, self.count = 0, 0
        self.writer: Any = None

    def write(self, data: bytes) -> int:
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            self.rows.append(self._values(line))
            self.bytes += len(line)
            self.count += 1
            if len(self.rows) >= GROUP_ROWS or self.bytes >= GROUP_BYTES:
                self._write_group()
        return len(data)

    def writelines(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Do nothing, because a Parquet file is readable only when it is complete."""

    def finish(self) -> None:
        if self.rows or self.writer is None:
            self._write_group()
        self.writer.close()

    def discard(self) -> None:
        """Close the writer of an output that is not complete."""
        if self.writer is not None:
            with suppress(OSError, ValueError):
                self.writer.close()

    def _values(self, line: bytes) -> dict[str, Any]:
        values = orjson.loads(line)
        if not isinstance(values, dict):
            raise self._error(self.count, f"the row is {json_type(values)}, a Parquet file needs objects")
        if line.count(b"[") + line.count(b"{") > LEVELS // 2 and levels(values) > LEVELS:
            raise self._error(self.count, "lists and objects are nested too deeply for a Parquet file")
        if not is_plain(line, values) or LONG.search(line):
            self._check(line)
        for name in VECTORS:
            if name in values:
                try:
                    values[name] = vector(values[name])
                except ValueError as error:
                    problem = f'"{name}" is {json_type(values[name])}, expected a vector'
                    raise self._error(self.count, problem) from error
        return values

    def _check(self, line: bytes) -> None:
        """Refuse what the parsed values of a line have lost: a field with a duplicate name, or digits."""
        try:
            exact = json.loads(line, parse_float=Decimal, object_pairs_hook=unique)
        except DuplicateName as error:
            raise self._error(self.count, f'duplicate field "{error}"') from error
        for name, value in exact.items():
            if name not in VECTORS and (problem := lost(value)):
                raise self._error(self.count, f'"{name}" is or contains {problem}')

    def _write_group(self) -> None:
        from pyarrow import parquet, schema, table

        known = {} if self.writer is None else {field.name: field.type for field in self.writer.schema}
        names = known or dict.fromkeys(chain.from_iterable(self.rows))
        arrays = {name: self._column(name, known.get(name)) for name in names}
        if self.writer is None:
            types = schema([(name, array.type) for name, array in arrays.items()])
            self.writer = parquet.ParquetWriter(self.file, types)
        for place, row in enumerate(self.rows):
            if not row.keys() <= arrays.keys():
                name = min(row.keys() - arrays.keys())
                raise self._misfit(place, f'the field "{name}" is not in the first rows')
            if not arrays:
                raise self._misfit(place, "the row has no fields")
        self.writer.write_table(table(arrays), row_group_size=GROUP_ROWS)
        self.rows, self.bytes = [], 0

    def _column(self, name: str, type_: Any) -> Any:
        values = [row.get(name) for row in self.rows]
        try:
            return column(values, type_)
        except Misfit as error:
            good, bad, problem = 0, len(values), error  # `good` values fit, `bad` values do not
            while bad - good > 1:
                middle = (good + bad) // 2
                try:
                    column(values[:middle], type_)
                    good = middle
                except Misfit as other:
                    bad, problem = middle, other
            raise self._misfit(good, f'"{name}" {problem}') from problem

    def _misfit(self, place: int, problem: str) -> DataError:
        advice = "the rows of a Parquet file have the same fields and types; JSONL allows any rows"
        return self._error(self.count - len(self.rows) + place, problem, advice)

    def _error(self, place: int, problem: str, advice: str | None = None) -> DataError:
        return DataError(problem, source=self.path, line=place + 1, advice=advice)


def vector(value: object) -> Any:
    """A vector as float32, from a list of numbers or base64; None for null. Raises ValueError."""
    if value is None:
        return None
    if isinstance(value, str) and value:
        return np.frombuffer(pybase64.b64decode(value, validate=True), "<f4")
    if not isinstance(value, list) or not value or set(map(type, value)) - {int, float}:
        raise ValueError
    with np.errstate(over="ignore"):
        return np.array(value, np.float32)


def column(values: Sequence[Any], type_: Any) -> Any:
    """The values as an array, of the type of the column if there is one. Raises Misfit."""
    pyarrow = import_pyarrow()
    own = type_of(values)
    if type_ is not None and joined(type_, own) != type_:
        raise Misfit(f"does not fit the first rows, which have {type_}")
    final = own if type_ is None else type_
    try:
        if hasattr(final, "list_size"):
            blank = np.zeros(final.list_size, np.float32)
            flat = np.concatenate([blank if value is None else value for value in values])
            missing = pyarrow.array([value is None for value in values])
            return pyarrow.FixedSizeListArray.from_arrays(flat, final.list_size, mask=missing)
        return pyarrow.array(values, final)
    except (pyarrow.ArrowException, OverflowError) as error:
        raise Misfit(f"has a number that is too large for {final}") from error


def type_of(values: Sequence[Any]) -> Any:
    """The type of a column with these values. Raises Misfit if there is none."""
    pyarrow = import_pyarrow()
    found = pyarrow.null()
    for kind in sorted(set(map(type, values)) - {type(None)}, key=lambda kind: kind.__name__):
        found = joined(found, type_of_all(kind, [value for value in values if type(value) is kind]))
    return found


def type_of_all(kind: type, values: Sequence[Any]) -> Any:
    """The type of values that all have the same Python type."""
    pyarrow = import_pyarrow()
    simple = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.string()}
    if kind in simple:
        return simple[kind]
    if kind is list:
        return pyarrow.list_(type_of(list(chain.from_iterable(values))))
    if kind is dict:
        names = dict.fromkeys(chain.from_iterable(values))
        if not names:
            raise Misfit("is an object without fields")
        return pyarrow.struct([(name, type_of([value.get(name) for value in values])) for name in names])
    sizes = set(map(len, values))
    if len(sizes) > 1:
        raise Misfit("has vectors of different lengths")
    return pyarrow.list_(pyarrow.float32(), sizes.pop())


def joined(one: Any, other: Any) -> Any:
    """The type that holds the values of both types. Raises Misfit if there is none."""
    pyarrow = import_pyarrow()
    schemas = [pyarrow.schema([("x", each)]) for each in (one, other)]
    try:
        return pyarrow.unify_schemas(schemas, promote_options="permissive").field("x").type
    except pyarrow.ArrowException as error:
        raise Misfit(f"has both {one} and {other}") from error


@contextmanager
def parquet_output(path: str, file: BinaryIO) -> Iterator[ParquetOutput]:
    """Yield a file for JSON lines. The Parquet file is complete if the block succeeds."""
    import_pyarrow()
    out = ParquetOutput(path, file)
    try:
        yield out
        out.finish()
    finally:
        out.discard()
