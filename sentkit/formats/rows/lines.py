"""Turn lines of JSONL or plain text into blocks of rows, and detect the format."""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from io import BytesIO
from itertools import chain
from typing import Any

import orjson

from sentkit.errors import DataError
from sentkit.formats.rows.block import Row, RowBlock, block_of, kept_line, made_block

BOM = b"\xef\xbb\xbf"
MAX_LINE = 1 << 26  # bytes
READ = 1 << 16  # bytes per read; a pipe gives the bytes that it has
EXCERPT = 1 << 16  # bytes kept of a line over the limit

LineBlock = tuple[int, list[bytes]]  # number of the first line, from 1, and the lines with their ends
ParsedLine = tuple[bytes, dict[str, Any]]  # the object as bytes and as parsed values


class BadLine(Exception):
    """A line that is not a valid row. The caller adds the file name and the line number."""

    def __init__(self, problem: str, advice: str | None = None) -> None:
        super().__init__(problem)
        self.advice = advice

    def at(self, source: str, number: int) -> DataError:
        return DataError(str(self), source=source, line=number, advice=self.advice)


class LongLine(bytes):
    """The first bytes of a line over the limit. The rest was skipped."""


def too_long(longest: int) -> BadLine:
    return BadLine(f"a row of more than {longest} bytes", "sentkit cat --max-line 256M reads longer rows")


def line_blocks(file: Any, longest: int, *, is_start: bool = True) -> Iterator[LineBlock]:
    """The lines of a file that has `read1`, as many as each read returns.

    Only newlines separate lines; U+2028 does not. A byte order mark is removed if this is the start of the
    file. Memory holds at most `longest` bytes of a line.
    """
    number, parts, size = 1, list[bytes](), 0  # parts of a line without its end so far
    while chunk := file.read1(READ):
        end = chunk.find(b"\n") + 1
        if not end:
            size += len(chunk)
            parts.append(chunk)
            if size > longest + 1 and len(parts) > 1:
                parts = [b"".join(parts)[:EXCERPT]]
            continue
        first = long_line(b"".join([*parts, chunk[:end]]), size + end, longest)
        lines = [first, *BytesIO(chunk[end:]).readlines()]
        parts, size = [], 0
        if not lines[-1].endswith(b"\n") and len(lines) > 1:
            parts = [lines.pop()]
            size = len(parts[0])
        if longest < READ:
            lines[1:] = [long_line(line, len(line), longest) for line in lines[1:]]
        if number == 1 and is_start:
            lines[0] = without_mark(lines[0])
        yield number, lines
        number += len(lines)
    if parts:
        last = long_line(b"".join(parts), size, longest)
        yield number, [without_mark(last) if number == 1 and is_start else last]


def long_line(line: bytes, size: int, longest: int) -> bytes:
    """The line, or its start if its `size` is over the limit."""
    if size - line.endswith(b"\n") <= longest:
        return line
    return LongLine(line[:EXCERPT].removeprefix(BOM))


def without_mark(line: bytes) -> bytes:
    return line if isinstance(line, LongLine) else line.removeprefix(BOM)


