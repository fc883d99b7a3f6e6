"""Parts of an input: the lines that start in a byte range, or a number of rows.

A part reads the same rows and the same bytes in every process, so its digest detects a changed input.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import BinaryIO, TypeVar

from sentkit.formats.files import open_file
from sentkit.formats.rows.lines import EXCERPT, BadLine, LongLine, RawRow, numbered
from sentkit.formats.rows.parquet import ParquetFile, open_parquet
from sentkit.formats.rows.rows import LINES, Inputs, Rejects, Row

T = TypeVar("T")


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

    def readline(self, limit: int = -1) -> bytes:
        if self.at_start and self.position >= self.stop:
            return b""
        line = self.file.readline(limit)
        self.position += len(line)
        self.at_start = line.endswith(b"\n")
        self.hashed.update(line)
        return line


@dataclass(slots=True)
class ByteRange:
    """The lines of a file that start in a byte range. Errors count lines from the start of the range."""

    path: str
    format: str  # a key of LINES
    start: int
    stop: int
    last: bool  # whether this is the last part of its input
    digest: str = ""

    def read(self, inputs: Inputs, parse: Callable[[Row], T]) -> Iterator[T]:
        with open_file(self.path) as file:
            own = LinesInRange(file, self.start, self.stop)
            first = own.position
            source = self.path if not self.start else f"{self.path} (from byte {first + 1})"
            rows = LINES[self.format](numbered(own, inputs.longest, is_start=not self.start))
            yield from inputs.parse_rows(source, rows, parse)
        self.digest = own.hashed.hexdigest()


@dataclass(slots=True)
class RecordRange:
    """Consecutive rows of a Parquet file. The digest is that of their lines."""

    path: str
    start: int
    stop: int
    last: bool
    digest: str = ""

    def read(self, inputs: Inputs, parse: Callable[[Row], T]) -> Iterator[T]:
        hashed = hashlib.sha256()

        def rows(table: ParquetFile) -> Iterator[RawRow]:
            for row in table.rows(self.start, self.stop, longest=inputs.longest):
                hashed.update(row[1] + b"\n")
                yield row

        with open_parquet(self.path) as table:
            yield from inputs.parse_rows(self.path, rows(table), parse)
        self.digest = hashed.hexdigest()


@dataclass(slots=True)
class RowRange:
    """Consecutive rows of a stream. They are in memory, because a stream has no positions."""

    path: str
    rows: Sequence[RawRow]
    start: int
    last: bool
    by_line: bool  # the digest is that of the lines, as in older folders

    @property
    def stop(self) -> int:
        return self.start + len(self.rows)

    @property
    def digest(self) -> str:
        """The digest of the rows as JSON: a header, or the first line of the input, changes their meaning."""
        hashed = hashlib.sha256()
        for _, raw, to_object in self.rows:
            line = raw
            if not self.by_line and not isinstance(raw, LongLine):
                with suppress(BadLine):
                    line = to_object(raw)[0]
            hashed.update(line + b"\n")
        return hashed.hexdigest()

    def read(self, inputs: Inputs, parse: Callable[[Row], T]) -> Iterator[T]:
        return inputs.parse_rows(self.path, iter(self.rows), parse)


def row_ranges(inputs: Inputs, path: str, size: int, *, by_line: bool) -> Iterator[RowRange]:
    """Split an input into ranges of `size` rows. An empty input has one empty range."""
    with inputs.raw_rows(path) as rows:
        start, block = 0, list(islice(rows, size))
        while True:
            following = list(islice(rows, size)) if len(block) == size else []
            yield RowRange(path, block, start, not following, by_line)
            start, block = start + len(block), following
            if not block:
                return


Part = ByteRange | RecordRange | RowRange  # `digest` is that of what was read, after the last row


def digest_of_part(part: Part, inputs: Inputs) -> str:
    """Read a part for the digest of its bytes or rows. Bad rows are not reported."""
    for _ in (
        ()
        if isinstance(part, RowRange)
        else part.read(replace(inputs, rejects=Rejects(skip=True)), lambda row: None)
    ):
        pass
    return part.digest
