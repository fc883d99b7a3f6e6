"""The parameters and the result of a clustering. The nearest centre of each row is exact, in blocks.

Letters in shapes: n rows, d dimensions, k centres, b rows of a block.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from sentkit.arrays import Float32, Float64, Indices
from sentkit.metrics.rounding import UNDERFLOW, lengths, margins

DISTANCES_PER_BLOCK = 1 << 16  # distances in a block, which fits in the cache
ROWS_PER_BLOCK = 4096  # rows of a block
PAIRS_PER_BLOCK = 2048  # rows and centres copied at a time for their exact distance


def spans(count: int, size: int = ROWS_PER_BLOCK) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


class Nearest:
    """Rows that are compared with one set of centres after another.

    Apart from terms that are equal for all centres, |x - c|^2 is |c - m|^2 + 2 (c - m) m - 2 (c - m) x, with
    the mean m of the rows: products of short vectors have smaller errors. These float32 values only select
    candidates. If two centres differ by less than the error, the distance in float64 decides, and ties take
    the first centre. A matrix product rounds equal rows differently at different positions.
    """

    def __init__(self, rows: Float32) -> None:
        self.rows = rows
        self.mean = sum((part_sum(rows[span]) for span in spans(len(rows))), np.zeros(rows.shape[1])) / len(
            rows
        )
        self.lost = UNDERFLOW * rows.shape[1]
        self.lengths = np.concatenate([lengths(rows[span]) for span in spans(len(rows))])

    def assign(self, centres: Float64) -> Indices:
        """The number of the nearest centre, (k, d) -> (n,)."""
        labels = np.zeros(len(self.rows), np.intp)
        if len(centres) == 1:
            return labels
        short = centres - self.mean
        offsets = np.vecdot(short, short) + 2.0 * (short @ self.mean)  # (k,)
        weights = np.ascontiguousarray(-2.0 * short.T, np.float32)  # (d, k)
        magnitudes = 2.0 * lengths(short).max() * self.lengths + np.abs(offsets).max()
        reach = margins(magnitudes, self.lost)
        room = np.empty(
            (min(ROWS_PER_BLOCK, max(64, DISTANCES_PER_BLOCK // len(centres))), len(centres)), np.float32
        )
        for span in spans(len(self.rows), len(room)):
            values = np.matmul(self.rows[span], weights, out=room[: span.stop - span.start])  # (b, k)
            values += offsets.astype(np.float32)
            labels[span] = self._decided(values, reach[span], centres, span.start)
        return labels

    def _decided(self, values: Float32, reach: Float64, centres: Float64, start: int) -> Indices:
        """The indexes of the smallest values; exact distances decide between values within the margin."""
        every, best = np.arange(len(values)), values.argmin(axis=1)
        least = values[every, best]
        values[every, best] = np.inf
        close = np.flatnonzero(values.min(axis=1) - least <= reach)
        if len(close):
            values[every, best] = least
            within = values[close] <= (least[close] + reach[close])[:, None]
            row, centre = np.nonzero(within)
            exact = distances(self.rows, centres, start + close[row], centre)
            order = np.lexsort((centre, exact, row))
            firsts = order[np.searchsorted(row, np.arange(len(close)))]
            best[close] = centre[firsts]
        return best

    def inertia(self, labels: Indices, centres: Float64) -> float:
        """The sum of the squared distances of the rows to their centres."""
        return float(sum(part.sum() for part in self._own_distances(labels, centres)))

    def own_distances(self, labels: Indices, centres: Float64) -> Float64:
        """The squared distance of each row to its centre, (n,)."""
        return np.concatenate(list(self._own_distances(labels, centres)))

    def _own_distances(self, labels: Indices, centres: Float64) -> Iterator[Float64]:
        for span in spans(len(self.rows), PAIRS_PER_BLOCK):
            difference = self.rows[span] - centres[labels[span]]
            yield np.vecdot(difference, difference)

    def variance(self) -> float:
        """The variance of the rows, averaged over the dimensions."""
        zeros = np.zeros(len(self.rows), np.intp)
        return self.inertia(zeros, self.mean[None]) / self.rows.size


def part_sum(rows: Float32) -> Float64:
    total: Float64 = rows.sum(axis=0, dtype=np.float64)
    return total


def distances(rows: Float32, others: Float32 | Float64, row: Indices, other: Indices) -> Float64:
    """The squared distances of the given pairs of rows, in float64."""
    squared = np.empty(len(row))
    for span in spans(len(row), PAIRS_PER_BLOCK):
        difference = rows[row[span]].astype(np.float64) - others[other[span]]
        squared[span] = np.vecdot(difference, difference)
    return squared


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
