"""Agreement of a clustering with gold classes or another one, stability of several, and the silhouette.

Most functions take a contingency table: the number of rows in class i and cluster j.
Letters in shapes: n rows, c classes, k clusters.

Letters in shapes: n rows of the sample, k clusters.
"""

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from sentkit.arrays import Float32, Float64, Indices
from sentkit.metrics.similarity import BLOCKS

Table = NDArray[np.int64]


MEASURES = ("acc", "nmi", "ari", "ami", "homogeneity", "completeness", "v_measure")


def measures(classes: Indices, clusters: Indices) -> dict[str, float]:
    """All measures, by name."""
    table = contingency(classes, clusters)
    homogeneity, completeness, v = v_measure(table)
    adjusted = (adjusted_rand(table), adjusted_mutual_information(table))
    return dict(zip(MEASURES, (accuracy(table), v, *adjusted, homogeneity, completeness, v), strict=True))


def contingency(classes: Indices, clusters: Indices) -> Table:
    """(n,), (n,) -> (c, k); labels without rows are omitted."""
    (rows, i), (columns, j) = (np.unique(each, return_inverse=True) for each in (classes, clusters))
    flat = np.bincount(i * len(columns) + j, minlength=len(rows) * len(columns))
    return flat.reshape(len(rows), len(columns))


def matching(table: Table) -> tuple[Indices, Indices]:
    """The one-to-one assignment of classes to clusters that covers the most rows (Kuhn, 1955)."""
    from scipy.optimize import linear_sum_assignment

    i, j = linear_sum_assignment(table, maximize=True)
    return i, j


def is_matching(table: Table) -> bool:
    """True if each class is exactly one cluster, and each cluster one class."""
    cells = table > 0
    return bool((cells.sum(axis=0) == 1).all() and (cells.sum(axis=1) == 1).all())


def accuracy(table: Table) -> float:
    """The share of rows in the cluster that is assigned to their class."""
    return int(table[matching(table)].sum()) / int(table.sum())


