"""Where vectors point, their lengths aside: how close to each other on the whole, and how evenly spread.

Wang and Isola (arXiv:2005.10242) measure on the unit sphere; of vectors of other lengths the numbers mean
nothing. Letters in shapes: n rows, d dimensions.
"""

import math

import numpy as np
from numpy.typing import NDArray

Units = NDArray[np.float32]
Wide = NDArray[np.float64]

SAMPLE = 20_000  # vectors between which all distances are taken
HIGH, WIDE = 512, 2048  # rows and columns of a block of them


def unit_rows(rows: Wide) -> Wide:
    """(n, d) -> (m, d), of length 1; a vector of zeros points nowhere and is left out."""
    lengths = np.sqrt(np.vecdot(rows, rows))
    return rows[lengths > 0] / lengths[lengths > 0, None]


class Directions:
    """The sum of unit vectors, and a sample in which each of them is as likely as any other."""

    def __init__(self, width: int, seed: int) -> None:
        self.count = 0
        self.total = np.zeros(width)
        self.sample = np.empty((0, width), np.float32)
        self.random = np.random.Generator(np.random.Philox(seed))

    def add(self, units: Wide) -> None:
        """(n, d)"""
        self.total += units.sum(axis=0)
        held = len(self.sample)
        fitting = units[: SAMPLE - held]
        if len(fitting):
            self.sample.resize((held + len(fitting), units.shape[1]), refcheck=False)  # no copy beside it
            self.sample[held:] = fitting
            self.count += len(fitting)
        self._replace(units[len(fitting) :])

    def _replace(self, units: Wide) -> None:
        """Row number k takes the place of one in the sample with a chance of SAMPLE / k (algorithm R)."""
        numbers = np.arange(self.count, self.count + len(units))
        places = self.random.integers(0, numbers + 1)
        chosen = np.flatnonzero(places < len(self.sample))
        self.sample[places[chosen]] = units[chosen]  # of two rows in one place the later one stays
        self.count += len(units)

    def mean_cosine(self) -> float | None:
        """Over all pairs of two rows: the square of the sum of unit vectors, without each row's own 1."""
        if self.count < 2:
            return None
        mean = (self.total @ self.total - self.count) / (self.count * (self.count - 1))
        return min(1.0, max(-1.0, float(mean)))  # rounding may lead beyond

    @property
    def sampled(self) -> bool:
        """Whether the sample holds fewer than all."""
        return self.count > len(self.sample)

    def uniformity(self) -> float | None:
        return uniformity(self.sample)


def uniformity(units: Units) -> float | None:
    """Log mean exp(-2 |x - y|^2) over all pairs of two rows, equal ones too; lower is more even. (n, d)"""
    count, total = len(units), 0.0
    if count < 2:
        return None
    for top in range(0, count, HIGH):
        rows = units[top : top + HIGH]
        for start in range(top, count, WIDE):
            block = rows @ units[start : start + WIDE].T
            block -= 1.0
            block *= 4.0  # -2 |x - y|^2 of two unit vectors
            np.exp(block, out=block)
            if start < top + HIGH:
                block = np.triu(block, top - start + 1)
            total += float(block.sum(dtype=np.float64))
    return math.log(total / (count * (count - 1) / 2))
