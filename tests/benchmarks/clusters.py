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

from sentkit.labels.clusters.clustering import ClusteringOptions, kmeans, of_centres

ROWS, WIDTH, CLUSTERS, GROUPS, ITERATIONS, RESTARTS = 50_000, 384, 100, 300, 50, 1


def grouped(random):
    """Unit vectors in groups that run into one another."""
    groups = random.standard_normal((GROUPS, WIDTH), dtype=np.float32)
    rows = 0.5 * groups[random.integers(GROUPS, size=ROWS)] + random.standard_normal(
        (ROWS, WIDTH), dtype=np.float32
    )
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def ours(rows, seed):
    options = ClusteringOptions(CLUSTERS, restarts=RESTARTS, iterations=ITERATIONS, tolerance=-1.0)
    return kmeans(rows, options, np.random.RandomState(seed))


def scikit_learn(rows, seed):
    from sklearn.cluster import KMeans

    model = KMeans(CLUSTERS, n_init=RESTARTS, max_iter=ITERATIONS, tol=0.0, random_state=seed).fit(
        rows
    )
    return model.cluster_centers_.astype(np.float64)


def faiss(rows, seed, most=256):
    import faiss

    model = faiss.Kmeans(
        WIDTH, CLUSTERS, niter=ITERATIONS, nredo=RESTARTS, seed=seed, max_points_per_centroid=most
    )
    model.train(rows)
    return model.centroids.astype(np.float64)


def main():
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    rows = grouped(np.random.default_rng(0))
    threads = os.environ.get("OMP_NUM_THREADS") or os.cpu_count()
    print(f"{ROWS} rows of {WIDTH}, k = {CLUSTERS}, {ITERATIONS} iterations, {threads} threads")
    ways = {
        "faiss": faiss,
        "faiss, all rows": lambda rows, seed: faiss(rows, seed, ROWS),
        "sentkit": lambda rows, seed: ours(rows, seed).centres,
        "scikit-learn": scikit_learn,
    }
    seconds, inertias = ({name: [] for name in ways} for _ in range(2))
    for seed in range(seeds):
        for name, way in ways.items():
            start = time.process_time()
            centres = way(rows, seed)
            seconds[name].append(time.process_time() - start)
            inertias[name].append(of_centres(rows, centres).inertia or 0.0)
    rows = []
    for name, own in seconds.items():
        relative = (f"{ratio:.2f}" for ratio in ratios(own, seconds["faiss"]))
        inertia, theirs = (statistics.fmean(inertias[each]) for each in (name, "faiss"))
        rows.append(
            [name, f"{min(own):.1f} s", *relative, f"{inertia:.1f}", f"{inertia / theirs:.4f}"]
        )
    columns = "CPU time | relative to faiss: least | median | inertia | relative to faiss"
    print_table(f"what | {columns}", rows)


if __name__ == "__main__":
    main()
