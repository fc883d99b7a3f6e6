"""Between a product in float32 and the truth: how far it may be off, and what the rows it nominates are."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sentkit.metrics.similarity import SIMILARITIES

Rows = NDArray[np.float32]
Wide = NDArray[np.float64]
Places = NDArray[np.intp]

ROUNDING = 1e-5  # the similarities of a block are within this, times their magnitude, of the exact ones
CANDIDATES = 2048  # pairs of rows copied at a time for their exact similarity

# How large what the metric adds up can be, by the longer of the two rows; rounding errors grow with it.
MAGNITUDES: dict[str, Callable[[Wide, int], Wide]] = {
    "cosine": lambda lengths, width: np.ones_like(lengths),
    "dot": lambda lengths, width: lengths**2,
    "euclidean": lambda lengths, width: lengths,
    "manhattan": lambda lengths, width: lengths * np.sqrt(width),  # a bound of the sum of magnitudes
}


def lengths(vectors: Rows) -> Wide:
    """(n, d) -> (n,); in float64, as a square of 1e20 is beyond float32."""
    return np.sqrt(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64))


def exact(metric: str, left: Rows, right: Rows, places: tuple[Places, Places]) -> Wide:
    """The similarities of these rows of the one with those of the other, a few copied at a time."""
    parts = [slice(start, start + CANDIDATES) for start in range(0, len(places[0]), CANDIDATES)]
    found = [SIMILARITIES[metric](left[places[0][part]], right[places[1][part]]) for part in parts]
    return np.concatenate([np.empty(0), *found])