def adjusted_rand(table: Table) -> float:
    """The Rand index, corrected for chance (Hubert and Arabie, 1985)."""
    n = int(table.sum())
    both, left, right = (int((x * (x - 1) // 2).sum()) for x in (table, table.sum(axis=1), table.sum(axis=0)))
    if left == right == both:
        return 1.0
    expected = left * right / (n * (n - 1) // 2)
    return (both - expected) / ((left + right) / 2 - expected)


def entropy(counts: NDArray[np.int64]) -> float:
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def mutual_information(table: Table) -> float:
    n = table.sum()
    i, j = np.nonzero(table)
    shares = table[i, j] / n
    ratios = np.log(table[i, j]) + np.log(n) - np.log(table.sum(axis=1)[i]) - np.log(table.sum(axis=0)[j])
    return max(0.0, float((shares * ratios).sum()))


def v_measure(table: Table) -> tuple[float, float, float]:
    """Homogeneity, completeness, and their harmonic mean (Rosenberg and Hirschberg, 2007).

    The harmonic mean equals the normalized mutual information with the arithmetic mean of the entropies.
    """
    left, right = entropy(table.sum(axis=1)), entropy(table.sum(axis=0))
    shared = mutual_information(table) if left and right else 0.0  # without rounding errors
    homogeneity = min(1.0, shared / left) if left else 1.0
    completeness = min(1.0, shared / right) if right else 1.0
    if not homogeneity + completeness:
        return 0.0, 0.0, 0.0
    return homogeneity, completeness, 2 * homogeneity * completeness / (homogeneity + completeness)


def adjusted_mutual_information(table: Table) -> float:
    """Mutual information corrected for chance, by the arithmetic mean (Vinh, Epps and Bailey, 2010)."""
    left, right = entropy(table.sum(axis=1)), entropy(table.sum(axis=0))
    if (not left and not right) or is_matching(table):
        return 1.0
    if not left or not right:
        return 0.0
    expected = expected_information(table.sum(axis=1), table.sum(axis=0))
    room = (left + right) / 2 - expected
    gained = mutual_information(table) - expected
    least = float(np.finfo(np.float64).eps)
    return gained / (min(room, -least) if room < 0 else max(room, least))


def expected_information(left: Table, right: Table) -> float:
    """The expected mutual information of random tables with these row and column sums."""
    n = int(left.sum())
    factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])  # log x!
    sizes, times = (list(each) for each in zip(*map(_counted, (left, right)), strict=True))
    total = 0.0
    for a, often in zip(sizes[0], times[0], strict=True):
        for b, as_often in zip(sizes[1], times[1], strict=True):
            total += often * as_often * _expected_share(a, b, n, factorials)
    return total


def _counted(sums: Table) -> tuple[list[int], list[int]]:
    values, times = np.unique(sums, return_counts=True)
    return values.tolist(), times.tolist()


def _expected_share(a: int, b: int, n: int, factorials: Float64) -> float:
    """The term of a class of size a and a cluster of size b, summed over all sizes of their intersection."""
    shared = np.arange(max(1, a + b - n), min(a, b) + 1)
    fixed = factorials[a] + factorials[b] + factorials[n - a] + factorials[n - b] - factorials[n]
    rest = factorials[shared] + factorials[a - shared] + factorials[b - shared]
    chances = np.exp(fixed - rest - factorials[n - a - b + shared])
    return float((shared / n * (np.log(shared) + math.log(n) - math.log(a) - math.log(b)) * chances).sum())


def agreement(clusterings: Sequence[Indices]) -> float | None:
    """The mean adjusted Rand index over all pairs; None for a single clustering."""
    indexes = [adjusted_rand(contingency(*pair)) for pair in combinations(clusterings, 2)]
    return sum(indexes) / len(indexes) if indexes else None


def agreeing(labels: Indices, others: Sequence[Indices]) -> Float64:
    """For each row, (n,): the share of `others` in which its cluster matches the one in `labels`."""
    own = np.unique(labels, return_inverse=True)[1]
    counts = np.zeros(len(labels))
    for other in others:
        columns, theirs = np.unique(other, return_inverse=True)
        matched = np.full(len(columns), -1)  # unmatched clusters agree with nothing
        partners, clusters = matching(contingency(labels, other))
        matched[clusters] = partners
        counts += matched[theirs] == own
    return counts / max(1, len(others))


SAMPLE_ROWS = 4000  # rows; all their distances are held in memory
ROWS_PER_BLOCK = 500


class Silhouette:
    """A sample of rows with their distances, which are reused for many clusterings."""

    def __init__(self, rows: Float32, random: np.random.Generator, most: int = SAMPLE_ROWS) -> None:
        many = len(rows) > most
        self.places = np.sort(random.choice(len(rows), most, replace=False)) if many else np.arange(len(rows))
        blocks = BLOCKS["euclidean"]
        sample = rows[self.places]
        shift = sample.mean(axis=0, dtype=np.float64)
        prepared = blocks.prepare(sample - shift)
        self.distances = np.empty((len(sample), len(sample)), np.float32)
        for start in range(0, len(sample), ROWS_PER_BLOCK):
            part = slice(start, start + ROWS_PER_BLOCK)
            np.negative(blocks.compare(prepared[part], prepared), out=self.distances[part])
        np.fill_diagonal(self.distances, 0.0)

    def of(self, labels: Indices) -> float | None:
        """The mean over the sample; None if it has one cluster only, or one row in each cluster."""
        _, own, sizes = np.unique(labels[self.places], return_inverse=True, return_counts=True)
        if not 1 < len(sizes) < len(own):
            return None
        members = np.equal.outer(own, np.arange(len(sizes))).astype(np.float32)  # (n, k)
        sums = (self.distances @ members).astype(np.float64)
        every = np.arange(len(own))
        inner = sums[every, own] / np.maximum(sizes[own] - 1, 1)
        sums /= sizes
        sums[every, own] = np.inf
        outer = sums.min(axis=1)
        larger = np.maximum(inner, outer)
        values = np.divide(outer - inner, larger, out=np.zeros_like(larger), where=larger > 0)
        return float(np.where(sizes[own] > 1, values, 0.0).mean())
