"""Random samples of rows, and the titles of panels."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from sentkit.formats.files import readable

T = TypeVar("T")


class Sample(Generic[T]):
    """A uniform random sample of at most `most` items of a stream (algorithm R), in their order."""

    def __init__(self, most: int, seed: int) -> None:
        self.most, self.seen = most, 0
        self.random = np.random.Generator(np.random.Philox(seed))
        self._kept: list[tuple[int, T]] = []

    def add(self, make: Callable[[], T]) -> None:
        """Count an item, and call `make` if the item is drawn."""
        self.seen += 1
        if self.seen <= self.most:
            self._kept.append((self.seen, make()))
        elif (place := int(self.random.integers(0, self.seen))) < self.most:
            self._kept[place] = self.seen, make()

    @property
    def items(self) -> list[T]:
        return [item for _, item in sorted(self._kept, key=lambda kept: kept[0])]


def titles(paths: Sequence[str]) -> list[str]:
    """The title of each file: its name without suffix, or its path if two names are equal; none for one."""
    if len(paths) < 2:
        return [""] * len(paths)
    names = [Path(path).stem for path in paths]
    return [
        readable(name if names.count(name) == 1 else path) for name, path in zip(names, paths, strict=True)
    ]
