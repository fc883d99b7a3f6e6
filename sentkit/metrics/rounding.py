"""Bounds of the rounding errors of products in float32, and the exact similarity of candidates.

A matrix product of float32 rounds equal rows differently at different positions. So its values only select
candidates, within `margins`, and exact values in float64 decide.
"""

from collections.abc import Callable

import numpy as np

from sentkit.arrays import Float32, Float64, Indices, Rows
from sentkit.metrics.similarity import SIMILARITIES

ROUNDING = 1e-5  # relative error of a product in float32, by its magnitude
UNDERFLOW = 1e-37  # smaller products of float32 may become zero
CANDIDATES = 2048  # pairs of rows copied at a time for their exact similarity

# The largest term that the metric adds up, by the length of the longer row; rounding errors are proportional
# to it.
MAGNITUDES: dict[str, Callable[[Float64, int], Float64]] = {
    "cosine": lambda lengths, width: np.ones_like(lengths),
    "dot": lambda lengths, width: lengths**2,
    "euclidean": lambda lengths, width: lengths,
    "manhattan": lambda lengths, width: lengths * np.sqrt(width),  # an upper bound of the sum of magnitudes
}


def lengths(vectors: Float32 | Float64) -> Float64:
    """(n, d) -> (n,); in float64, because the square of 1e20 exceeds float32."""
    return np.sqrt(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64))


def margins(magnitudes: Float64, lost: float = 0.0) -> Float64:
    """A larger difference between two values is certain: both may have a rounding error, and lose `lost`."""
    return 2.0 * (ROUNDING * magnitudes + lost)


def exact(metric: str, left: Float32, right: Rows, pairs: tuple[Indices, Indices]) -> Float64:
    """The exact similarities of the given pairs of rows; few rows are copied at a time."""
    parts = [slice(start, start + CANDIDATES) for start in range(0, len(pairs[0]), CANDIDATES)]
    similarities = [SIMILARITIES[metric](left[pairs[0][part]], right[pairs[1][part]]) for part in parts]
    return np.concatenate([np.empty(0), *similarities])
