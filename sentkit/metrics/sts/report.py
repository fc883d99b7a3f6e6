"""The STS report: correlations of an encoder with gold scores, with intervals; comparisons of two.

All values are x 100. The aggregates are those of the papers: `all` concatenates the pairs of all groups,
`mean` is the mean of the groups' correlations, `weighted` weights it by the number of pairs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentkit.metrics.sts import intervals
from sentkit.metrics.sts.correlation import pearson, spearman
from sentkit.metrics.sts.intervals import RESAMPLES, Interval, Resamples, Seed

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Pairs:
    """Similarities of n pairs by an encoder, and gold scores; `groups[k]` is an index in `names`."""

    similarities: Column
    gold: Column
    groups: NDArray[np.integer] | None = None
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.gold)

    def split(self) -> list["Pairs"]:
        """One part per name, including empty parts; the unchanged pairs if they have no groups."""
        if self.groups is None or not self.names:
            return [self]
        chosen = [self.groups == code for code in range(len(self.names))]
        return [Pairs(self.similarities[rows], self.gold[rows]) for rows in chosen]


@dataclass(frozen=True, slots=True)
class Estimate:
    value: float
    interval: Interval


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    n: int
    spearman: Estimate
    pearson: Estimate


@dataclass(frozen=True, slots=True)
class Average:
    spearman: float
    pearson: float


@dataclass(frozen=True, slots=True)
class Report:
    """`spearman` and `pearson` use the chosen aggregate; `averages` has all three."""

    n: int
    aggregate: str
    spearman: Estimate
    pearson: Estimate
    averages: dict[str, Average]
    groups: tuple[Group, ...]
    undefined: tuple[str, ...]  # groups too small or constant; any makes `mean` and `weighted` NaN


@dataclass(frozen=True, slots=True)
class Difference:
    value: float  # the first encoder's minus the second's
    interval: Interval
    p: float  # two-sided


@dataclass(frozen=True, slots=True)
class Comparison:
    n: int
    aggregate: str
    spearman: Difference
    pearson: Difference


# The weight of each part, given the sizes of the parts.
SHARES: dict[str, Callable[[Column], Column]] = {
    "all": lambda sizes: np.ones(1),
    "mean": lambda sizes: np.full(len(sizes), 1.0 / len(sizes)),
    "weighted": lambda sizes: sizes / max(sizes.sum(), 1.0),
}
AGGREGATES = tuple(SHARES)


def _parts(pairs: Pairs, aggregate: str) -> list[tuple[float, Pairs]]:
    """The parts with separate correlations, each with its weight in the aggregate."""
    parts = [pairs] if aggregate == "all" else pairs.split()
    shares = SHARES[aggregate](np.array([len(part) for part in parts], dtype=np.float64))
    return list(zip(shares.tolist(), parts, strict=True))


def _average(pairs: Pairs, aggregate: str) -> Average:
    """The aggregate of the parts' correlations; one undefined part makes it NaN."""
    parts = _parts(pairs, aggregate)
    by_rank = sum(share * spearman(part.similarities, part.gold) for share, part in parts)
    by_value = sum(share * pearson(part.similarities, part.gold) for share, part in parts)
    return Average(100.0 * by_rank, 100.0 * by_value)


def _resampled(pairs: Pairs, aggregate: str, *, count: int, seed: Seed) -> Resamples:
    """The aggregate of every resample: pairs are drawn within each part, then the parts are averaged."""
    by_rank, by_value = np.zeros(count), np.zeros(count)
    for place, (share, part) in enumerate(_parts(pairs, aggregate)):
        drawn = intervals.resample(part.similarities, part.gold, count=count, seed=_own_seed(seed, place))
        by_rank += share * drawn.spearman
        by_value += share * drawn.pearson
    return Resamples(100.0 * by_rank, 100.0 * by_value)


def _own_seed(seed: Seed, place: int) -> Seed:
    """A different seed for each part, so that resamples of parts of equal size are independent."""
    return seed if place == 0 else (*(seed if isinstance(seed, tuple) else (seed,)), place)


def _estimates(pairs: Pairs, aggregate: str, *, count: int, seed: Seed) -> tuple[Estimate, Estimate]:
    """Spearman's and Pearson's; Fisher's z is used for one long column, but not for a mean over groups."""
    value = _average(pairs, aggregate)
    if aggregate == "all" and len(pairs) > intervals.BOOTSTRAP_LIMIT:
        by_rank = intervals.fisher_spearman(value.spearman / 100.0, len(pairs)).scaled(100.0)
        by_value = intervals.fisher_pearson(value.pearson / 100.0, len(pairs)).scaled(100.0)
    else:
        drawn = _resampled(pairs, aggregate, count=count, seed=seed)
        by_rank = intervals.percentile_interval(drawn.spearman)
        by_value = intervals.percentile_interval(drawn.pearson)
    return Estimate(value.spearman, by_rank), Estimate(value.pearson, by_value)


def report(pairs: Pairs, *, aggregate: str = "all", seed: int = 0, count: int = RESAMPLES) -> Report:
    """The report of one encoder. Only the chosen aggregate has an interval, because resampling is slow."""
    count = intervals.resamples_for(len(pairs), count)
    groups = []
    for place, (name, part) in enumerate(zip(pairs.names, pairs.split(), strict=False)):
        estimates = _estimates(part, "all", count=count, seed=_own_seed(seed, place))
        groups.append(Group(name, len(part), *estimates))
    by_rank, by_value = _estimates(pairs, aggregate, count=count, seed=seed)
    return Report(
        n=len(pairs),
        aggregate=aggregate,
        spearman=by_rank,
        pearson=by_value,
        averages={name: _average(pairs, name) for name in AGGREGATES},
        groups=tuple(groups),
        undefined=tuple(group.name for group in groups if math.isnan(group.spearman.value)),
    )


def _difference(value: float, resampled: Column) -> Difference:
    return Difference(value, intervals.percentile_interval(resampled), intervals.two_sided_p(resampled))


def compare(
    first: Pairs, second: Pairs, *, aggregate: str = "all", seed: int = 0, count: int = RESAMPLES
) -> Comparison:
    """The paired bootstrap of two encoders on the same pairs; FEWER_RESAMPLES for many pairs."""
    assert np.array_equal(first.gold, second.gold), "both encoders need the same pairs in the same order"
    count = intervals.resamples_for(len(first), count)
    one, other = _average(first, aggregate), _average(second, aggregate)
    drawn = _resampled(first, aggregate, count=count, seed=seed)
    drawn -= _resampled(second, aggregate, count=count, seed=seed)  # same rows: see `resample`
    return Comparison(
        n=len(first),
        aggregate=aggregate,
        spearman=_difference(one.spearman - other.spearman, drawn.spearman),
        pearson=_difference(one.pearson - other.pearson, drawn.pearson),
    )
