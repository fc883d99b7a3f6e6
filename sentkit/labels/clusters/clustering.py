"""Clustering: our k-means with exact nearest centres, and the algorithms of scikit-learn and faiss.

k-means is Lloyd's iteration on all rows. Convergence and empty clusters are handled as in
scikit-learn. The initial centres are distant rows (k-means++, Arthur and Vassilvitskii, 2007). The
random draws are also those of scikit-learn, so equal seeds give equal centres if no sample is
drawn.

Letters in shapes: n rows, d dimensions, k clusters, b rows of a block, t rows tried for one centre.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sentkit.arrays import Float32, Float64, Indices
from sentkit.errors import UnavailableError
from sentkit.metrics.similarity import UNDERFLOW, lengths, margins

if TYPE_CHECKING:
    from sentkit.metrics.device import Device

DISTANCES_PER_BLOCK = 1 << 16  # distances in a block, which fits in the cache
ROWS_PER_BLOCK = 4096  # rows of a block
PAIRS_PER_BLOCK = 2048  # rows and centres copied at a time for their exact distance
SLACK = 1e-6  # relative; more than the rounding errors of limits
MOST_ROWS = 0.9  # share of the rows; to copy more takes longer than their products


def spans(count: int, size: int = ROWS_PER_BLOCK) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


class CentreValues:
    """Values of rows x and centres c in float32: the smallest value of a row is that of its nearest
    centre.

    Apart from terms that are equal for all centres, |x - c|^2 is |c - m|^2 + 2 (c - m) m - 2 (c -
    m) x, with the mean m of the rows: products of short vectors have smaller errors. Nothing
    overflows, because `read_points` refuses vectors with numbers above 1e15.
    """

    def __init__(self, centres: Float64, mean: Float64) -> None:
        self.centred_centres = centres - mean
        lengths_of_centres = lengths(self.centred_centres)
        offsets = np.vecdot(self.centred_centres, self.centred_centres)
        offsets += 2.0 * (self.centred_centres @ mean)  # (k,)

        # The largest length of a weight, and the largest offset: they bound the error of a value.
        self.weight_bound = 2.0 * lengths_of_centres.max()
        self.offset_bound = np.abs(offsets).max() + self.weight_bound * np.linalg.norm(mean)

        # value = offset - 2 (c - m) x
        self.weights = np.ascontiguousarray(-2.0 * self.centred_centres.T, np.float32)  # (d, k)
        self.offsets = offsets.astype(np.float32)

    def of_rows(self, rows: Float32, out: Float32) -> Float32:
        """The values of all centres, (b, d) -> (b, k), in the memory `out`."""
        values = np.matmul(rows, self.weights, out=out)
        values += self.offsets
        return values

    def errors(self, squares_to_mean: Float64) -> Float64:
        """A larger difference between two values of a row is certain, (b,)."""
        magnitudes = self.weight_bound * np.sqrt(squares_to_mean) + self.offset_bound
        return margins(magnitudes, UNDERFLOW * len(self.weights))


class Nearest:
    """Rows that are compared with one set of centres after another.

    Values in float32 only select candidates, see `CentreValues`. If two centres differ by less than
    the error, the distance in float64 decides, and ties take the first centre. A matrix product
    rounds equal rows differently at different positions.

    From the third call on, a row whose label cannot change gets no product: its second nearest
    centre is farther than its own by more than its own centre and the fastest one have moved since
    (Hamerly, 2010). With a device, only rows that its products leave undecided get a product here.
    """

    def __init__(self, rows: Float32, device: "Device | None" = None) -> None:
        self.rows = rows
        sums = (rows[span].sum(axis=0, dtype=np.float64) for span in spans(len(rows)))
        self.mean = sum(sums, np.zeros(rows.shape[1])) / len(rows)
        # The centres and the labels of the last call.
        self.centres = np.empty((0, 0))
        self.labels = np.zeros(len(rows), np.intp)
        self.squares_to_mean = self.squares_to_centres(self.labels, self.mean[None])
        # From the second call on, how far the centres may move before a label can change.
        self.tracks_drift = False
        self.drift = np.empty(0)  # (k,): the sum of the movements since all limits were computed
        self.drift_limits = np.empty(0)  # (n,): of the drift of the label of a row
        self.on_device = None if device is None else device.points(rows, self.mean)

    def assign(self, centres: Float64) -> Indices:
        """The number of the nearest centre, (k, d) -> (n,). Do not change the result."""
        count = len(centres)
        if count == 1:
            return np.zeros(len(self.rows), np.intp)
        centre_values = CentreValues(centres, self.mean)

        rows_to_compare: Indices | None
        if self.on_device is None:
            rows_to_compare = self._advance_drift(centres)
            self.centres = centres.copy()
            self.labels = self.labels.copy()
        else:
            self.labels, rows_to_compare = self.on_device.nearest(centre_values.centred_centres)

        # Memory that all blocks reuse.
        size = min(ROWS_PER_BLOCK, max(64, DISTANCES_PER_BLOCK // count))
        value_buffer = np.empty((size, count), np.float32)
        row_buffer = np.empty((size, len(self.mean)), np.float32)

        row_count = len(self.rows) if rows_to_compare is None else len(rows_to_compare)
        for span in spans(row_count, size):
            if rows_to_compare is None:
                indices = np.arange(span.start, span.stop)
                rows = self.rows[span]
            else:
                indices = rows_to_compare[span]
                # `take` without the mode, or into new memory, is far slower
                rows = self.rows.take(indices, 0, row_buffer[: len(indices)], "clip")
            squares_to_mean = self.squares_to_mean[indices]
            errors = centre_values.errors(squares_to_mean)
            values = centre_values.of_rows(rows, value_buffer[: len(rows)])
            labels, smallest, second = two_smallest(values)
            settle(values, labels, smallest + errors, second - smallest <= errors, rows, centres)
            self.labels[indices] = labels

            if self.tracks_drift:
                # The second distance less the smallest, from the difference of their squares. The
                # errors make it a lower bound; that of a row within them is negative, so the next
                # call compares the row again.
                squares_to_mean += errors
                sums = np.sqrt(second + squares_to_mean) + np.sqrt(smallest + squares_to_mean)
                gaps = (second - smallest - 2.0 * errors) / sums
                self.drift_limits[indices] = self.drift[labels] + (1.0 - SLACK) * gaps
        return self.labels

    def _advance_drift(self, centres: Float64) -> Indices | None:
        """Add the movement of the centres; return the rows whose label it may change, or None for
        all.
        """
        is_same_shape = centres.shape == self.centres.shape
        if is_same_shape and self.tracks_drift:
            moved = lengths(centres - self.centres)
            self.drift += moved + moved.max()
            may_keep = self.drift_limits > (1.0 + SLACK) * self.drift[self.labels]
            rows_to_compare = np.flatnonzero(~may_keep)  # also those with the limit NaN
            if len(rows_to_compare) < MOST_ROWS * len(self.rows):
                return rows_to_compare
        self.tracks_drift = is_same_shape
        self.drift = np.zeros(len(centres))
        self.drift_limits = np.empty(len(self.rows) if is_same_shape else 0)
        return None

    def inertia_of(self, labels: Indices, centres: Float64) -> float:
        """The sum of the squared distances of the rows to their centres."""
        squares = self.squares_to_centres(labels, centres)
        return float(sum(squares[span].sum() for span in spans(len(squares), PAIRS_PER_BLOCK)))

    def squares_to_centres(self, labels: Indices, centres: Float64) -> Float64:
        """The squared distance of each row to its centre, (n,)."""
        return squared_distances(self.rows, centres, np.arange(len(self.rows)), labels)


def two_smallest(values: Float32) -> tuple[Indices, Float32, Float32]:
    """The column of the smallest value of each row, this value, and the second smallest; (b, k) ->
    (b,).
    """
    every_row = np.arange(len(values))
    columns = values.argmin(axis=1)
    smallest = values[every_row, columns]
    values[every_row, columns] = np.inf
    second = values.min(axis=1)
    values[every_row, columns] = smallest
    return columns, smallest, second


def settle(
    values: Float32,
    labels: Indices,
    limits: Float64,
    is_close: NDArray[np.bool_],
    rows: Float32,
    centres: Float64,
) -> None:
    """Decide the labels of the close rows by exact distances to the centres with a value up to the
    limit of the row.
    """
    close = np.flatnonzero(is_close)
    if len(close):
        row, centre = np.nonzero(values[close] <= limits[close, None])
        exact_squares = np.full((len(close), len(centres)), np.inf)
        exact_squares[row, centre] = squared_distances(rows, centres, close[row], centre)
        labels[close] = exact_squares.argmin(axis=1)


def squared_distances(
    a: Float32, b: Float32 | Float64, indices_a: Indices, indices_b: Indices
) -> Float64:
    """The squared distances of the given pairs of rows of a and b, in float64."""
    squared = np.empty(len(indices_a))
    for span in spans(len(indices_a), PAIRS_PER_BLOCK):
        difference = a[indices_a[span]].astype(np.float64) - b[indices_b[span]]
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
    device: "Device | None" = None  # that compares rows with centres; None: the CPU


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
        nonempty = np.flatnonzero(self.sizes)
        new_labels = np.full(len(self.centres) + 1, -1)  # the last entry maps noise to -1
        new_labels[nonempty] = np.arange(len(nonempty))
        return replace(self, labels=new_labels[self.labels], centres=self.centres[nonempty])


def best_of(clusterings: Iterable[Clustering]) -> Clustering:
    """The clustering with the smallest inertia; the first one in a tie."""
    return min(clusterings, key=lambda clustering: clustering.inertia or 0.0)


def of_centres(rows: Float32, centres: Float64, device: "Device | None" = None) -> Clustering:
    """Assign each row to the nearest of the given centres."""
    nearest = Nearest(rows, device)
    labels = nearest.assign(centres)
    return Clustering(labels, centres, nearest.inertia_of(labels, centres))


def of_labels(rows: Float32, labels: Indices) -> Clustering:
    """A clustering from labels (from 0, or -1 for noise); a centre is the mean of a cluster."""
    count = int(labels.max(initial=-1)) + 1
    centres = np.zeros((count, rows.shape[1]))
    for label in range(count):
        centres[label] = rows[labels == label].mean(axis=0, dtype=np.float64)
    inertia = None
    if not (labels < 0).any():
        inertia = Nearest(rows).inertia_of(labels, centres)
    return Clustering(labels, centres, inertia)


ROWS_WITHOUT_SAMPLE = 20_000  # rows; up to this number no sample is drawn
SAMPLE_ROWS = 10_000  # minimum size of a sample
SAMPLE_ROWS_PER_CENTRE = 64  # minimum size of a sample per centre


def kmeans(rows: Float32, options: ClusteringOptions, random: np.random.RandomState) -> Clustering:
    """The best of several restarts on the rows, or on a sample; it then continues on all.

    A sample with fewer distinct rows than clusters is not used.
    """
    if options.sample is not None and options.sample < len(rows):
        chosen = np.sort(random.choice(len(rows), options.sample, replace=False))
        best = kmeans(rows[chosen], replace(options, sample=None), random)
        if len(best.centres) == options.count:
            return lloyd(Nearest(rows, options.device), best.centres, options)
    nearest = Nearest(rows, options.device)
    # A generator, because the labels of all restarts may need much memory.
    initial_centres = (spread_out(rows, options.count, random) for _ in range(options.restarts))
    return best_of(lloyd(nearest, centres, options) for centres in initial_centres)


def lloyd(nearest: Nearest, centres: Float64, options: ClusteringOptions) -> Clustering:
    """Iterate from initial centres (k, d) until no label changes or the centres hardly move.

    `nearest` has the rows and gives the number of the nearest centre of each. The sums of the rows
    of clusters are in float64; only rows that change cluster are added again.
    """
    rows = nearest.rows
    mean_variance = float(nearest.squares_to_mean.sum()) / rows.size
    smallest_shift = options.tolerance * mean_variance
    sums = np.zeros(centres.shape)  # of the rows of each cluster
    labels = np.full(len(rows), -1)
    changed = True
    iterations = 0
    while changed and iterations < options.iterations:
        iterations += 1
        old_labels = labels
        labels = nearest.assign(centres)
        moved_rows = np.flatnonzero(labels != old_labels)
        changed = len(moved_rows) > 0
        add_rows(sums, rows, moved_rows, labels, sign=1)
        had_label = old_labels[moved_rows] >= 0
        add_rows(sums, rows, moved_rows[had_label], old_labels, sign=-1)
        old_centres = centres
        centres = means(nearest, sums, labels, old_centres)
        if float(np.square(centres - old_centres).sum()) <= smallest_shift:
            break
    if changed:
        labels = nearest.assign(centres)
    return Clustering(labels, centres, nearest.inertia_of(labels, centres), iterations)


def add_rows(sums: Float64, rows: Float32, indices: Indices, labels: Indices, *, sign: int) -> None:
    """Add these rows to the sums of their clusters, or subtract them, some at a time."""
    order = indices[np.argsort(labels[indices], kind="stable")]
    ends = np.cumsum(np.bincount(labels[indices], minlength=len(sums)))
    for total, indices_of_cluster in zip(sums, np.split(order, ends[:-1]), strict=True):
        for span in spans(len(indices_of_cluster)):
            total += sign * rows[indices_of_cluster[span]].sum(axis=0, dtype=np.float64)


def means(nearest: Nearest, sums: Float64, labels: Indices, old_centres: Float64) -> Float64:
    """The new centres, (k, d). An empty cluster takes the row farthest from its old centre."""
    sums = sums.copy()
    counts = np.bincount(labels, minlength=len(sums))
    empty = np.flatnonzero(counts == 0)
    if len(empty):
        squares = nearest.squares_to_centres(labels, old_centres)
        farthest = np.argsort(-squares, kind="stable")[: len(empty)]
        farthest = farthest[squares[farthest] > 0]
        for label, row in zip(empty, farthest, strict=False):
            vector = nearest.rows[row].astype(np.float64)
            sums[labels[row]] -= vector
            counts[labels[row]] -= 1
            sums[label] = vector
            counts[label] = 1
    return np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], old_centres)


def spread_out(rows: Float32, count: int, random: np.random.RandomState) -> Float64:
    """Choose `count` distinct rows as initial centres, (count, d), or fewer."""
    size = max(SAMPLE_ROWS, SAMPLE_ROWS_PER_CENTRE * count)
    if len(rows) > max(ROWS_WITHOUT_SAMPLE, size):
        sample = rows[np.sort(random.choice(len(rows), size, replace=False))]
        chosen = distant_rows(sample, count, random)
        if len(chosen) == count:
            return sample[chosen].astype(np.float64)
    return rows[distant_rows(rows, count, random)].astype(np.float64)


def distant_rows(rows: Float32, count: int, random: np.random.RandomState) -> list[int]:
    """The indices of `count` rows, or of all distinct rows if there are fewer.

    This is greedy k-means++: several rows are drawn, in proportion to the squared distance of each
    row to the nearest chosen row, and the one that reduces the sum of these most is chosen.
    """
    # Distances to the mean are shorter than those to 0, so products have smaller errors.
    centred = (rows - rows.mean(axis=0, dtype=np.float64)).astype(np.float32)
    squared_lengths = lengths(centred) ** 2

    def distances_to(tried: Indices) -> Float64:
        """Squared distances of all rows to the tried ones, (n, t); those near 0 are exact, so that
        equal rows have 0.
        """
        magnitudes = squared_lengths[:, None] + squared_lengths[tried]
        distances: Float64 = magnitudes - centred @ (2.0 * centred[tried]).T
        is_near = distances <= margins(magnitudes, UNDERFLOW * rows.shape[1])
        row, column = np.divmod(np.flatnonzero(is_near), len(tried))  # np.nonzero takes longer
        distances[row, column] = squared_distances(rows, rows, row, tried[column])
        return distances

    chosen = [int(random.random_sample() * len(rows))]
    to_nearest = distances_to(np.array(chosen))[:, 0]  # to the nearest chosen row, (n,)
    tries = 2 + int(math.log(count))
    while len(chosen) < count and to_nearest.any():
        # The rows that are tried.
        cumulated = np.cumsum(to_nearest)
        draws = random.random_sample(tries) * cumulated[-1]
        tried = np.minimum(np.searchsorted(cumulated, draws, side="right"), len(rows) - 1)

        # The best of them: each column is `to_nearest` if that row is chosen, (n, t).
        to_nearest_with = np.minimum(to_nearest[:, None], distances_to(tried))
        best = int(to_nearest_with.sum(axis=0).argmin())
        to_nearest = np.ascontiguousarray(to_nearest_with[:, best])
        chosen.append(int(tried[best]))
    return chosen


MINIBATCH = 4096  # rows
FAISS_ITERATIONS = 50  # faiss always runs all of them


def minibatch(
    rows: Float32, options: ClusteringOptions, random: np.random.RandomState
) -> Clustering:
    """k-means on mini-batches (Sculley, 2010), and then the nearest centre for each row."""
    from sklearn.cluster import MiniBatchKMeans

    clusterings = []
    for _ in range(options.restarts):
        # One for each distinct row, if these are fewer than `count`.
        initial_centres = spread_out(rows, options.count, random).astype(np.float32)
        model = MiniBatchKMeans(
            len(initial_centres),
            init=initial_centres,
            n_init=1,
            max_iter=options.iterations,
            batch_size=MINIBATCH,
            compute_labels=False,
            random_state=int(random.randint(2**31 - 1)),
        ).fit(rows)
        # The labels are those of `Nearest`, which are exact.
        clustering = of_centres(rows, model.cluster_centers_.astype(np.float64), options.device)
        clusterings.append(replace(clustering, iterations=int(model.n_iter_)))
    return best_of(clusterings)


def agglomerative(
    rows: Float32, options: ClusteringOptions, random: np.random.RandomState
) -> Clustering:
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


def faiss_kmeans(
    rows: Float32, options: ClusteringOptions, random: np.random.RandomState
) -> Clustering:
    """k-means on at most 256 rows per cluster, and then the nearest centre for each row."""
    try:
        import faiss
    except ImportError as error:
        advice = "pip install faiss-cpu"
        raise UnavailableError(
            "--algorithm faiss needs the package faiss", advice=advice
        ) from error
    rounds = min(options.iterations, FAISS_ITERATIONS)
    model = faiss.Kmeans(
        rows.shape[1],
        options.count,
        niter=rounds,
        nredo=options.restarts,
        seed=int(random.randint(2**31 - 1)),
        min_points_per_centroid=1,
    )
    model.train(np.ascontiguousarray(rows))
    clustering = of_centres(rows, model.centroids.astype(np.float64), options.device)
    return replace(clustering, iterations=rounds)


@dataclass(frozen=True, slots=True)
class Algorithm:
    run: Callable[[Float32, ClusteringOptions, np.random.RandomState], Clustering]
    is_random: bool = True  # the seed can change the result
    takes_count: bool = True  # takes the number of clusters
    max_rows: int | None = None  # rows: time and memory are quadratic


ALGORITHMS: dict[str, Algorithm] = {
    "kmeans": Algorithm(kmeans),
    "minibatch": Algorithm(minibatch),
    "agglomerative": Algorithm(agglomerative, is_random=False, max_rows=20_000),
    "hdbscan": Algorithm(hdbscan, is_random=False, takes_count=False, max_rows=50_000),
    "faiss": Algorithm(faiss_kmeans),
}
