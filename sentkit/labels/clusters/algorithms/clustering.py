"""What a clustering is, and what may be asked of one."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from sentkit.labels.clusters.algorithms.nearest_centroid import Labels, Nearest, Rows, Wide


@dataclass(frozen=True, slots=True)
class Wanted:
    """How many clusters, and how they are looked for."""

    count: int = 0  # of clusters; hdbscan finds its own
    restarts: int = 10
    iterations: int = 300
    tolerance: float = 1e-4  # of the mean variance, as in scikit-learn
    linkage: str = "ward"
    least: int = 5  # rows of a cluster of hdbscan


@dataclass(frozen=True, slots=True)
class Clustering:
    labels: Labels  # (n,): from 0; -1 is noise
    centres: Wide  # (k, d)
    inertia: float | None = None  # None where noise has no centre
    iterations: int | None = None

    @property
    def sizes(self) -> Labels:
        return np.bincount(self.labels[self.labels >= 0], minlength=len(self.centres))

    def without_empty(self) -> "Clustering":
        """The same, with the clusters that hold no row left out, and the others numbered without a gap."""
        held = np.flatnonzero(self.sizes)
        numbers = np.full(len(self.centres) + 1, -1)  # the last is what noise finds
        numbers[held] = np.arange(len(held))
        return replace(self, labels=numbers[self.labels], centres=self.centres[held])


Find = Callable[[Rows, Wanted, np.random.RandomState], Clustering]


def best_of(clusterings: Iterable[Clustering]) -> Clustering:
    """The one of the least inertia, the first of equal ones."""
    return min(clusterings, key=lambda found: found.inertia or 0.0)


def given(rows: Rows, centres: Wide) -> Clustering:
    """Each row to the nearest of centres that are there already."""
    nearest = Nearest(rows)
    labels = nearest.assign(centres)
    return Clustering(labels, centres, nearest.inertia(labels, centres))


def of_labels(rows: Rows, labels: Labels) -> Clustering:
    """Labels from 0, or -1, with the means of what they label."""
    count = int(labels.max(initial=-1)) + 1
    centres = np.zeros((count, rows.shape[1]))
    for label in range(count):
        centres[label] = rows[labels == label].mean(axis=0, dtype=np.float64)
    noisy = bool((labels < 0).any())
    return Clustering(labels, centres, None if noisy else Nearest(rows).inertia(labels, centres))
