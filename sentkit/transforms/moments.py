"""Moments of vectors: how many there are, their mean, and their scatter around it. Two of them add up."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Wide = NDArray[np.float64]

STILL = 1e-12  # times the mean: a deviation that comes of rounding alone


@dataclass(frozen=True, slots=True)
class Moments:
    """In float64. The scatter is centred: sums of plain squares lose all digits where the mean is large."""

    count: int
    mean: Wide  # (d,)
    scatter: Wide  # (d, d): the sum of (x - mean)'(x - mean)

    @property
    def width(self) -> int:
        return len(self.mean)

    @property
    def deviations(self) -> Wide:
        """(d,): of each number, over the population; exactly 0 where it never changes."""
        found: Wide = np.sqrt(np.diag(self.scatter) / self.count)
        return np.where(found <= STILL * np.abs(self.mean), 0.0, found)

    def __add__(self, other: "Moments") -> "Moments":
        """Those of both together, by Chan, Golub and LeVeque (1979)."""
        count = self.count + other.count
        apart = other.mean - self.mean
        mean = self.mean + apart * (other.count / count)
        between = np.outer(apart, apart) * (self.count * other.count / count)
        return Moments(count, mean, self.scatter + other.scatter + between)


def moments_of(vectors: NDArray[np.floating]) -> Moments:
    """(n, d), at least one."""
    wide = vectors.astype(np.float64)
    mean = wide.mean(axis=0)
    wide -= mean
    return Moments(len(wide), mean, wide.T @ wide)
