"""The algorithms by name, with their flags and properties; those of scikit-learn and faiss."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sentkit.arrays import Float32
from sentkit.errors import UnavailableError
from sentkit.labels.clusters.algorithms.clustering import (
    Clustering,
    ClusteringOptions,
    best_of,
    of_centres,
    of_labels,
)
from sentkit.labels.clusters.algorithms.kmeans import kmeans, spread_out

MINIBATCH = 4096  # rows
FAISS_ITERATIONS = 50  # faiss always runs all of them


def minibatch(rows: Float32, options: ClusteringOptions, random: np.random.RandomState) -> Clustering:
    """k-means on mini-batches (Sculley, 2010), and then the nearest centre for each row."""
    from sklearn.cluster import MiniBatchKMeans

    clusterings = []
    for _ in range(options.restarts):
        first = spread_out(rows, options.count, random).astype(np.float32)
        model = MiniBatchKMeans(
            len(first),
            init=first,
            n_init=1,
            max_iter=options.iterations,
            batch_size=MINIBATCH,
            compute_labels=False,
            random_state=seed_from(random),
        )
        model.fit(rows)
        best = of_centres(rows, model.cluster_centers_.astype(np.float64))
        clusterings.append(Clustering(best.labels, best.centres, best.inertia, int(model.n_iter_)))
    return best_of(clusterings)


def agglomerative(rows: Float32, options: ClusteringOptions, random: np.random.RandomState) -> Clustering:
    """Hierarchical clustering by merging pairs of clusters; deterministic."""
    from sklearn.cluster import AgglomerativeClustering

    if len(rows) == 1:
        return of_labels(rows, np.zeros(1, np.intp))
    model = AgglomerativeClustering(options.count, linkage=options.linkage)
    return of_labels(rows, model.fit_predict(rows).astype(np.intp))


def hdbscan(rows: Float32, options: ClusteringOptions, random: np.random.RandomState) -> Clustering:
    """Dense regions, in any number, and noise (Campello and others, 2013); deterministic."""
    from sklearn.cluster import HDBSCAN

    model = HDBSCAN(min_cluster_size=options.min_size, copy=True)
    return of_labels(rows, model.fit_predict(rows).astype(np.intp))


def faiss(rows: Float32, options: ClusteringOptions, random: np.random.RandomState) -> Clustering:
    """k-means on at most 256 rows per cluster, and then the nearest centre for each row."""
    rounds = min(options.iterations, FAISS_ITERATIONS)
    model = _faiss().Kmeans(
        rows.shape[1],
        options.count,
        niter=rounds,
        nredo=options.restarts,
        seed=seed_from(random),
        min_points_per_centroid=1,
    )
    model.train(np.ascontiguousarray(rows))
    best = of_centres(rows, model.centroids.astype(np.float64))
    return Clustering(best.labels, best.centres, best.inertia, rounds)


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise UnavailableError(
            "--algorithm faiss needs the package faiss", advice="pip install faiss-cpu"
        ) from error
    return faiss


def seed_from(random: np.random.RandomState) -> int:
    return int(random.randint(2**31 - 1))


@dataclass(frozen=True, slots=True)
class Algorithm:
    run: Callable[[Float32, ClusteringOptions, np.random.RandomState], Clustering]
    flags: tuple[str, ...]  # flags of this algorithm only
    random: bool = True  # the seed can change the result
    counted: bool = True  # takes the number of clusters
    max_rows: int | None = None  # rows: time and memory are quadratic


ALGORITHMS: dict[str, Algorithm] = {
    "kmeans": Algorithm(kmeans, ("--n-init", "--sample")),
    "minibatch": Algorithm(minibatch, ("--n-init",)),
    "agglomerative": Algorithm(agglomerative, ("--linkage",), random=False, max_rows=20_000),
    "hdbscan": Algorithm(hdbscan, ("--min-cluster-size",), random=False, counted=False, max_rows=50_000),
    "faiss": Algorithm(faiss, ("--n-init",)),
}
