"""Write JSON lines as a Parquet file, in row groups. Needs pyarrow.

The rows of the first row group determine the columns and their types. A later row that does not fit
is an error. Vectors become lists of float32 of a fixed size; a field that a row does not have,
and an object without fields, become null.
"""

import io
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from decimal import Context, Decimal
from itertools import chain
from typing import Any, BinaryIO

import numpy as np
import orjson
import pybase64

from sentkit.errors import DataError
from sentkit.formats.files import import_pyarrow
from sentkit.formats.rows.block import field_spans, is_plain
from sentkit.formats.rows.kinds import VECTORS
from sentkit.formats.rows.lines import json_type

GROUP_ROWS = 1 << 16  # maximum of a row group
GROUP_BYTES = 1 << 25  # the same, of its lines
# of a schema, which readers accept: one for the field, one for each object, two for each list
LEVELS = 99
# may be a number with more digits than float64 or int64 surely have
LONG = re.compile(rb"\d[\d.]{15}")
EMPTY_OBJECT = re.compile(rb"\{\s*\}")
ADVICE = "the rows of a Parquet file have the same fields and types; JSONL allows any rows"


class ParquetOutput(io.RawIOBase):
    """A file for lines of JSON objects. The Parquet file is complete if the `with` block
    succeeds.
    """

    def __init__(self, path: str, file: BinaryIO) -> None:
        import_pyarrow()
        self.path = path
        self.file = file
        self.incomplete = b""  # start of a line
        self.rows: list[Mapping[str, Any]] = []  # of the next row group
        self.bytes = 0  # of their lines
        self.count = 0  # of all rows
        self.writer: Any = None

    def write(self, data: Any) -> int:
        *lines, self.incomplete = (self.incomplete + data).split(b"\n")
        for line in lines:
            self.count += 1
            try:
                self.rows.append(values_of(line))
            except ValueError as error:
                raise DataError(str(error), source=self.path, line=self.count) from error
            self.bytes += len(line)
            if len(self.rows) >= GROUP_ROWS or self.bytes >= GROUP_BYTES:
                self._write_group()
        return len(data)

    def __exit__(self, failure: object, *_: object) -> None:
        try:
            if failure is None:
                if self.rows or self.writer is None:
                    self._write_group()
                self.writer.close()
        finally:
            if self.writer is not None:
                with suppress(OSError, ValueError):  # of an output that is not complete
                    self.writer.close()

    def _write_group(self) -> None:
        from pyarrow import ArrowException, parquet, schema, table

        # The first row group determines the types.
        types: dict[str, Any] = {}
        if self.writer is not None:
            types = {field.name: field.type for field in self.writer.schema}
        is_first_group = not types
        columns: dict[str, Any] = {}
        for name in types | dict.fromkeys(chain.from_iterable(self.rows)):
            values = [row.get(name) for row in self.rows]
            try:
                type_ = type_of(values)
                if is_first_group:
                    types[name] = type_
                elif name not in types or joined(types[name], type_) != types[name]:
                    first_type = types.get(name, "no such field")
                    raise ValueError(f"has {type_}, the first rows have {first_type}")
                columns[name] = import_pyarrow().array(values, types[name])
            except (ArrowException, OverflowError, ValueError) as error:
                rows = f"of rows {self.count - len(self.rows) + 1} to {self.count}"
                raise DataError(
                    f'"{name}" {rows}: {error}', source=self.path, advice=ADVICE
                ) from error
        if self.rows and not columns:
            raise DataError("the rows have no fields", source=self.path, advice=ADVICE)
        if self.writer is None:
            fields = list(types.items())
            self.writer = parquet.ParquetWriter(self.file, schema(fields))
        self.writer.write_table(table(columns), row_group_size=GROUP_ROWS)
        self.rows = []
        self.bytes = 0


def values_of(line: bytes) -> dict[str, Any]:
    """The values of a line; a ValueError if a column would lose digits, or a field with a duplicate
    name.
    """
    values = orjson.loads(line)
    if not isinstance(values, dict):
        raise ValueError(f"the row is {json_type(values)}, a Parquet file needs objects")
    vectors = [name for name in VECTORS if name in values]
    if not is_plain(line, values) or LONG.search(line):
        spans = field_spans(line)
        # Without the vectors, from the last to the first, so that the earlier positions stay valid.
        for span in sorted((spans[name] for name in vectors), reverse=True):
            line = line[: span.value] + b"0" + line[span.end :]
        json.loads(
            line, parse_int=check_int, parse_float=check_float, object_pairs_hook=check_names
        )
    if EMPTY_OBJECT.search(line):
        values = {name: without_empty_objects(value) for name, value in values.items()}
    return values | {name: vector(name, values[name]) for name in vectors}