def numbered(file: Any, longest: int) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers, from 1."""
    for first, lines in line_blocks(file, longest):
        yield from enumerate(lines, start=first)


def parsed_block(
    source: str, numbered: Iterable[tuple[int, bytes]], to_object: Callable[[bytes], ParsedLine], longest: int
) -> RowBlock:
    """A block of these lines, parsed one by one. A line that is not valid is a bad row."""
    rows, bad = list[Row](), dict[int, DataError]()
    for number, raw in numbered:
        line, values = b"{}", dict[str, Any]()
        try:
            if isinstance(raw, LongLine):
                raise too_long(longest)
            line, values = to_object(raw)
        except BadLine as error:
            bad[len(rows)] = error.at(source, number)
        rows.append(Row(line, values, source, number, raw))
    block = block_of(rows)
    block.bad = bad
    return block


def jsonl_blocks(source: str, blocks: Iterable[LineBlock], longest: int) -> Iterator[RowBlock]:
    for first, lines in blocks:
        try:
            values = list(map(orjson.loads, lines))
        except orjson.JSONDecodeError:
            values = []  # a blank line, or a bad one
        count = len(lines)
        if len(values) == count and {*map(type, values)} == {dict} and LongLine not in map(type, lines):
            numbers = [*range(first, first + count)]
            yield RowBlock([line.strip() for line in lines], values, [source] * count, numbers, lines)
        else:
            filled = (
                item for item in enumerate(lines, first) if item[1].strip() or type(item[1]) is LongLine
            )
            yield parsed_block(source, filled, json_object, longest)


def text_blocks(
    source: str, blocks: Iterable[LineBlock], longest: int, *, detected: bool = False
) -> Iterator[RowBlock]:
    """Every line is a row, also an empty one, so row n is line n.

    If the format was `detected`, a JSON object is an error, not a sentence.
    """
    for first, lines in blocks:
        braces = detected and any(line.lstrip()[:1] == b"{" for line in lines)
        texts = None if braces else plain_texts(lines)
        if texts is None:
            to_object = detected_text if detected else text_object
            yield parsed_block(source, enumerate(lines, first), to_object, longest)
        else:
            numbers = [*range(first, first + len(lines))]
            yield made_block([{"text": text} for text in texts], source, numbers, lines)


BEGINS = re.compile(rb"\s*(#{1,6}\s|[-*+]\s|\d{1,2}[.)]\s|[>|])")  # a heading, an item, a quote or a table
HEADING, FENCE = re.compile(rb"#{1,6}\s"), (b"```", b"~~~")


def paragraph_blocks(source: str, blocks: Iterable[LineBlock], longest: int) -> Iterator[RowBlock]:
    """Every paragraph of text or Markdown is a row, with the number of its first line.

    A paragraph ends before a blank line, and before a line of BEGINS. A heading is a row of its own. Lines
    without letters and digits (such as those below headings) and the fences of code end a paragraph and are
    left out.
    """
    start, parts, size = 0, list[bytes](), 0
    for first, lines in chain(blocks, [(0, [b""])]):  # the blank line ends the last paragraph
        rows = list[tuple[int, bytes]]()
        for number, line in enumerate(lines, first):
            text = line.strip()
            empty = text.startswith(FENCE) or not any(chr(byte).isalnum() or byte > 127 for byte in text)
            if parts and (empty or BEGINS.match(line) or HEADING.match(parts[0])):
                whole = b" ".join(parts)
                too_large = len(whole) > longest or LongLine in map(type, parts)
                rows.append((start, LongLine(whole[:EXCERPT]) if too_large else whole))
                parts, size = [], 0
            if empty or size > longest + 1:  # too large already
                continue
            start = start if parts else number
            size += len(text) + 1
            parts.append(line if isinstance(line, LongLine) else text)
        if rows:
            yield parsed_block(source, rows, text_object, longest)


def plain_texts(lines: list[bytes]) -> list[str] | None:
    """The lines as text without their ends; None if one is not text, or too long."""
    together = b"".join(lines)
    if b"\0" in together or LongLine in map(type, lines):
        return None
    try:
        texts = together.decode().split("\n")
    except UnicodeDecodeError:
        return None
    if len(texts) > len(lines):
        texts.pop()  # after the last newline
    return [text.removesuffix("\r") for text in texts] if b"\r" in together else texts


def sniffed_blocks(source: str, blocks: Iterator[LineBlock], longest: int) -> Iterator[RowBlock]:
    """JSONL or text. The first line that is not blank decides."""
    leading, filled = [], b""
    for block in blocks:
        leading.append(block)
        if filled := next((line for line in block[1] if line.strip()), b""):
            break
    read = jsonl_blocks if looks_like_json(filled) else detected_text_blocks
    yield from read(source, chain(leading, blocks), longest)


detected_text_blocks = partial(text_blocks, detected=True)


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


def detected_text(line: bytes) -> ParsedLine:
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
        problem = (
            f"not UTF-8 (byte {error.start + 1} of the line); for Latin-1: iconv -f latin1 -t utf-8 FILE"
        )
        raise BadLine(problem) from error


def json_type(value: object) -> str:
    """The type of a JSON value, for messages."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
