"""Moments of vectors: how many there are, their mean, and their scatter around it. Two of them add up."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Wide = NDArray[np.float64]

WIDEST = 4096  # numbers of a vector whose scatter is held: 128 MiB, and seconds for its eigenvalues
MOMENTS = ("count", "mean", "scatter")  # the tensors in which a file keeps them
STILL = 1e-12  # times the mean: a deviation that comes of rounding alone


@dataclass(frozen=True, slots=True)
class Moments:
    """In float64. The scatter is centred: sums of plain squares lose all digits where the mean is large."""

    count: int
    mean: Wide  # (d,)
    scatter: Wide  # (d, d): the sum of (x - mean)'(x - mean); or (d,): its diagonal alone

    @property
    def width(self) -> int:
        return len(self.mean)

    @property
    def squares(self) -> Wide:
        """(d,): of each number, the sum of its squared distances from the mean."""
        return self.scatter if self.scatter.ndim == 1 else np.diagonal(self.scatter)

    @property
    def deviations(self) -> Wide:
        """(d,): of each number, over the population; exactly 0 where it never changes."""
        found: Wide = np.sqrt(self.squares / self.count)
        return np.where(found <= STILL * np.abs(self.mean), 0.0, found)

    def __add__(self, other: "Moments") -> "Moments":
        """Those of both together, by Chan, Golub and LeVeque (1979)."""
        count = self.count + other.count
        apart = other.mean - self.mean
        mean = self.mean + apart * (other.count / count)
        between = apart * apart if self.scatter.ndim == 1 else np.outer(apart, apart)
        between *= self.count * other.count / count
        scatter = self.scatter + other.scatter
        scatter += between  # in place: these are the largest arrays there are
        return Moments(count, mean, scatter)


def moments_of(vectors: NDArray[np.floating], *, diagonal: bool = False) -> Moments:
    """(n, d), at least one; with the diagonal of the scatter in its place if that is all that is asked."""
    wide = vectors.astype(np.float64)
    mean = wide.mean(axis=0)
    wide -= mean
    scatter = np.einsum("nd,nd->d", wide, wide) if diagonal else wide.T @ wide
    return Moments(len(wide), mean, scatter)
