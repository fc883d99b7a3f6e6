"""Splicing: members added to a JSON object, replaced or taken out, every other byte left as it came.

Parsing and writing again would turn a 20-digit id into a float and 1.10 into 1.1; so the line itself is
edited. All functions take a line that has parsed as a JSON object already.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

QUOTE, BACKSLASH = b'"'[0], b"\\"[0]
BLANK = re.compile(rb"\s*")
WORD = re.compile(rb"[^\s,\[\]{}\"]+")  # a number, true, false or null
BRACKET = re.compile(rb"[\"\[\]{}]")
SEPARATOR = re.compile(rb"\s*[:,}]\s*")


class RepeatedName(Exception):
    """A member's name stands twice in one object; which one counts is anybody's guess, so neither does."""


class Span(NamedTuple):
    start: int  # of the name
    value: int  # of the value
    end: int  # past the value


Spans = Mapping[str, Span]


def is_plain(line: bytes, values: Mapping[str, Any]) -> bool:
    """No escapes, nothing nested, no name twice: every quote belongs to a name or a string of these."""
    strings = [type(value) for value in values.values()].count(str)
    return b"\\" not in line and line.count(b'"') == 2 * (len(values) + strings)


def members(line: bytes) -> dict[str, Span]:
    """Where each member of the top-level object stands in the line."""
    found: dict[str, Span] = {}
    start, last = _past(BLANK, line, line.index(b"{") + 1), line.rindex(b"}")
    while start < last:
        name_end = end_of_string(line, start)
        value = _past(SEPARATOR, line, name_end)
        end = _end_of_value(line, value)
        name = orjson.loads(line[start:name_end])
        if name in found:
            raise RepeatedName(name)
        found[name] = Span(start, value, end)
        start = _past(SEPARATOR, line, end)  # of the next name, or past the object's brace
    return found


def _past(pattern: re.Pattern[bytes], line: bytes, place: int) -> int:
    found = pattern.match(line, place)
    assert found is not None, "the line has parsed as JSON"
    return found.end()


def end_of_string(line: bytes, start: int) -> int:
    """Past the quote that ends the string; one behind an odd number of backslashes does not."""
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


def append(line: bytes, new: Iterable[tuple[bytes, bytes]], *, empty: bool) -> bytes:
    """The object with members, each a name and a value in JSON, set before its last brace."""
    body = line.rstrip()[:-1]
    added = b",".join(b'"%b":%b' % member for member in new)
    return b"%b%b%b}" % (body, b"" if empty else b",", added) if added else line


def put(line: bytes, new: Sequence[tuple[bytes, bytes]], spans: Spans | None = None) -> bytes:
    """The object with members that are replaced where they stand, or appended where they are new."""
    spans = members(line) if spans is None else spans
    places: Mapping[str, bytes] = {name.decode(): value for name, value in new}
    for name in sorted(places.keys() & spans.keys(), key=lambda name: -spans[name].value):
        line = line[: spans[name].value] + places[name] + line[spans[name].end :]
    return append(line, [m for m in new if m[0].decode() not in spans], empty=not spans)


def drop(line: bytes, names: Iterable[str], spans: Spans | None = None) -> bytes:
    """The object without the members of these names; what is kept keeps the comma and blanks before it."""
    spans = members(line) if spans is None else spans
    places, unwanted = list(spans.values()), set(names)
    if not unwanted & spans.keys():
        return line
    kept: list[bytes] = []
    for at, name in enumerate(spans):
        if name not in unwanted:
            kept.append(line[places[at - 1].end if kept else places[at].start : places[at].end])
    return line[: places[0].start] + b"".join(kept) + line[places[-1].end :]


def drop_from_plain(line: bytes, names: Iterable[str]) -> bytes:
    """What `drop` makes of a plain line, without a look at the members that stay."""
    rest = line
    for name in names:
        quoted = b'"%b":' % name.encode()
        start = rest.find(quoted)
        value = start + len(quoted)
        simple = rest[value : value + 1] == b'"' and rest[start - 1 : start] == b","
        if start < 2 or not simple or rest[start - 2 : start - 1].isspace():
            return drop(line, names)  # the first member, no string, or blanks around
        rest = rest[: start - 1] + rest[rest.index(b'"', value + 1) + 1 :]
    return rest
