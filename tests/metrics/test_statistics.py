"""Correlations, intervals and scores of classes, against scipy, scikit-learn and plain loops."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from sentkit.metrics import statistics
from sentkit.metrics.statistics import (
    bootstrap,
    class_scores,
    f1,
    fisher_interval,
    number_scores,
    pearson,
    percentile_interval,
    ranks,
    resample,
    resampled_mean,
    resamples_for,
    spearman,
    two_sided_p,
)


@given(st.lists(st.integers(0, 4), max_size=30))
def test_ranks_are_those_of_scipy(values):
    assert ranks(values).tolist() == scipy.stats.rankdata(values).tolist()


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=2, max_size=40))
@pytest.mark.filterwarnings("ignore::scipy.stats.ConstantInputWarning")
def test_correlations_are_those_of_scipy(drawn):
    x, y = np.array(drawn, dtype=float).T

    for correlation, of_scipy in (
        (spearman, scipy.stats.spearmanr),
        (pearson, scipy.stats.pearsonr),
    ):
        expected = float(of_scipy(x, y).statistic)
        assert correlation(x, y) == pytest.approx(expected, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize(
    ("x", "y"),
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
def test_undefined_is_nan_without_a_warning(x, y):
    resamples = resample(x, y, count=10, seed=0)
    interval = percentile_interval(resamples[0])

    values = [pearson(x, y), spearman(x, y), *resamples.ravel(), *interval]
    assert np.isnan(values).all()


@pytest.mark.parametrize("correlation", [pearson, spearman])
def test_a_perfect_line_is_exactly_one(correlation):
    values = np.random.default_rng(0).standard_normal(1001)

    assert correlation(values, values) == 1.0
    assert correlation(values, -values) == -1.0


@pytest.mark.parametrize(
    ("scale", "offset"), [(1e-310, 0), (1e-300, 0), (1e-12, 0), (1e300, 0), (1, 1e9)]
)
def test_scale_and_offset_do_not_matter(scale, offset):
    """Nothing overflows or vanishes: this example has r = 5 / sqrt(28)."""
    # sums of products 5, 2 and 14
    x = np.array([1.0, 2.0, 3.0])
    y = np.array([1.0, 2.0, 6.0])

    correlation = pearson(x * scale + offset, y * scale)
    assert correlation == pytest.approx(5 / math.sqrt(28), abs=1e-12)


def tied_pairs(n, seed=0):
    random = np.random.default_rng(seed)
    x = random.standard_normal(n)
    return x, np.round(x + random.standard_normal(n), 1)


def drawn_rows(n, count, seed):
    """The rows of each resample, drawn as the module says it draws them: one resample after
    another.
    """
    generator = np.random.Generator(np.random.Philox(seed))
    return np.array([generator.integers(0, n, size=n) for _ in range(count)])


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=12),
    st.integers(0, 2**32),
)
def test_resamples_equal_the_correlations_of_the_drawn_rows(drawn, seed):
    x, y = np.array(drawn, dtype=float).T
    rows = drawn_rows(len(x), 20, seed)

    correlations = resample(x, y, count=20, seed=seed)

    expected = [spearman(x[indices], y[indices]) for indices in rows]
    assert correlations[0] == pytest.approx(np.array(expected), abs=1e-12, nan_ok=True)
    expected = [pearson(x[indices], y[indices]) for indices in rows]
    assert correlations[1] == pytest.approx(np.array(expected), abs=1e-9, nan_ok=True)


def two_passes(x, y):
    """Pearson's correlation by the definition: first the means, then the sums around them."""
    mean_x = math.fsum(x) / len(x)
    mean_y = math.fsum(y) / len(y)
    products = math.fsum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    squares = math.fsum((a - mean_x) ** 2 for a in x) * math.fsum((b - mean_y) ** 2 for b in y)
    return products / math.sqrt(squares) if squares else math.nan


