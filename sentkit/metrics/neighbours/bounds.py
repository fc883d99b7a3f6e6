"""Upper bounds of products from few axes, which exclude most pairs of rows before their products.

A row x is a, its part in the leading principal axes, and the rest, of length r. By the inequality of Cauchy
and Schwarz x . y <= a . b + r s, and this is the product of the rows (a, r) and (b, s), which are shorter.

Letters in shapes: n rows, d dimensions, p axes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sentkit.arrays import Float32, Float64

SAMPLE = 4096  # rows that determine the axes, at most one in four
COMPARED = 512  # of them, compared with the others to estimate the share of pairs that remain
AXES = (15, 31, 63, 127)
LOST = 1e-5  # rounding errors of the parts of unit rows, and of the squares of the lengths of their rests
DENSE = 1e-3  # share of pairs above which the products of a block are computed
# Times for a pair, relative to that of a dimension in a product: to compare it, and to verify it.
COMPARE, VERIFY = 20.0, 15_000.0
WORTHWHILE = 0.8  # largest time with bounds, relative to that without


@dataclass(frozen=True, slots=True)
class Bounds:
    axes: Float32  # (d, p)
    rows: Float32  # (n, p + 1), of all rows

    def of(self, rows: Float32) -> Float32:
        return reduced(rows, self.axes)


def reduced(rows: Float32, axes: Float32) -> Float32:
    """Rows of length 1 or less, (n, d) -> (n, p + 1): their parts in the axes, and the length of the rest."""
    parts = np.empty((len(rows), axes.shape[1] + 1), np.float32)
    leading = np.matmul(rows, axes, out=parts[:, :-1])
    parts[:, -1] = np.sqrt(np.maximum(np.vecdot(rows, rows) - np.vecdot(leading, leading), 0) + LOST)
    return parts


def principal_axes(sample: Float32) -> Float64:
    """The directions of the largest squares, (n, d) -> (d, d), best first."""
    wide = sample.astype(np.float64)
    return np.linalg.eigh(wide.T @ wide)[1][:, ::-1]


def find_bounds(
    read: Callable[[slice | np.ndarray], Float32], count: int, floor: float, block: int
) -> Bounds | None:
    """The bounds that take the least time for products of at least `floor`; None if products take less.

    `read` returns rows of length 1 or less.
    """
    sample = read(np.linspace(0, count - 1, min(SAMPLE, -(-count // 4))).astype(np.intp))
    sample = sample[np.random.default_rng(0).permutation(len(sample))]
    width, directions = sample.shape[1], principal_axes(sample)
    best, least = None, WORTHWHILE * (width + COMPARE)
    for number in AXES:
        if 2 * (number + 1) > width:
            break
        axes = np.ascontiguousarray(directions[:, :number], np.float32)
        parts = reduced(sample, axes)
        share = float(np.mean(parts[:COMPARED] @ parts[COMPARED:].T >= floor - LOST))
        time = number + 1 + COMPARE + min(share * VERIFY, width)
        if time < least:
            best, least = axes, time
    if best is None:
        return None
    rows = np.empty((count, best.shape[1] + 1), np.float32)
    for start in range(0, count, block):
        span = slice(start, min(start + block, count))
        rows[span] = reduced(read(span), best)
    return Bounds(best, rows)
