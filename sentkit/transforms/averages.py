"""Averages of vectors by name, in the order of first occurrence."""

from array import array
from collections.abc import Iterator

import numpy as np

from sentkit.arrays import Float32, Float64

NAMES_PER_BLOCK = 4096  # names; memory grows by one block at a time and is never copied


class Averages:
    """One sum in float64 for each name, so memory depends only on the number of names."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.places: dict[str, int] = {}
        self.counts = array("q")
        self.sums: list[Float64] = []  # (NAMES_PER_BLOCK, width) each

    def __len__(self) -> int:
        return len(self.places)

    def add(self, name: str, vector: Float32) -> None:
        place = self.places.setdefault(name, len(self.places))
        if place == len(self.counts):
            self.counts.append(0)
            if place % NAMES_PER_BLOCK == 0:
                self.sums.append(np.zeros((NAMES_PER_BLOCK, self.width)))
        self.sums[place // NAMES_PER_BLOCK][place % NAMES_PER_BLOCK] += vector
        self.counts[place] += 1

    def __iter__(self) -> Iterator[tuple[str, int, Float32]]:
        for name, place in self.places.items():
            count = self.counts[place]
            mean = self.sums[place // NAMES_PER_BLOCK][place % NAMES_PER_BLOCK] / count
            yield name, count, mean.astype(np.float32)