@pytest.mark.parametrize("far", [0.0, 1e4, 1e8])
@pytest.mark.parametrize("offset", [0.0, 1e3, 1e6])
def test_resamples_of_a_large_mean_and_a_small_spread(offset, far):
    """The digits remain also where an outlier that is not drawn has moved the mean far away."""
    random = np.random.default_rng(0)
    x = random.standard_normal(12)
    y = x + random.standard_normal(12)
    x = x * 2.0**-10 + offset
    y = y + offset
    x[3] = x[3] + far
    y[5] = y[5] - far

    correlations = resample(x, y, count=200, seed=1)[1]

    rows = drawn_rows(12, 200, 1)
    expected = [two_passes(x[indices].tolist(), y[indices].tolist()) for indices in rows]
    assert correlations == pytest.approx(np.array(expected), abs=1e-8, nan_ok=True)


@pytest.mark.parametrize("n", [2, 100, 5000, 20_000])
def test_block_size_does_not_matter(n, monkeypatch):
    x, y = tied_pairs(n)
    expected = resample(x, y, count=7, seed=3)

    monkeypatch.setattr(statistics, "RESAMPLED_ELEMENTS", 3 * n)

    correlations = resample(x, y, count=7, seed=3)
    assert correlations[0] == pytest.approx(expected[0], abs=1e-12, nan_ok=True)
    assert correlations[1] == pytest.approx(expected[1], abs=1e-12, nan_ok=True)


def test_two_pairs_are_defined_where_both_are_drawn():
    """Of two pairs a resample holds both or is constant; the interval leaves out the
    constant ones.
    """
    correlations = resample([1.0, 2.0], [5.0, 7.0], count=400, seed=0)
    interval = percentile_interval(correlations[1])

    assert set(correlations[0][~np.isnan(correlations[0])]) == {1.0}
    assert correlations[1][~np.isnan(correlations[1])] == pytest.approx(1.0)
    undefined = np.isnan(correlations[0])
    assert 140 < undefined.sum() < 260  # half of 400, within six standard deviations
    assert interval == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("statistic", ["spearman", "pearson"])
