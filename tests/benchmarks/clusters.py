"""k-means against scikit-learn's and faiss's, which is to be installed beside sentkit: clusters.py
[SEEDS]

Fifty iterations each, as faiss makes them all, and as many restarts. faiss looks at 256 rows for a
cluster, so a separate line lets it use all rows, as the other two do. Inertias are of all rows;
seconds are CPU time.
"""

import os
import statistics
import sys
import time

import numpy as np
from timing import print_table, ratios
from usage import check_arguments

from sentkit.labels.clusters.clustering import ClusteringOptions, kmeans, of_centres

ROWS = 50_000
WIDTH = 384
CLUSTERS = 100
GROUPS = 300  # of the rows
ITERATIONS = 50
RESTARTS = 1


def grouped(random):
    """Unit vectors in groups that run into one another."""
    groups = random.standard_normal((GROUPS, WIDTH), dtype=np.float32)
    centres = groups[random.integers(GROUPS, size=ROWS)]
    rows = 0.5 * centres + random.standard_normal((ROWS, WIDTH), dtype=np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def sentkit(rows, seed):
    options = ClusteringOptions(CLUSTERS, restarts=RESTARTS, iterations=ITERATIONS, tolerance=-1.0)
    return kmeans(rows, options, np.random.RandomState(seed)).centres


def scikit_learn(rows, seed):
    from sklearn.cluster import KMeans

    model = KMeans(CLUSTERS, n_init=RESTARTS, max_iter=ITERATIONS, tol=0.0, random_state=seed)
    model.fit(rows)
    return model.cluster_centers_.astype(np.float64)


def faiss(rows, seed, rows_of_cluster=256):
    import faiss

    model = faiss.Kmeans(
        WIDTH,
        CLUSTERS,
        niter=ITERATIONS,
        nredo=RESTARTS,
        seed=seed,
        max_points_per_centroid=rows_of_cluster,
    )
    model.train(rows)
    return model.centroids.astype(np.float64)


def main():
    check_arguments(__doc__, most=1)
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    rows = grouped(np.random.default_rng(0))
    threads = os.environ.get("OMP_NUM_THREADS") or os.cpu_count()
    print(f"{ROWS} rows of {WIDTH}, k = {CLUSTERS}, {ITERATIONS} iterations, {threads} threads")
    ways = {
        "faiss": faiss,
        "faiss, all rows": lambda rows, seed: faiss(rows, seed, ROWS),
        "sentkit": sentkit,
        "scikit-learn": scikit_learn,
    }
    seconds = {name: [] for name in ways}
    inertias = {name: [] for name in ways}
    for seed in range(seeds):
        for name, way in ways.items():
            start = time.process_time()
            centres = way(rows, seed)
            seconds[name].append(time.process_time() - start)
            inertias[name].append(of_centres(rows, centres).inertia or 0.0)
    inertia_of_faiss = statistics.fmean(inertias["faiss"])
    lines = []
    for name in ways:
        least = f"{min(seconds[name]):.1f} s"
        relative = [f"{ratio:.2f}" for ratio in ratios(seconds[name], seconds["faiss"])]
        inertia = statistics.fmean(inertias[name])
        relative_inertia = f"{inertia / inertia_of_faiss:.4f}"
        lines.append([name, least, *relative, f"{inertia:.1f}", relative_inertia])
    columns = "CPU time | relative to faiss: least | median | inertia | relative to faiss"
    print_table(f"what | {columns}", lines)


if __name__ == "__main__":
    main()
