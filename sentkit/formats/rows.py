"""Rows: what travels on a pipe. One JSON object per line, kept as the bytes it came in.

JSONL, plain text, TSV and CSV all become `Row`s here. What a row must hold is said by a parser (`kinds.py`,
`vectors.py`) that `Inputs.read` applies, so that every bad row, of whatever badness, meets one policy.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, TypeVar

from sentkit.errors import DataError, UsageError
from sentkit.formats import lines, splice, tables
from sentkit.formats.files import bare_suffix, open_input
from sentkit.formats.meter import Meter

T = TypeVar("T")
U = TypeVar("U")

FORMATS = {
    "jsonl": lines.jsonl_rows,
    "text": lines.text_rows,
    "tsv": tables.tsv_rows,
    "csv": tables.csv_rows,
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
    """What happens to a bad row: it ends the command, or it is counted, told and set aside."""

    skip: bool = False
    file: BinaryIO | None = None
    tell: Callable[[str], None] = lambda message: None
    count: int = 0

    def sift(self, rows: Iterable[T], work: Callable[[T], U], line: Callable[[T], bytes]) -> Iterator[U]:
        """What `work` makes of each; one that it refuses is added here, as its line."""
        for row in rows:
            try:
                value = work(row)
            except DataError as error:
                self.add(line(row), error)
            else:
                yield value

    def add(self, raw: bytes, error: DataError) -> None:
        if not self.skip:
            raise error
        self.count += 1
        if self.count <= REJECTS_TOLD:
            self.tell(f"{error} (skipped)")
        if self.file is not None:
            self.file.write(raw.rstrip(b"\r\n") + b"\n")


@dataclass(frozen=True, slots=True)
class Inputs:
    """The files of one command as one stream of rows."""

    paths: Sequence[str] = ("-",)
    format: str | None = None  # of FORMATS; by suffix, then by the first line, when not said
    fields: Mapping[str, str] = field(default_factory=dict)  # our name -> theirs
    rejects: Rejects = field(default_factory=Rejects)
    meter: Meter = field(default_factory=lambda: Meter(()))

    def read(self, parse: Callable[[Row], T]) -> Iterator[T]:
        for path in self.paths:
            yield from self.read_file(path, parse)

    def read_file(self, path: str, parse: Callable[[Row], T]) -> Iterator[T]:
        """What `parse` makes of each row; one that is none, or is refused, goes to the rejects."""
        format = FORMATS[self.format or SUFFIXES.get(bare_suffix(path), "")]
        with open_input(path, self.meter.file) as file:
            for number, raw, make in format(lines.numbered(file)):
                self.meter.empty = False
                try:
                    value = parse(Row(*make(raw), path, number))
                except lines.BadLine as error:
                    self.rejects.add(raw, DataError(str(error), source=path, line=number))
                except DataError as error:
                    self.rejects.add(raw, error)
                else:
                    self.meter.rows += 1
                    yield value


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
