"""Read JSONL, plain text, TSV and CSV into `Row` objects: one JSON object each, with its original bytes.

A parser (`kinds.py`, `vectors.py`) checks the fields of a row. `Inputs.read` calls it, so all invalid rows
are handled in the same way.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, TypeVar

from sentkit.errors import DataError, UsageError
from sentkit.formats.files import bare_suffix, open_input
from sentkit.formats.meter import Meter
from sentkit.formats.rows import lines, splice, tables

T = TypeVar("T")
U = TypeVar("U")

LINES = {
    "jsonl": lines.jsonl_rows,
    "text": lines.text_rows,
    "": lines.sniffed_rows,
}
SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".txt": "text",
    ".tsv": "tsv",
    ".csv": "csv",
}
REJECTS_TOLD = 3


@dataclass(slots=True)
class Row:
    line: bytes  # a JSON object without a newline
    values: dict[str, Any]
    source: str
    number: int  # line number in the source, from 1
    _plain: bool | None = field(default=None, repr=False, compare=False)

    def error(self, problem: str, *, advice: str | None = None) -> DataError:
        return DataError(problem, source=self.source, line=self.number, advice=advice)

    @property
    def plain(self) -> bool:
        if self._plain is None:
            self._plain = splice.is_plain(self.line, self.values)
        return self._plain

    def check_names(self) -> None:
        """Raise an error for a duplicate field name. The JSON parser silently keeps the last value."""
        if not self.plain:
            self.members()

    def members(self) -> splice.Spans:
        try:
            return splice.members(self.line)
        except splice.RepeatedName as error:
            raise self.error(f'"{error}" stands twice in this row') from error

    def put(self, new: Sequence[tuple[bytes, bytes]]) -> bytes:
        """The line with these fields. Existing fields of the same name are replaced."""
        return splice.put(self.line, new, self.members())

    def without(self, names: Collection[str]) -> "Row":
        left = {name: value for name, value in self.values.items() if name not in names}
        if self.plain:
            line = splice.drop_from_plain(self.line, [name for name in self.values if name in names])
        else:
            line = splice.drop(self.line, names, self.members())
        return Row(line, left, self.source, self.number)


@dataclass(slots=True)
class Rejects:
    """Handles invalid rows: raises their error, or with `skip` reports them and writes them to `file`."""

    skip: bool = False
    file: BinaryIO | None = None
    tell: Callable[[str], None] = lambda message: None
    count: int = 0  # invalid rows
    too_long: int = 0  # invalid rows over the length limit, which are not written to `file`
    cut: int = 0  # valid rows that are skipped because a text has too many tokens

    def sift(self, rows: Iterable[T], work: Callable[[T], U], line: Callable[[T], bytes]) -> Iterator[U]:
        """Yield `work(row)` for each row. A row with a DataError is added to the rejects."""
        for row in rows:
            try:
                value = work(row)
            except DataError as error:
                self.add(line(row), error)
            else:
                yield value

    def add(self, raw: bytes, error: DataError, *, cut: bool = False) -> None:
        if not self.skip:
            raise error
        self.cut += cut
        self.count += not cut
        if self.count + self.cut <= REJECTS_TOLD:
            self.tell(f"{error} (skipped)")
        self.too_long += isinstance(raw, lines.LongLine)
        if self.file is not None and not isinstance(raw, lines.LongLine):
            self.file.write(raw.rstrip(b"\r\n") + b"\n")


@dataclass(frozen=True, slots=True)
class Inputs:
    """The files of one command as one stream of rows."""

    paths: Sequence[str] = ("-",)
    format: str | None = None  # jsonl, text, tsv or csv; None: by suffix, then by the first line
    fields: Mapping[str, str] = field(default_factory=dict)  # standard name -> name in the input
    rejects: Rejects = field(default_factory=Rejects)
    meter: Meter = field(default_factory=lambda: Meter(()))
    quoting: str | None = None  # of TSV and CSV: none or csv; None: by format
    longest: int = lines.MAX_LINE  # maximum bytes of a row

    def other(self, path: str) -> "Inputs":
        """The same options for another file, with the format by suffix. Every invalid row is an error."""
        rejects = Rejects(tell=self.rejects.tell)
        return replace(self, paths=[path], format=None, rejects=rejects, meter=Meter(()))

    def format_of(self, path: str) -> str:
        """Format of a path; empty if the first line decides."""
        return self.format or SUFFIXES.get(bare_suffix(path), "")

    def other_format(self, path: str) -> str:
        """Format of a path that `other` opens: `format` is not used."""
        return SUFFIXES.get(bare_suffix(path), "")

    def read(self, parse: Callable[[Row], T]) -> Iterator[T]:
        for path in self.paths:
            yield from self.read_file(path, parse)

    def read_file(self, path: str, parse: Callable[[Row], T]) -> Iterator[T]:
        """Yield `parse(row)` for each row. An invalid row goes to the rejects."""
        with open_input(path, self.meter.file) as file:
            for number, raw, make in self._raw_rows(path, lines.numbered(file, self.longest)):
                self.meter.empty = False
                try:
                    if isinstance(raw, lines.LongLine):
                        raise self._too_long(path, number)
                    value = parse(Row(*make(raw), path, number))
                except lines.BadLine as error:
                    self.rejects.add(raw, DataError(str(error), source=path, line=number))
                except DataError as error:
                    self.rejects.add(raw, error)
                else:
                    self.meter.took()
                    yield value

    def _raw_rows(self, path: str, numbered: Iterator[lines.Numbered]) -> Iterator[lines.RawRow]:
        format = self.format_of(path)
        if format in LINES:
            return LINES[format](numbered)

        def warn(number: int, problem: str) -> None:
            self.rejects.tell(f"{path}:{number}: {problem}")

        return tables.table_rows(numbered, format, self.quoting, longest=self.longest, warn=warn)

    def _too_long(self, path: str, number: int) -> DataError:
        problem, advice = f"a row of more than {self.longest} bytes", "--max-line 256M allows longer rows"
        return DataError(problem, source=path, line=number, advice=advice)


def parse_fields(pairs: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    """Parse values of --field such as `text=title`. Returns standard name -> name in the input."""
    found: dict[str, str] = {}
    for pair in pairs:
        ours, equals, theirs = pair.partition("=")
        if not equals or not theirs:
            raise UsageError(f'--field "{pair}": expected name=theirs, for example text=title')
        if ours not in known:
            raise UsageError(f'--field "{pair}": no field "{ours}"', advice=f"there are: {', '.join(known)}")
        found[ours] = theirs
    return found
