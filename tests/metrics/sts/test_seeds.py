"""The bootstrap over several seeds against plain loops."""

import numpy as np
import pytest
import scipy.stats

from sentkit.metrics.sts.intervals import percentile_interval, resampled_mean, two_sided_p

N, COUNT = 23, 40


@pytest.fixture
def rows():
    """Gold scores, three columns of one row and two of another; with ties."""
    random = np.random.default_rng(4)
    gold = random.integers(0, 6, N).astype(float)
    first, second = (
        [np.round(gold + scale * random.standard_normal(N), 1) for _ in range(count)]
        for scale, count in ((1.0, 3), (3.0, 2))
    )
    return gold, first, second


def drawn(seed):
    """The pairs of each resample: one resample after another."""
    generator = np.random.Generator(np.random.Philox(seed))
    return [generator.integers(0, N, size=N).tolist() for _ in range(COUNT)]


@pytest.mark.parametrize(
    ("kind", "correlation"), [("spearman", scipy.stats.spearmanr), ("pearson", scipy.stats.pearsonr)]
)
def test_a_difference_of_means_over_seeds_equals_plain_loops(rows, kind, correlation):
    gold, first, second = rows

    def statistic(columns, pairs):
        total = 0.0
        for column in columns:
            total += correlation([column[i] for i in pairs], [gold[i] for i in pairs])[0]
        return 100 * total / len(columns)

    one, other = (
        resampled_mean(columns, gold, kind, count=COUNT, seed=(7, 2)) for columns in (first, second)
    )
    interval = percentile_interval(one - other)

    differences = [statistic(first, pairs) - statistic(second, pairs) for pairs in drawn((7, 2))]
    rarer = min(sum(each <= 0 for each in differences), sum(each >= 0 for each in differences))
    assert one == pytest.approx([statistic(first, pairs) for pairs in drawn((7, 2))], abs=1e-9)
    assert (interval.low, interval.high) == pytest.approx(np.percentile(differences, [2.5, 97.5]), abs=1e-9)
    assert two_sided_p(one - other) == min(1, max(2 * rarer, 1) / COUNT)


def test_a_seed_without_a_correlation_makes_the_mean_undefined(rows):
    gold, first, _ = rows
    columns = [*first, np.ones(N)]

    assert np.isnan(resampled_mean(columns, gold, "spearman", count=3, seed=0)).all()
