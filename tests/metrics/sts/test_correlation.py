import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from sentkit.metrics.sts.correlation import pearson, ranks, spearman

few_values = st.lists(st.integers(0, 4), min_size=0, max_size=30)
pairs = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=2, max_size=40)


@given(few_values)
def test_ranks_are_those_of_scipy(values: list[int]) -> None:
    """Tied values share the average of their ranks, and no value has no ranks."""
    assert ranks(values).tolist() == scipy.stats.rankdata(values).tolist()


@given(pairs)
@pytest.mark.filterwarnings("ignore::scipy.stats.ConstantInputWarning")
def test_correlations_are_those_of_scipy(drawn: list[tuple[int, int]]) -> None:
    """Both correlations agree with scipy on tied data, and are NaN where scipy's are."""
    left, right = np.array(drawn, dtype=float).T

    for ours, theirs in ((spearman, scipy.stats.spearmanr), (pearson, scipy.stats.pearsonr)):
        expected = float(theirs(left, right).statistic)
        assert ours(left, right) == pytest.approx(expected, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("correlation", [pearson, spearman])
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ([], []),
        ([1.0], [2.0]),
        ([1.0, 2.0], [3.0, 3.0]),
        ([0.0, 0.0], [1.0, 2.0]),
        ([0.1] * 7, range(7)),
        ([1.0, math.nan, 3.0], [1.0, 2.0, 3.0]),
        ([1.0, 2.0, 3.0], [1.0, math.inf, 3.0]),
    ],
)
def test_undefined_is_nan(correlation, left, right) -> None:
    """Too few pairs, a constant side, NaN and infinity give NaN, without a warning."""
    assert math.isnan(correlation(left, right))


@pytest.mark.parametrize("correlation", [pearson, spearman])
def test_a_perfect_line_is_exactly_one(correlation) -> None:
    """A side and itself correlate by exactly 1, and with its negative by exactly -1."""
    values = np.random.default_rng(0).standard_normal(1001)

    assert correlation(values, values) == 1.0
    assert correlation(values, -values) == -1.0


@pytest.mark.parametrize("scale", [1e-310, 1e-300, 1e-12, 1e300])
def test_scale_does_not_matter(scale: float) -> None:
    """Neither overflows nor vanishes: the hand-made example has r = 5 / sqrt(28) at any scale."""
    left, right = np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 6.0])  # sums of products 5, 2 and 14

    assert pearson(left * scale, right * scale) == pytest.approx(5 / math.sqrt(28), abs=1e-12)


def test_an_offset_does_not_matter() -> None:
    """Values far from zero keep what distinguishes them: 1e9 + (1, 2, 4) is as (1, 2, 4)."""
    left, right = np.array([1.0, 2.0, 4.0]), np.array([3.0, 1.0, 7.0])

    assert pearson(left + 1e9, right) == pytest.approx(pearson(left, right), abs=1e-12)
