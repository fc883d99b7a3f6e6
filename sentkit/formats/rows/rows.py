"""Rows: what travels on a pipe. One JSON object per line, kept as the bytes it came in.

JSONL, plain text, TSV and CSV all become `Row`s here. What a row must hold is said by a parser (`kinds.py`,
`vectors.py`) that `Inputs.read` applies, so that every bad row, of whatever badness, meets one policy.
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
    line: bytes  # a JSON object, without its newline
    values: dict[str, Any]
    source: str
    number: int  # the line it came from, counted from 1
    _plain: bool | None = field(default=None, repr=False, compare=False)

    def error(self, problem: str, *, advice: str | None = None) -> DataError:
        return DataError(problem, source=self.source, line=self.number, advice=advice)

    @property
    def plain(self) -> bool:
        if self._plain is None:
            self._plain = splice.is_plain(self.line, self.values)
        return self._plain

    def check_names(self) -> None:
        """Refuse a row in which a name stands twice: the parser took the last without a word."""
        if not self.plain:
            self.members()

    def members(self) -> splice.Spans:
        try:
            return splice.members(self.line)
        except splice.RepeatedName as error:
            raise self.error(f'"{error}" stands twice in this row') from error

    def put(self, new: Sequence[tuple[bytes, bytes]]) -> bytes:
        """The line with these members, in the place of old ones of their names."""
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
    """What happens to a row that cannot be used: it ends the command, or is skipped, reported and kept."""

    skip: bool = False
    file: BinaryIO | None = None
    tell: Callable[[str], None] = lambda message: None
    count: int = 0  # bad rows
    too_long: int = 0  # of these: not kept in the file
    cut: int = 0  # good rows with a text over the maximal number of tokens

    def sift(self, rows: Iterable[T], work: Callable[[T], U], line: Callable[[T], bytes]) -> Iterator[U]:
        """What `work` makes of each; one that it refuses is added here, as its line."""
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
    format: str | None = None  # jsonl, text, tsv or csv; by suffix, then by the first line, when not said
    fields: Mapping[str, str] = field(default_factory=dict)  # our name -> theirs
    rejects: Rejects = field(default_factory=Rejects)
    meter: Meter = field(default_factory=lambda: Meter(()))
    quoting: str | None = None  # of TSV and CSV: none or csv; by format, when not said
    longest: int = lines.MAX_LINE  # bytes of a row

    def other(self, path: str) -> "Inputs":
        """Another file of the command, in the format that its suffix says. No row of it may be bad."""
        rejects = Rejects(tell=self.rejects.tell)
        return replace(self, paths=[path], format=None, rejects=rejects, meter=Meter(()))

    def format_of(self, path: str) -> str:
        """Empty where the first line decides."""
        return self.format or SUFFIXES.get(bare_suffix(path), "")

    def other_format(self, path: str) -> str:
        """The same of another file of the command."""
        return SUFFIXES.get(bare_suffix(path), "")

    def read(self, parse: Callable[[Row], T]) -> Iterator[T]:
        for path in self.paths:
            yield from self.read_file(path, parse)

    def read_file(self, path: str, parse: Callable[[Row], T]) -> Iterator[T]:
        """What `parse` makes of each row; one that is none, or is refused, goes to the rejects."""
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
    """`--field text=title` and its like as our name -> theirs."""
    found: dict[str, str] = {}
    for pair in pairs:
        ours, equals, theirs = pair.partition("=")
        if not equals or not theirs:
            raise UsageError(f'--field "{pair}": expected name=theirs, for example text=title')
        if ours not in known:
            raise UsageError(f'--field "{pair}": no field "{ours}"', advice=f"there are: {', '.join(known)}")
        found[ours] = theirs
    return found
