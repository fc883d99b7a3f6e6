"""The directions of vectors, independent of their lengths: mean cosine and uniformity.

Wang and Isola (arXiv:2005.10242) define uniformity on the unit sphere, so vectors are scaled to length 1.
Letters in shapes: n rows, d dimensions.
"""

import math

import numpy as np

from sentkit.arrays import Float32, Float64

SAMPLE_VECTORS = 20_000  # vectors; the distances of all their pairs are computed
LEFT_ROWS, RIGHT_ROWS = 512, 2048  # rows and columns of a block


def nonzero_directions(rows: Float64) -> Float64:
    """Scale rows to length 1, (n, d) -> (m, d); zero vectors are omitted."""
    lengths = np.sqrt(np.vecdot(rows, rows))
    return rows[lengths > 0] / lengths[lengths > 0, None]


class Directions:
    """The sum of unit vectors, and a uniform random sample of them."""

    def __init__(self, width: int, seed: int) -> None:
        self.count = 0
        self.total = np.zeros(width)
        self.sample = np.empty((0, width), np.float32)
        self.random = np.random.Generator(np.random.Philox(seed))

    def add(self, units: Float64) -> None:
        """Add unit vectors (n, d)."""
        self.total += units.sum(axis=0)
        held = len(self.sample)
        fitting = units[: SAMPLE_VECTORS - held]
        if len(fitting):
            self.sample.resize((held + len(fitting), units.shape[1]), refcheck=False)  # without a copy
            self.sample[held:] = fitting
            self.count += len(fitting)
        self._replace(units[len(fitting) :])

    def _replace(self, units: Float64) -> None:
        """Row number k replaces a random sampled row with probability SAMPLE_VECTORS / k (algorithm R)."""
        numbers = np.arange(self.count, self.count + len(units))
        places = self.random.integers(0, numbers + 1)
        chosen = np.flatnonzero(places < len(self.sample))
        self.sample[places[chosen]] = units[chosen]  # of two rows at one index the later one is kept
        self.count += len(units)

    def mean_cosine(self) -> float | None:
        """The mean over all pairs of two rows: the squared sum of unit vectors, minus each row's own 1."""
        if self.count < 2:
            return None
        mean = (self.total @ self.total - self.count) / (self.count * (self.count - 1))
        return min(1.0, max(-1.0, float(mean)))  # limit rounding errors

    @property
    def sampled(self) -> bool:
        """True if the sample does not contain all vectors."""
        return self.count > len(self.sample)

    def uniformity(self) -> float | None:
        return uniformity(self.sample)


def uniformity(units: Float32) -> float | None:
    """Log mean exp(-2 |x - y|^2) over all pairs of rows (n, d), equal rows included; lower is more even."""
    count, total = len(units), 0.0
    if count < 2:
        return None
    for top in range(0, count, LEFT_ROWS):
        rows = units[top : top + LEFT_ROWS]
        for start in range(top, count, RIGHT_ROWS):
            block = rows @ units[start : start + RIGHT_ROWS].T
            block -= 1.0
            block *= 4.0  # -2 |x - y|^2 of two unit vectors
            np.exp(block, out=block)
            if start < top + LEFT_ROWS:
                block = np.triu(block, top - start + 1)
            total += float(block.sum(dtype=np.float64))
    return math.log(total / (count * (count - 1) / 2))
