"""How much of the input files has been read."""

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

T = TypeVar("T")


class Meter:
    """Counts bytes and rows. Commands read ahead, so their own count of rows done refines the share."""

    def __init__(self, paths: Sequence[str], nothing: Callable[[], None] = lambda: None) -> None:
        self.total = total_size(paths)
        self.rows = 0  # taken from the files so far
        self.watch: Callable[[int], None] | None = None  # called for each row taken
        self.empty = True  # no row has come, good or bad
        self.only_standard_input = list(paths) == ["-"]
        self._nothing = nothing
        self._before = 0  # bytes of the files before
        self._position: Callable[[], int] = lambda: 0  # in the present one

    @contextmanager
    def file(self, raw: BinaryIO) -> Iterator[None]:
        """While a file is read. Of a compressed one, compressed bytes are counted."""
        if self.total is not None:
            self._position = raw.tell
        yield
        self._end(raw.tell() if self.total is not None else 0)

    def table(self, path: str, rows: Iterable[T], count: int) -> Iterator[T]:
        """The rows of a vector file, whose bytes are not read in order."""
        size = Path(path).stat().st_size
        for number, row in enumerate(rows):
            self._position = lambda number=number: size * number // count  # type: ignore[misc]
            self.empty = False
            yield row
        self._end(size)

    def _end(self, size: int) -> None:
        self._before += size
        self._position = lambda: 0
        if self.empty and self.only_standard_input:
            self._nothing()

    def count(self, rows: Iterable[T]) -> Iterator[T]:
        for row in rows:
            self.took()
            yield row

    def took(self) -> None:
        self.rows += 1
        if self.watch is not None:
            self.watch(1)

    def share(self, done: int) -> float | None:
        """The share of the input that is done, given the rows done; None of pipes."""
        if not self.total:
            return None
        taken = (self._before + self._position()) / self.total
        return min(1.0, taken * min(1.0, done / max(self.rows, 1)))


def total_size(paths: Sequence[str]) -> int | None:
    """In bytes; None without paths, or where one of them is not a regular file."""
    sizes = [size_of(path) for path in paths]
    return None if None in sizes or not sizes else sum(size or 0 for size in sizes)


def size_of(path: str) -> int | None:
    try:
        status = os.fstat(sys.stdin.fileno()) if path == "-" else Path(path).stat()
        return status.st_size if stat.S_ISREG(status.st_mode) else None
    except (OSError, ValueError, AttributeError):  # no such file, or a standard input that is not a file
        return None
