"""Counts of vectors for `inspect`: number, norms, duplicates, and invalid vectors."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentkit.arrays import Float32


@dataclass(frozen=True, slots=True)
class Norms:
    min: float
    mean: float
    max: float


@dataclass(frozen=True, slots=True)
class VectorCounts:
    vectors: int
    numbers: int  # of one vector
    norm: Norms | None  # None without a finite vector
    zero: int
    nan_or_infinite: int
    duplicates: int


class VectorCounter:
    """Counts over blocks of vectors. Duplicates are found by a key of eight bytes per vector."""

    def __init__(self) -> None:
        self.count = self.broken = self.zero = self.width = 0
        self.total, self.least, self.most = 0.0, math.inf, 0.0
        self.keys: list[NDArray[np.uint64]] = []

    def add(self, vectors: Float32) -> None:
        """Add vectors (n, d)."""
        self.count += len(vectors)
        self.width = vectors.shape[1]
        self.keys.append(keys(vectors))
        whole = np.isfinite(vectors).all(axis=1)
        self.broken += int((~whole).sum())
        norms = np.sqrt(np.einsum("nd,nd->n", vectors[whole], vectors[whole], dtype=np.float64))
        if norms.size:
            self.zero += int((norms == 0).sum())
            self.total += float(norms.sum())
            self.least, self.most = min(self.least, float(norms.min())), max(self.most, float(norms.max()))

    def counts(self) -> VectorCounts:
        distinct = len(np.unique(np.concatenate(self.keys))) if self.keys else 0
        whole = self.count - self.broken
        norm = Norms(self.least, self.total / whole, self.most) if whole else None
        return VectorCounts(self.count, self.width, norm, self.zero, self.broken, self.count - distinct)


def keys(vectors: Float32) -> NDArray[np.uint64]:
    """A hash for each vector, equal for equal bits: a sum of mixed words, modulo 2^64.

    Numbers such as +1 and -1 differ in one high bit, so each product moves its high bits to all others.
    """
    words = np.ascontiguousarray(vectors, dtype="<f4").view("<u4").astype(np.uint64)
    generator = np.random.Generator(np.random.Philox(0))
    numbers = generator.integers(0, 2**63, (2, words.shape[1]), dtype=np.uint64)
    for odd in numbers * np.uint64(2) + np.uint64(1):
        words *= odd
        words ^= words >> np.uint64(32)
    return words.sum(axis=1, dtype=np.uint64)


def count_vectors(blocks: Iterable[Float32]) -> VectorCounts:
    """Count blocks (n, k, d)."""
    counter = VectorCounter()
    for block in blocks:
        counter.add(block.reshape(-1, block.shape[-1]))
    return counter.counts()
