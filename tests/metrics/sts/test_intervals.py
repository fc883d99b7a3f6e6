import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from sentkit.metrics.sts import intervals
from sentkit.metrics.sts.correlation import pearson, spearman
from sentkit.metrics.sts.intervals import fisher_interval, percentile_interval, resample, two_sided_p


def tied_pairs(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    left = random.standard_normal(n)
    return left, np.round(left + random.standard_normal(n), 1)


def drawn_rows(n: int, count: int, seed: int) -> np.ndarray:
    """The rows of each resample, drawn as the module says it draws them: one resample after another."""
    generator = np.random.Generator(np.random.Philox(seed))
    return np.array([generator.integers(0, n, size=n) for _ in range(count)])


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=12), st.integers(0, 2**32)
)
def test_resamples_equal_the_correlations_of_the_drawn_rows(drawn: list[tuple[int, int]], seed: int) -> None:
    """Each resample's value is what ranking the drawn rows from scratch gives, and NaN where that is NaN."""
    left, right = np.array(drawn, dtype=float).T
    rows = drawn_rows(len(left), 20, seed)

    found = resample(left, right, count=20, seed=seed)

    expected = [spearman(left[some], right[some]) for some in rows]
    assert found[0] == pytest.approx(np.array(expected), abs=1e-12, nan_ok=True)
    expected = [pearson(left[some], right[some]) for some in rows]
    assert found[1] == pytest.approx(np.array(expected), abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("n", [2, 100, 5000, 20_000])
def test_block_size_does_not_matter(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One resample at a time or many in a block, the values are the same."""
    left, right = tied_pairs(n)
    expected = resample(left, right, count=7, seed=3)

    monkeypatch.setattr(intervals, "RESAMPLED_ELEMENTS", 3 * n)

    found = resample(left, right, count=7, seed=3)
    assert found[0] == pytest.approx(expected[0], abs=1e-12, nan_ok=True)
    assert found[1] == pytest.approx(expected[1], abs=1e-12, nan_ok=True)


def test_the_seed_decides() -> None:
    """The same seed repeats to the last bit; another seed, or one of several parts, draws anew."""
    left, right = tied_pairs(40)

    found = resample(left, right, count=50, seed=1)

    assert found[0].tolist() == resample(left, right, count=50, seed=1)[0].tolist()
    assert found[0].tolist() != resample(left, right, count=50, seed=2)[0].tolist()
    assert found[0].tolist() != resample(left, right, count=50, seed=(1, 1))[0].tolist()


@pytest.mark.parametrize(
    ("left", "right"), [([], []), ([1.0], [2.0]), ([1.0, 2.0], [3.0, 3.0]), ([1.0, math.nan], [1.0, 2.0])]
)
def test_undefined_correlations_have_undefined_resamples(left: list[float], right: list[float]) -> None:
    """Without a correlation there is none in any resample, and the interval is NaN and counts them."""
    found = resample(left, right, count=10, seed=0)
    interval = percentile_interval(found[0])

    assert np.isnan(found[0]).all()
    assert np.isnan(found[1]).all()
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)
    assert interval.undefined == 10


def test_two_pairs_are_defined_where_both_are_drawn() -> None:
    """Of two pairs a resample holds both or is constant; the interval leaves out the constant ones."""
    found = resample([1.0, 2.0], [5.0, 7.0], count=400, seed=0)
    interval = percentile_interval(found[1])

    assert set(found[0][~np.isnan(found[0])]) == {1.0}
    assert found[1][~np.isnan(found[1])] == pytest.approx(1.0)
    assert interval.undefined == np.isnan(found[0]).sum()
    assert 140 < interval.undefined < 260  # half of 400, within six standard deviations
    assert (interval.low, interval.high) == pytest.approx((1.0, 1.0))


@pytest.mark.parametrize("statistic", ["spearman", "pearson"])
def test_the_interval_is_that_of_scipy(statistic: str) -> None:
    """The percentile interval agrees with scipy's paired bootstrap within the error of sampling."""
    left, right = tied_pairs(60)
    of_scipy = {"spearman": scipy.stats.spearmanr, "pearson": scipy.stats.pearsonr}[statistic]
    expected = scipy.stats.bootstrap(
        (left, right),
        lambda a, b: of_scipy(a, b).statistic,
        paired=True,
        vectorized=False,
        n_resamples=1000,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval

    found = percentile_interval(resample(left, right, count=4000, seed=0)[intervals.KINDS.index(statistic)])

    # The standard deviation is about .06; that of a 2.5 % quantile of 1000, .06 * 2.7 / sqrt(1000) = .005.
    assert found.low == pytest.approx(expected.low, abs=0.02)
    assert found.high == pytest.approx(expected.high, abs=0.02)
    assert (found.method, found.resamples, found.undefined) == ("bootstrap", 4000, 0)


def test_fisher_pearson_is_that_of_scipy() -> None:
    """Fisher's interval of Pearson's r is the one scipy gives."""
    left, right = tied_pairs(500)
    expected = scipy.stats.pearsonr(left, right).confidence_interval(0.95)

    found = fisher_interval("pearson", pearson(left, right), 500)

    assert (found.low, found.high) == pytest.approx((100 * expected.low, 100 * expected.high), abs=1e-10)
    assert found.method == "fisher"


def test_fisher_spearman_by_hand() -> None:
    """At r = .6 and n = 103 the standard error of z is sqrt(1.18 / 100). At r = 1 there is no width."""
    reach = 1.959963984540054 * math.sqrt(1.18 / 100)

    found, perfect = fisher_interval("spearman", 0.6, 103), fisher_interval("spearman", 1.0, 100)

    expected = [100 * math.tanh(math.atanh(0.6) + each) for each in (-reach, reach)]
    assert [found.low, found.high] == pytest.approx(expected, abs=1e-10)
    assert (perfect.low, perfect.high) == (100.0, 100.0)
    assert math.isnan(fisher_interval("pearson", math.nan, 100).low)


def test_two_sided_p_by_hand() -> None:
    """One of four on the other side is 1/2, none is 1/4, all zero is 1; NaN is omitted."""
    assert two_sided_p(np.array([-1.0, 1.0, 2.0, 3.0, math.nan])) == 0.5
    assert two_sided_p(np.array([1.0, 1.0, 2.0, 3.0])) == 0.25
    assert two_sided_p(np.zeros(4)) == 1.0
    assert math.isnan(two_sided_p(np.array([math.nan])))
