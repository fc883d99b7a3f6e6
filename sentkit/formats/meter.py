"""Measure the share of the input files that was read."""

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

from sentkit.errors import NoRowsError

T = TypeVar("T")


class Meter:
    """Counts bytes and rows that were read. `share` also needs the finished rows, as commands read ahead.

    At the end of the last file, a NoRowsError is raised if no row was valid.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        sizes = list(map(size_of, paths))
        # In bytes; None without paths, or if one path is not a regular file.
        self.paths, self.total = (
            paths,
            None if None in sizes or not sizes else sum(size or 0 for size in sizes),
        )
        self.rows = 0  # valid rows read so far
        self.bad = 0  # rows that the reader rejected
        self.watch: Callable[[int], None] | None = None  # called for each row
        self._before = self._files = 0  # bytes and number of the finished files
        self._position: Callable[[], int] = lambda: 0  # in the current file

    @contextmanager
    def file(self, raw: BinaryIO) -> Iterator[None]:
        """Count the bytes of a file while the block reads it. Compressed files count compressed bytes."""
        if self.total is not None:
            self._position = raw.tell
        yield
        self._end(raw.tell() if self.total is not None else 0)

    def counted(self, path: str, items: Iterable[T], count: int) -> Iterator[T]:
        """Yield blocks of a vector file or of Parquet, whose bytes are not read in order.

        A block can be a tuple, of which the first has the rows. The position in the file is estimated from
        the number of all rows, `count`.
        """
        size, number = size_of(path) or 0, 0
        for item in items:
            self._position = lambda number=number: size * number // count  # type: ignore[misc]
            yield item
            number += len(item[0] if isinstance(item, tuple) else item)  # type: ignore[arg-type]
        self._end(size)

    def _end(self, size: int) -> None:
        self._before += size
        self._position = lambda: 0
        self._files += 1
        if self._files == len(self.paths) and not self.rows:
            raise NoRowsError(self.paths)

    def took(self, rows: int) -> None:
        self.rows += rows
        if self.watch is not None:
            self.watch(rows)

    def share(self, done: int) -> float | None:
        """The finished share of the input, from the number of finished rows; None if the size is unknown."""
        if not self.total:
            return None
        taken = (self._before + self._position()) / self.total
        return min(1.0, taken * min(1.0, done / max(self.rows, 1)))


def size_of(path: str) -> int | None:
    try:
        status = os.fstat(sys.stdin.fileno()) if path == "-" else Path(path).stat()
        if stat.S_ISDIR(status.st_mode):
            with os.scandir(path) as entries:
                return sum(entry.stat().st_size for entry in entries)
        return status.st_size if stat.S_ISREG(status.st_mode) else None
    except (OSError, ValueError, AttributeError):  # no such file, or standard input is not a file
        return None
