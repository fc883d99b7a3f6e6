"""Rank and linear correlation of two columns."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sentkit.arrays import Float64


def middle_ranks(counts: NDArray) -> Float64:
    """The average rank of each distinct value; `counts` (..., v) is in ascending order of values."""
    middles = np.cumsum(counts, axis=-1, dtype=np.float64)
    middles -= (counts - 1.0) / 2.0
    return middles


def ranks(values: ArrayLike) -> Float64:
    """Ranks from 1; tied values share their average rank. scipy.stats has this, but its import takes long."""
    _, codes, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    return middle_ranks(counts)[codes]


def centred(values: ArrayLike) -> Float64:
    """The values around their mean, largest magnitude about 1; zeros if constant, NaN if not finite."""
    column = np.asarray(values, dtype=np.float64)
    if not (len(column) and np.isfinite(column).all()):
        return np.full(column.shape, np.nan)
    # Avoid overflow and underflow of squares; scaling by a power of two is exact.
    _, exponent = np.frexp(np.abs(column).max())
    column = np.ldexp(column, -exponent)
    column = column - column[0]  # a constant becomes exactly zero despite a rounded mean
    return column - column.mean()


def pearson(left: ArrayLike, right: ArrayLike) -> float:
    """Linear correlation in [-1, 1]; NaN for fewer than two pairs, a constant, NaN or infinity."""
    one, other = centred(left), centred(right)
    spread = math.sqrt(float(one @ one) * float(other @ other))
    if not spread > 0.0:
        return math.nan
    return min(1.0, max(-1.0, float(one @ other) / spread))


def spearman(left: ArrayLike, right: ArrayLike) -> float:
    """Rank correlation in [-1, 1] with average ranks for ties; NaN in the same cases as `pearson`."""
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        return math.nan
    return pearson(ranks(left), ranks(right))
