"""Agreement of clusterings, against worked examples and scikit-learn."""

from itertools import permutations

import numpy as np
import pytest
from sklearn import metrics

from sentkit.metrics.clustering.agreement import MEASURES, contingency, measures


@pytest.mark.parametrize(
    ("classes", "clusters", "acc", "nmi", "ari"),
    [
        ([0, 0, 1, 1, 2, 2], [1, 1, 0, 0, 0, 2], 0.833333, 0.739667, 0.444444),
        ([0, 0, 0, 1, 1, 1], [0, 0, 1, 2, 2, 1], 0.666667, None, None),
    ],
)
def test_worked_examples(classes, clusters, acc, nmi, ari):
    """In the second each cluster matches one class at most: the share of majorities would be .833333."""
    found = measures(np.array(classes), np.array(clusters))

    assert found["acc"] == pytest.approx(acc, abs=5e-7)
    assert nmi is None or found["nmi"] == pytest.approx(nmi, abs=5e-7)
    assert ari is None or found["ari"] == pytest.approx(ari, abs=5e-7)


def labelings():
    random = np.random.default_rng(0)
    for n, classes, clusters in [(2, 2, 2), (10, 2, 3), (50, 5, 4), (400, 12, 12), (2000, 30, 7), (60, 1, 5)]:
        yield random.integers(classes, size=n), random.integers(clusters, size=n)
    truth = random.integers(6, size=500)
    yield truth, np.where(random.random(500) < 0.3, random.integers(6, size=500), truth)
    yield truth, (truth + 1) % 6
    yield np.arange(40), np.arange(40)
    yield np.arange(40), np.zeros(40, int)
    yield np.zeros(40, int), np.zeros(40, int)


THEIRS = {
    "nmi": metrics.normalized_mutual_info_score,
    "ari": metrics.adjusted_rand_score,
    "ami": metrics.adjusted_mutual_info_score,
    "homogeneity": metrics.homogeneity_score,
    "completeness": metrics.completeness_score,
    "v_measure": metrics.v_measure_score,
}


@pytest.mark.parametrize("pair", list(labelings()), ids=lambda pair: f"{len(pair[0])}")
@pytest.mark.parametrize("name", THEIRS)
def test_they_are_those_of_scikit_learn(name, pair):
    assert measures(*pair)[name] == pytest.approx(THEIRS[name](*pair), abs=1e-9)


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_one_cluster_shares_exactly_no_information(classes):
    truth, one = np.arange(20) % classes, np.zeros(20, int)

    for found in (measures(truth, one), measures(one, truth)):
        assert (found["nmi"], found["ami"], found["v_measure"]) == (0, 0, 0)


def test_accuracy_is_that_of_the_best_of_all_matchings():
    random = np.random.default_rng(3)
    classes, clusters = random.integers(4, size=30), random.integers(5, size=30)
    best = max(
        sum(order[c] == t for t, c in zip(classes, clusters, strict=True)) / 30
        for order in permutations([0, 1, 2, 3, -1])
    )

    assert measures(classes, clusters)["acc"] == best


def test_every_measure_has_its_name():
    assert tuple(measures(np.array([0, 1]), np.array([1, 1]))) == MEASURES


def test_a_table_counts_rows():
    """Noise, -1, is a cluster like any."""
    assert contingency(np.array([0, 0, 5]), np.array([-1, 2, 2])).tolist() == [[1, 1], [0, 1]]


@pytest.mark.parametrize("count", range(2, 80))
def test_a_cluster_for_each_class_agrees_entirely(count):
    """However few rows they hold: 100 is 100, though all there is to compare with is rounding."""
    found = measures(np.arange(count), np.roll(np.arange(count), 1))

    assert list(found.values()) == pytest.approx([1.0] * len(MEASURES), abs=1e-15)
    assert max(found.values()) == 1.0


@pytest.mark.parametrize("seed", range(20))
def test_no_measure_is_above_one(seed):
    labels = np.repeat(np.arange(3), 20 + seed)

    assert max(measures(labels, (labels + 1) % 3).values()) == 1.0
