"""Parts of an input: the lines that start in a byte range, or a number of rows.

A part reads the same rows and the same bytes in every process, so its digest detects a changed input.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from sentkit.formats.files import open_file
from sentkit.formats.rows.block import RowBlock, empty_block
from sentkit.formats.rows.lines import EXCERPT, line_blocks
from sentkit.formats.rows.parquet import open_parquet
from sentkit.formats.rows.rows import LINES, Inputs


class LinesInRange:
    """A file that has only the lines whose first byte is in a range. The last can end after it."""

    def __init__(self, file: BinaryIO, start: int, stop: int) -> None:
        self.file, self.stop, self.position = file, stop, start
        self.hashed = hashlib.sha256()
        self.at_start = True  # of a line
        if start:  # skip the rest of the line that contains the byte before the range
            self.position = file.seek(start - 1)
            rest = b""
            while not rest.endswith(b"\n") and self.position < stop and (rest := file.readline(EXCERPT)):
                self.position += len(rest)

    def read1(self, size: int = -1) -> bytes:
        if self.position < self.stop:
            part = self.file.read(min(size, self.stop - self.position))
        else:
            part = b"" if self.at_start else self.file.readline(EXCERPT)
        self.position += len(part)
        self.at_start = part.endswith(b"\n")
        self.hashed.update(part)
        return part


@dataclass(slots=True)
class ByteRange:
    """The lines of a file that start in a byte range. Errors count lines from the start of the range."""

    path: str
    format: str  # a key of LINES
    start: int
    stop: int
    last: bool  # whether this is the last part of its input
    digest: str = ""

    def blocks(self, inputs: Inputs) -> Iterator[RowBlock]:
        with open_file(self.path) as file:
            own = LinesInRange(file, self.start, self.stop)
            first = own.position
            source = self.path if not self.start else f"{self.path} (from byte {first + 1})"
            lines = line_blocks(own, inputs.longest, is_start=not self.start)
            yield from LINES[self.format](source, lines, inputs.longest)
        self.digest = own.hashed.hexdigest()


@dataclass(slots=True)
class RecordRange:
    """Consecutive rows of a Parquet file. The digest is that of their lines."""

    path: str
    start: int
    stop: int
    last: bool
    digest: str = ""

    def blocks(self, inputs: Inputs) -> Iterator[RowBlock]:
        hashed = hashlib.sha256()
        with open_parquet(self.path) as table:
            for block in table.blocks(self.start, self.stop, longest=inputs.longest):
                hashed.update(b"".join([raw + b"\n" for raw in block.raws]))
                yield block
        self.digest = hashed.hexdigest()


@dataclass(slots=True)
class RowRange:
    """Consecutive rows of a stream. They are in memory, because a stream has no positions."""

    path: str
    rows: RowBlock
    start: int
    last: bool
    digest: str

    @property
    def stop(self) -> int:
        return self.start + len(self.rows)

    def blocks(self, inputs: Inputs) -> Iterator[RowBlock]:
        yield self.rows.part(0, len(self.rows))  # a reader marks its bad rows


def row_ranges(inputs: Inputs, path: str, size: int, *, by_line: bool) -> Iterator[RowRange]:
    """Split an input into ranges of `size` rows. An empty input has one empty range."""
    with inputs.raw_blocks(path) as blocks:
        start, held = 0, empty_block()
        for block in blocks:
            held.extend(block)
            while len(held) > size:  # more than one range, so this is not the last
                own, held = held.part(0, size), held.part(size, len(held))
                yield RowRange(path, own, start, False, digest_of_rows(own, by_line=by_line))
                start += size
        yield RowRange(path, held, start, True, digest_of_rows(held, by_line=by_line))


def digest_of_rows(rows: RowBlock, *, by_line: bool) -> str:
    """The digest of the rows as JSON: a header, or the first line of the input, changes their meaning.

    `by_line`: the digest of the lines of the input, as in older folders.
    """
    read = [*rows.raws] if by_line else [*rows.lines]
    for place in rows.bad:
        read[place] = rows.raws[place]
    return hashlib.sha256(b"".join([line + b"\n" for line in read])).hexdigest()


Part = ByteRange | RecordRange | RowRange  # `digest` is that of what was read, after the last row


def digest_of_part(part: Part, inputs: Inputs) -> str:
    """Read a part for the digest of its bytes or rows. Bad rows are not reported."""
    for _ in part.blocks(inputs):
        pass
    return part.digest
