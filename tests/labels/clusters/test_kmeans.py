"""k-means: from given centres and from its own, which k-means++ draws, as scikit-learn's."""

import numpy as np
import pytest
from sklearn.cluster import KMeans, MiniBatchKMeans, kmeans_plusplus

from sentkit.labels.clusters import clustering
from sentkit.labels.clusters.clustering import (
    Clustering,
    ClusteringOptions,
    Nearest,
    distant_rows,
    kmeans,
    lloyd,
    minibatch,
    of_labels,
    spread_out,
)

CLUSTERS = 9


@pytest.fixture(scope="module")
def rows():
    """Two thousand of sixteen numbers, in groups that run into one another, far from the origin."""
    random = np.random.default_rng(4)
    groups = 2.0 * random.standard_normal((12, 16)) + 5.0
    return (groups[random.integers(12, size=2000)] + random.standard_normal((2000, 16))).astype(
        np.float32
    )


@pytest.fixture(scope="module")
def centres(rows):
    return rows[np.random.default_rng(8).choice(len(rows), CLUSTERS, replace=False)].astype(
        np.float64
    )


def of_scikit_learn(rows, centres, iterations, tolerance=1e-4):
    model = KMeans(len(centres), init=centres, n_init=1, max_iter=iterations, tol=tolerance)
    return model.fit(rows.astype(np.float64))


@pytest.mark.parametrize(
    ("iterations", "tolerance"),
    [(1, 1e-4), (2, 1e-4), (5, 1e-4), (300, 1e-4), (300, 0.015), (300, 0.01)],
)
def test_from_given_centres_it_is_scikit_learn(rows, centres, iterations, tolerance):
    """After so many iterations the same labels, centres, inertia and number of iterations."""
    options = ClusteringOptions(CLUSTERS, iterations=iterations, tolerance=tolerance)
    clustering = lloyd(Nearest(rows), centres, options)
    expected = of_scikit_learn(rows, centres, iterations, tolerance)

    assert clustering.labels.tolist() == expected.labels_.tolist()
    assert clustering.centres == pytest.approx(expected.cluster_centers_, abs=1e-9)
    assert clustering.inertia == pytest.approx(expected.inertia_, rel=1e-9)
    assert clustering.iterations == expected.n_iter_


@pytest.mark.parametrize("iterations", [1, 300])
@pytest.mark.parametrize("empty", [1, 3])
def test_empty_clusters_are_filled_as_scikit_learn_fills_them(rows, centres, iterations, empty):
    """Centres so far away that no row is near them take the rows that are farthest from theirs."""
    centres = np.concatenate([centres, 1000.0 + np.arange(16 * empty).reshape(empty, 16)])
    clustering = lloyd(
        Nearest(rows), centres, ClusteringOptions(len(centres), iterations=iterations)
    )
    expected = of_scikit_learn(rows, centres, iterations)

    assert clustering.inertia == pytest.approx(expected.inertia_, rel=1e-9)
    assert sorted(clustering.sizes.tolist()) == sorted(np.bincount(expected.labels_).tolist())
    assert clustering.sizes.min() > 0


@pytest.mark.parametrize("seed", range(10))
def test_a_seed_is_the_same_seed_of_scikit_learn(rows, seed):
    """The best of ten restarts, from the draws to the numbers of the clusters.

    A sample of all rows is no sample.
    """
    expected = KMeans(12, n_init=10, random_state=seed).fit(rows.astype(np.float64))

    for sample in (None, 2000):
        clusters = kmeans(rows, ClusteringOptions(12, sample=sample), np.random.RandomState(seed))
        assert clusters.labels.tolist() == expected.labels_.tolist()
        assert clusters.inertia == pytest.approx(expected.inertia_, rel=1e-9)


def test_restarts_on_a_sample_continue_on_all_rows(rows):
    """The sample is drawn first; from its centers, the result is that of scikit-learn on
    all rows.
    """
    random = np.random.RandomState(3)
    chosen = np.sort(random.choice(len(rows), 100, replace=False))
    first = kmeans(rows[chosen], ClusteringOptions(12), random).centres

    clustering = kmeans(rows, ClusteringOptions(12, sample=100), np.random.RandomState(3))
    expected = of_scikit_learn(rows, first, 300)

    assert clustering.labels.tolist() == expected.labels_.tolist()
    assert clustering.inertia == pytest.approx(expected.inertia_, rel=1e-9)
    assert clustering.iterations == expected.n_iter_


