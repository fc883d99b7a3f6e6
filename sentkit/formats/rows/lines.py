"""Turn lines of JSONL or plain text into blocks of rows, and detect the format."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from io import BytesIO
from itertools import chain
from typing import Any

import orjson

from sentkit.formats.files import TEXTS
from sentkit.formats.rows.block import BadLine, RowBlock, block_of_values
from sentkit.formats.rows.input_formats import input_format

BOM = b"\xef\xbb\xbf"
MAX_LINE = 1 << 26  # bytes of a row
NOT_A_NUMBER = re.compile(rb"NaN|Infinity")
READ = 1 << 16  # bytes per read; a pipe gives the bytes that it has
EXCERPT = 1 << 16  # bytes kept of a line over the limit

BY_NAME = "this is {0}; commands that read vectors accept it as a file with the suffix {1}"
UTF_16 = "this is UTF-16; use: iconv -f utf-16 -t utf-8 FILE"
# The first bytes of files that are not text in UTF-8, with advice.
SIGNATURES: Mapping[bytes, str] = {
    b"\xff\xfe": UTF_16,
    b"\xfe\xff": UTF_16,
    b"\x93NUMPY": BY_NAME.format("an array of numpy", ".npy"),
    b"\x1f\x8b": "this is compressed; name it with the suffix .gz, or use: gunzip -c",
    b"\x28\xb5\x2f\xfd": "this is compressed; name it with the suffix .zst, or use: zstd -dc",
    b"BZh": "this is compressed; use: bunzip2 -c",
    b"\xfd7zXZ": "this is compressed; use: xz -dc",
    b"PAR1": "this is a Parquet file; name it with the suffix .parquet, or use: "
    "sentkit cat FILE --from parquet",
    b"PK\x03\x04": "this is a zip archive or an office document; export it as CSV or text",
}

# number of the first line, from 1, and the lines with their ends
LineBlock = tuple[int, list[bytes]]


class LongLine(bytes):
    """The first bytes of a line over the limit. The rest was skipped."""


def is_too_long(size: int) -> bool:
    return size > MAX_LINE


def too_long() -> BadLine:
    return BadLine(
        f"a row of more than {MAX_LINE} bytes", "shorten or divide it, for example with jq"
    )


def line_blocks(file: Any) -> Iterator[LineBlock]:
    """The lines of a file that has `read1`, as many as each read returns."""
    return lines_of(iter(partial(file.read1, READ), b""))


def lines_of(chunks: Iterable[bytes], *, is_start: bool = True) -> Iterator[LineBlock]:
    """The lines of a file that is read in chunks, as many as end in each of them.

    Only newlines separate lines; U+2028 does not. A byte order mark is removed if this is the start
    of the file. Memory holds at most MAX_LINE bytes of a line.
    """
    number = 1
    unfinished: list[bytes] = []  # a line without its end so far; only the start of a long one
    unfinished_size = 0  # all of its bytes so far
    for chunk in chunks:
        end = chunk.find(b"\n") + 1
        if not end:
            unfinished_size += len(chunk)
            unfinished.append(chunk)
            if unfinished_size > MAX_LINE + 1 and len(unfinished) > 1:
                unfinished = [b"".join(unfinished)[:EXCERPT]]
            continue

        # The line that ends first, those that are whole, and the start of the next one.
        first = long_line(b"".join([*unfinished, chunk[:end]]), unfinished_size + end)
        lines = [first, *BytesIO(chunk[end:]).readlines()]
        unfinished = []
        unfinished_size = 0
        if not lines[-1].endswith(b"\n") and len(lines) > 1:
            unfinished = [lines.pop()]
            unfinished_size = len(unfinished[0])
        if MAX_LINE < READ:  # otherwise, a line in one chunk is never too long
            lines[1:] = [long_line(line, len(line)) for line in lines[1:]]
        if number == 1 and is_start:
            lines[0] = without_mark(lines[0])
        yield number, lines
        number += len(lines)
    if unfinished:
        last = long_line(b"".join(unfinished), unfinished_size)
        if number == 1 and is_start:
            last = without_mark(last)
        if last:  # the file is more than a mark
            yield number, [last]


def long_line(line: bytes, size: int) -> bytes:
    """The line, or its start if its `size` is over the limit."""
    if size - line.endswith(b"\n") <= MAX_LINE:
        return line
    return LongLine(line[:EXCERPT].removeprefix(BOM))


def without_mark(line: bytes) -> bytes:
    """The line without a byte order mark; a long line has none."""
    if isinstance(line, LongLine):
        return line
    return line.removeprefix(BOM)


def numbered(file: Any) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers, from 1."""
    for first, lines in line_blocks(file):
        yield from enumerate(lines, start=first)


