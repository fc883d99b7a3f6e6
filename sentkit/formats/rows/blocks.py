"""Items of a stream in lists: all of one size, or few at first for whoever waits behind a slow pipe."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

FEW = 16


def blocks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """`size` at a time."""
    return growing(items, size, first=size)


def growing(items: Iterable[T], most: int, first: int = FEW) -> Iterator[list[T]]:
    """16, 64, 256, 1024 ... at a time, up to `most`."""
    rest, size = iter(items), min(first, most)
    while block := list(islice(rest, size)):
        yield block
        size = min(4 * size, most)
