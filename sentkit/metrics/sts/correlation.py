"""Rank and linear correlation of two columns."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Column = NDArray[np.float64]


def middle_ranks(counts: NDArray) -> Column:
    """The average rank of each distinct value, given how often each occurs in ascending order, (..., v)."""
    middles = np.cumsum(counts, axis=-1, dtype=np.float64)
    middles -= (counts - 1.0) / 2.0
    return middles


def ranks(values: ArrayLike) -> Column:
    """Ranks from 1, tied values sharing the average of theirs. (np.unique says as much in more memory.)"""
    column = np.asarray(values)
    order = np.argsort(column, kind="stable")
    ascending = column[order]
    first = np.flatnonzero(np.append(ascending[:1] == ascending[:1], ascending[1:] != ascending[:-1]))
    del ascending
    counts = np.diff(first, append=len(column))
    middles = counts / 2.0
    middles += first
    del first
    shared = np.repeat(middles + 0.5, counts)
    found = np.empty(len(column))
    found[order] = shared
    return found


def centred(values: ArrayLike) -> Column:
    """The values around their mean, the largest magnitude about 1; zeros if constant, NaN if not finite."""
    column = np.asarray(values, dtype=np.float64)
    if not (len(column) and np.isfinite(column).all()):
        return np.full(column.shape, np.nan)
    # So that no square overflows or vanishes; by a power of two, which rounds nothing.
    _, exponent = np.frexp(np.abs(column).max())
    column = np.ldexp(column, -exponent)
    column = column - column[0]  # a constant becomes exactly zero, as it might not around its rounded mean
    return column - column.mean()


def pearson(left: ArrayLike, right: ArrayLike) -> float:
    """Linear correlation in [-1, 1]; NaN below two pairs, beside a constant or a value that is not finite."""
    one, other = centred(left), centred(right)
    spread = math.sqrt(float(one @ one) * float(other @ other))
    if not spread > 0.0:
        return math.nan
    return min(1.0, max(-1.0, float(one @ other) / spread))


def spearman(left: ArrayLike, right: ArrayLike) -> float:
    """Rank correlation in [-1, 1], tied ranks averaged; NaN where `pearson` is."""
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        return math.nan
    return pearson(ranks(left), ranks(right))
