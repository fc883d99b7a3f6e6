"""Search in a corpus of sign bits: candidates by Hamming distance, then their exact similarities.

Letters in shapes: n rows of the corpus, b queries, c candidates of a query, w words of 64 bits.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sentkit.arrays import Float32, Indices
from sentkit.formats.vectors.storage import StoredVectors, Vectors, sign_bits
from sentkit.metrics.neighbours.search import (
    MAX_CANDIDATES,
    QUERIES_PER_BLOCK,
    Nearest,
    Reached,
    Searcher,
)
from sentkit.metrics.rounding import exact

ROWS_PER_BLOCK = 8192  # rows that are compared at once; their bits fit in the cache
MAX_DISTANCES = 1 << 25  # distances in memory, for all queries of a block
CANDIDATES_PER_HIT = 40

Words = NDArray[np.uint64]


class SignSearcher:
    """A corpus of sign bits, and the vectors that give the similarities of the candidates."""

    def __init__(self, signs: StoredVectors, vectors: Vectors, metric: str, candidates: int | None) -> None:
        """`vectors` has the same rows: +1 and -1, or exact vectors. Without `candidates`, `top` decides."""
        self.signs, self.vectors, self.metric, self.candidates = signs, vectors, metric, candidates

    def at_once(self, top: int) -> int:
        """The number of queries in a block; it limits the memory for distances and candidates."""
        limits = QUERIES_PER_BLOCK, MAX_DISTANCES // len(self.signs), MAX_CANDIDATES // self.count(top)
        return max(1, min(limits))

    def count(self, top: int) -> int:
        """The number of candidates of a query."""
        return min(self.candidates or CANDIDATES_PER_HIT * top, len(self.signs))

    def reaching(self, queries: Float32, threshold: float) -> Iterator[Reached]:
        """All rows that reach the threshold, so distances would not save work."""
        return Searcher(self.vectors, self.metric).reaching(queries, threshold)

    def nearest(self, queries: Float32, top: int) -> Nearest:
        """The `top` candidates for each query of a block, best first; ties in row order."""
        count = self.count(top)
        rows = np.stack([smallest(distances, count) for distances in self.distances(queries)])  # (b, c)
        query = np.repeat(np.arange(len(queries)), count)
        similarities = exact(self.metric, queries, self.vectors, (query, rows.ravel())).reshape(rows.shape)
        order = np.argsort(-similarities, axis=1, kind="stable")[:, :top]
        return Nearest(np.take_along_axis(rows, order, 1), np.take_along_axis(similarities, order, 1))

    def distances(self, queries: Float32) -> NDArray[np.unsignedinteger]:
        """The number of different signs, (b, d) -> (b, n)."""
        width = self.signs.shape[1]
        distances = np.empty((len(queries), len(self.signs)), np.min_scalar_type(width))
        wanted = words(sign_bits(queries), width)  # (w, b)
        for start in range(0, len(self.signs), ROWS_PER_BLOCK):
            span = slice(start, start + ROWS_PER_BLOCK)
            corpus = words(self.signs.codes(span), width)  # (w, rows)
            different, counts = np.empty_like(corpus), np.empty(corpus.shape, np.uint8)  # reused
            for query, out in zip(wanted.T, distances[:, span], strict=True):
                np.bitwise_xor(corpus, query[:, None], out=different)
                np.bitwise_count(different, out=counts)
                np.add.reduce(counts, axis=0, dtype=distances.dtype, out=out)
        return distances


def words(bits: NDArray[np.uint8], width: int) -> Words:
    """Sign bits (n, bytes) as words (w, n). Bits behind the last number become zero."""
    padded = np.zeros((len(bits), -(-width // 64) * 8), np.uint8)
    padded[:, : bits.shape[1]] = bits
    padded[:, bits.shape[1] - 1] &= 0xFF << (-width % 8) & 0xFF
    return np.ascontiguousarray(padded.view(np.uint64).T)


def smallest(distances: NDArray[np.unsignedinteger], count: int) -> Indices:
    """The rows with the `count` smallest distances, in row order; the first rows of a tie."""
    limit = np.partition(distances, count - 1)[count - 1]
    below, tied = np.flatnonzero(distances < limit), np.flatnonzero(distances == limit)
    return np.sort(np.concatenate([below, tied[: count - len(below)]]))
