"""Correlations, their 95 % intervals by bootstrap or by Fisher's z, and scores of predicted classes.

Letters in shapes: n pairs, v distinct values, b resamples in one block.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sentkit.arrays import Float64, Floats, Indices

Seed = int | tuple[int, ...]

KINDS = ("spearman", "pearson")
RESAMPLES = 1000
FEWER_RESAMPLES = 200  # above the limit, for statistics without a formula, such as paired differences
BOOTSTRAP_LIMIT = 50_000  # pairs; with 1000 resamples about two seconds
CANCELLED = 1e-6  # a variance below this share of the squares has lost digits
RESAMPLED_ELEMENTS = 16_384  # at a time: short columns share a call, a long column gets several
QUANTILE = 1.959963984540054  # of the normal distribution, at 97.5 %


def ranks(values: ArrayLike) -> Float64:
    """Ranks from 1; tied values share their average rank. scipy.stats has this, but its import takes long."""
    order, _, sizes = runs(np.asarray(values))
    found = np.empty(len(order))
    found[order] = np.repeat((double_ranks(sizes, len(order)) + (len(order) + 1)) * 0.5, sizes)
    return found


def double_ranks(counts: NDArray[np.intp], n: int) -> Float64:
    """Twice the average rank of each distinct value around the mean, from the counts of all, (..., v)."""
    doubled = np.cumsum(counts, axis=-1)
    doubled += doubled
    doubled -= counts
    doubled -= n
    return doubled.astype(np.float64)


def runs(values: NDArray) -> tuple[Indices, Indices, Indices]:
    """The order (n,) of the values, and where equal ones begin, and how many they are, (v,), as np.unique."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    begins = np.flatnonzero(np.append(np.ones(min(1, len(order)), bool), ordered[1:] != ordered[:-1]))
    return order, begins, np.diff(np.append(begins, len(order)))


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


def multiplicities(n: int, count: int, seed: Seed) -> Iterator[NDArray[np.intp]]:
    """The count of each row in each resample, in blocks (b, n); the arguments determine it completely."""
    generator = np.random.Generator(np.random.Philox(seed))
    rows = resamples_at_once(n)
    firsts = np.arange(rows)[:, None] * n
    for start in range(0, count, rows):
        drawn = generator.integers(0, n, size=(min(rows, count - start), n))
        drawn += firsts[: len(drawn)]
        yield np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape)


