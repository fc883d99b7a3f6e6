"""The parameters and the result of a clustering."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from sentkit.arrays import Float32, Float64, Indices
from sentkit.labels.clusters.algorithms.nearest_centroid import Nearest


@dataclass(frozen=True, slots=True)
class ClusteringOptions:
    """The parameters of a clustering algorithm."""

    count: int = 0  # number of clusters; hdbscan ignores it
    restarts: int = 10
    sample: int | None = None  # number of rows for the restarts of kmeans; None: all rows
    iterations: int = 300
    tolerance: float = 1e-4  # relative to the mean variance, as in scikit-learn
    linkage: str = "ward"
    min_size: int = 5  # minimum number of rows in a cluster of hdbscan


@dataclass(frozen=True, slots=True)
class Clustering:
    labels: Indices  # (n,): from 0; -1 is noise
    centres: Float64  # (k, d)
    inertia: float | None = None  # None if there is noise, which has no centre
    iterations: int | None = None

    @property
    def sizes(self) -> Indices:
        return np.bincount(self.labels[self.labels >= 0], minlength=len(self.centres))

    def without_empty(self) -> "Clustering":
        """Remove clusters without rows, and renumber the others without gaps."""
        held = np.flatnonzero(self.sizes)
        numbers = np.full(len(self.centres) + 1, -1)  # the last entry maps noise to -1
        numbers[held] = np.arange(len(held))
        return replace(self, labels=numbers[self.labels], centres=self.centres[held])


def best_of(clusterings: Iterable[Clustering]) -> Clustering:
    """The clustering with the smallest inertia; the first one in a tie."""
    return min(clusterings, key=lambda each: each.inertia or 0.0)


def of_centres(rows: Float32, centres: Float64) -> Clustering:
    """Assign each row to the nearest of the given centres."""
    nearest = Nearest(rows)
    labels = nearest.assign(centres)
    return Clustering(labels, centres, nearest.inertia(labels, centres))


def of_labels(rows: Float32, labels: Indices) -> Clustering:
    """A clustering from labels (from 0, or -1 for noise), with the mean of each cluster as its centre."""
    count = int(labels.max(initial=-1)) + 1
    centres = np.zeros((count, rows.shape[1]))
    for label in range(count):
        centres[label] = rows[labels == label].mean(axis=0, dtype=np.float64)
    noisy = bool((labels < 0).any())
    return Clustering(labels, centres, None if noisy else Nearest(rows).inertia(labels, centres))
