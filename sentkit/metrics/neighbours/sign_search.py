"""The corpus rows most similar to each query, among the rows with the fewest different sign bits.

Letters in shapes: n rows of the corpus, d dimensions, b queries, c candidates of a query, w words
of 64 bits.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentkit.arrays import Float32, Indices, Rows
from sentkit.formats.vectors.arrays import SelectedVectors, StoredVectors
from sentkit.formats.vectors.tensors import sign_bits
from sentkit.metrics.neighbours.search import MAX_CANDIDATES, QUERIES_PER_BLOCK, NearRows
from sentkit.metrics.similarity import exact_similarities

SIGN_ROWS_PER_BLOCK = 8192  # rows that are compared at once; their bits fit in the cache
MAX_DISTANCES = 1 << 25  # distances in memory, for all queries of a block
CANDIDATES_PER_HIT = 40

Words = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class SignSearcher:
    """A corpus of sign bits, and the vectors that give the similarities of the candidates."""

    signs: StoredVectors | SelectedVectors
    vectors: Rows  # of the same rows: +1 and -1, or exact vectors
    metric: str
    candidates: int | None  # without them, `top` decides

    def queries_at_once(self, top: int) -> int:
        """The number of queries in a block; it limits the memory for distances and candidates."""
        by_distances = MAX_DISTANCES // len(self.signs)
        by_candidates = MAX_CANDIDATES // self.count(top)
        return max(1, min(QUERIES_PER_BLOCK, by_distances, by_candidates))

    def count(self, top: int) -> int:
        """The number of candidates of a query."""
        return min(self.candidates or CANDIDATES_PER_HIT * top, len(self.signs))

    def nearest(self, queries: Float32, top: int) -> NearRows:
        """The `top` candidates for each query of a block, best first; ties in row order."""
        # The rows with the fewest different signs, (b, c).
        count = self.count(top)
        candidates = [smallest(distances, count) for distances in self.distances(queries)]
        rows = np.array(candidates, np.intp).reshape(len(queries), count)

        # The best of them by their similarities.
        pairs = (np.repeat(np.arange(len(queries)), count), rows.ravel())
        similarities = exact_similarities(self.metric, queries, self.vectors, pairs).reshape(
            rows.shape
        )
        order = np.argsort(-similarities, axis=1, kind="stable")[:, :top]
        return NearRows(
            np.take_along_axis(rows, order, 1), np.take_along_axis(similarities, order, 1)
        )

    def distances(self, queries: Float32) -> NDArray[np.unsignedinteger]:
        """The number of different signs, (b, d) -> (b, n)."""
        width = self.signs.shape[1]
        distances = np.empty((len(queries), len(self.signs)), np.min_scalar_type(width))
        query_words = words(sign_bits(queries), width)  # (w, b)
        for start in range(0, len(self.signs), SIGN_ROWS_PER_BLOCK):
            span = slice(start, start + SIGN_ROWS_PER_BLOCK)
            row_words = words(self.signs.codes(span), width)  # (w, rows)
            # Memory that all queries reuse.
            different_bits = np.empty_like(row_words)
            counts = np.empty(row_words.shape, np.uint8)
            for query, out in zip(query_words.T, distances[:, span], strict=True):
                np.bitwise_xor(row_words, query[:, None], out=different_bits)
                np.bitwise_count(different_bits, out=counts)
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
    below = np.flatnonzero(distances < limit)
    tied = np.flatnonzero(distances == limit)
    return np.sort(np.concatenate([below, tied[: count - len(below)]]))