@input_format("jsonl", "lines", ".jsonl", ".ndjson", ".json")
def jsonl_blocks(source: str, blocks: Iterable[LineBlock]) -> Iterator[RowBlock]:
    """Each line is a JSON object."""
    for first, lines in blocks:
        numbers = [*range(first, first + len(lines))]
        try:
            values = list(map(orjson.loads, lines))
        except orjson.JSONDecodeError:
            values = []  # a blank line, or a bad one
        if (
            len(values) == len(lines)
            and {*map(type, values)} == {dict}
            and LongLine not in map(type, lines)
        ):
            yield RowBlock(
                [line.strip() for line in lines], values, [source] * len(lines), numbers, lines
            )
        else:
            filled = [i for i, line in enumerate(lines) if line.strip() or type(line) is LongLine]
            raws = [lines[i] for i in filled]
            objects = [object_of(line) for line in raws]
            numbers = [numbers[i] for i in filled]
            yield block_of_values(objects, source, numbers, raws, [line.strip() for line in raws])


@input_format("text", "lines", *TEXTS)
def text_blocks(
    source: str, blocks: Iterable[LineBlock], *, detected: bool = False
) -> Iterator[RowBlock]:
    """Each line is a text, also an empty one.

    So row n is line n.

    If the format was `detected`, a JSON object is an error, not a sentence.
    """
    for first, lines in blocks:
        values = as_text_rows(texts_of(lines))
        if detected:
            for i, line in enumerate(lines):
                if line.lstrip()[:1] == b"{" and isinstance(_parsed(line), dict):
                    problem = "a JSON object in a stream that began as plain text"
                    values[i] = BadLine(f"{problem} (sentkit cat --from text reads it as text)")
        yield block_of_values(values, source, [*range(first, first + len(lines))], lines)


# a heading, an item, a quote or a table
BEGINS = re.compile(rb"\s*(#{1,6}\s|[-*+]\s|\d{1,2}[.)]\s|[>|])")
HEADING = re.compile(rb"#{1,6}\s")
FENCES = (b"```", b"~~~")


@input_format("paragraphs", "records")
def paragraph_blocks(source: str, blocks: Iterable[LineBlock]) -> Iterator[RowBlock]:
    """Each paragraph of text or Markdown is a text.

    Its number is that of its first line. A paragraph ends before a blank line, and before a line of
    BEGINS. A heading is a separate row. Lines without letters and digits (such as those below
    headings) and the fences of code end a paragraph and are left out.
    """
    start = 0  # the number of the first line of the paragraph
    paragraph: list[bytes] = []  # its lines
    size = 0
    for first, lines in chain(blocks, [(0, [b""])]):  # the blank line ends the last paragraph
        rows = list[tuple[int, bytes]]()
        for number, line in enumerate(lines, first):
            text = line.strip()
            empty = text.startswith(FENCES) or not any(
                chr(byte).isalnum() or byte > 127 for byte in text
            )

            # This line ends the paragraph before it.
            if paragraph and (empty or BEGINS.match(line) or HEADING.match(paragraph[0])):
                raw = b" ".join(paragraph)
                if len(raw) > MAX_LINE or LongLine in map(type, paragraph):
                    raw = LongLine(raw[:EXCERPT])
                rows.append((start, raw))
                paragraph = []
                size = 0

            if empty or size > MAX_LINE + 1:  # too large already
                continue
            if not paragraph:
                start = number
            size += len(text) + 1
            if isinstance(line, LongLine):
                text = line
            paragraph.append(text)
        if rows:
            numbers = [number for number, _ in rows]
            raws = [raw for _, raw in rows]
            texts = [text_of(raw) for raw in raws]
            yield block_of_values(as_text_rows(texts), source, numbers, raws)