def test_the_interval_is_that_of_scipy(statistic):
    x, y = tied_pairs(60)
    of_scipy = {"spearman": scipy.stats.spearmanr, "pearson": scipy.stats.pearsonr}[statistic]
    bootstrapped = scipy.stats.bootstrap(
        (x, y),
        lambda a, b: of_scipy(a, b).statistic,
        paired=True,
        vectorized=False,
        n_resamples=1000,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    expected = bootstrapped.confidence_interval

    interval = percentile_interval(
        resample(x, y, count=4000, seed=0)[statistics.KINDS.index(statistic)]
    )

    # The standard deviation is about .06; that of a 2.5 % quantile of 1000, .06 * 2.7 / sqrt(1000)
    # = .005.
    assert interval == pytest.approx([expected.low, expected.high], abs=0.02)


def test_fisher_pearson_is_that_of_scipy():
    x, y = tied_pairs(500)
    expected = scipy.stats.pearsonr(x, y).confidence_interval(0.95)

    interval = fisher_interval("pearson", pearson(x, y), 500)

    assert interval == pytest.approx([100 * expected.low, 100 * expected.high], abs=1e-10)


def test_fisher_spearman_by_hand():
    """At r = .6 and n = 103 the standard error of z is sqrt(1.18 / 100). At r = 1 there is no
    width.
    """
    reach = 1.959963984540054 * math.sqrt(1.18 / 100)

    interval = fisher_interval("spearman", 0.6, 103)
    perfect = fisher_interval("spearman", 1.0, 100)

    expected = [100 * math.tanh(math.atanh(0.6) + offset) for offset in (-reach, reach)]
    assert interval == pytest.approx(expected, abs=1e-10)
    assert perfect == [100.0, 100.0]
    assert math.isnan(fisher_interval("pearson", math.nan, 100)[0])


def test_two_sided_p_by_hand():
    """One of four on the other side is 1/2, none is 1/4, all zero is 1; NaN is omitted."""
    assert two_sided_p(np.array([-1.0, 1.0, 2.0, 3.0, math.nan])) == 0.5
    assert two_sided_p(np.array([1.0, 1.0, 2.0, 3.0])) == 0.25
    assert two_sided_p(np.zeros(4)) == 1.0
    assert math.isnan(two_sided_p(np.array([math.nan])))


N = 23
COUNT = 40


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


@pytest.mark.parametrize(
    ("kind", "correlation"),
    [("spearman", scipy.stats.spearmanr), ("pearson", scipy.stats.pearsonr)],
)
def test_a_difference_of_means_over_seeds_equals_plain_loops(rows, kind, correlation):
    gold, first, second = rows

    def statistic(columns, pairs):
        total = 0.0
        for column in columns:
            total += correlation([column[i] for i in pairs], [gold[i] for i in pairs])[0]
        return 100 * total / len(columns)

    mean_a, mean_b = (
        resampled_mean(columns, gold, kind, count=COUNT, seed=(7, 2)) for columns in (first, second)
    )
    interval = percentile_interval(mean_a - mean_b)

    rows_of = drawn_rows(N, COUNT, (7, 2))
    differences = [statistic(first, pairs) - statistic(second, pairs) for pairs in rows_of]
    rarer = min(
        sum(difference <= 0 for difference in differences),
        sum(difference >= 0 for difference in differences),
    )
    assert mean_a == pytest.approx([statistic(first, pairs) for pairs in rows_of], abs=1e-9)
    assert interval == pytest.approx(np.percentile(differences, [2.5, 97.5]).tolist(), abs=1e-9)
    assert two_sided_p(mean_a - mean_b) == min(1, max(2 * rarer, 1) / COUNT)


def test_a_seed_without_a_correlation_makes_the_mean_undefined(rows):
    gold, first, _ = rows
    columns = [*first, np.ones(N)]

    assert np.isnan(resampled_mean(columns, gold, "spearman", count=3, seed=0)).all()


@pytest.mark.parametrize("classes", [2, 3, 6])
@pytest.mark.parametrize("seed", range(4))
def test_scores_are_those_of_scikit_learn(classes, seed):
    random = np.random.default_rng(seed)
    truth = random.integers(classes, size=50)
    predicted = np.where(random.random(50) < 0.6, truth, random.integers(classes, size=50))
    average = "binary" if classes == 2 else "macro"

    assert class_scores(predicted, truth, classes) == pytest.approx(
        {
            "accuracy": accuracy_score(truth, predicted),
            "f1": f1_score(truth, predicted, average=average),
            "matthews": matthews_corrcoef(truth, predicted),
        }
    )


def test_a_single_predicted_class():
    truth = np.array([0, 1, 1, 0])
    predicted = np.zeros(4, int)

    assert class_scores(predicted, truth, 2) == {"accuracy": 0.5, "f1": 0.0, "matthews": 0.0}
    assert f1(predicted, truth, 0) == pytest.approx(2 / 3)


def test_a_class_that_does_not_occur_has_no_f1():
    """It is a class of the training rows only, or is missing in a resample."""
    truth = np.array([0] * 10 + [1] * 9 + [2])
    predicted = truth.copy()
    predicted[0] = 1
    expected = f1_score(truth[:-1], predicted[:-1], average="macro")

    assert class_scores(predicted[:-1], truth[:-1], 3)["f1"] == pytest.approx(expected)
    intervals = bootstrap(lambda rows: class_scores(truth[rows], truth[rows], 3), len(truth))
    assert intervals["f1"] == intervals["accuracy"] == [1.0, 1.0]


def test_four_rows_have_no_interval():
    values = np.array([0.0, 1.0, 1.0, 0.5, 0.0])
    [few] = bootstrap(lambda rows: {"mean": values[rows].mean()}, 4).values()
    [enough] = bootstrap(lambda rows: {"mean": values[rows].mean()}, 5).values()

    assert np.isnan(few).all()
    assert 0.0 <= enough[0] < 0.5 < enough[1] <= 1.0


def test_numbers():
    """On a line the linear correlation is 1; the last value only keeps the order."""
    truth = np.arange(4.0)

    assert number_scores(2 * truth + 3, truth) == pytest.approx({"pearson": 1.0, "spearman": 1.0})
    assert number_scores(np.array([0.0, 1.0, 2.0, 30.0]), truth)["pearson"] < 0.9
    assert number_scores(np.array([0.0, 1.0, 2.0, 30.0]), truth)["spearman"] == pytest.approx(1.0)
    assert np.isnan(number_scores(np.ones(4), truth)["pearson"])


@pytest.mark.parametrize(("pairs", "count"), [(5, 1000), (50_000, 1000), (50_001, 200)])
def test_fewer_resamples_for_more_than_fifty_thousand_pairs(pairs, count):
    assert resamples_for(pairs) == count
    assert resamples_for(pairs, 30) == 30
