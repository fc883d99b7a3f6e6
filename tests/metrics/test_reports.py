import math

import numpy as np
import pytest

from sentkit.commands.diff import check_limits
from sentkit.errors import AnswerIsNo
from sentkit.metrics import statistics as intervals
from sentkit.metrics.gold_pairs import GoldPairs, ScoreOptions
from sentkit.metrics.reports import AGGREGATES, below, compare, difference, report, with_intervals
from sentkit.metrics.statistics import percentile_interval, resample, two_sided_p

ALL = ScoreOptions("score")

# A worked example with two sub-topics.
GOLD = [1.0, 2.0, 3.0, 2.5, 3.5, 4.5]
SCORES = [0.1, 0.2, 0.3, 0.05, 0.15, 0.25]


def test_a_measure_that_is_not_a_number_fails_every_gate():
    for value in (math.nan, None):
        assert below([{"file": "a", "m": value}], "m", "m", 0.0) == "a: m is undefined, below 0"
    with pytest.raises(AnswerIsNo, match="lowest cosine is nan, below 0"):
        check_limits({"cosine": {"lowest": math.nan}}, {"cosine": 0.0})


def test_an_undefined_value_and_few_rows_have_no_interval():
    values = [1.0, math.nan]
    of_many = with_intervals(("a", "b"), values, [[0.0, 2.0], [0.0, 2.0]], 5)
    of_few = with_intervals(("a",), [1.0], [[0.0, 2.0]], 4)

    assert of_many == {"a": 1.0, "a_ci95": [0.0, 2.0], "b": None, "b_ci95": [None, None]}
    assert of_few == {"a": 1.0, "a_ci95": [None, None]}


def test_an_undefined_difference_has_no_interval_and_no_p():
    """Although it is defined in some resamples."""
    undefined = difference(math.nan, np.array([1.0, 2.0, math.nan]), 20)

    assert undefined == {"difference": None, "ci95": [None, None], "p": None}


@pytest.mark.parametrize(("n", "has_interval"), [(14, False), (15, True)])
@pytest.mark.parametrize("aggregate", ["mean", "weighted"])
def test_the_mean_of_groups_with_few_pairs_has_no_interval(n, has_interval, aggregate):
    """Of three groups, the last one has four or five pairs. All pairs together are enough."""
    options = ScoreOptions("score", aggregate=aggregate)
    measured = report(noisy(n, 1.0), options, count=50)
    compared = compare(noisy(n, 1.0), noisy(n, 2.0), options, count=50)

    assert measured["spearman"] is not None
    assert (measured["spearman_ci95"] != [None, None]) == has_interval
    assert (compared["spearman"]["p"] is not None) == has_interval
    assert report(noisy(n, 1.0), ALL, count=50)["spearman_ci95"] != [None, None]


def noisy(n, noise, seed=0, topics=3):
    gold = np.round(np.random.default_rng(0).uniform(0, 5, n), 1)
    scores = gold + noise * np.random.default_rng(seed + 1).standard_normal(n)
    return GoldPairs(scores, gold, np.arange(n) % topics, tuple("abcdefgh"[:topics]))


def test_a_mean_is_resampled_within_each_group():
    """The interval of the weighted mean averages the resamples of the groups."""
    pairs = noisy(91, 1.0)
    total = 0.0
    for group, seed in enumerate([7, (7, 1), (7, 2)]):
        rows = pairs.groups == group
        drawn = resample(pairs.similarities[rows], pairs.gold[rows], count=100, seed=seed)
        total = total + 100.0 * rows.sum() / 91 * drawn[0]

    measured = report(pairs, ScoreOptions("score", aggregate="weighted", seed=7), count=100)

    expected = percentile_interval(total)
    assert measured["spearman_ci95"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("extra", "gold"),
    [([], []), ([0.3], [1.0]), ([0.3, 0.4], [1.0, 1.0]), ([0.3, 0.3], [1.0, 2.0])],
)
def test_an_undefined_group_is_never_skipped(extra, gold):
    """An empty, single or constant group makes both means NaN; the value of all pairs is
    defined.
    """
    groups = np.array([0, 0, 0, 1, 1, 1] + [2] * len(gold))
    pairs = GoldPairs(
        np.array([*SCORES, *extra]), np.array([*GOLD, *gold]), groups, ("A", "B", "odd")
    )

    measured = report(pairs, ScoreOptions("score", aggregate="mean"), count=20)

    assert measured["undefined"] == ["odd"]
    assert measured["averages"]["mean"]["spearman"] is None
    assert measured["averages"]["weighted"]["pearson"] is None
    assert measured["spearman_ci95"] == [None, None]
    assert measured["averages"]["all"]["spearman"] is not None


