"""The silhouette, against scikit-learn."""

import numpy as np
import pytest
from sklearn.metrics import silhouette_score

from sentkit.metrics.clustering import agreement
from sentkit.metrics.clustering.agreement import Silhouette


@pytest.fixture
def rows():
    return np.random.default_rng(0).standard_normal((300, 8)).astype(np.float32) + np.float32(3)


def random():
    return np.random.default_rng(1)


@pytest.mark.parametrize("clusters", [2, 5, 40])
def test_it_is_that_of_scikit_learn(rows, clusters, monkeypatch):
    """Among forty clusters some hold one row."""
    monkeypatch.setattr(agreement, "ROWS_PER_BLOCK", 70)
    labels = (clusters * np.random.default_rng(2).random(300) ** 3).astype(int)
    expected = silhouette_score(rows.astype(np.float64), labels)

    assert Silhouette(rows, random()).of(labels) == pytest.approx(expected, abs=1e-6)


def test_a_row_far_away_leaves_the_others_their_distances(rows):
    rows[0] = 1e10
    labels = (rows[:, 0] > 3).astype(int)
    expected = silhouette_score(rows.astype(np.float64), labels)

    assert Silhouette(rows, random()).of(labels) == pytest.approx(expected, abs=1e-6)


def test_many_rows_are_sampled(rows):
    found = Silhouette(rows, random(), most=100)
    labels = (rows[:, 0] > 3).astype(int)
    expected = silhouette_score(rows[found.places], labels[found.places])

    assert len(np.unique(found.places)) == 100
    assert found.of(labels) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("labels", [np.zeros(300, int), np.arange(300)])
def test_there_is_none_of_one_cluster_nor_of_single_rows(rows, labels):
    assert Silhouette(rows, random()).of(labels) is None
