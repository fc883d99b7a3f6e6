"""95 % intervals of correlations, by bootstrap or by Fisher's z.

Letters in shapes: n pairs, v distinct values, b resamples in one block.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from sentkit.arrays import Float64, Indices
from sentkit.metrics.sts.correlation import centred, middle_ranks

Seed = int | tuple[int, ...]

KINDS = ("spearman", "pearson")
RESAMPLES = 1000
FEWER_RESAMPLES = 200  # above the limit, for statistics without a formula, such as paired differences
BOOTSTRAP_LIMIT = 50_000  # pairs; with 1000 resamples about three seconds
RESAMPLED_ELEMENTS = 16_384  # at a time: short columns share a call, a long column gets several
QUANTILE = 1.959963984540054  # of the normal distribution, at 97.5 %


@dataclass(frozen=True, slots=True)
class Interval:
    low: float
    high: float
    method: str  # "bootstrap" or "fisher"
    resamples: int = 0
    undefined: int = 0  # resamples omitted because one side is constant


@dataclass(frozen=True, slots=True)
class _Side:
    """A column, prepared so that resamples need no sort."""

    values: Float64  # (n,) around the mean
    codes: Indices  # (n,) the index of each value among the distinct values
    distinct: int

    @classmethod
    def of(cls, column: ArrayLike) -> Self:
        values, codes = np.unique(np.asarray(column), return_inverse=True)
        return cls(centred(column), codes, len(values))

    def ranks(self, times: Float64) -> Float64:
        """The tied ranks of every resample around their mean; `times` (b, n) counts each row."""
        b, n = times.shape
        places = self.codes + np.arange(b)[:, None] * self.distinct  # (b, n)
        counts = np.bincount(places.ravel(), times.ravel(), minlength=b * self.distinct)
        middles = middle_ranks(counts.reshape(b, self.distinct))  # (b, v)
        middles -= (n + 1) / 2.0
        return middles.ravel()[places]


def multiplicities(n: int, count: int, seed: Seed) -> Iterator[Float64]:
    """The count of each row in each resample, in blocks (b, n); the arguments determine it completely."""
    generator = np.random.Generator(np.random.Philox(seed))
    rows = max(1, RESAMPLED_ELEMENTS // n)
    for start in range(0, count, rows):
        b = min(rows, count - start)
        drawn = generator.integers(0, n, size=(b, n))
        drawn += np.arange(b)[:, None] * n
        yield np.bincount(drawn.ravel(), minlength=b * n).reshape(b, n).astype(np.float64)


def _correlations(times: Float64, left: Float64, right: Float64) -> Float64:
    """The correlation within each resample, for values around their means, (b, n) -> (b,)."""
    weighted = times * left
    squares = np.vecdot(weighted, left) * np.vecdot(times * right, right)
    with np.errstate(invalid="ignore", divide="ignore"):  # 0 / 0 is NaN, as intended
        return np.clip(np.vecdot(weighted, right) / np.sqrt(squares), -1.0, 1.0)


def _around_mean(times: Float64, values: Float64) -> Float64:
    return values - (times @ values / times.shape[1])[:, None]


def resample(left: ArrayLike, right: ArrayLike, *, count: int = RESAMPLES, seed: Seed) -> Float64:
    """Both KINDS of correlation of `count` resamples, (2, r), ranked exactly and without sorting.

    A resample with one constant side has NaN.

    The rows of a resample depend only on the seed and the number of pairs. So the paired bootstrap of two
    encoders is the difference of two results: `resample(a, gold, seed=seed) - resample(b, gold, seed=seed)`.
    Besides the result it needs the memory of a few columns.
    """
    one, other = _Side.of(left), _Side.of(right)
    resamples = np.full((2, count), np.nan)
    if min(one.distinct, other.distinct) < 2 or np.isnan([one.values[0], other.values[0]]).any():
        return resamples
    start = 0
    for times in multiplicities(len(one.values), count, seed):
        part = slice(start, start := start + len(times))
        by_rank = _correlations(times, one.ranks(times), other.ranks(times))
        by_value = _correlations(times, _around_mean(times, one.values), _around_mean(times, other.values))
        # Ranks identify a constant exactly; the mean of a constant may have a rounding error.
        resamples[:, part] = by_rank, np.where(np.isnan(by_rank), np.nan, by_value)
    return resamples


def resampled_means(values: Float64, *, count: int, seed: Seed) -> Float64:
    """The means of the columns (n, m) in each of `count` resamples of the rows, (count, m).

    The means of a difference of two columns are the paired bootstrap of their difference.
    """
    parts = [times @ values / len(values) for times in multiplicities(len(values), count, seed)]
    return np.concatenate(parts)


def resamples_for(pairs: int, count: int = RESAMPLES) -> int:
    """`count` resamples, or FEWER_RESAMPLES above BOOTSTRAP_LIMIT pairs, to limit the time."""
    return count if pairs <= BOOTSTRAP_LIMIT else min(count, FEWER_RESAMPLES)


def percentile_interval(statistics: Float64) -> Interval:
    """The middle 95 % of the resampled statistics; undefined ones are omitted and counted."""
    defined = statistics[~np.isnan(statistics)]
    low, high = np.percentile(defined, [2.5, 97.5]) if len(defined) else (math.nan, math.nan)
    undefined = len(statistics) - len(defined)
    return Interval(float(low), float(high), "bootstrap", len(statistics), undefined)


def bootstrap(statistics: Callable[[Indices], Mapping[str, float]], rows: int) -> dict[str, list[float]]:
    """The limits of each statistic, which gets the places of resampled rows, the same as in `resample`."""
    drawn = [
        statistics(np.repeat(np.arange(rows), counts.astype(np.intp)))
        for block in multiplicities(rows, resamples_for(rows), 0)
        for counts in block
    ]
    found = {name: percentile_interval(np.array([each[name] for each in drawn])) for name in drawn[0]}
    return {name: [each.low, each.high] for name, each in found.items()}


def two_sided_p(differences: Float64) -> float:
    """Twice the share of resampled differences on the rarer side of zero; at least 1 / resamples."""
    defined = differences[~np.isnan(differences)]
    if not len(defined):
        return math.nan
    # Zero counts on both sides, so two equal encoders have p = 1.
    rarer = min(int((defined <= 0.0).sum()), int((defined >= 0.0).sum()))
    return min(1.0, max(2 * rarer, 1) / len(defined))


def fisher_interval(kind: str, correlation: float, pairs: int) -> Interval:
    """Fisher's interval x 100, for more than three pairs.

    That of Spearman's correlation has the variance of Bonett and Wright (2000).
    """
    variance = (1.0 + correlation**2 / 2.0 if kind == "spearman" else 1.0) / (pairs - 3)
    with np.errstate(divide="ignore"):  # a perfect correlation becomes infinite, and tanh reverses it
        middle = np.arctanh(correlation)
    low, high = (np.tanh(middle + reach * math.sqrt(variance)) for reach in (-QUANTILE, QUANTILE))
    return Interval(100.0 * float(low), 100.0 * float(high), "fisher")


def resampled_mean(
    columns: Sequence[Float64], gold: Float64, kind: str, *, count: int = RESAMPLES, seed: Seed
) -> Float64:
    """The mean x 100 over several seeds of a method in each resample of the same pairs, one column for each.

    `kind` is spearman or pearson. The mean is NaN if it is undefined for one of the seeds.
    """
    total = sum(resample(column, gold, count=count, seed=seed)[KINDS.index(kind)] for column in columns)
    return 100.0 * total / len(columns)
