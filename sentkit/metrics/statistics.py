"""Correlations, their 95 % intervals by bootstrap or by Fisher's z, and scores of predicted
classes.

Letters in shapes: n pairs, v distinct values, b resamples in one block.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sentkit.arrays import Bools, Float64, Floats, Indices

Seed = int | tuple[int, ...]

KINDS = ("spearman", "pearson")
RESAMPLES = 1000
# above the limit, for statistics without a formula, such as paired differences
FEWER_RESAMPLES = 200
BOOTSTRAP_LIMIT = 50_000  # pairs; with 1000 resamples about two seconds
CANCELLED = 1e-6  # a variance below this share of the squares has lost digits
RESAMPLED_ELEMENTS = 16_384  # at a time: short columns share a call, a long column gets several
# Rows of an interval or a paired test: n rows have C(2n - 1, n) different resamples. Four have 35,
# which is less than one for each 2.5 % of a two-sided test at 5 %, and five have 126.
FEWEST_ROWS = 5
QUANTILE = 1.959963984540054  # of the normal distribution, at 97.5 %


def ranks(values: ArrayLike) -> Float64:
    """Ranks from 1; tied values share their average rank. scipy.stats has this, but its import
    takes long.
    """
    order, _, sizes = runs(np.asarray(values))
    n = len(order)
    ranks_of_runs = (centred_double_ranks(sizes, n) + (n + 1)) * 0.5
    ranked = np.empty(n)
    ranked[order] = np.repeat(ranks_of_runs, sizes)
    return ranked


def centred_double_ranks(counts: NDArray[np.intp], n: int) -> Float64:
    """Twice the distance of the rank of each distinct value from the mean rank (n + 1) / 2.

    `counts` (..., v) says how often each value occurs, in ascending order of the values, n in all.
    A value that occurs c times and has the last rank C has the average rank C - (c - 1) / 2, so
    twice the distance is 2 C - c - n, which has no fraction.
    """
    doubled = np.cumsum(counts, axis=-1)
    doubled += doubled  # in place, which saves time
    doubled -= counts
    doubled -= n
    return doubled.astype(np.float64)


def runs(values: NDArray) -> tuple[Indices, Indices, Indices]:
    """The order (n,) of the values, and where equal ones begin, and how many they are, (v,), as
    np.unique.
    """
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    is_begin = np.append(np.ones(min(1, len(order)), bool), ordered[1:] != ordered[:-1])
    begins = np.flatnonzero(is_begin)
    return order, begins, np.diff(np.append(begins, len(order)))


def centred(values: ArrayLike) -> Float64:
    """The values around their mean, largest magnitude about 1; zeros if constant, NaN if not
    finite.
    """
    column = np.asarray(values, dtype=np.float64)
    if not (len(column) and np.isfinite(column).all()):
        return np.full(column.shape, np.nan)
    # Avoid overflow and underflow of squares; scaling by a power of two is exact.
    _, exponent = np.frexp(np.abs(column).max())
    column = np.ldexp(column, -exponent)
    column = column - column[0]  # a constant becomes exactly zero despite a rounded mean
    return column - column.mean()


def pearson(a: ArrayLike, b: ArrayLike) -> float:
    """Linear correlation in [-1, 1]; NaN for fewer than two pairs, a constant, NaN or infinity."""
    centred_a = centred(a)
    centred_b = centred(b)
    spread = math.sqrt(float(centred_a @ centred_a) * float(centred_b @ centred_b))
    if not spread > 0.0:
        return math.nan
    return min(1.0, max(-1.0, float(centred_a @ centred_b) / spread))


def spearman(a: ArrayLike, b: ArrayLike) -> float:
    """Rank correlation in [-1, 1] with average ranks for ties; NaN in the same cases as
    `pearson`.
    """
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return math.nan
    return pearson(ranks(a), ranks(b))


def multiplicities(n: int, count: int, seed: Seed) -> Iterator[NDArray[np.intp]]:
    """The count of each row in each resample, in blocks (b, n); the arguments determine it
    completely.
    """
    generator = np.random.Generator(np.random.Philox(seed))
    size = resamples_at_once(n)
    # One call of bincount for a block: row i of resample k has the bin k n + i.
    first_bins = np.arange(size)[:, None] * n
    for start in range(0, count, size):
        bins = generator.integers(0, n, size=(min(size, count - start), n))
        bins += first_bins[: len(bins)]
        yield np.bincount(bins.ravel(), minlength=bins.size).reshape(bins.shape)


def resamples_at_once(n: int) -> int:
    return max(1, RESAMPLED_ELEMENTS // n)


def resample(a: ArrayLike, b: ArrayLike, *, count: int = RESAMPLES, seed: Seed) -> Float64:
    """Both KINDS of correlation of `count` resamples, (2, r), ranked exactly, with one sort for all
    of them.

    A resample with one constant side has NaN.

    The rows of a resample depend only on the seed and the number of pairs. So the paired bootstrap
    of two encoders is the difference of two results: `resample(a, gold, seed=seed) - resample(b,
    gold, seed=seed)`. Besides the result it needs the memory of a few columns.
    """
    # The pairs in the order of `a`, so that equal values of it are neighbours.
    order, begins_a, sizes_a = runs(np.asarray(a))
    order_b, _, sizes_b = runs(np.asarray(b)[order])
    centred_a = centred(a)[order]
    centred_b = centred(b)[order]
    n = len(order)
    v = len(sizes_b)
    # All centred values are NaN if one value is not finite.
    if min(len(sizes_a), v) < 2 or np.isnan([centred_a[0], centred_b[0]]).any():
        return np.full((2, count), np.nan)

    # The distinct value of `b` in each pair, by its number from 0, (n,). In a block, resample k
    # has the numbers from k v on.
    value_b = np.empty(n, np.intp)
    value_b[order_b] = np.repeat(np.arange(v), sizes_b)
    bins_b = value_b + np.arange(resamples_at_once(n))[:, None] * v

    # Sums over the pairs of each resample: of the moments of the values, and of the squares and
    # products of the ranks.
    moments = np.stack([centred_a, centred_b, centred_a**2, centred_b**2, centred_a * centred_b])
    moment_sums = np.empty((5, count))
    rank_squares_a = np.empty(count)
    rank_squares_b = np.empty(count)
    rank_products = np.empty(count)
    done = 0
    for counts_of_rows in multiplicities(n, count, seed):
        # How often each pair occurs, (size, n), in the order of `a`.
        size = len(counts_of_rows)
        block = slice(done, done + size)
        done += size
        counts = counts_of_rows.take(order, axis=1)
        weights = counts.astype(np.float64)
        moment_sums[:, block] = moments @ weights.T

        # Ranks by `a` of the pairs, (size, n).
        if len(begins_a) == n:
            ranks_a = centred_double_ranks(counts, n)
        else:
            counts_a = np.add.reduceat(counts, begins_a, axis=1)
            ranks_a = np.repeat(centred_double_ranks(counts_a, n), sizes_a, axis=1)
        weighted_ranks_a = np.multiply(weights, ranks_a)

        # Ranks by `b` of its distinct values, (size, v), and of the pairs, (size, n).
        bins = bins_b[:size]
        counts_b = np.bincount(bins.ravel(), weights.ravel(), size * v)
        counts_b = counts_b.reshape(size, v).astype(np.intp)
        ranks_of_values = centred_double_ranks(counts_b, n)
        ranks_b = ranks_of_values.take(bins)

        rank_squares_a[block] = np.vecdot(weighted_ranks_a, ranks_a)
        rank_squares_b[block] = np.vecdot(counts_b * ranks_of_values, ranks_of_values)
        rank_products[block] = np.vecdot(weighted_ranks_a, ranks_b)

    # The correlations. The mean of centred ranks is 0, that of the values of a resample is not.
    mean_a, mean_b, mean_aa, mean_bb, mean_ab = moment_sums / n
    variance_a = mean_aa - mean_a * mean_a
    variance_b = mean_bb - mean_b * mean_b
    with np.errstate(invalid="ignore", divide="ignore"):  # 0 / 0 is NaN, as intended
        by_rank = rank_products / np.sqrt(rank_squares_a * rank_squares_b)
        by_value = (mean_ab - mean_a * mean_b) / np.sqrt(variance_a * variance_b)
    # Ranks identify a constant exactly; the mean of a constant may have a rounding error.
    is_constant = np.isnan(by_rank)
    by_value[is_constant] = np.nan

    has_lost_digits = (variance_a < CANCELLED * mean_aa) | (variance_b < CANCELLED * mean_bb)
    has_lost_digits &= ~is_constant
    if has_lost_digits.any():
        repair_lost_digits(by_value, has_lost_digits, a, b, seed)
    return np.clip([by_rank, by_value], -1.0, 1.0)


def repair_lost_digits(
    by_value: Float64, has_lost_digits: Bools, a: ArrayLike, b: ArrayLike, seed: Seed
) -> None:
    """Compute these resamples again, from their pairs: without the values that are far from all
    others, their variances have lost digits.
    """
    n = len(np.asarray(a))
    resamples = chain.from_iterable(multiplicities(n, len(by_value), seed))
    for i, counts_of_rows in enumerate(resamples):
        if has_lost_digits[i]:
            by_value[i] = pearson(np.repeat(a, counts_of_rows), np.repeat(b, counts_of_rows))


def resamples_for(pairs: int, count: int = RESAMPLES) -> int:
    """`count` resamples, or FEWER_RESAMPLES above BOOTSTRAP_LIMIT pairs, to limit the time."""
    return count if pairs <= BOOTSTRAP_LIMIT else min(count, FEWER_RESAMPLES)


def percentile_interval(statistics: Float64) -> list[float]:
    """The limits of the middle 95 % of the resampled statistics; undefined ones are omitted."""
    defined = np.sort(statistics[~np.isnan(statistics)])
    if not len(defined):
        return [math.nan, math.nan]
    # As np.percentile, which imports numpy.ma.
    positions = np.array([0.025, 0.975]) * (len(defined) - 1)
    return np.interp(positions, np.arange(len(defined)), defined).tolist()


def bootstrap(
    statistics: Callable[[Indices], Mapping[str, float]], rows: int
) -> dict[str, list[float]]:
    """The limits of each statistic, which gets the indices of resampled rows, the same as in
    `resample`; NaN for fewer than FEWEST_ROWS rows.
    """
    if rows < FEWEST_ROWS:
        return {name: [math.nan, math.nan] for name in statistics(np.arange(rows))}
    values: dict[str, list[float]] = {}  # of each statistic, one for each resample
    for counts in chain.from_iterable(multiplicities(rows, resamples_for(rows), 0)):
        for name, value in statistics(np.repeat(np.arange(rows), counts)).items():
            values.setdefault(name, []).append(value)
    return {name: percentile_interval(np.array(column)) for name, column in values.items()}


def two_sided_p(differences: Float64) -> float:
    """Twice the share of resampled differences on the rarer side of zero; at least 1 /
    resamples.
    """
    defined = differences[~np.isnan(differences)]
    if not len(defined):
        return math.nan
    # Zero counts on both sides, so two equal encoders have p = 1.
    rarer = min(int((defined <= 0.0).sum()), int((defined >= 0.0).sum()))
    return min(1.0, max(2 * rarer, 1) / len(defined))


def fisher_interval(kind: str, correlation: float, pairs: int) -> list[float]:
    """Fisher's interval x 100, from four pairs on; Spearman's as Bonett and Wright (2000)
    have it.
    """
    numerator = 1.0
    if kind == "spearman":
        numerator += correlation**2 / 2.0
    variance = numerator / (pairs - 3)
    # a perfect correlation becomes infinite, and tanh reverses it
    with np.errstate(divide="ignore"):
        middle = np.arctanh(correlation)
    reach = QUANTILE * math.sqrt(variance)
    return [100.0 * math.tanh(middle - reach), 100.0 * math.tanh(middle + reach)]


def resampled_mean(
    columns: Sequence[Float64], gold: Float64, kind: str, *, count: int = RESAMPLES, seed: Seed
) -> Float64:
    """The mean x 100 over several seeds of a method in each resample of the same pairs, one column
    for each.

    `kind` is spearman or pearson. The mean is NaN if it is undefined for one of the seeds.
    """
    kind_index = KINDS.index(kind)
    total = sum(resample(column, gold, count=count, seed=seed)[kind_index] for column in columns)
    return 100.0 * total / len(columns)


def class_scores(predicted: Indices, truth: Indices, classes: int) -> dict[str, float]:
    """Return accuracy, F1 and Matthews. F1 is that of class 1, or of more classes the mean of those
    that occur.
    """
    occurring = [1]
    if classes > 2:
        occurring = np.union1d(predicted, truth).tolist()
    return {
        "accuracy": float(np.mean(predicted == truth)),
        "f1": float(np.mean([f1(predicted, truth, number) for number in occurring])),
        "matthews": matthews(predicted, truth, classes),
    }


def matthews(predicted: Indices, truth: Indices, classes: int) -> float:
    """The correlation of Matthews, for several classes that of Gorodkin (2004); 0 if all are of one
    class.
    """
    rows = len(truth)
    correct = np.sum(predicted == truth)
    predicted_counts = np.bincount(predicted, minlength=classes)
    true_counts = np.bincount(truth, minlength=classes)
    predicted_spread = float(rows * rows - predicted_counts @ predicted_counts)
    true_spread = float(rows * rows - true_counts @ true_counts)
    spread = predicted_spread * true_spread
    if not spread:
        return 0.0
    return float(correct * rows - predicted_counts @ true_counts) / spread**0.5


def number_scores(predicted: Floats, truth: Floats) -> dict[str, float]:
    """Return Pearson and Spearman; NaN if one of the columns is constant or not finite."""
    return {"pearson": pearson(predicted, truth), "spearman": spearman(predicted, truth)}


def f1(predicted: Indices, truth: Indices, number: int = 1) -> float:
    """F1 of a class; 0 if no prediction is correct."""
    is_predicted = predicted == number
    is_true = truth == number
    both = np.sum(is_predicted) + np.sum(is_true)
    return float(2 * np.sum(is_predicted & is_true) / max(both, 1))
