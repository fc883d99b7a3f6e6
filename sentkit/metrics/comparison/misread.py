"""Vectors whose bytes were read as float32 and are something else; and vectors that are missing.

Axes: n vectors, w numbers as read, d the width of the right vectors.
"""

import numpy as np
from numpy.typing import NDArray

from sentkit.arrays import Float32

# Numbers of embeddings have such magnitudes; numbers of wrong bytes rarely do.
SMALLEST = 1e-8
LARGEST = 1e4
PLAUSIBLE = 0.99  # share of the numbers

FORMATS = {
    "float32 in the other byte order": ">f4",
    "float64 instead of float32": "<f8",
    "float64 in the other byte order": ">f8",
    "float16 instead of float32": "<f2",
    "float16 in the other byte order": ">f2",
}


def read_as(number_format: str, vectors: Float32) -> Float32:
    """The numbers (n, k, d) in the bytes of vectors (n, k, w), in one of FORMATS."""
    raw = np.ascontiguousarray(vectors, "<f4").view(FORMATS[number_format])
    with np.errstate(over="ignore", invalid="ignore"):
        return raw.astype(np.float32)


def plausible_share(values: NDArray[np.floating]) -> float:
    """The share of numbers that embeddings can have."""
    magnitudes = np.abs(values)
    is_usual = (magnitudes >= SMALLEST) & (magnitudes <= LARGEST) | (values == 0)
    return float(is_usual.mean())


def find_format(vectors: Float32, width: int) -> str | None:
    """The one of FORMATS that vectors (n, k, w) have in truth, if they make no sense as float32.

    `width` is that of the right vectors.
    """
    if not vectors.size or plausible_share(vectors) >= PLAUSIBLE:
        return None
    for name, dtype in FORMATS.items():
        is_fitting = vectors.shape[-1] * 4 == width * np.dtype(dtype).itemsize
        if is_fitting and plausible_share(read_as(name, vectors)) >= PLAUSIBLE:
            return name
    return None


def is_missing(vectors: Float32) -> NDArray[np.bool_]:
    """(n,): whether a row of vectors (n, k, d) has a zero vector, NaN or infinity."""
    is_finite = np.isfinite(vectors).all(axis=(1, 2))
    has_zero_vector = np.any(~np.any(vectors, axis=2), axis=1)
    missing: NDArray[np.bool_] = ~is_finite | has_zero_vector
    return missing
