"""Similarities of two rows, row by row or block by block; a larger value is always more similar.

Letters in shapes: n and m rows, d dimensions.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentkit.arrays import Float32, Float64, Indices, Rows

SMALLEST_NORM = 1e-8  # minimum length of a row, as in torch's cosine_similarity
CONVERTED_ELEMENTS = 49_152  # elements converted at a time: two chunks of float64 fit in the cache
TILE_ROWS = (8, 32)  # rows of differences at a time in `_manhattan_blocks`, for the same reason


def _cosine(a: Float64, b: Float64) -> Float64:
    squares_a = np.maximum(np.vecdot(a, a), SMALLEST_NORM**2)
    squares_b = np.maximum(np.vecdot(b, b), SMALLEST_NORM**2)
    # One root of the product instead of a product of roots: equal rows then give exactly 1.
    cosines = np.vecdot(a, b) / np.sqrt(squares_a * squares_b)
    return np.clip(cosines, -1.0, 1.0)


def _euclidean(a: Float64, b: Float64) -> Float64:
    difference = a - b
    return 0.0 - np.sqrt(np.vecdot(difference, difference))  # 0.0 - 0.0 is 0.0, but -(0.0) is -0.0


def _manhattan(a: Float64, b: Float64) -> Float64:
    return 0.0 - np.abs(a - b).sum(axis=1)


def _chunked(rule: Callable[[Float64, Float64], Float64]) -> Callable[[Float32, Float32], Float64]:
    """Compute a metric in float64, a few rows at a time: as exact as all rows at once, in half the
    time.
    """

    def similarity(a: Float32, b: Float32) -> Float64:
        size = max(1, CONVERTED_ELEMENTS // max(1, a.shape[1]))
        similarities = np.empty(len(a))
        for start in range(0, len(a), size):
            rows = slice(start, start + size)
            similarities[rows] = rule(a[rows].astype(np.float64), b[rows].astype(np.float64))
        return similarities

    return similarity


SIMILARITIES: dict[str, Callable[[Float32, Float32], Float64]] = {
    "cosine": _chunked(_cosine),
    "dot": _chunked(np.vecdot),
    "euclidean": _chunked(_euclidean),
    "manhattan": _chunked(_manhattan),
}


@dataclass(frozen=True, slots=True)
class BlockMetric:
    """One metric between blocks: `prepare` each block once, then `compare` it with others."""

    prepare: Callable[[Float32], NDArray]
    compare: Callable[[NDArray, NDArray], Float32]  # (n, d), (m, d) -> (n, m)


def _unit_rows_in_float64(rows: Float32) -> Float64:
    wide = rows.astype(np.float64)  # the square of 1e20 exceeds float32
    norms = np.sqrt(np.vecdot(wide, wide))
    unit_rows: Float64 = wide / np.maximum(norms, SMALLEST_NORM)[:, None]
    return unit_rows


def _unit_rows(rows: Float32) -> Float32:
    return _unit_rows_in_float64(rows).astype(np.float32)


def _cosine_blocks(a: Float32, b: Float32) -> Float32:
    cosines = a @ b.T
    return np.clip(cosines, -1.0, 1.0, out=cosines)  # rounding of unit rows reaches 1.0000001


def _euclidean_blocks(a: Float64, b: Float64) -> Float32:
    """|a|^2 + |b|^2 - 2ab in float64: float32 is too imprecise for small distances between long
    rows.
    """
    squares = a @ b.T
    squares *= -2.0
    squares += np.vecdot(a, a)[:, None]
    squares += np.vecdot(b, b)
    np.maximum(squares, 0.0, out=squares)  # rounding can make the distance of equal rows negative
    return (0.0 - np.sqrt(squares, out=squares)).astype(np.float32)


def _manhattan_blocks(a: Float32, b: Float32) -> Float32:
    distances = np.empty((len(a), len(b)), np.float32)
    ones = np.ones(a.shape[1], np.float32)  # a product with ones is faster than a sum
    height, width = TILE_ROWS
    for i in range(0, len(a), height):
        for j in range(0, len(b), width):
            differences = a[i : i + height, None] - b[None, j : j + width]  # (8, 32, d)
            np.abs(differences, out=differences)
            distances[i : i + height, j : j + width] = differences @ ones
    return np.subtract(0.0, distances, out=distances)


BLOCKS: dict[str, BlockMetric] = {
    "cosine": BlockMetric(_unit_rows, _cosine_blocks),
    "dot": BlockMetric(lambda rows: rows, lambda a, b: a @ b.T),
    "euclidean": BlockMetric(lambda rows: rows.astype(np.float64), _euclidean_blocks),
    "manhattan": BlockMetric(lambda rows: rows, _manhattan_blocks),
}


def _products_of_float64(a: Float64, b: Float64) -> Float32:
    return (a @ b.T).astype(np.float32)


# Products that are exact to the digits of float32, of which those of BLOCKS lose two. Short
# Euclidean distances between long rows are not: see `has_cancelled`.
EXACT_BLOCKS: dict[str, BlockMetric] = {
    **BLOCKS,
    "cosine": BlockMetric(_unit_rows_in_float64, _products_of_float64),
    "dot": BlockMetric(lambda rows: rows.astype(np.float64), _products_of_float64),
}


# Of |a|^2 + |b|^2: of a smaller |a - b|^2, products in float64 lose more digits than float32 has.
CANCELLATION = 1e-7


def has_cancelled(distances: Float32, a: Float64, b: Float64) -> NDArray[np.bool_]:
    """Whether the values of `_euclidean_blocks` are imprecise, (n, m)."""
    squares = np.vecdot(a, a)[:, None] + np.vecdot(b, b)
    return np.square(distances, dtype=np.float64) < CANCELLATION * squares


# A matrix product of float32 rounds equal rows differently at different positions. So its values
# only select candidates, within `margins`, and exact values in float64 decide.

ROUNDING = 1e-5  # relative error of a product in float32, by its magnitude
UNDERFLOW = 1e-37  # smaller products of float32 may become zero
CANDIDATES = 2048  # pairs of rows copied at a time for their exact similarity


def lengths(vectors: Float32 | Float64) -> Float64:
    """(n, d) -> (n,); in float64, because the square of 1e20 exceeds float32."""
    return np.sqrt(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64))


def margins(magnitudes: Float64, underflow: float = 0.0) -> Float64:
    """A larger difference between two values is certain: both may be rounded, and lose
    `underflow`.
    """
    return 2.0 * (ROUNDING * magnitudes + underflow)


def exact_similarities(metric: str, a: Float32, b: Rows, pairs: tuple[Indices, Indices]) -> Float64:
    """The exact similarities of the given pairs of rows; few rows are copied at a time."""
    similarity = SIMILARITIES[metric]
    indices_a, indices_b = pairs
    similarities = np.empty(len(indices_a))
    for start in range(0, len(indices_a), CANDIDATES):
        chunk = slice(start, start + CANDIDATES)
        similarities[chunk] = similarity(a[indices_a[chunk]], b[indices_b[chunk]])
    return similarities
