"""Read the records of a Parquet file as JSON lines, in batches. Needs pyarrow."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import orjson

from sentkit.errors import DataError, UsageError
from sentkit.formats.files import import_pyarrow, open_input
from sentkit.formats.rows.lines import (
    EXCERPT,
    MAX_LINE,
    BadLine,
    LongLine,
    ParsedLine,
    RawRow,
    json_line,
    json_object,
)
from sentkit.formats.rows.parquet_values import Unfit, UnknownType, values_of

BATCH_ROWS, BATCH_BYTES = 1024, 1 << 22  # maximum of a batch; the bytes are an estimate
READ = 1 << 20  # bytes per read of a column; pyarrow would otherwise read the whole row group


class ParquetFile:
    """A Parquet file. Its rows can be read from any position."""

    def __init__(self, path: str, file: BinaryIO) -> None:
        pyarrow = import_pyarrow()
        from pyarrow import parquet

        self.path, self.errors = path, (pyarrow.ArrowException, OSError)
        try:
            self.file = parquet.ParquetFile(file, buffer_size=READ, pre_buffer=False)
            schema = self.file.schema_arrow
        except self.errors as error:
            raise DataError(f"not a Parquet file: {first_line(error)}", source=path) from error
        self.count: int = self.file.metadata.num_rows
        self.names: list[str] = schema.names
        if len(set(self.names)) < len(self.names):
            raise DataError("duplicate column name", source=path)
        self.values = []
        for field in schema:
            try:
                self.values.append(values_of(field.type))
            except UnknownType as error:
                problem = f'the column "{field.name}" has the type {error}, which has no JSON form'
                raise DataError(problem, source=path, advice="convert it to text, or remove it") from error

    def rows(self, start: int = 0, stop: int | None = None, *, longest: int = MAX_LINE) -> Iterator[RawRow]:
        """The rows from `start` to `stop`. The number of a row counts from 1 at the start of the file."""
        number = start
        try:
            for batch in self._batches(start, self.count if stop is None else stop):
                columns = [values(each) for values, each in zip(self.values, batch.columns, strict=True)]
                for record in zip(*columns, strict=True):
                    number += 1
                    yield raw_row(number, dict(zip(self.names, record, strict=True)), longest)
        except self.errors as error:
            raise DataError(f"damaged Parquet file: {first_line(error)}", source=self.path) from error

    def _batches(self, start: int, stop: int) -> Iterator[Any]:
        """The records from `start` to `stop`. Row groups without one of them are not read."""
        end = 0  # of the row group
        for number in range(self.file.metadata.num_row_groups):
            group = self.file.metadata.row_group(number)
            place, end = end, end + group.num_rows
            if end <= start or place >= stop:
                continue
            size = BATCH_BYTES * group.num_rows // max(1, group.total_byte_size)
            for batch in self.file.iter_batches(
                max(1, min(size, BATCH_ROWS)), row_groups=[number], use_threads=False
            ):
                own = batch[max(0, start - place) : max(0, stop - place)]
                place += len(batch)
                if len(own):
                    yield own
                if place >= stop:
                    break


def raw_row(number: int, values: dict[str, Any], longest: int) -> RawRow:
    unfit: list[str] = []

    def null(value: Any) -> None:
        if not isinstance(value, Unfit):
            raise TypeError
        unfit.append(value.problem)

    def refuse(line: bytes) -> ParsedLine:
        name = next(name for name, value in values.items() if holds_unfit(value))
        raise BadLine(f'"{name}" contains {unfit[0]}')

    line = json_line(values, default=null, option=orjson.OPT_SERIALIZE_NUMPY)
    if len(line) > longest:
        return number, LongLine(line[:EXCERPT]), json_object
    return number, line, refuse if unfit else json_object


def holds_unfit(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(holds_unfit, value.values() if isinstance(value, dict) else value))
    return isinstance(value, Unfit)


@contextmanager
def open_parquet(path: str) -> Iterator[ParquetFile]:
    """Open a Parquet file, or standard input if it is a file. The footer at its end is read first."""
    import_pyarrow()
    with open_input(path) as file:
        if not file.seekable():
            name = "standard input" if path == "-" else path
            raise UsageError(f"{name}: Parquet cannot be read from a pipe", advice="name a file")
        yield ParquetFile(path, file)


def first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
