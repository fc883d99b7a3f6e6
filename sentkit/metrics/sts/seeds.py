"""Several seeds of one method on the same pairs: the mean of their correlations, and paired differences.

The statistic of a row is the mean over its seeds of the correlation. A resample draws pairs, the same ones
for all seeds of all rows, and computes the statistic of these pairs. Values are x 100.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sentkit.arrays import Float64
from sentkit.metrics.sts import intervals
from sentkit.metrics.sts.intervals import RESAMPLES, Interval, Seed


@dataclass(frozen=True, slots=True)
class SeedScores:
    """The similarities of the pairs of one test set, one column (n,) for each seed."""

    similarities: Sequence[Float64]
    gold: Float64


@dataclass(frozen=True, slots=True)
class MeanDifference:
    value: float
    interval: Interval
    p: float  # two-sided


def resampled_mean(scores: SeedScores, kind: str, *, count: int = RESAMPLES, seed: Seed) -> Float64:
    """The mean over the seeds in each resample; NaN if it is undefined for one of them.

    `kind` is spearman or pearson. For one seed of the random numbers, the pairs depend only on their number.
    """
    total = np.zeros(count)
    for column in scores.similarities:
        total += getattr(intervals.resample(column, scores.gold, count=count, seed=seed), kind)
    return 100.0 * total / len(scores.similarities)


def mean_difference(value: float, row: Float64, baseline: Float64) -> MeanDifference:
    """The paired bootstrap: `value` is the difference of the statistics, the arrays are resamples of both."""
    drawn = row - baseline
    return MeanDifference(value, intervals.percentile_interval(drawn), intervals.two_sided_p(drawn))