@pytest.mark.parametrize("n", [0, 1, 2])
@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_few_pairs_are_accepted(n, aggregate):
    pairs = GoldPairs(np.arange(n) * 1.0, np.arange(n) * 2.0)
    measured = report(pairs, ScoreOptions("score", aggregate=aggregate), count=20)

    assert measured["n"] == n
    assert (measured["spearman"] is None) == (n < 2)


def test_many_pairs_use_fishers_interval(monkeypatch):
    """Groups below the limit, means and comparisons use the bootstrap; only groups with 1000
    resamples.
    """
    monkeypatch.setattr(intervals, "BOOTSTRAP_LIMIT", 50)
    pairs = noisy(90, 1.0)
    comparison = compare(noisy(60, 1.0), noisy(60, 2.0, seed=1), ALL)

    whole = report(pairs, ALL)
    mean = report(pairs, ScoreOptions("score", aggregate="mean"))

    expected = intervals.fisher_interval("spearman", whole["spearman"] / 100, 90)
    assert (whole["interval"], whole["resamples"]) == ("fisher", None)
    assert whole["spearman_ci95"] == pytest.approx(expected)
    assert whole["pearson_ci95"][1] > whole["spearman_ci95"][1] - 5
    for measured in (whole, mean):
        kinds = {(group["interval"], group["resamples"]) for group in measured["groups"].values()}
        assert kinds == {("bootstrap", 1000)}
    assert (mean["interval"], mean["resamples"]) == ("bootstrap", 200)
    assert comparison["resamples"] == 200


@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_a_better_encoder_has_a_significant_difference(aggregate):
    """Swapping the encoders reverses the sign."""
    good = noisy(150, 0.5)
    bad = noisy(150, 5.0, seed=1)

    options = ScoreOptions("score", aggregate=aggregate)
    compared, swapped = (
        compare(*encoders, options, count=100) for encoders in ((good, bad), (bad, good))
    )

    values = [report(pairs, options, count=2)["spearman"] for pairs in (good, bad)]
    change = compared["spearman"]["difference"]
    low, high = compared["spearman"]["ci95"]
    assert change == pytest.approx(values[0] - values[1])
    assert 0 < low < change < high
    assert compared["spearman"]["p"] == 0.01
    assert swapped["spearman"]["difference"] == -change
    assert swapped["pearson"]["p"] == compared["pearson"]["p"]
    assert swapped["pearson"]["ci95"][0] == pytest.approx(-compared["pearson"]["ci95"][1])


def test_the_comparison_is_paired():
    """Interval and p are those of the differences on the same resampled rows."""
    pairs_a = noisy(60, 2.0)
    pairs_b = noisy(60, 2.2, seed=5)
    drawn = [
        100 * resample(pairs.similarities, pairs.gold, count=300, seed=2)[1]
        for pairs in (pairs_a, pairs_b)
    ]

    compared = compare(pairs_a, pairs_b, ScoreOptions("score", seed=2), count=300)

    expected = percentile_interval(drawn[0] - drawn[1])
    assert compared["pearson"]["ci95"] == pytest.approx(expected)
    assert compared["pearson"]["p"] == two_sided_p(drawn[0] - drawn[1])