@pytest.mark.parametrize("seed", range(5))
def test_a_sample_of_equal_rows_is_not_used(seed):
    """Five of 100 rows differ from the others, so most samples of 5 rows have one distinct row.

    Of the six different rows, the nearest three are one cluster.
    """
    rows = np.concatenate([np.zeros(95), [10.0, 20.0, 30.0, 1.0, 2.0]]).astype(np.float32)[:, None]
    options = ClusteringOptions(4, sample=5)
    clustering = kmeans(rows, options, np.random.RandomState(seed)).without_empty()

    assert sorted(clustering.sizes.tolist()) == [1, 1, 1, 97]
    assert sorted(clustering.centres[:, 0]) == pytest.approx([3 / 97, 10.0, 20.0, 30.0])


def test_the_default_is_ten_restarts_of_300_iterations():
    """The defaults of scikit-learn have changed between versions."""
    default = ClusteringOptions()

    assert (default.restarts, default.iterations, default.tolerance) == (10, 300, 1e-4)


@pytest.mark.parametrize("distinct", [1, 2, 6])
def test_equal_vectors_are_one_cluster(distinct):
    rows = np.tile(np.random.default_rng(0).standard_normal((distinct, 3)), (6 // distinct, 1))
    clustering = kmeans(
        rows.astype(np.float32), ClusteringOptions(6), np.random.RandomState(0)
    ).without_empty()

    assert len(clustering.centres) == distinct
    assert sorted(np.unique(clustering.labels)) == list(range(distinct))
    assert clustering.inertia == 0.0


def test_empty_clusters_are_left_out_and_noise_stays_noise():
    labels = np.array([3, -1, 0, 3])
    centres = np.arange(8.0).reshape(4, 2)
    clustering = Clustering(labels, centres).without_empty()

    assert clustering.labels.tolist() == [1, -1, 0, 1]
    assert clustering.centres.tolist() == [[0, 1], [6, 7]]


def test_labels_are_given_their_means():
    """Two rows at 0 and 2 around 1, one at 5; inertia is undefined with noise."""
    rows = np.array([[0], [2], [5]], np.float32)
    clustering = of_labels(rows, np.array([0, 0, 1]))
    with_noise = of_labels(rows, np.array([0, 0, -1]))

    assert (clustering.centres.tolist(), clustering.inertia) == ([[1.0], [5.0]], 2.0)
    assert (with_noise.centres.tolist(), with_noise.inertia) == ([[1.0]], None)


@pytest.mark.parametrize("seed", range(5))
def test_the_rows_drawn_are_those_of_scikit_learn(rows, seed):
    drawn = distant_rows(rows[:400], 30, np.random.RandomState(seed))

    assert (
        drawn == kmeans_plusplus(rows[:400].astype(np.float64), 30, random_state=seed)[1].tolist()
    )


def test_at_most_as_many_centres_as_distinct_rows():
    """Three of them, a thousand times over, among them two that differ in the last digit of
    float32.
    """
    distinct = np.array(
        [[1, 1], [1, np.nextafter(np.float32(1), np.float32(2))], [5, 5]], np.float32
    )
    centres = spread_out(np.tile(distinct, (1000, 1)), 8, np.random.RandomState(5))

    assert sorted(map(tuple, centres)) == sorted(map(tuple, distinct.astype(np.float64)))


def test_a_sample_without_enough_distinct_rows_is_not_used(rows, monkeypatch):
    """Of a thousand rows all are equal but ten, of which a sample of twenty holds hardly any."""
    monkeypatch.setattr(clustering, "ROWS_WITHOUT_SAMPLE", 20)
    monkeypatch.setattr(clustering, "SAMPLE_ROWS", 20)
    monkeypatch.setattr(clustering, "SAMPLE_ROWS_PER_CENTRE", 1)
    mostly_equal = np.concatenate([np.zeros((990, 16), np.float32), rows[:10]])

    assert len(spread_out(mostly_equal, 11, np.random.RandomState(5))) == 11


def test_mini_batches_are_those_of_scikit_learn_with_a_state_for_each_restart(rows):
    """Centres and batches are drawn from one generator, so the seed determines both."""
    options = ClusteringOptions(CLUSTERS, restarts=2)
    clustering = minibatch(rows, options, np.random.RandomState(5))
    random = np.random.RandomState(5)
    models = []
    for _ in range(2):
        first = spread_out(rows, CLUSTERS, random).astype(np.float32)
        state = int(random.randint(2**31 - 1))
        model = MiniBatchKMeans(
            CLUSTERS,
            init=first,
            n_init=1,
            max_iter=options.iterations,
            batch_size=4096,
            random_state=state,
        )
        models.append(model.fit(rows))
    best = min(models, key=lambda model: model.inertia_)

    assert clustering.centres == pytest.approx(best.cluster_centers_, abs=1e-6)
    assert clustering.labels.tolist() == best.labels_.tolist()
