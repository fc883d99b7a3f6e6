"""First centres: rows, all distinct, drawn as k-means++ draws them."""

import numpy as np
import pytest
from sklearn.cluster import kmeans_plusplus

from sentkit.labels.clusters import clustering
from sentkit.labels.clusters.clustering import distant_rows, spread_out


@pytest.fixture
def rows():
    return np.random.default_rng(2).standard_normal((400, 6)).astype(np.float32)


@pytest.mark.parametrize("count", [1, 2, 30, 400])
def test_centres_are_distinct_rows(rows, count):
    found = spread_out(rows, count, np.random.RandomState(5))

    assert len(np.unique(found, axis=0)) == count
    assert {tuple(centre) for centre in found} <= {tuple(row) for row in rows.astype(np.float64)}


@pytest.mark.parametrize("seed", range(5))
def test_the_rows_drawn_are_those_of_scikit_learn(rows, seed):
    found = distant_rows(rows, 30, np.random.RandomState(seed))

    assert found == kmeans_plusplus(rows.astype(np.float64), 30, random_state=seed)[1].tolist()


def test_at_most_as_many_centres_as_distinct_rows():
    """Three of them, a thousand times over, among them two that differ in the last digit of float32."""
    distinct = np.array([[1, 1], [1, np.nextafter(np.float32(1), np.float32(2))], [5, 5]], np.float32)
    found = spread_out(np.tile(distinct, (1000, 1)), 8, np.random.RandomState(5))

    assert sorted(map(tuple, found)) == sorted(map(tuple, distinct.astype(np.float64)))


def test_a_sample_without_enough_distinct_rows_is_not_used(rows, monkeypatch):
    """Of a thousand rows all are equal but ten, of which a sample of twenty holds hardly any."""
    monkeypatch.setattr(clustering, "ROWS_WITHOUT_SAMPLE", 20)
    monkeypatch.setattr(clustering, "SAMPLE_ROWS", 20)
    monkeypatch.setattr(clustering, "SAMPLE_ROWS_PER_CENTRE", 1)
    many = np.concatenate([np.zeros((990, 6), np.float32), rows[:10]])

    assert len(spread_out(many, 11, np.random.RandomState(5))) == 11
