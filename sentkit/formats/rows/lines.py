"""Turn lines of JSONL or plain text into JSON objects, and detect the format."""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Protocol

import orjson

from sentkit.errors import DataError

BOM = b"\xef\xbb\xbf"
MAX_LINE = 1 << 26  # bytes
EXCERPT = 1 << 16  # bytes kept of a line over the limit, and bytes per read while the rest is skipped

NumberedLine = tuple[int, bytes]  # line number from 1, and the bytes
ParsedLine = tuple[bytes, dict[str, Any]]  # the object as bytes and as parsed values
RawRow = tuple[int, bytes, Callable[[bytes], ParsedLine]]


class Lines(Protocol):
    """The part of a file that `numbered` needs."""

    def readline(self, limit: int = -1, /) -> bytes: ...


class BadLine(Exception):
    """A line that is not a valid row. The caller adds the file name and the line number."""


class LongLine(bytes):
    """The first bytes of a line over the limit. The rest was skipped."""

    odd_quotes = False  # whether the whole line has an odd number of quotes


def too_long(source: str, number: int, longest: int) -> DataError:
    problem, advice = f"a row of more than {longest} bytes", "sentkit cat --max-line 256M reads longer rows"
    return DataError(problem, source=source, line=number, advice=advice)


def numbered(file: Lines, longest: int, *, is_start: bool = True) -> Iterator[NumberedLine]:
    """Number the lines of a file from 1. Only newlines separate lines; U+2028 does not.

    A byte order mark is removed if this is the start of the file. Memory holds at most `longest` bytes of a
    line.
    """
    number = 0
    while line := file.readline(longest + 1):
        number += 1
        if len(line) > longest and not line.endswith(b"\n"):
            line = _skip_rest(line, file)
        elif number == 1 and is_start:
            line = line.removeprefix(BOM)
        yield number, line


def _skip_rest(line: bytes, file: Lines) -> LongLine:
    quotes, last = line.count(b'"'), line
    while last and not last.endswith(b"\n"):
        last = file.readline(EXCERPT)
        quotes += last.count(b'"')
    start = LongLine(line[:EXCERPT].removeprefix(BOM))
    start.odd_quotes = quotes % 2 == 1
    return start


def jsonl_rows(lines: Iterator[NumberedLine]) -> Iterator[RawRow]:
    for number, line in lines:
        if line.strip() or isinstance(line, LongLine):
            yield number, line, json_object


def text_rows(lines: Iterator[NumberedLine]) -> Iterator[RawRow]:
    """Every line is a row, also an empty one, so row n is line n."""
    for number, line in lines:
        yield number, line, text_object


def sniffed_rows(lines: Iterator[NumberedLine]) -> Iterator[RawRow]:
    """JSONL or text. The first line that is not blank decides."""
    leading = []
    for item in lines:
        leading.append(item)
        if item[1].strip():
            break
    if leading and looks_like_json(leading[-1][1]):
        yield from jsonl_rows(chain(leading, lines))
    else:
        yield from detected_text_rows(chain(leading, lines))


def detected_text_rows(lines: Iterator[NumberedLine]) -> Iterator[RawRow]:
    """Text rows of a file whose first line is not JSON."""
    for number, line in lines:
        yield number, line, sniffed_text


def looks_like_json(line: bytes) -> bool:
    """Whether a line starts with a brace, valid or not, or is a JSON list. Text can start with a bracket."""
    line = line.lstrip()
    return line.startswith(b"{") or (line.startswith(b"[") and isinstance(_parsed(line), list))


def _parsed(line: bytes) -> object:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return None


def json_object(line: bytes) -> ParsedLine:
    line = line.strip()
    try:
        values = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise BadLine(f"not JSON: {error.msg} (column {error.colno})") from error
    if not isinstance(values, dict):
        raise BadLine(f"this row is {json_type(values)}, expected an object")
    return line, values


def text_object(line: bytes) -> ParsedLine:
    values = {"text": decoded(line)}
    return kept_line(values), values


def kept_line(values: object, **options: Any) -> bytes:
    """Return a JSON line to keep: a copy, because each result of orjson occupies four kilobytes or more."""
    return bytes(memoryview(orjson.dumps(values, **options)))


def sniffed_text(line: bytes) -> ParsedLine:
    """A text row in a stream of detected format. A JSON object is an error there, not a sentence."""
    if line.lstrip().startswith(b"{") and isinstance(_parsed(line), dict):
        raise BadLine(
            "a JSON object in a stream that began as plain text (sentkit cat --from text reads it as text)"
        )
    return text_object(line)


def decoded(line: bytes) -> str:
    """The decoded line without its line ending."""
    if b"\0" in line:
        raise BadLine("a NUL byte: this is not text")
    try:
        return line.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise BadLine(f"not UTF-8 (byte {error.start + 1} of the line)") from error


def json_type(value: object) -> str:
    """The type of a JSON value, for messages."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
