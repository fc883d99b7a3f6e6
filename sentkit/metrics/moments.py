"""The moments of vectors, block by block: their mean, their scatter, and how skewed and heavy each axis is.

All sums are of centred rows, so that a mean far from zero costs no digits; blocks are joined by the formulas
of Chan, Golub and LeVeque (1983) and Pebay (2008). Letters in shapes: n rows, d dimensions.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Wide = NDArray[np.float64]

WIDEST = 4096  # numbers of a vector whose scatter is held: 128 MiB, and seconds for its eigenvalues


class Moments:
    """Sums over the rows added so far: (d,) each, and the scatter (d, d)."""

    def __init__(self, width: int) -> None:
        self.count = 0
        self.mean, self.second, self.third, self.fourth = (np.zeros(width) for _ in range(4))
        self.scatter = np.zeros((width, width)) if width <= WIDEST else None

    def add(self, rows: Wide) -> None:
        """(n, d), at least one row."""
        mean = rows.mean(axis=0)
        centred = rows - mean
        squares = centred * centred
        sums = squares.sum(axis=0), (squares * centred).sum(axis=0), (squares * squares).sum(axis=0)
        before, more = float(self.count), float(len(rows))
        share, gap = more / (before + more), mean - self.mean
        if self.scatter is not None:
            self.scatter += centred.T @ centred
            self.scatter += np.outer(gap * (before * share), gap)
        self._join(sums, gap, before, more)
        self.mean += gap * share
        self.count += len(rows)

    def _join(self, sums: tuple[Wide, Wide, Wide], gap: Wide, before: float, more: float) -> None:
        """Sums about the mean of all rows; the highest first, as each needs the lower ones as they were."""
        second, third, fourth = sums
        count = before + more
        share, left = more / count, before / count
        self.fourth += fourth + gap**4 * (before * share * (left**2 - left * share + share**2))
        self.fourth += 6 * gap**2 * (left**2 * second + share**2 * self.second)
        self.fourth += 4 * gap * (left * third - share * self.third)
        self.third += third + gap**3 * (before * share * (left - share))
        self.third += 3 * gap * (left * second - share * self.second)
        self.second += second + gap**2 * (before * share)


@dataclass(frozen=True, slots=True)
class Shapes:
    """The shape of each axis that varies, (v,): population formulas, 0 for a normal distribution."""

    axes: NDArray[np.intp]
    skewness: Wide
    excess_kurtosis: Wide


def shapes(moments: Moments) -> Shapes:
    axes = np.flatnonzero(moments.second)  # a constant axis leaves an exact zero
    second, third, fourth = (
        sums[axes] / moments.count for sums in (moments.second, moments.third, moments.fourth)
    )
    return Shapes(axes, third / second**1.5, fourth / second**2 - 3.0)


def mean_absolute_correlation(scatter: Wide) -> float | None:
    """Of all pairs of two axes that vary; none where there is no such pair."""
    lengths = np.sqrt(np.diagonal(scatter))
    axes = np.flatnonzero(lengths)
    if len(axes) < 2:
        return None
    found = np.abs(scatter[np.ix_(axes, axes)])
    found /= lengths[axes]
    found /= lengths[axes, None]
    np.fill_diagonal(found, 0.0)
    return float(found.sum() / (len(axes) * (len(axes) - 1)))
