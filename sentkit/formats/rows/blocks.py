"""Group a stream into lists of fixed or growing size. Small first lists give early output on a slow pipe."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

FEW = 16


def blocks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of `size` items; the last one can be shorter."""
    return growing(items, size, first=size)


def growing(items: Iterable[T], most: int, first: int = FEW) -> Iterator[list[T]]:
    """Lists of 16, 64, 256, 1024 ... items, up to `most`."""
    rest, size = iter(items), min(first, most)
    while block := list(islice(rest, size)):
        yield block
        size = min(4 * size, most)