def resamples_at_once(n: int) -> int:
    return max(1, RESAMPLED_ELEMENTS // n)


def resample(left: ArrayLike, right: ArrayLike, *, count: int = RESAMPLES, seed: Seed) -> Float64:
    """Both KINDS of correlation of `count` resamples, (2, r), ranked exactly, with one sort for all of them.

    A resample with one constant side has NaN.

    The rows of a resample depend only on the seed and the number of pairs. So the paired bootstrap of two
    encoders is the difference of two results: `resample(a, gold, seed=seed) - resample(b, gold, seed=seed)`.
    Besides the result it needs the memory of a few columns.
    """
    order, begins, sizes = runs(np.asarray(left))
    other_order, _, other_sizes = runs(np.asarray(right)[order])
    one, other = centred(left)[order], centred(right)[order]
    n, v, done = len(order), len(other_sizes), 0
    if min(len(sizes), v) < 2 or np.isnan([one[0], other[0]]).any():
        return np.full((2, count), np.nan)
    codes = np.empty(n, np.intp)  # of the other side, in the order of the first one
    codes[other_order] = np.repeat(np.arange(v), other_sizes)
    places = codes + np.arange(resamples_at_once(n))[:, None] * v
    powers = np.stack([one, other, one * one, other * other, one * other])
    sums = np.empty((8, count))
    for drawn in multiplicities(n, count, seed):
        b = len(drawn)
        ordered = drawn.take(order, axis=1)
        times = ordered.astype(np.float64)
        others = np.bincount(places[:b].ravel(), times.ravel(), b * v).reshape(-1, v).astype(np.intp)
        if len(begins) == n:
            own = double_ranks(ordered, n)
        else:
            own = np.repeat(double_ranks(np.add.reduceat(ordered, begins, axis=1), n), sizes, axis=1)
        theirs, of_block = double_ranks(others, n), sums[:, done : done + b]
        of_block[:5] = powers @ times.T
        times *= own
        of_block[5] = np.vecdot(times, own)
        of_block[6] = np.vecdot(others * theirs, theirs)
        of_block[7] = np.vecdot(times, theirs.take(places[:b]))
        done += b
    x, y, xx, yy, xy = sums[:5] / n
    spread, other_spread = xx - x * x, yy - y * y
    with np.errstate(invalid="ignore", divide="ignore"):  # 0 / 0 is NaN, as intended
        by_rank = sums[7] / np.sqrt(sums[5] * sums[6])
        by_value = (xy - x * y) / np.sqrt(spread * other_spread)
    # Ranks identify a constant exactly; the mean of a constant may have a rounding error.
    by_value[np.isnan(by_rank)] = np.nan
    lost = ((spread < CANCELLED * xx) | (other_spread < CANCELLED * yy)) & ~np.isnan(by_rank)
    if lost.any():  # far values that were not drawn
        for place, times in enumerate(chain.from_iterable(multiplicities(n, count, seed))):
            if lost[place]:
                by_value[place] = pearson(np.repeat(left, times), np.repeat(right, times))
    return np.clip([by_rank, by_value], -1.0, 1.0)


def resamples_for(pairs: int, count: int = RESAMPLES) -> int:
    """`count` resamples, or FEWER_RESAMPLES above BOOTSTRAP_LIMIT pairs, to limit the time."""
    return count if pairs <= BOOTSTRAP_LIMIT else min(count, FEWER_RESAMPLES)


def percentile_interval(statistics: Float64) -> list[float]:
    """The limits of the middle 95 % of the resampled statistics; undefined ones are omitted."""
    defined = np.sort(statistics[~np.isnan(statistics)])
    if not len(defined):
        return [math.nan, math.nan]
    # As np.percentile, which imports numpy.ma.
    places = np.array([0.025, 0.975]) * (len(defined) - 1)
    return np.interp(places, np.arange(len(defined)), defined).tolist()


def bootstrap(statistics: Callable[[Indices], Mapping[str, float]], rows: int) -> dict[str, list[float]]:
    """The limits of each statistic, which gets the places of resampled rows, the same as in `resample`."""
    drawn = [
        statistics(np.repeat(np.arange(rows), counts))
        for block in multiplicities(rows, resamples_for(rows), 0)
        for counts in block
    ]
    return {name: percentile_interval(np.array([each[name] for each in drawn])) for name in drawn[0]}


def two_sided_p(differences: Float64) -> float:
    """Twice the share of resampled differences on the rarer side of zero; at least 1 / resamples."""
    defined = differences[~np.isnan(differences)]
    if not len(defined):
        return math.nan
    # Zero counts on both sides, so two equal encoders have p = 1.
    rarer = min(int((defined <= 0.0).sum()), int((defined >= 0.0).sum()))
    return min(1.0, max(2 * rarer, 1) / len(defined))


def fisher_interval(kind: str, correlation: float, pairs: int) -> list[float]:
    """Fisher's interval x 100, from four pairs on; Spearman's as Bonett and Wright (2000) have it."""
    variance = (1.0 + correlation**2 / 2.0 if kind == "spearman" else 1.0) / (pairs - 3)
    with np.errstate(divide="ignore"):  # a perfect correlation becomes infinite, and tanh reverses it
        middle = np.arctanh(correlation)
    reach = QUANTILE * math.sqrt(variance)
    return [100.0 * math.tanh(middle + each) for each in (-reach, reach)]


def resampled_mean(
    columns: Sequence[Float64], gold: Float64, kind: str, *, count: int = RESAMPLES, seed: Seed
) -> Float64:
    """The mean x 100 over several seeds of a method in each resample of the same pairs, one column for each.

    `kind` is spearman or pearson. The mean is NaN if it is undefined for one of the seeds.
    """
    total = sum(resample(column, gold, count=count, seed=seed)[KINDS.index(kind)] for column in columns)
    return 100.0 * total / len(columns)


def class_scores(predicted: Indices, truth: Indices, classes: int) -> dict[str, float]:
    """Return accuracy, F1 and Matthews. F1 is that of class 1, or of more classes their mean."""
    each = [f1(predicted, truth, number) for number in range(classes)]
    return {
        "accuracy": float(np.mean(predicted == truth)),
        "f1": each[1] if classes == 2 else float(np.mean(each)),
        "matthews": matthews(predicted, truth, classes),
    }


def matthews(predicted: Indices, truth: Indices, classes: int) -> float:
    """The correlation of Matthews, for several classes that of Gorodkin (2004); 0 if all are of one class."""
    ours, theirs = (np.bincount(each, minlength=classes) for each in (predicted, truth))
    rows, right = len(truth), np.sum(predicted == truth)
    spread = float(rows * rows - ours @ ours) * float(rows * rows - theirs @ theirs)
    return float(right * rows - ours @ theirs) / spread**0.5 if spread else 0.0


def number_scores(predicted: Floats, truth: Floats) -> dict[str, float]:
    """Return Pearson and Spearman; NaN if one of the columns is constant or not finite."""
    return {"pearson": pearson(predicted, truth), "spearman": spearman(predicted, truth)}


def f1(predicted: Indices, truth: Indices, number: int = 1) -> float:
    """F1 of a class; 0 if no prediction is correct."""
    own, theirs = predicted == number, truth == number
    return float(2 * np.sum(own & theirs) / max(np.sum(own) + np.sum(theirs), 1))
