"""The blocks of the inputs of a vector folder: consecutive rows that one vector file holds.

A block is a byte range of an input, or a number of rows if the input has no byte positions. Its
name has the number of the input and the start of the block, so the names that exist are the state
of the work.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import accumulate
from typing import Any, BinaryIO

from sentkit.formats.files import (
    COMPRESSED,
    is_folder,
    is_input_file,
    name_of,
    open_file,
    open_input,
    real_path,
    shown_path,
    suffix_of,
)
from sentkit.formats.rows.block import RowBlock, empty_block
from sentkit.formats.rows.lines import EXCERPT, READ, lines_of, looks_like_json, numbered
from sentkit.formats.rows.parquet import open_parquet
from sentkit.formats.rows.rows import LINES, Inputs, TextsOfRow

SUFFIX = ".safetensors"
BLOCK_BYTES = 1 << 19
ROW_BYTES = 64  # an input without byte positions has blocks of `block_bytes` / 64 rows
EDGE = 1 << 16  # bytes at both ends of an input that run.json identifies


@dataclass(slots=True)
class Block:
    """Consecutive rows of an input: the lines that start in a byte range, records of Parquet, or
    rows.

    A block reads the same rows and the same bytes in every process, so its digest detects a changed
    input. Errors count lines from the start of a byte range.
    """

    input_number: int  # number of the input
    start: int  # byte, or row
    stop: int
    is_last: bool  # whether this is known to be the last block of its input
    index: int  # shard I of N has the blocks whose index is I modulo N
    format: str  # of an input with positions: parquet, or a key of LINES for a byte range
    path: str = ""
    rows: RowBlock | None = None  # of a stream, which has no positions
    source_digest: str = ""  # of what was read, after the last row

    @property
    def name(self) -> str:
        return f"{self.input_number:05d}-{self.start:012d}{SUFFIX}"

    def raw_blocks(self) -> Iterator[RowBlock]:
        """The rows before parsing. `source_digest` is known after the last one."""
        if self.rows is not None:
            yield self.rows.between(0, len(self.rows))  # a reader marks its bad rows
            return
        hashed = sha256()
        if self.format in LINES:
            with open_file(self.path) as file:
                first_byte = first_line_in(file, self.start, self.stop)
                source = f"{self.path} (from byte {first_byte + 1})" if self.start else self.path
                chunks = hashing(bytes_in_range(file, first_byte, self.stop), hashed)
                lines = lines_of(chunks, is_start=self.start == 0)
                yield from LINES[self.format](source, lines)
        else:
            with open_parquet(self.path) as table:
                for rows in table.blocks(self.start, self.stop):
                    hashed.update(bytes_of_rows(rows.raws))
                    yield rows
        self.source_digest = hashed.hexdigest()

    def parsed(self, inputs: Inputs, parse: TextsOfRow) -> Iterator[RowBlock]:
        """The rows with their texts. Bad rows go to the rejects of `inputs`."""
        for rows in self.raw_blocks():
            yield from inputs.parse_block(rows, parse)

    def digest(self) -> str:
        """The digest of the bytes or rows, which are read if they were not. Bad rows are not
        reported.
        """
        if not self.source_digest:
            hashed = sha256()
            if self.format in LINES:
                with open_file(self.path) as file:
                    first_byte = first_line_in(file, self.start, self.stop)
                    for chunk in bytes_in_range(file, first_byte, self.stop):
                        hashed.update(chunk)
            else:
                with open_parquet(self.path) as table:
                    for rows in table.blocks(self.start, self.stop):
                        hashed.update(bytes_of_rows(rows.raws))
            self.source_digest = hashed.hexdigest()
        return self.source_digest


def first_line_in(file: BinaryIO, start: int, stop: int) -> int:
    """Go to the first line that starts in a byte range, or to its end; return this position."""
    position = file.seek(max(0, start - 1))
    if start == 0:
        return position
    # The rest of the line that the byte before the range belongs to.
    piece = b""
    while not piece.endswith(b"\n") and position < stop:
        piece = file.readline(EXCERPT)
        if not piece:
            break
        position += len(piece)
    return position


def bytes_in_range(file: BinaryIO, start: int, stop: int) -> Iterator[bytes]:
    """The lines that start in a range, from a position of the file that is the start of a line."""
    chunk = b"\n"
    while start < stop:
        chunk = file.read(min(READ, stop - start))
        if not chunk:
            break
        start += len(chunk)
        yield chunk
    # The rest of the last line.
    while not chunk.endswith(b"\n"):
        chunk = file.readline(EXCERPT)
        if not chunk:
            break
        yield chunk


def hashing(chunks: Iterator[bytes], hashed: Any) -> Iterator[bytes]:
    """The chunks, which are added to the hash."""
    for chunk in chunks:
        hashed.update(chunk)
        yield chunk


def bytes_of_rows(lines: Sequence[bytes]) -> bytes:
    return b"".join([line + b"\n" for line in lines])


class Grid:
    """The blocks of inputs, as run.json describes these: their lengths determine them."""

    by_line = False  # whether digests of rows are those of their lines, without a header

    def __init__(self, inputs: Sequence[Mapping[str, Any]], block_bytes: int) -> None:
        self.inputs = inputs
        self.block_bytes = block_bytes
        self.block_rows = max(1, block_bytes // ROW_BYTES)

    def length(self, number: int) -> int | None:
        """The length of an input in bytes or in rows, as its grid counts; None if it is unknown."""
        record = self.inputs[number]
        length: int | None = record["size"] if record["grid"] == "bytes" else record.get("rows")
        return length

    def step(self, number: int) -> int:
        """The length of the blocks of an input; the last one can be shorter."""
        return self.block_bytes if self.inputs[number]["grid"] == "bytes" else self.block_rows

    @cached_property
    def offsets(self) -> list[int]:
        """The index of the first block of each input, and the number of all blocks, as far as it is
        known.
        """
        numbers = range(len(self.inputs))
        counts = [blocks_of(self.length(number) or 0, self.step(number)) for number in numbers]
        return [0, *accumulate(counts)]

    def block(self, number: int, start: int, path: str = "") -> Block:
        """The block that starts here. If the length of its input is unknown, it can be shorter."""
        length = self.length(number)
        step = self.step(number)
        stop = start + step
        if length is not None:
            stop = min(stop, length)
        return Block(
            input_number=number,
            start=start,
            stop=stop,
            is_last=stop == length,
            index=self.offsets[number] + start // step,
            format=self.inputs[number]["format"],
            path=path,
        )

    def blocks(self, number: int, path: str = "") -> Iterator[Block]:
        """The blocks of an input of known length."""
        step = self.step(number)
        count = blocks_of(self.length(number) or 0, step)
        return (self.block(number, i * step, path) for i in range(count))

    def identity_of(self, block: Block) -> tuple[Any, ...]:
        """What blocks of the same rows in two folders have in common: name and kind of the input,
        and its range.
        """
        record = self.inputs[block.input_number]
        return (
            record["name"],
            record["grid"],
            record["format"],
            block.start,
            block.stop,
            block.is_last,
        )

    def read(self, inputs: Inputs, number: int, path: str) -> Iterator[Block]:
        """The blocks of an input at `path`. Those of a stream have their rows, and exist only
        meanwhile.
        """
        if self.length(number) is not None:
            yield from self.blocks(number, path)
            return
        start = 0
        waiting = empty_block()  # rows that are in no block yet
        with inputs.raw_blocks(path) as row_blocks:
            for rows in row_blocks:
                waiting.extend(rows)
                # more than one block, so this is not the last
                while len(waiting) > self.block_rows:
                    block_rows = waiting.between(0, self.block_rows)
                    waiting = waiting.between(self.block_rows, len(waiting))
                    yield self.block_of_stream(number, path, start, block_rows, last=False)
                    start += self.block_rows
            yield self.block_of_stream(number, path, start, waiting, last=True)

    def block_of_stream(
        self, number: int, path: str, start: int, rows: RowBlock, *, last: bool
    ) -> Block:
        """A block with its rows. The digest is that of their JSON: a header or the first line
        changes it.
        """
        lines = [*rows.raws] if self.by_line else [*rows.lines]
        for index in rows.error_of_row:
            lines[index] = rows.raws[index]
        block = self.block(number, start, path)
        block.stop = start + len(rows)
        block.is_last = last
        block.rows = rows
        block.source_digest = sha256(bytes_of_rows(lines)).hexdigest()
        return block


def input_and_start(name: str) -> tuple[int, int]:
    """The number of the input and the start of a block, from its name."""
    number, _, start = name.removesuffix(SUFFIX).partition("-")
    return int(number), int(start)


def blocks_of(size: int, block: int) -> int:
    """The number of blocks; an empty input has one empty block."""
    return max(1, -(-size // block))


def describe_input(inputs: Inputs, path: str) -> dict[str, Any]:
    """What run.json records about an input. A grid of rows is for inputs that cannot be split at a
    byte.

    `rows` is the number of rows of a Parquet file, and null for other inputs.
    """
    name = shown_path(name_of(path).name)
    real = real_path(path)
    record: dict[str, Any] = {"name": name, "path": None, "grid": "rows", "rows": None}
    unknown = {"size": None, "head": None, "tail": None}
    if path == "-":
        return {**record, "format": inputs.format_of(path), **unknown}
    vectors = inputs.open_vector_file(path)
    if vectors is not None and is_folder(path):
        return {**record, "path": shown_path(real), "format": "", **unknown}
    if not is_input_file(path):
        return {**record, "format": inputs.format_of(path), **unknown}
    record["path"] = shown_path(real)
    record["format"] = inputs.format_of(path)

    # Parquet has records; plain lines have byte positions.
    if record["format"] == "parquet":
        with open_parquet(path) as table:
            record["rows"] = table.count
    elif record["format"] in LINES and suffix_of(path) not in COMPRESSED and vectors is None:
        record["grid"] = "bytes"
        record["format"] = record["format"] or detected_format(path)

    # What identifies the content.
    with open_file(path) as file:
        size = file.seek(0, os.SEEK_END)
        record["size"] = size
        for edge, start in (("head", 0), ("tail", max(0, size - EDGE))):
            file.seek(start)
            record[edge] = sha256(file.read(EDGE)).hexdigest()
    return record


def detected_format(path: str) -> str:
    """The format of a file without a known suffix, as the reader of rows detects it."""
    with open_input(path) as file:
        lines = (line for _, line in numbered(file) if line.strip())
        return "jsonl" if looks_like_json(next(lines, b"")) else "detected text"