def without_empty_objects(value: Any, room: int = LEVELS) -> Any:
    """The value with null for each object without fields: Parquet has no type for it.

    `room` are the levels that are left; `type_of` refuses deeper values.
    """
    if room < 1:
        return value
    if isinstance(value, list):
        return [without_empty_objects(item, room - 1) for item in value]
    if isinstance(value, dict):
        if not value:
            return None
        return {name: without_empty_objects(item, room - 1) for name, item in value.items()}
    return value


def check_int(literal: str) -> None:
    """Raise a ValueError if a JSON integer is too large for a column of int64."""
    if not -(2**63) <= int(literal) < 2**63:
        raise ValueError(f"{literal:.40} is too large for int64")


def check_float(literal: str) -> None:
    """Raise a ValueError if a column of float64 would lose digits of a JSON number.

    It loses none if the number is the shortest form of the nearest float64, such as 0.1, or the
    exact value of this float64 rounded to as many digits, such as 0.10000000000000000555.
    """
    number = Decimal(literal)
    nearest = float(literal)
    shortest_form = Decimal(repr(nearest))
    digit_count = len(number.as_tuple().digits)
    rounded_value = Context(prec=digit_count).plus(Decimal(nearest))
    if number not in (shortest_form, rounded_value):
        raise ValueError(f"{literal:.40} has more digits than float64 has")


def check_names(fields: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in fields]
    if len(set(names)) < len(names):
        raise ValueError(f'duplicate field "{max(names, key=names.count)}"')


def vector(name: str, value: object) -> Any:
    """A vector as float32, from a list of numbers or base64; None for null. A ValueError for other
    values.
    """
    if value is None:
        return None
    numbers = None
    if isinstance(value, str) and value:
        with suppress(ValueError):  # not base64
            numbers = np.frombuffer(pybase64.b64decode(value, validate=True), "<f4")
    elif isinstance(value, list) and value and not set(map(type, value)) - {int, float}:
        with np.errstate(over="ignore"):
            numbers = np.array(value, np.float32)
    if numbers is None:
        raise ValueError(f'"{name}" is {json_type(value)}, expected a vector')
    if not np.isfinite(numbers).all():
        raise ValueError(f'"{name}" has NaN, infinity or a number that is too large for float32')
    return numbers


def type_of(values: Sequence[Any], room: int = LEVELS) -> Any:
    """The type of a column with these values; a ValueError if there is none.

    `pyarrow.infer_type` would take True for 1.0 beside other numbers. `room` are the levels that
    are left.
    """
    pyarrow = import_pyarrow()
    if room < 1:
        raise ValueError("nested too deeply for a Parquet file")
    simple = {
        bool: pyarrow.bool_(),
        int: pyarrow.int64(),
        float: pyarrow.float64(),
        str: pyarrow.string(),
    }

    # The type of the values of each Python type, joined. The order decides which error is first.
    type_ = pyarrow.null()
    python_types = set(map(type, values)) - {type(None)}
    for python_type in sorted(python_types, key=lambda python_type: python_type.__name__):
        of_type: list[Any] = [value for value in values if type(value) is python_type]
        if python_type is list:
            items = list(chain.from_iterable(of_type))
            inner_type = pyarrow.list_(type_of(items, room - 2))
        elif python_type is dict:
            names = dict.fromkeys(chain.from_iterable(of_type))
            fields = [
                (name, type_of([value.get(name) for value in of_type], room - 1)) for name in names
            ]
            inner_type = pyarrow.struct(fields)
        elif python_type in simple:
            inner_type = simple[python_type]
        else:  # a vector
            inner_type = pyarrow.list_(pyarrow.float32(), len(of_type[0]))
        type_ = joined(type_, inner_type)
    return type_


def joined(first: Any, second: Any) -> Any:
    """The type that holds the values of both types; a ValueError if there is none."""
    pyarrow = import_pyarrow()
    schemas = [pyarrow.schema([("x", first)]), pyarrow.schema([("x", second)])]
    try:
        return pyarrow.unify_schemas(schemas, promote_options="permissive").field("x").type
    except pyarrow.ArrowException as error:
        raise ValueError(f"both {first} and {second}") from error
