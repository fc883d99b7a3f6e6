"""A row, and some thousand of them as columns: their bytes, their parsed values and their origin.

Fields are added, replaced or removed in the bytes of a line. All other bytes are unchanged, because
serialising a row again would change values: a 20-digit id would become a float, and 1.10 would
become 1.1.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import orjson

from sentkit.errors import DataError

QUOTE = ord('"')
END_OF_LIST = ord("]")
STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
NAME = re.compile(STRING)
WORD = re.compile(rb"[^\s,\[\]{}\"]+")  # a number, true, false or null
STRING_OR_BRACKET = re.compile(STRING + rb"|[\[\]{}]")
COMMA = re.compile(rb"[\s,]*")
SEPARATOR = re.compile(rb"\s*[:,}]\s*")


class BadLine(Exception):
    """A line that is not a valid row. The caller adds the file name and the line number."""

    def __init__(self, problem: str, advice: str | None = None) -> None:
        super().__init__(problem)
        self.advice = advice

    def at(self, source: str, number: int) -> DataError:
        return DataError(str(self), source=source, line=number, advice=self.advice)


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


def field_spans(line: bytes) -> dict[str, Span]:
    """The position of each field of the top-level object in the line; a ValueError for a duplicate
    field, whose value is ambiguous.
    """
    spans: dict[str, Span] = {}
    start = _past(COMMA, line, line.index(b"{") + 1)
    closing_brace = line.rindex(b"}")
    while start < closing_brace:
        name_end = end_of_string(line, start)
        value = _past(SEPARATOR, line, name_end)
        end = _end_of_value(line, value)
        name = orjson.loads(line[start:name_end])
        if name in spans:
            raise ValueError(f'duplicate field "{name}"')
        spans[name] = Span(start, value, end)
        start = _past(SEPARATOR, line, end)  # of the next name, or after the closing brace
    return spans


def _past(pattern: re.Pattern[bytes], line: bytes, start: int) -> int:
    """The position after the match of the pattern that starts here."""
    match = pattern.match(line, start)
    assert match is not None, "the line has parsed as JSON"
    return match.end()


def end_of_string(line: bytes, start: int) -> int:
    """The position after the closing quote."""
    end = line.index(b'"', start + 1) + 1  # 20 times as fast as the pattern, for base64
    if b"\\" in line[start:end]:
        return _past(NAME, line, start)
    return end


def _end_of_value(line: bytes, start: int) -> int:
    if line[start] == QUOTE:
        return end_of_string(line, start)
    if line[start] not in b"[{":
        return _past(WORD, line, start)
    depth = 0
    # no recursion: a value can be nested deeply
    for token in STRING_OR_BRACKET.finditer(line, start):
        if token[0] in b"[{":
            depth += 1
        elif token[0] in b"]}":
            depth -= 1
        if depth == 0:
            return token.end()
    raise AssertionError("the line has parsed as JSON")


def items_of(line: bytes, start: int) -> Iterator[bytes]:
    """The bytes of each item of the list that starts here in the line."""
    start = _past(COMMA, line, start + 1)
    while line[start] != END_OF_LIST:
        end = _end_of_value(line, start)
        yield line[start:end]
        start = _past(COMMA, line, end)


def append_fields(line: bytes, new: NewFields, *, empty: bool) -> bytes:
    """The object with new fields at its end. `empty`: it has no fields yet."""
    if not new:
        return line
    body = line.rstrip()[:-1]
    separator = b"" if empty else b","
    members = b",".join(b'"%b":%b' % field for field in new)
    return b"%b%b%b}" % (body, separator, members)


def put_fields(line: bytes, new: NewFields, spans: Spans) -> bytes:
    """The object with these fields. Existing ones are replaced in place, others are appended."""
    new_values = {name.decode(): value for name, value in new}
    # From the last to the first, so that the earlier positions stay valid.
    for name in sorted(new_values.keys() & spans.keys(), key=lambda name: -spans[name].value):
        line = line[: spans[name].value] + new_values[name] + line[spans[name].end :]
    absent = [(name, value) for name, value in new if name.decode() not in spans]
    return append_fields(line, absent, empty=not spans)


def rename_fields(line: bytes, names: Mapping[str, str], spans: Spans) -> bytes:
    """The object with other names, old -> new, for some fields. The values keep their bytes."""
    for name in sorted(names.keys() & spans.keys(), key=lambda name: -spans[name].start):
        start = spans[name].start
        line = line[:start] + orjson.dumps(names[name]) + line[end_of_string(line, start) :]
    return line


def drop_fields(line: bytes, names: Collection[str], spans: Spans) -> bytes:
    """The object without these fields. Other fields keep the comma and the blanks before them."""
    if spans.keys().isdisjoint(names):
        return line
    positions = list(spans.values())
    remaining: list[bytes] = []
    for i, name in enumerate(spans):
        if name in names:
            continue
        # With the comma before it, unless it becomes the first field.
        start = positions[i - 1].end if remaining else positions[i].start
        remaining.append(line[start : positions[i].end])
    return line[: positions[0].start] + b"".join(remaining) + line[positions[-1].end :]


def drop_fields_of_plain(line: bytes, names: Collection[str]) -> bytes:
    """The same as `drop_fields` for a plain line, but faster: other fields are not parsed.

    Fast only if all of these fields are strings, not the first field, and without blanks before
    them and around their colon.
    """
    remaining = line
    for name in names:
        # Such a name looks like what follows the closing quote of another string.
        if name[:1] in ",: ":
            return drop_fields(line, names, field_spans(line))
        name_and_colon = b'"%b":' % name.encode()
        start = remaining.find(name_and_colon)  # -1 with a blank before the colon
        value_start = start + len(name_and_colon)
        is_string = remaining[value_start : value_start + 1] == b'"'
        follows_comma = start >= 2 and remaining[start - 1 : start] == b","
        if not is_string or not follows_comma or remaining[start - 2 : start - 1].isspace():
            return drop_fields(line, names, field_spans(line))
        # A plain line has no escapes, so the next quote ends the string.
        value_end = remaining.index(b'"', value_start + 1) + 1
        remaining = remaining[: start - 1] + remaining[value_end:]
    return remaining


T = TypeVar("T")

# The texts of a row; or one item of the texts of a pair; or for each text (prompt, text).
Texts = tuple[Any, ...]


@dataclass(slots=True)
class Row:
    line: bytes  # a JSON object without a newline
    values: dict[str, Any]
    source: str
    number: int  # line number in the source, from 1
    # the line of the input, if it differs
    raw: bytes | None = field(default=None, repr=False, compare=False)

    def error(self, problem: str, *, advice: str | None = None) -> DataError:
        return DataError(problem, source=self.source, line=self.number, advice=advice)

    @property
    def input_line(self) -> bytes:
        """The line of the input, to which later fields were not added."""
        if self.raw is None:
            return self.line
        return self.raw

    def check_duplicate_names(self) -> None:
        """Raise an error for a duplicate field name, of which JSON parsers keep the last value."""
        if not is_plain(self.line, self.values):
            self.field_spans()

    def field_spans(self) -> Spans:
        """The position of each field in the line."""
        try:
            return field_spans(self.line)
        except ValueError as error:
            raise self.error(str(error)) from error

    def add(self, new: NewFields, *, replace: bool) -> bytes:
        """The line with new fields at its end; `replace` allows existing ones, changed in place."""
        names = [name.decode() for name, _ in new]
        if self.values.keys().isdisjoint(names):
            return append_fields(self.line, new, empty=not self.values)
        self.check_absent(names, replace=replace)
        return put_fields(self.line, new, self.field_spans())

    def check_absent(self, names: Iterable[str], *, replace: bool) -> None:
        """Raise an error if the row has one of these fields and `replace` is false."""
        present = next((name for name in names if name in self.values), None)
        if present is not None and not replace:
            raise self.error(
                f'field "{present}" already exists', advice="use --replace to overwrite it"
            )

    def with_standard_names(self, fields: Mapping[str, str]) -> "Row":
        """The row with standard names, from `fields`: standard name -> the name in this row."""
        standard_names = {name: standard for standard, name in fields.items()}
        for name, standard in standard_names.items():
            if name not in self.values:
                raise self.error(f'"{name}" is missing')
            if standard in self.values and standard not in standard_names:
                raise self.error(f'"{name}" cannot become "{standard}", which the row already has')
        line = rename_fields(self.line, standard_names, self.field_spans())
        values = {standard_names.get(name, name): value for name, value in self.values.items()}
        return Row(line, values, self.source, self.number, self.input_line)

    def without(self, names: Collection[str]) -> "Row":
        """The row without these fields, which it may have."""
        values = {name: value for name, value in self.values.items() if name not in names}
        if is_plain(self.line, self.values):
            line = drop_fields_of_plain(self.line, [name for name in self.values if name in names])
        else:
            line = drop_fields(self.line, names, self.field_spans())
        return Row(line, values, self.source, self.number, self.input_line)


@dataclass(slots=True)
class RowBlock:
    """Rows as columns of equal length. A bad row keeps its index until `Rejects.take` drops it."""

    lines: list[bytes]  # JSON objects without a newline
    values: list[dict[str, Any]]
    sources: list[str]
    numbers: list[int]  # line numbers in the sources, from 1
    raws: list[bytes]  # the lines of the input
    error_of_row: dict[int, DataError] = field(default_factory=dict)  # by index of the row
    texts: list[Texts] = field(default_factory=list)  # of each row, which are encoded
    parsed: list[Any] = field(default_factory=list)  # what else a parser read in each row
    # the lines were written from the values, so each name occurs once
    lines_from_values: bool = False

    def __len__(self) -> int:
        return len(self.lines)

    def __iter__(self) -> Iterator[Row]:
        return map(Row, self.lines, self.values, self.sources, self.numbers, self.raws)

    def row(self, index: int) -> Row:
        return Row(
            line=self.lines[index],
            values=self.values[index],
            source=self.sources[index],
            number=self.numbers[index],
            raw=self.raws[index],
        )

    def take(self, indices: Sequence[int] | slice) -> "RowBlock":
        """The rows at these indices, none of which is bad."""

        def selected(column: list[T]) -> list[T]:
            if isinstance(indices, slice):
                return column[indices]
            return [column[index] for index in indices]

        return RowBlock(
            lines=selected(self.lines),
            values=selected(self.values),
            sources=selected(self.sources),
            numbers=selected(self.numbers),
            raws=selected(self.raws),
            texts=selected(self.texts) if self.texts else [],
            parsed=selected(self.parsed) if self.parsed else [],
            lines_from_values=self.lines_from_values,
        )

    def between(self, start: int, stop: int) -> "RowBlock":
        """Consecutive rows, also bad ones."""
        rows = self.take(slice(start, stop))
        rows.error_of_row = {
            index - start: error
            for index, error in self.error_of_row.items()
            if start <= index < stop
        }
        return rows

    def extend(self, other: "RowBlock") -> None:
        self.error_of_row |= {
            len(self) + index: error for index, error in other.error_of_row.items()
        }
        self.lines.extend(other.lines)
        self.values.extend(other.values)
        self.sources.extend(other.sources)
        self.numbers.extend(other.numbers)
        self.raws.extend(other.raws)
        self.texts.extend(other.texts)
        self.parsed.extend(other.parsed)
        self.lines_from_values = self.lines_from_values and other.lines_from_values

    def without(self, names: Collection[str]) -> "RowBlock":
        """The rows without these fields, which they may have."""
        dropped = frozenset(names)
        if all(map(dropped.isdisjoint, self.values)):
            return self
        rows = [row if dropped.isdisjoint(row.values) else row.without(dropped) for row in self]
        return replace(self, lines=[row.line for row in rows], values=[row.values for row in rows])

    def refuse(self, index: int, problem: str, *, advice: str | None = None) -> None:
        """Mark a row as bad, if it is not."""
        error = DataError(
            problem, source=self.sources[index], line=self.numbers[index], advice=advice
        )
        self.error_of_row.setdefault(index, error)

    def refuse_all(self, problem: str, advice: str | None = None) -> None:
        for index in range(len(self)):
            self.refuse(index, problem, advice=advice)

    def results_of(self, check: Callable[[Row], T]) -> list[T | None]:
        """The result of `check` for each row; None for bad rows. A DataError makes a row bad."""
        results = list[T | None]()
        for index, row in enumerate(self):
            results.append(None)
            if index in self.error_of_row:
                continue
            try:
                results[index] = check(row)
            except DataError as error:
                self.error_of_row[index] = error
        return results

    def parse(self, parse: Callable[[Row], Any]) -> None:
        """Set `parsed` to the result of `parse` for each row."""
        self.parsed = self.results_of(parse)

    def refuse_duplicate_names(self) -> None:
        """Mark rows with a duplicate field name as bad."""
        if self.lines_from_values:
            return
        import numpy as np  # counts bytes in a quarter of the time

        all_lines = b"".join(self.lines)
        quote_count = np.count_nonzero(np.frombuffer(all_lines, np.uint8) == QUOTE)
        name_count = sum(map(len, self.values))
        values = chain.from_iterable(map(dict.values, self.values))
        string_count = [*map(type, values)].count(str)
        # No line has fewer quotes than its names and strings need. So the sums are equal only if
        # each line has exactly these quotes, and then all lines are plain.
        if b"\\" in all_lines or quote_count != 2 * (name_count + string_count):
            self.results_of(Row.check_duplicate_names)  # its error makes a row bad


def empty_block() -> RowBlock:
    """A block to extend."""
    return RowBlock([], [], [], [], [], lines_from_values=True)


def block_of_rows(rows: Iterable[Row]) -> RowBlock:
    """The rows as columns."""
    block = RowBlock([], [], [], [], [])
    for row in rows:
        block.lines.append(row.line)
        block.values.append(row.values)
        block.sources.append(row.source)
        block.numbers.append(row.number)
        block.raws.append(row.input_line)
    return block


def kept_line(values: object, **options: Any) -> bytes:
    """A JSON line to keep: a copy, because a result of orjson occupies 4 kB or more."""
    return bytes(memoryview(orjson.dumps(values, **options)))


def block_of_values(
    values: Sequence[dict[str, Any] | BadLine],
    source: str,
    numbers: list[int],
    raws: list[bytes],
    lines: list[bytes] | None = None,
) -> RowBlock:
    """Rows with these values, or errors of bad rows. Lines default to those of the values."""
    bad: dict[int, DataError] = {}
    good_values = list[Any](values)
    if BadLine in map(type, values):
        for index, value in enumerate(values):
            if isinstance(value, BadLine):
                bad[index] = value.at(source, numbers[index])
                good_values[index] = {}
    lines_from_values = lines is None
    if lines is None:
        lines = list(map(kept_line, good_values))
    for index in bad:
        lines[index] = b"{}"
    sources = [source] * len(lines)
    return RowBlock(
        lines, good_values, sources, numbers, raws, bad, lines_from_values=lines_from_values
    )
