"""Splicing: members added to a JSON object, replaced or taken out, every other byte left as it came.

Parsing and writing again would turn a 20-digit id into a float and 1.10 into 1.1; so the line itself is
edited. All functions take a line that has parsed as a JSON object already.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import orjson

STRING = rb'"(?:[^"\\]++|\\.)*+"'
NAME = re.compile(rb"\s*(" + STRING + rb")\s*:\s*")
SIMPLE = re.compile(
    STRING + rb'|\[[^\[\]{}"]*+\]|[^\s,\[\]{}"]++'
)  # a string, a flat list, a number or a word
TOKEN = re.compile(STRING + rb"|[\[\]{}]")
AFTER = re.compile(rb"\s*([,}])")


class RepeatedName(Exception):
    """A member's name stands twice in one object; which one counts is anybody's guess, so neither does."""


@dataclass(frozen=True, slots=True)
class Span:
    start: int  # of the name
    value: int  # of the value
    end: int  # past the value


def members(line: bytes) -> dict[str, Span]:
    """Where each member of the top-level object stands in the line."""
    found: dict[str, Span] = {}
    place = line.index(b"{") + 1
    while (name := NAME.match(line, place)) is not None:
        end = _end_of_value(line, name.end())
        text = orjson.loads(name[1])
        if text in found:
            raise RepeatedName(text)
        found[text] = Span(name.start(1), name.end(), end)
        separator = AFTER.match(line, end)
        assert separator is not None, "the line has parsed as JSON"
        place = separator.end()
    return found


def _end_of_value(line: bytes, start: int) -> int:
    simple = SIMPLE.match(line, start)
    if simple is not None:
        return simple.end()
    depth = 0
    for token in TOKEN.finditer(line, start):
        depth += {b"[": 1, b"{": 1, b"]": -1, b"}": -1}.get(token[0], 0)
        if depth == 0:
            return token.end()
    raise AssertionError("the line has parsed as JSON")


def append(line: bytes, new: Iterable[tuple[bytes, bytes]], *, empty: bool) -> bytes:
    """The object with members, each a name and a value in JSON, set before its last brace."""
    body = line.rstrip()[:-1]
    added = b",".join(b'"%b":%b' % member for member in new)
    return b"%b%b%b}" % (body, b"" if empty else b",", added) if added else line


def put(line: bytes, new: Sequence[tuple[bytes, bytes]]) -> bytes:
    """The object with members that are replaced where they stand, or appended where they are new."""
    spans = members(line)
    places: Mapping[str, bytes] = {name.decode(): value for name, value in new}
    for name in sorted(places.keys() & spans.keys(), key=lambda name: -spans[name].value):
        line = line[: spans[name].value] + places[name] + line[spans[name].end :]
    return append(line, [m for m in new if m[0].decode() not in spans], empty=not spans)


def drop(line: bytes, names: Iterable[str]) -> bytes:
    """The object without the members of these names; what is kept keeps the comma and blanks before it."""
    found = members(line)
    spans, unwanted = list(found.values()), set(names)
    if not unwanted & found.keys():
        return line
    kept = b""
    for at, name in enumerate(found):
        if name not in unwanted:
            kept += line[spans[at - 1].end : spans[at].start] if kept else b""
            kept += line[spans[at].start : spans[at].end]
    return line[: spans[0].start] + kept + line[spans[-1].end :]
