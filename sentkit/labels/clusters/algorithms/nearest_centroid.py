"""The nearest centre for each row, and its distance: exact, in blocks.

Letters in shapes: n rows, d dimensions, k centres, b rows of a block.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float32]
Wide = NDArray[np.float64]
Labels = NDArray[np.intp]

BLOCK = 1 << 16  # distances in a block, which fits in the cache
MOST = 4096  # rows of a block
PAIRS = 2048  # rows and centres copied at a time for their exact distance
LEAST = 1e-37  # smaller products of float32 may become zero
ROUNDING = 1e-5  # relative error of a product in float32, by the lengths of its rows


def spans(count: int, size: int = MOST) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


class Nearest:
    """Rows that are compared with one set of centres after another.

    Apart from terms that are equal for all centres, |x - c|^2 is |c - m|^2 + 2 (c - m) m - 2 (c - m) x, with
    the mean m of the rows: products of short vectors have smaller errors. These float32 values only select
    candidates. If two centres differ by less than the error, the distance in float64 decides, and ties take
    the first centre. A matrix product rounds equal rows differently at different positions.
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.mean = sum((part_sum(rows[span]) for span in spans(len(rows))), np.zeros(rows.shape[1])) / len(
            rows
        )
        self.lost = LEAST * rows.shape[1]
        self.lengths = np.concatenate([lengths(rows[span]) for span in spans(len(rows))])

    def assign(self, centres: Wide) -> Labels:
        """The number of the nearest centre, (k, d) -> (n,)."""
        labels = np.zeros(len(self.rows), np.intp)
        if len(centres) == 1:
            return labels
        short = centres - self.mean
        offsets = np.vecdot(short, short) + 2.0 * (short @ self.mean)  # (k,)
        weights = np.ascontiguousarray(-2.0 * short.T, np.float32)  # (d, k)
        magnitudes = 2.0 * lengths(short).max() * self.lengths + np.abs(offsets).max()
        margins = 2.0 * (ROUNDING * magnitudes + self.lost)  # both distances may have a rounding error
        room = np.empty((min(MOST, max(64, BLOCK // len(centres))), len(centres)), np.float32)
        for span in spans(len(self.rows), len(room)):
            values = np.matmul(self.rows[span], weights, out=room[: span.stop - span.start])  # (b, k)
            values += offsets.astype(np.float32)
            labels[span] = self._decided(values, margins[span], centres, span.start)
        return labels

    def _decided(self, values: Rows, margins: Wide, centres: Wide, start: int) -> Labels:
        """The indexes of the smallest values; exact distances decide between values within the margin."""
        every, best = np.arange(len(values)), values.argmin(axis=1)
        least = values[every, best]
        values[every, best] = np.inf
        close = np.flatnonzero(values.min(axis=1) - least <= margins)
        if len(close):
            values[every, best] = least
            within = values[close] <= (least[close] + margins[close])[:, None]
            row, centre = np.nonzero(within)
            found = distances(self.rows, centres, start + close[row], centre)
            order = np.lexsort((centre, found, row))
            firsts = order[np.searchsorted(row, np.arange(len(close)))]
            best[close] = centre[firsts]
        return best

    def inertia(self, labels: Labels, centres: Wide) -> float:
        """The sum of the squared distances of the rows to their centres."""
        return float(sum(part.sum() for part in self._own_distances(labels, centres)))

    def own_distances(self, labels: Labels, centres: Wide) -> Wide:
        """The squared distance of each row to its centre, (n,)."""
        return np.concatenate(list(self._own_distances(labels, centres)))

    def _own_distances(self, labels: Labels, centres: Wide) -> Iterator[Wide]:
        for span in spans(len(self.rows), PAIRS):
            difference = self.rows[span] - centres[labels[span]]
            yield np.vecdot(difference, difference)

    def variance(self) -> float:
        """The variance of the rows, averaged over the dimensions."""
        zeros = np.zeros(len(self.rows), np.intp)
        return self.inertia(zeros, self.mean[None]) / self.rows.size


def part_sum(rows: Rows) -> Wide:
    found: Wide = rows.sum(axis=0, dtype=np.float64)
    return found


def lengths(rows: Rows | Wide) -> Wide:
    return np.sqrt(np.einsum("nd,nd->n", rows, rows, dtype=np.float64))


def distances(rows: Rows, others: Rows | Wide, row: Labels, other: Labels) -> Wide:
    """The squared distances of the given pairs of rows, in float64."""
    found = np.empty(len(row))
    for span in spans(len(row), PAIRS):
        difference = rows[row[span]].astype(np.float64) - others[other[span]]
        found[span] = np.vecdot(difference, difference)
    return found
