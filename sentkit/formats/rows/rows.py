"""Read JSONL, text, TSV, CSV and Parquet into `Row` objects: one JSON object each, with its original bytes.

A parser (`kinds.py`, `vectors.py`) checks the fields of a row. `Inputs.read` calls it, so all invalid rows
are handled in the same way.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, BinaryIO, TypeVar

from sentkit.errors import DataError, UsageError
from sentkit.formats.files import bare_suffix, open_input, readable, starts_as_parquet
from sentkit.formats.json_files import json_line
from sentkit.formats.meter import Meter
from sentkit.formats.rows import lines, parquet, splice, tables

T = TypeVar("T")
U = TypeVar("U")

LINES = {
    "jsonl": lines.jsonl_rows,
    "text": lines.text_rows,
    "": lines.sniffed_rows,
    "detected text": lines.detected_text_rows,
}
SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".txt": "text",
    ".md": "text",
    ".tsv": "tsv",
    ".csv": "csv",
    ".parquet": "parquet",
}
FIRST_BLOCK = 16  # items


@dataclass(slots=True)
class Row:
    line: bytes  # a JSON object without a newline
    values: dict[str, Any]
    source: str
    number: int  # line number in the source, from 1
    raw: bytes | None = field(default=None, repr=False, compare=False)  # the line of the input if not JSON
    _plain: bool | None = field(default=None, repr=False, compare=False)

    def error(self, problem: str, *, advice: str | None = None) -> DataError:
        return DataError(problem, source=self.source, line=self.number, advice=advice)

    @property
    def input_line(self) -> bytes:
        return self.line if self.raw is None else self.raw

    @property
    def plain(self) -> bool:
        if self._plain is None:
            self._plain = splice.is_plain(self.line, self.values)
        return self._plain

    def refuse_duplicates(self) -> None:
        """Raise an error for a duplicate field name. The JSON parser silently keeps the last value."""
        if not self.plain:
            self.spans()

    def spans(self) -> splice.Spans:
        """The position of each field in the line."""
        try:
            return splice.spans_of(self.line)
        except splice.DuplicateName as error:
            raise self.error(f'duplicate field "{error}"') from error

    def add(self, new: splice.NewFields, *, replace: bool) -> bytes:
        """The line with new fields at its end. Existing fields are replaced in place, or are an error."""
        names = [name.decode() for name, _ in new]
        if self.values.keys().isdisjoint(names):
            return splice.append(self.line, new, empty=not self.values)
        self.check_absent(names, replace=replace)
        return splice.put(self.line, new, self.spans())

    def check_absent(self, names: Iterable[str], *, replace: bool) -> None:
        """Raise an error if the row has one of these fields and `replace` is false."""
        present = next((name for name in names if name in self.values), None)
        if present is not None and not replace:
            raise self.error(f'field "{present}" already exists', advice="use --replace to overwrite it")

    def renamed(self, fields: Mapping[str, str]) -> "Row":
        """The row with our names, from `fields`: our name -> the name in this row, which it must have."""
        names = {theirs: ours for ours, theirs in fields.items()}
        for theirs, ours in names.items():
            if theirs not in self.values:
                raise self.error(f'"{theirs}" is missing')
            if ours in self.values and ours not in names:
                raise self.error(f'"{theirs}" cannot become "{ours}", which the row already has')
        line = splice.rename(self.line, names, self.spans())
        values = {names.get(name, name): value for name, value in self.values.items()}
        return Row(line, values, self.source, self.number, self.input_line)

    def without(self, names: Collection[str]) -> "Row":
        left = {name: value for name, value in self.values.items() if name not in names}
        if self.plain:
            line = splice.drop_from_plain(self.line, [name for name in self.values if name in names])
        else:
            line = splice.drop(self.line, names, self.spans())
        return Row(line, left, self.source, self.number)


@dataclass(slots=True)
class Rejects:
    """Receives the bad rows of the reader, the tokenizer and the writer.

    Raises the error of the first one, or with `skip` counts all and writes them to `file`, in the format that
    sentkit-rows(5) describes.
    """

    skip: bool = False
    file: BinaryIO | None = None
    warn: Callable[[str], None] = lambda message: None
    count: int = 0
    first: DataError | None = None

    def each(self, items: Iterable[T], use: Callable[[T], U], line: Callable[[T], bytes]) -> Iterator[U]:
        """Yield `use(item)` for each item. If that raises a DataError, the line of the item is a bad row."""
        for item in items:
            try:
                value = use(item)
            except DataError as error:
                self.add(line(item), error)
            else:
                yield value

    def add(self, raw: bytes, error: DataError) -> None:
        if not self.skip:
            raise error
        self.count += 1
        self.first = self.first or error
        if self.file is not None:
            record = {"file": readable(error.source), "line": error.line, "reason": error.problem}
            if not isinstance(raw, lines.LongLine):
                record["row"] = raw.rstrip(b"\r\n").decode(errors="replace")
            self.file.write(json_line(record))

    def join(self, part: "Rejects", written: bytes) -> None:
        """Add the rejects of a part of the input, with the bytes of its file."""
        self.count, self.first = self.count + part.count, self.first or part.first
        if self.file is not None and written:
            self.file.write(written)


@dataclass(frozen=True, slots=True)
class Inputs:
    """The files of one command as one stream of rows."""

    paths: Sequence[str] = ("-",)
    format: str | None = None  # jsonl, text, tsv, csv or parquet; None: by suffix, then by the first line
    fields: Mapping[str, str] = field(default_factory=dict)  # standard name -> name in the input
    rejects: Rejects = field(default_factory=Rejects)
    meter: Meter = field(default=None)  # type: ignore[assignment]  # by default, that of the paths
    quoting: str | None = None  # of TSV and CSV: none or csv; None: by format
    columns: Sequence[str] = ()  # of TSV and CSV without a header
    longest: int = lines.MAX_LINE  # maximum bytes of a row
    # The rows of a vector file and their number; None for other files. `rows` cannot import `vectors`.
    vector_file: Callable[[str], tuple[Iterator[Row], int] | None] = lambda path: None

    def __post_init__(self) -> None:
        if self.meter is None:
            object.__setattr__(self, "meter", Meter(self.paths))

    def other(self, *paths: str) -> "Inputs":
        """The same options for other files, in which every bad row is an error."""
        return replace(self, paths=paths, rejects=Rejects(warn=self.rejects.warn), meter=Meter(paths))

    def place_of(self, row: Row) -> dict[str, Any]:
        """Where a row comes from, as fields of a record: its number, and its file if there are several."""
        return {**({"file": readable(row.source)} if len(self.paths) > 1 else {}), "row": row.number}

    def format_of(self, path: str) -> str:
        """Format of a path; empty if the first line decides."""
        return self.format or SUFFIXES.get(bare_suffix(path), "")

    def detected_format(self, path: str) -> str:
        """The format of a regular file; the first line that is not blank decides if the name does not."""
        if self.format_of(path):
            return self.format_of(path)
        with open_input(path) as file:
            for _, line in lines.numbered(file, self.longest):
                if line.strip():
                    return "jsonl" if lines.looks_like_json(line) else "detected text"
        return "detected text"

    def read(self, parse: Callable[[Row], T]) -> Iterator[T]:
        for path in self.paths:
            yield from self.read_file(path, parse)

    def read_file(self, path: str, parse: Callable[[Row], T]) -> Iterator[T]:
        """Yield `parse(row)` for each row. An invalid row goes to the rejects."""
        stored = self.vector_file(path)
        if stored is not None:
            yield from self.read_vector_file(path, *stored, parse, lambda row: row.input_line)
            return
        with self.raw_rows(path) as rows:
            yield from self.parse_rows(path, rows, parse)

    @contextmanager
    def raw_rows(self, path: str) -> Iterator[Iterator[lines.RawRow]]:
        """The rows of a file before parsing."""
        stored = self.vector_file(path)
        if stored is not None:
            yield ((row.number, row.line, lines.json_object) for row in self.meter.counted(path, *stored))
            return
        if self.format_of(path) == "parquet" or (not self.format and starts_as_parquet(path)):
            with parquet.open_parquet(path) as records:
                yield self.meter.counted(path, records.rows(longest=self.longest), records.count)
            return
        with open_input(path, self.meter.file) as file:
            yield self._split(path, lines.numbered(file, self.longest))

    def parse_rows(self, source: str, rows: Iterator[lines.RawRow], parse: Callable[[Row], T]) -> Iterator[T]:
        """Yield `parse(row)` for each row. An invalid row goes to the rejects."""
        for number, raw, to_object in rows:
            try:
                if isinstance(raw, lines.LongLine):
                    raise lines.too_long(source, number, self.longest)
                original = None if to_object is lines.json_object else raw
                value = parse(Row(*to_object(raw), source, number, original))
            except lines.BadLine as error:
                self.refuse(raw, DataError(str(error), source=source, line=number))
            except DataError as error:
                self.refuse(raw, error)
            else:
                self.meter.took()
                yield value

    def read_vector_file(
        self, path: str, items: Iterable[T], count: int, parse: Callable[[T], U], line: Callable[[T], bytes]
    ) -> Iterator[U]:
        """Yield `parse(item)` for each of the `count` items of a vector file; `line` returns their lines."""
        for item in self.meter.counted(path, items, count):
            try:
                value = parse(item)
            except DataError as error:
                self.refuse(line(item), error)
            else:
                self.meter.took()
                yield value

    def refuse(self, raw: bytes, error: DataError) -> None:
        self.rejects.add(raw, error)
        self.meter.bad += 1

    def _split(self, path: str, numbered: Iterator[lines.NumberedLine]) -> Iterator[lines.RawRow]:
        format = self.format_of(path)
        if format in LINES:
            return LINES[format](numbered)

        def warn(number: int, problem: str) -> None:
            self.rejects.warn(f"{path}:{number}: {problem}")

        return tables.table_rows(
            numbered,
            format,
            self.quoting,
            self.columns,
            source=path,
            longest=self.longest,
            warn=warn,
        )


def parse_fields(pairs: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    """Parse values of --field such as `text=title`. Returns standard name -> name in the input."""
    fields: dict[str, str] = {}
    for pair in pairs:
        ours, equals, theirs = pair.partition("=")
        if not equals or not theirs:
            raise UsageError(f'--field "{pair}": expected name=theirs, for example text=title')
        if ours not in known:
            advice = (
                f"this command reads: {', '.join(known)}" if known else "this command reads no such fields"
            )
            raise UsageError(f'--field "{pair}": unknown field "{ours}"', advice=advice)
        if ours in fields:
            raise UsageError(f'--field "{pair}": "{ours}" is given twice')
        if theirs in fields.values():
            raise UsageError(f'--field "{pair}": another --field already reads "{theirs}"')
        fields[ours] = theirs
    return fields


def blocks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of `size` items; the last one can be shorter."""
    return growing(items, size, first=size)


def growing(items: Iterable[T], most: int, first: int = FIRST_BLOCK) -> Iterator[list[T]]:
    """Lists of 16, 64, 256, 1024 ... items, up to `most`. The small ones give early output on a slow pipe."""
    rest, size = iter(items), min(first, most)
    while block := list(islice(rest, size)):
        yield block
        size = min(4 * size, most)