def texts_of(lines: list[bytes]) -> Sequence[str | BadLine]:
    """The lines as text without their ends; an error for a line that is not text, or too long."""
    all_lines = b"".join(lines)
    if b"\0" not in all_lines and LongLine not in map(type, lines):
        with suppress(UnicodeDecodeError):
            texts = all_lines.decode().split("\n")
            if len(texts) > len(lines):
                texts.pop()  # after the last newline
            if b"\r" in all_lines:
                texts = [text.removesuffix("\r") for text in texts]
            return texts
    return [text_of(line) for line in lines]


def text_of(line: bytes) -> str | BadLine:
    if isinstance(line, LongLine):
        return too_long()
    if b"\0" in line:
        return BadLine("a NUL byte: this is not text", advice_on_binary(line))
    try:
        return line.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        position = f"byte {error.start + 1} of the line"
        if advice_on_binary(line) is not None:
            return BadLine(f"not UTF-8 ({position})", advice_on_binary(line))
        return BadLine(f"not UTF-8 ({position}); for Latin-1: iconv -f latin1 -t utf-8 FILE")


def advice_on_binary(line: bytes) -> str | None:
    """How to read a file that begins with these bytes; None if its format is unknown."""
    for signature, advice in SIGNATURES.items():
        if line.startswith(signature):
            return advice
    # A header below 4 GiB, after its length in 8 bytes.
    if line[4:10] == b'\0\0\0\0{"':
        return BY_NAME.format("a safetensors file", ".safetensors")
    return None


def as_text_rows(texts: Iterable[str | BadLine]) -> list[dict[str, Any] | BadLine]:
    return [text if isinstance(text, BadLine) else {"text": text} for text in texts]


def sniffed_blocks(source: str, blocks: Iterator[LineBlock]) -> Iterator[RowBlock]:
    """JSONL or text. The first line that is not blank decides."""
    leading = list[tuple[int, list[bytes] | int]]()  # of a block of empty lines, only their number
    filled = b""
    for first, lines in blocks:
        filled = next((line for line in lines if line.strip()), b"")
        if not filled and set(lines) == {b"\n"}:
            leading.append((first, len(lines)))
        else:
            leading.append((first, lines))
        if filled:
            break
    all_blocks = chain(with_empty_lines(leading), blocks)
    if looks_like_json(filled):
        yield from jsonl_blocks(source, all_blocks)
    else:
        yield from detected_text_blocks(source, all_blocks)


def with_empty_lines(blocks: Iterable[tuple[int, list[bytes] | int]]) -> Iterator[LineBlock]:
    """The blocks of lines, with the empty lines of those that are only their number."""
    for first, lines in blocks:
        if isinstance(lines, int):
            yield first, [b"\n"] * lines
        else:
            yield first, lines


detected_text_blocks = partial(text_blocks, detected=True)


def looks_like_json(line: bytes) -> bool:
    """Whether a line starts with a brace or is a JSON list; text can start with a bracket."""
    line = line.lstrip()
    return line.startswith(b"{") or (line.startswith(b"[") and isinstance(_parsed(line), list))


def _parsed(line: bytes) -> object:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return None


def object_of(line: bytes) -> dict[str, Any] | BadLine:
    """The values of a line of JSONL, or why it is not a row."""
    if isinstance(line, LongLine):
        return too_long()
    try:
        values = orjson.loads(line.strip())
    except orjson.JSONDecodeError as error:
        text = text_of(line)
        if isinstance(text, BadLine):
            return text
        problem = f"not JSON: {error.msg} (column {error.colno})"
        # Python's json module writes these names.
        name = NOT_A_NUMBER.match(line.strip(), error.colno - 1)
        if name is not None:
            problem = f"not JSON: {name[0].decode()} (column {error.colno}); JSON has null instead"
        return BadLine(problem, advice_on_json(line.strip()))
    if not isinstance(values, dict):
        problem = f"this row is {json_type(values)}, expected an object"
        return BadLine(problem, advice_on_json(line.strip()))
    return values


def advice_on_json(line: bytes) -> str | None:
    """How to convert a file of another format, or one whose rows are elements of a list or have
    several lines.
    """
    if line.startswith(b"["):
        return "each row is a line with an object; for a list of objects, use: jq -c '.[]' FILE"
    if line == b"{":
        return "each row is a line with an object; for objects of several lines, use: jq -c . FILE"
    return advice_on_binary(line)


def json_type(value: object) -> str:
    """The type of a JSON value, for messages."""
    names = {
        dict: "an object",
        list: "a list",
        str: "a string",
        bool: "true or false",
        type(None): "null",
    }
    return names.get(type(value), "a number")
