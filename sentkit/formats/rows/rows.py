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
from sentkit.formats.files import bare_suffix, open_input, readable
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
    ".tsv": "tsv",
    ".csv": "csv",
    ".parquet": "parquet",
}
MAX_REJECTS_SHOWN = 3
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

    def without(self, names: Collection[str]) -> "Row":
        left = {name: value for name, value in self.values.items() if name not in names}
        if self.plain:
            line = splice.drop_from_plain(self.line, [name for name in self.values if name in names])
        else:
            line = splice.drop(self.line, names, self.spans())
        return Row(line, left, self.source, self.number)


@dataclass(slots=True)
class Rejects:
    """Handles invalid rows: raises their error, or with `skip` reports them and writes them to `file`."""

    skip: bool = False
    file: BinaryIO | None = None
    warn: Callable[[str], None] = lambda message: None
    count: int = 0  # invalid rows
    too_long: int = 0  # invalid rows over the length limit, which are not written to `file`
    too_many_tokens: int = 0  # valid rows that are skipped because a text has too many tokens

    def parse(self, rows: Iterable[T], parse: Callable[[T], U], line: Callable[[T], bytes]) -> Iterator[U]:
        """Yield `parse(row)` for each row. A row with a DataError is added to the rejects."""
        for row in rows:
            try:
                value = parse(row)
            except DataError as error:
                self.add(line(row), error)
            else:
                yield value

    def add(self, raw: bytes, error: DataError, *, truncated: bool = False) -> None:
        if not self.skip:
            raise error
        self.too_many_tokens += truncated
        self.count += not truncated
        if self.count + self.too_many_tokens <= MAX_REJECTS_SHOWN:
            self.warn(f"{error}; row skipped")
        self.too_long += isinstance(raw, lines.LongLine)
        if self.file is not None and not isinstance(raw, lines.LongLine):
            self.file.write(raw.rstrip(b"\r\n") + b"\n")


@dataclass(frozen=True, slots=True)
class Inputs:
    """The files of one command as one stream of rows."""

    paths: Sequence[str] = ("-",)
    format: str | None = None  # jsonl, text, tsv, csv or parquet; None: by suffix, then by the first line
    fields: Mapping[str, str] = field(default_factory=dict)  # standard name -> name in the input
    rejects: Rejects = field(default_factory=Rejects)
    meter: Meter = field(default_factory=lambda: Meter(()))
    quoting: str | None = None  # of TSV and CSV: none or csv; None: by format
    longest: int = lines.MAX_LINE  # maximum bytes of a row
    # The rows of a vector file and their number; None for other files. `rows` cannot import `vectors`.
    vector_file: Callable[[str], tuple[Iterator[Row], int] | None] = lambda path: None

    def other(self, path: str) -> "Inputs":
        """The same options for another file, with the format by suffix. Every invalid row is an error."""
        rejects = Rejects(warn=self.rejects.warn)
        return replace(self, paths=[path], format=None, rejects=rejects, meter=Meter(()))

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
            yield from self.read_vector_file(path, *stored, parse, lambda row: row.line)
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
        if self.format_of(path) == "parquet":
            with parquet.open_parquet(path) as records:
                yield self.meter.counted(path, records.rows(longest=self.longest), records.count)
            return
        with open_input(path, self.meter.file) as file:
            yield self._split(path, lines.numbered(file, self.longest))

    def parse_rows(self, source: str, rows: Iterator[lines.RawRow], parse: Callable[[Row], T]) -> Iterator[T]:
        """Yield `parse(row)` for each row. An invalid row goes to the rejects."""
        for number, raw, to_object in rows:
            self.meter.empty = False
            try:
                if isinstance(raw, lines.LongLine):
                    raise lines.too_long(source, number, self.longest)
                original = None if to_object is lines.json_object else raw
                value = parse(Row(*to_object(raw), source, number, original))
            except lines.BadLine as error:
                self.rejects.add(raw, DataError(str(error), source=source, line=number))
            except DataError as error:
                self.rejects.add(raw, error)
            else:
                self.meter.took()
                yield value

    def read_vector_file(
        self, path: str, items: Iterable[T], count: int, parse: Callable[[T], U], line: Callable[[T], bytes]
    ) -> Iterator[U]:
        """Yield `parse(item)` for each of the `count` items of a vector file; `line` returns their rows."""
        for value in self.rejects.parse(self.meter.counted(path, items, count), parse, line):
            self.meter.took()
            yield value

    def _split(self, path: str, numbered: Iterator[lines.NumberedLine]) -> Iterator[lines.RawRow]:
        format = self.format_of(path)
        if format in LINES:
            return LINES[format](numbered)

        def warn(number: int, problem: str) -> None:
            self.rejects.warn(f"{path}:{number}: {problem}")

        return tables.table_rows(numbered, format, self.quoting, source=path, longest=self.longest, warn=warn)


def parse_fields(pairs: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    """Parse values of --field such as `text=title`. Returns standard name -> name in the input."""
    fields: dict[str, str] = {}
    for pair in pairs:
        ours, equals, theirs = pair.partition("=")
        if not equals or not theirs:
            raise UsageError(f'--field "{pair}": expected name=theirs, for example text=title')
        if ours not in known:
            raise UsageError(
                f'--field "{pair}": unknown field "{ours}"', advice=f"available: {', '.join(known)}"
            )
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
