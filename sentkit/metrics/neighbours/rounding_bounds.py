"""Bounds of the rounding errors of products in float32, and the exact similarity of candidates."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sentkit.metrics.similarity import SIMILARITIES

Rows = NDArray[np.float32]
Wide = NDArray[np.float64]
Places = NDArray[np.intp]

ROUNDING = 1e-5  # relative error of the similarities of a block, by their magnitude
CANDIDATES = 2048  # pairs of rows copied at a time for their exact similarity

# The largest term that the metric adds up, by the length of the longer row; rounding errors are proportional
# to it.
MAGNITUDES: dict[str, Callable[[Wide, int], Wide]] = {
    "cosine": lambda lengths, width: np.ones_like(lengths),
    "dot": lambda lengths, width: lengths**2,
    "euclidean": lambda lengths, width: lengths,
    "manhattan": lambda lengths, width: lengths * np.sqrt(width),  # an upper bound of the sum of magnitudes
}


def lengths(vectors: Rows) -> Wide:
    """(n, d) -> (n,); in float64, because the square of 1e20 exceeds float32."""
    return np.sqrt(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64))


def exact(metric: str, left: Rows, right: Rows, places: tuple[Places, Places]) -> Wide:
    """The exact similarities of the given pairs of rows; few rows are copied at a time."""
    parts = [slice(start, start + CANDIDATES) for start in range(0, len(places[0]), CANDIDATES)]
    found = [SIMILARITIES[metric](left[places[0][part]], right[places[1][part]]) for part in parts]
    return np.concatenate([np.empty(0), *found])
