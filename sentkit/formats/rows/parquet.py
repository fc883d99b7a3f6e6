"""Read the records of a Parquet file as JSON lines, in batches. Needs pyarrow.

Types without a JSON form become text: times and dates as in ISO 8601, binary values as base64. A
decimal is a number with all its digits. A float32 has the shortest digits that restore it. NaN,
infinity and a time out of range become null.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, BinaryIO

import orjson
import pybase64

from sentkit.errors import DataError, UsageError
from sentkit.formats.files import import_pyarrow, open_input, refuse_compressed
from sentkit.formats.rows.block import RowBlock, kept_line
from sentkit.formats.rows.input_formats import input_format
from sentkit.formats.rows.lines import EXCERPT, LongLine, is_too_long, jsonl_blocks

BATCH_ROWS = 1024  # maximum of a batch
BATCH_BYTES = 1 << 22  # the same, of an estimate
READ = 1 << 20  # bytes per read of a column; pyarrow would otherwise read the whole row group


class ParquetFile:
    """A Parquet file. Its rows can be read from any position."""

    def __init__(self, path: str, file: BinaryIO) -> None:
        pyarrow = import_pyarrow()
        from pyarrow import parquet

        self.path = path
        self.errors = (pyarrow.ArrowException, OSError, UnicodeDecodeError)
        try:
            self.file = parquet.ParquetFile(file, buffer_size=READ, pre_buffer=False)
            self.names: list[str] = self.file.schema_arrow.names
        except self.errors as error:
            raise DataError(f"not a Parquet file: {first_line(error)}", source=path) from error
        self.count: int = self.file.metadata.num_rows
        if len(set(self.names)) < len(self.names):
            raise DataError("duplicate column name", source=path)

    def binary_names(self) -> list[str]:
        """The names of the columns of bytes, whose values are read as base64."""
        return [field.name for field in self.file.schema_arrow if is_binary(field.type)]

    def blocks(self, start: int = 0, stop: int | None = None) -> Iterator[RowBlock]:
        """The rows from `start` to `stop`. Rows count from 1 in each file."""
        if stop is None:
            stop = self.count
        number = start + 1
        try:
            for batch in self._batches(start, stop):
                columns = list(map(self._values, self.names, batch.columns))
                lines: list[bytes] = []
                for record in zip(*columns, strict=True):
                    values = dict(zip(self.names, record, strict=True))
                    line = kept_line(values, option=orjson.OPT_SERIALIZE_NUMPY)
                    if is_too_long(len(line)):
                        line = LongLine(line[:EXCERPT])
                    lines.append(line)
                yield from jsonl_blocks(self.path, [(number, lines)])
                number += len(lines)
        except self.errors as error:
            raise DataError(
                f"damaged Parquet file: {first_line(error)}", source=self.path
            ) from error

    def _values(self, name: str, array: Any) -> Sequence[Any]:
        try:
            return values_of(array)
        except UnknownType as error:
            problem = f'the column "{name}" has the type {error}, which has no JSON form'
            raise DataError(
                problem, source=self.path, advice="convert it to text, or remove it"
            ) from error

    def _batches(self, start: int, stop: int) -> Iterator[Any]:
        """The records from `start` to `stop`. Row groups without one of them are not read."""
        group_end = 0
        for number in range(self.file.metadata.num_row_groups):
            group = self.file.metadata.row_group(number)
            group_start = group_end
            group_end += group.num_rows
            if group_end <= start or group_start >= stop:
                continue
            rows_of_size = BATCH_BYTES * group.num_rows // max(1, group.total_byte_size)
            batch_rows = max(1, min(rows_of_size, BATCH_ROWS))
            batches = self.file.iter_batches(batch_rows, row_groups=[number], use_threads=False)
            first = group_start  # row of the batch
            for batch in batches:
                rows = batch[max(0, start - first) : max(0, stop - first)]
                first += len(batch)
                if len(rows):
                    yield rows
                if first >= stop:
                    break


@input_format("parquet", "file", ".parquet")
@contextmanager
def open_parquet(path: str) -> Iterator[ParquetFile]:
    """Parquet.

    Open a file, or standard input if it is a file. Its footer is read first.
    """
    import_pyarrow()
    with open_input(path) as file:
        if not file.seekable():
            refuse_compressed(path, "Parquet")
            name = "standard input" if path == "-" else path
            raise UsageError(f"{name}: Parquet cannot be read from a pipe", advice="name a file")
        yield ParquetFile(path, file)


def first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


class UnknownType(Exception):
    """A type without a JSON form."""


def values_of(array: Any) -> Sequence[Any]:
    """A value for each item of an array, None for null. Raises UnknownType."""
    types = import_pyarrow().types
    type_ = array.type
    if hasattr(type_, "storage_type"):  # an extension, such as a UUID
        return values_of(array.storage)
    if types.is_dictionary(type_):
        return values_of(array.dictionary_decode())
    if types.is_struct(type_):
        return structs_of(array)
    if types.is_map(type_):  # a list of objects, because its keys can be of any type and can repeat
        pairs = zip(values_of(array.keys), values_of(array.items), strict=True)
        return sliced(array, [{"key": key, "value": value} for key, value in pairs])
    if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        return sliced(array, values_of(array.values))
    return simple_values_of(array)


def structs_of(array: Any) -> Sequence[Any]:
    """A dictionary for each struct of an array, None for null."""
    names = [field.name for field in array.type]
    if len(set(names)) < len(names):
        raise UnknownType(f'struct with two fields "{max(names, key=names.count)}"')
    columns = list(map(values_of, array.flatten()))
    if not columns:
        return with_nulls(array, [{} for _ in range(len(array))])
    rows = zip(*columns, strict=True)
    return with_nulls(array, [dict(zip(names, values, strict=True)) for values in rows])


def simple_values_of(array: Any) -> Sequence[Any]:
    types = import_pyarrow().types
    type_ = array.type
    name = str(type_).removeprefix("large_")
    # of numpy: its numbers have the shortest digits in JSON, and NaN is null
    if types.is_floating(type_):
        floats: Any = array.to_numpy(zero_copy_only=False)
        if floats.dtype == "float16":
            return floats.astype("float32")
        return floats
    if types.is_decimal(type_):
        digits = array.cast("string").to_pylist()
        return [None if number is None else orjson.Fragment(number) for number in digits]
    if types.is_temporal(type_) and not types.is_duration(type_) and not types.is_interval(type_):
        return times(array)
    values: list[Any] = array.to_pylist()
    if is_binary(type_):
        return [None if value is None else pybase64.b64encode(value).decode() for value in values]
    if name in ("string", "string_view", "null", "bool") or types.is_integer(type_):
        return values
    raise UnknownType(name)


def is_binary(type_: Any) -> bool:
    types = import_pyarrow().types
    name = str(type_).removeprefix("large_")
    return name in ("binary", "binary_view") or types.is_fixed_size_binary(type_)


def times(array: Any) -> list[Any]:
    """Times as text. Those with a time zone are in UTC, as in the file, with the suffix Z."""
    suffix = ""
    if getattr(array.type, "tz", None) is not None:
        suffix = "Z"
        array = array.view(import_pyarrow().timestamp(array.type.unit))
    results: list[str | None] = []
    for text in array.cast("string").to_pylist():
        if not text or text.startswith("<"):  # "<value out of range: N>"
            results.append(None)
        else:
            results.append(text.replace(" ", "T") + suffix)
    return results


def sliced(array: Any, items: Sequence[Any]) -> list[Any]:
    """The items of each list. Lists of numbers are slices of an array of numpy."""
    if hasattr(array.type, "list_size"):
        size = array.type.list_size
        ends = [(array.offset + i) * size for i in range(len(array) + 1)]
    else:
        ends = array.offsets.to_pylist()
    return with_nulls(array, [items[start:end] for start, end in pairwise(ends)])


def with_nulls(array: Any, values: list[Any]) -> list[Any]:
    if array.null_count == 0:
        return values
    is_valid = array.is_valid().to_pylist()
    return [value if valid else None for value, valid in zip(values, is_valid, strict=True)]
