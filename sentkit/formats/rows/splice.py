"""Add, replace or remove fields of a JSON object. All other bytes are unchanged.

The functions edit the line, because serialising it again would change values: a 20-digit id would become a
float, and 1.10 would become 1.1. The line must be a valid JSON object; the functions do not check it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

QUOTE, BACKSLASH, END_OF_LIST = b'"\\]'
BLANK = re.compile(rb"\s*")
WORD = re.compile(rb"[^\s,\[\]{}\"]+")  # a number, true, false or null
BRACKET = re.compile(rb"[\"\[\]{}]")
COMMA = re.compile(rb"[\s,]*")
SEPARATOR = re.compile(rb"\s*[:,}]\s*")


class DuplicateName(Exception):
    """An object has a duplicate field name, so the value is ambiguous."""


class Span(NamedTuple):
    start: int  # of the name
    value: int  # of the value
    end: int  # after the value


Spans = Mapping[str, Span]
NewFields = Sequence[tuple[bytes, bytes]]  # name and JSON value


def is_plain(line: bytes, values: Mapping[str, Any]) -> bool:
    """Whether the line has no escapes, no quotes in nested values and no duplicate name.

    Then every quote belongs to a field name or to a string value.
    """
    strings = [type(value) for value in values.values()].count(str)
    return b"\\" not in line and line.count(b'"') == 2 * (len(values) + strings)


def spans_of(line: bytes) -> dict[str, Span]:
    """The position of each field of the top-level object in the line."""
    spans: dict[str, Span] = {}
    start, last = _past(BLANK, line, line.index(b"{") + 1), line.rindex(b"}")
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
    """The position after the closing quote. A quote after an odd number of backslashes is escaped."""
    while True:
        quote = line.index(b'"', start + 1)
        before = quote - 1
        while line[before] == BACKSLASH:
            before -= 1
        if (quote - before) % 2:
            return quote + 1
        start = quote


def _end_of_value(line: bytes, start: int) -> int:
    if line[start] == QUOTE:
        return end_of_string(line, start)
    if line[start] not in b"[{":
        return _past(WORD, line, start)
    depth, place = 0, start
    while True:
        bracket = BRACKET.search(line, place)
        assert bracket is not None, "the line has parsed as JSON"
        place = bracket.end()
        if bracket[0] == b'"':
            place = end_of_string(line, bracket.start())
            continue
        depth += 1 if bracket[0] in b"[{" else -1
        if depth == 0:
            return place


def items_of(line: bytes, start: int) -> Iterator[bytes]:
    """The bytes of each item of the list that starts here in the line."""
    place = _past(BLANK, line, start + 1)
    while line[place] != END_OF_LIST:
        end = _end_of_value(line, place)
        yield line[place:end]
        place = _past(COMMA, line, end)


def append(line: bytes, new: NewFields, *, empty: bool) -> bytes:
    """The object with new fields at its end. `empty`: it has no fields yet."""
    body = line.rstrip()[:-1]
    added = b",".join(b'"%b":%b' % field for field in new)
    return b"%b%b%b}" % (body, b"" if empty else b",", added) if added else line


def put(line: bytes, new: NewFields, spans: Spans) -> bytes:
    """The object with these fields. Existing fields are replaced in place, new ones are appended."""
    places: Mapping[str, bytes] = {name.decode(): value for name, value in new}
    for name in sorted(places.keys() & spans.keys(), key=lambda name: -spans[name].value):
        line = line[: spans[name].value] + places[name] + line[spans[name].end :]
    return append(line, [field for field in new if field[0].decode() not in spans], empty=not spans)


def rename(line: bytes, names: Mapping[str, str], spans: Spans) -> bytes:
    """The object with other names for some fields, old name -> new name. The values keep their bytes."""
    for name in sorted(names.keys() & spans.keys(), key=lambda name: -spans[name].start):
        start = spans[name].start
        line = line[:start] + orjson.dumps(names[name]) + line[end_of_string(line, start) :]
    return line


def drop(line: bytes, names: Iterable[str], spans: Spans | None = None) -> bytes:
    """The object without these fields. Other fields keep the comma and the blanks before them."""
    spans = spans_of(line) if spans is None else spans
    places, unwanted = list(spans.values()), set(names)
    if not unwanted & spans.keys():
        return line
    kept: list[bytes] = []
    for at, name in enumerate(spans):
        if name not in unwanted:
            kept.append(line[places[at - 1].end if kept else places[at].start : places[at].end])
    return line[: places[0].start] + b"".join(kept) + line[places[-1].end :]


def drop_from_plain(line: bytes, names: Iterable[str]) -> bytes:
    """The same result as `drop` for a plain line. Faster, because it does not parse the other fields."""
    rest = line
    for name in names:
        quoted = b'"%b":' % name.encode()
        start = rest.find(quoted)
        value = start + len(quoted)
        simple = rest[value : value + 1] == b'"' and rest[start - 1 : start] == b","
        if start < 2 or not simple or rest[start - 2 : start - 1].isspace():
            return drop(line, names)  # the first field, not a string, or with blanks around it
        rest = rest[: start - 1] + rest[rest.index(b'"', value + 1) + 1 :]
    return rest
