"""A row, and some thousand of them as columns: their bytes, their parsed values and their places.

Fields are added, replaced or removed in the bytes of a line. All other bytes are unchanged, because
serialising a row again would change values: a 20-digit id would become a float, and 1.10 would become 1.1.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import orjson

from sentkit.errors import DataError

QUOTE, END_OF_LIST = b'"]'
STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
NAME = re.compile(STRING)
WORD = re.compile(rb"[^\s,\[\]{}\"]+")  # a number, true, false or null
PIECE = re.compile(STRING + rb"|[\[\]{}]")
COMMA = re.compile(rb"[\s,]*")
SEPARATOR = re.compile(rb"\s*[:,}]\s*")


class BadLine(Exception):
    """A line that is not a valid row. The caller adds the file name and the line number."""

    def __init__(self, problem: str, advice: str | None = None) -> None:
        super().__init__(problem)
        self.advice = advice

    def at(self, source: str, number: int) -> DataError:
        return DataError(str(self), source=source, line=number, advice=self.advice)


class DuplicateName(Exception):
    """An object has a duplicate field name, so the value is ambiguous."""


class Span(NamedTuple):
    start: int  # of the name
    value: int  # of the value
    end: int  # after the value


Spans = Mapping[str, Span]
NewFields = Sequence[tuple[bytes, bytes]]  # name and JSON value


def is_plain(line: bytes, values: Mapping[str, Any]) -> bool:
    """Whether the line has no escapes, no quotes in nested values and no duplicate name."""
    strings = [type(value) for value in values.values()].count(str)
    return b"\\" not in line and line.count(b'"') == 2 * (len(values) + strings)


def spans_of(line: bytes) -> dict[str, Span]:
    """The position of each field of the top-level object in the line."""
    spans: dict[str, Span] = {}
    start, last = _past(COMMA, line, line.index(b"{") + 1), line.rindex(b"}")
    while start < last:
        name_end = end_of_string(line, start)
        value = _past(SEPARATOR, line, name_end)
        end = _end_of_value(line, value)
        name = orjson.loads(line[start:name_end])
        if name in spans:
            raise DuplicateName(name)
        spans[name] = Span(start, value, end)
        start = _past(SEPARATOR, line, end)  # of the next name, or after the closing brace
    return spans


def _past(pattern: re.Pattern[bytes], line: bytes, place: int) -> int:
    match = pattern.match(line, place)
    assert match is not None, "the line has parsed as JSON"
    return match.end()


def end_of_string(line: bytes, start: int) -> int:
    """The position after the closing quote."""
    end = line.index(b'"', start + 1) + 1  # 20 times as fast as the pattern, for base64
    return end if b"\\" not in line[start:end] else _past(NAME, line, start)


def _end_of_value(line: bytes, start: int) -> int:
    if line[start] == QUOTE:
        return end_of_string(line, start)
    if line[start] not in b"[{":
        return _past(WORD, line, start)
    depth = 0
    for piece in PIECE.finditer(line, start):  # no recursion: a value can be nested deeply
        depth += (piece[0] in b"[{") - (piece[0] in b"]}")
        if not depth:
            return piece.end()
    raise AssertionError("the line has parsed as JSON")


def items_of(line: bytes, start: int) -> Iterator[bytes]:
    """The bytes of each item of the list that starts here in the line."""
    place = _past(COMMA, line, start + 1)
    while line[place] != END_OF_LIST:
        end = _end_of_value(line, place)
        yield line[place:end]
        place = _past(COMMA, line, end)


def append_fields(line: bytes, new: NewFields, *, empty: bool) -> bytes:
    """The object with new fields at its end. `empty`: it has no fields yet."""
    body = line.rstrip()[:-1]
    added = b",".join(b'"%b":%b' % field for field in new)
    return b"%b%b%b}" % (body, b"" if empty else b",", added) if added else line


def put_fields(line: bytes, new: NewFields, spans: Spans) -> bytes:
    """The object with these fields. Existing fields are replaced in place, new ones are appended."""
    places: Mapping[str, bytes] = {name.decode(): value for name, value in new}
    for name in sorted(places.keys() & spans.keys(), key=lambda name: -spans[name].value):
        line = line[: spans[name].value] + places[name] + line[spans[name].end :]
    return append_fields(line, [field for field in new if field[0].decode() not in spans], empty=not spans)


def rename_fields(line: bytes, names: Mapping[str, str], spans: Spans) -> bytes:
    """The object with other names for some fields, old name -> new name. The values keep their bytes."""
    for name in sorted(names.keys() & spans.keys(), key=lambda name: -spans[name].start):
        start = spans[name].start
        line = line[:start] + orjson.dumps(names[name]) + line[end_of_string(line, start) :]
    return line


def drop_fields(line: bytes, names: Collection[str], spans: Spans) -> bytes:
    """The object without these fields. Other fields keep the comma and the blanks before them."""
    places = list(spans.values())
    if spans.keys().isdisjoint(names):
        return line
    kept: list[bytes] = []
    for at, name in enumerate(spans):
        if name not in names:
            kept.append(line[places[at - 1].end if kept else places[at].start : places[at].end])
    return line[: places[0].start] + b"".join(kept) + line[places[-1].end :]


def drop_fields_of_plain(line: bytes, names: Collection[str]) -> bytes:
    """The same as `drop_fields` for a plain line. Faster, because it does not parse the other fields."""
    rest = line
    for name in names:
        quoted = b'"%b":' % name.encode()
        start = rest.find(quoted)
        value = start + len(quoted)
        simple = rest[value : value + 1] == b'"' and rest[start - 1 : start] == b","
        if start < 2 or not simple or rest[start - 2 : start - 1].isspace():
            return drop_fields(line, names, spans_of(line))  # the first, not a string, or with blanks around
        rest = rest[: start - 1] + rest[rest.index(b'"', value + 1) + 1 :]
    return rest


T = TypeVar("T")

# The texts of a row; or one item, of the texts of a pair; or an item of a prompt and a text for each text.
Texts = tuple[Any, ...]


@dataclass(slots=True)
class Row:
    line: bytes  # a JSON object without a newline
    values: dict[str, Any]
    source: str
    number: int  # line number in the source, from 1
    raw: bytes | None = field(default=None, repr=False, compare=False)  # the line of the input, if it differs

    def error(self, problem: str, *, advice: str | None = None) -> DataError:
        return DataError(problem, source=self.source, line=self.number, advice=advice)

    @property
    def input_line(self) -> bytes:
        return self.line if self.raw is None else self.raw

    def refuse_duplicates(self) -> None:
        """Raise an error for a duplicate field name. The JSON parser silently keeps the last value."""
        if not is_plain(self.line, self.values):
            self.spans()

    def spans(self) -> Spans:
        """The position of each field in the line."""
        try:
            return spans_of(self.line)
        except DuplicateName as error:
            raise self.error(f'duplicate field "{error}"') from error

    def add(self, new: NewFields, *, replace: bool) -> bytes:
        """The line with new fields at its end. Existing fields are replaced in place, or are an error."""
        names = [name.decode() for name, _ in new]
        if self.values.keys().isdisjoint(names):
            return append_fields(self.line, new, empty=not self.values)
        self.check_absent(names, replace=replace)
        return put_fields(self.line, new, self.spans())

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
        line = rename_fields(self.line, names, self.spans())
        values = {names.get(name, name): value for name, value in self.values.items()}
        return Row(line, values, self.source, self.number, self.input_line)

    def without(self, names: Collection[str]) -> "Row":
        left = {name: value for name, value in self.values.items() if name not in names}
        if is_plain(self.line, self.values):
            line = drop_fields_of_plain(self.line, [name for name in self.values if name in names])
        else:
            line = drop_fields(self.line, names, self.spans())
        return Row(line, left, self.source, self.number, self.input_line)


@dataclass(slots=True)
class RowBlock:
    """Rows as columns of equal length. A bad row keeps its place until `Rejects.take` drops it."""

    lines: list[bytes]  # JSON objects without a newline
    values: list[dict[str, Any]]
    sources: list[str]
    numbers: list[int]  # line numbers in the sources, from 1
    raws: list[bytes]  # the lines of the input
    bad: dict[int, DataError] = field(default_factory=dict)  # by place
    texts: list[Texts] = field(default_factory=list)  # that a parser found in each row
    made: bool = False  # the lines were made from the values, so that no name occurs twice

    def __len__(self) -> int:
        return len(self.lines)

    def __iter__(self) -> Iterator[Row]:
        return map(Row, self.lines, self.values, self.sources, self.numbers, self.raws)

    def row(self, place: int) -> Row:
        columns = self.lines, self.values, self.sources, self.numbers, self.raws
        return Row(*(column[place] for column in columns))  # type: ignore[arg-type]

    def take(self, places: Sequence[int] | range | slice) -> "RowBlock":
        """The rows at these places, none of which is bad."""

        def own(column: list[T]) -> list[T]:
            return column[places] if isinstance(places, slice) else [column[place] for place in places]

        rows = own(self.lines), own(self.values), own(self.sources), own(self.numbers), own(self.raws)
        return RowBlock(*rows, {}, own(self.texts) if self.texts else [], self.made)

    def part(self, start: int, stop: int) -> "RowBlock":
        """Consecutive rows, also bad ones."""
        own = self.take(slice(start, stop))
        own.bad = {place - start: error for place, error in self.bad.items() if start <= place < stop}
        return own

    def extend(self, other: "RowBlock") -> None:
        self.bad |= {len(self) + place: error for place, error in other.bad.items()}
        for name in ("lines", "values", "sources", "numbers", "raws", "texts"):
            getattr(self, name).extend(getattr(other, name))
        self.made = self.made and other.made

    def without(self, names: Collection[str]) -> "RowBlock":
        """The rows without these fields, which they may have."""
        gone = frozenset(names)
        if all(map(gone.isdisjoint, self.values)):
            return self
        lefts = [row if gone.isdisjoint(row.values) else row.without(gone) for row in self]
        return replace(self, lines=[row.line for row in lefts], values=[row.values for row in lefts])

    def refuse(self, place: int, problem: str, *, advice: str | None = None) -> None:
        """Mark a row as bad, if it is not."""
        error = DataError(problem, source=self.sources[place], line=self.numbers[place], advice=advice)
        self.bad.setdefault(place, error)

    def refuse_all(self, problem: str, advice: str | None = None) -> None:
        for place in range(len(self)):
            self.refuse(place, problem, advice=advice)

    def checked(self, check: Callable[[Row], T]) -> list[T | None]:
        """The result of `check` for each row; None for bad rows, and a row with a DataError becomes bad."""
        results = list[T | None]()
        for place, row in enumerate(self):
            results.append(None)
            if place not in self.bad:
                try:
                    results[place] = check(row)
                except DataError as error:
                    self.bad[place] = error
        return results

    def parse(self, parse: Callable[[Row], Any]) -> None:
        """Set the texts of each row to the result of `parse`."""
        self.texts = [(result,) for result in self.checked(parse)]

    def refuse_duplicates(self) -> None:
        """Mark rows with a duplicate field name as bad."""
        if self.made:
            return
        import numpy as np  # counts bytes in a quarter of the time

        together = b"".join(self.lines)
        quotes = np.count_nonzero(np.frombuffer(together, np.uint8) == QUOTE)
        fields = sum(map(len, self.values))
        strings = [*map(type, chain.from_iterable(map(dict.values, self.values)))].count(str)
        # No line has fewer quotes than its names and strings need. Without more, all lines are plain.
        if b"\\" in together or quotes != 2 * (fields + strings):
            self.checked(Row.refuse_duplicates)


def empty_block() -> RowBlock:
    """A block to extend."""
    return RowBlock([], [], [], [], [], made=True)


def block_of(rows: Iterable[Row]) -> RowBlock:
    """The rows as columns."""
    columns = [(row.line, row.values, row.source, row.number, row.input_line) for row in rows]
    lists = map(list, zip(*columns, strict=True)) if columns else ([], [], [], [], [])
    return RowBlock(*lists)  # type: ignore[arg-type]


def kept_line(values: object, **options: Any) -> bytes:
    """A JSON line to keep: a copy, because each result of orjson occupies four kilobytes or more."""
    return bytes(memoryview(orjson.dumps(values, **options)))


def made_block(
    found: Sequence[dict[str, Any] | BadLine],
    source: str,
    numbers: list[int],
    raws: list[bytes],
    lines: list[bytes] | None = None,
) -> RowBlock:
    """Rows with these values, or an error for a bad row. Without `lines`, these are made from the values."""
    values, bad, made = list[Any](found), dict[int, DataError](), lines is None
    for place, each in enumerate(found) if BadLine in map(type, found) else ():
        if isinstance(each, BadLine):
            bad[place], values[place] = each.at(source, numbers[place]), {}
    lines = list(map(kept_line, values)) if lines is None else lines
    for place in bad:
        lines[place] = b"{}"
    return RowBlock(lines, values, [source] * len(lines), numbers, raws, bad, made=made)
