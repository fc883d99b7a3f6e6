"""Lines -> JSON objects: how a line of JSONL or of plain text becomes a row, and which of the two it is."""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, BinaryIO

import orjson

BOM = b"\xef\xbb\xbf"
MAX_LINE = 1 << 26  # bytes
EXCERPT = 1 << 16  # bytes: of a longer line, to tell its format; and what is skipped at once

Numbered = tuple[int, bytes]
Made = tuple[bytes, dict[str, Any]]  # the object as bytes, and as values
RawRow = tuple[int, bytes, Callable[[bytes], Made]]


class BadLine(Exception):
    """A line that is no row of its format; whoever knows the file adds the place."""


class LongLine(bytes):
    """The first bytes of a line that is longer than the limit; the rest was skipped."""

    odd_quotes = False  # in the whole line


def numbered(file: BinaryIO, longest: int = MAX_LINE) -> Iterator[Numbered]:
    """Split at newlines only (U+2028 is a character like any other); a byte-order mark is dropped.

    No more than `longest` bytes of a line are held.
    """
    number = 0
    while line := file.readline(longest + 1):
        number += 1
        if len(line) > longest and not line.endswith(b"\n"):
            line = _skip_rest(line, file)
        elif number == 1:
            line = line.removeprefix(BOM)
        yield number, line


def _skip_rest(line: bytes, file: BinaryIO) -> LongLine:
    quotes, last = line.count(b'"'), line
    while last and not last.endswith(b"\n"):
        last = file.readline(EXCERPT)
        quotes += last.count(b'"')
    found = LongLine(line[:EXCERPT].removeprefix(BOM))
    found.odd_quotes = quotes % 2 == 1
    return found


def jsonl_rows(lines: Iterator[Numbered]) -> Iterator[RawRow]:
    for number, line in lines:
        if line.strip() or isinstance(line, LongLine):
            yield number, line, json_object


def text_rows(lines: Iterator[Numbered]) -> Iterator[RawRow]:
    """Every line is a row, an empty one too: row n stays line n."""
    for number, line in lines:
        yield number, line, text_object


def sniffed_rows(lines: Iterator[Numbered]) -> Iterator[RawRow]:
    """JSONL or text, by the first line that is not blank."""
    leading = []
    for item in lines:
        leading.append(item)
        if item[1].strip():
            break
    if leading and looks_like_json(leading[-1][1]):
        yield from jsonl_rows(chain(leading, lines))
    else:
        for number, line in chain(leading, lines):
            yield number, line, sniffed_text


def looks_like_json(line: bytes) -> bool:
    """A line that begins with a brace is meant as JSON, be it broken; text may begin with a bracket."""
    line = line.lstrip()
    return line.startswith(b"{") or (line.startswith(b"[") and isinstance(_parsed(line), list))


def _parsed(line: bytes) -> object:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return None


def json_object(line: bytes) -> Made:
    line = line.strip()
    try:
        values = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise BadLine(f"not JSON: {error.msg} (column {error.colno})") from error
    if not isinstance(values, dict):
        raise BadLine(f"this row is {json_type(values)}, expected an object")
    return line, values


def text_object(line: bytes) -> Made:
    values = {"text": readable(line)}
    return orjson.dumps(values), values


def sniffed_text(line: bytes) -> Made:
    """Text in a stream whose format nobody stated: rows of JSON behind it are not sentences."""
    if line.lstrip().startswith(b"{") and isinstance(_parsed(line), dict):
        raise BadLine("a JSON object in a stream that began as plain text (--from text reads it as text)")
    return text_object(line)


def readable(line: bytes) -> str:
    """The characters of a line without its end."""
    if b"\0" in line:
        raise BadLine("a NUL byte: this is not text")
    try:
        return line.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise BadLine(f"not UTF-8 (byte {error.start + 1} of the line)") from error


def json_type(value: object) -> str:
    """What a person calls a JSON value."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
