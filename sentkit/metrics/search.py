"""The rows of a corpus most like each query: exact, and the same from blocks of any size.

Letters in shapes: n rows of the corpus, d dimensions, b queries, w corpus rows of a block, k rows found for
each query.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentkit.metrics.candidates import MAGNITUDES, ROUNDING, Places, Rows, Wide, exact, lengths
from sentkit.metrics.similarity import BLOCKS, SMALLEST_NORM

HIGH, WIDE = 1024, 1024  # queries and corpus rows of a block
FIRST = 64  # corpus rows of the first block, in which every row is a candidate
NOMINEES = 1 << 20  # candidates kept, for all queries of a block


@dataclass(frozen=True, slots=True)
class Nearest:
    """For each query the most alike rows of the corpus, the best first, ties in the order of the rows."""

    rows: Places  # (b, k)
    similarities: Wide  # (b, k)


class Searcher:
    """A corpus and a metric; the vectors are held as they are, and nothing else of their size."""

    def __init__(self, corpus: Rows, metric: str = "cosine") -> None:
        self.corpus, self.metric = corpus, metric
        self.lengths = lengths(corpus)

    def at_once(self, top: int) -> int:
        """How many queries make a block, so that the candidates for each fit into memory."""
        return max(1, min(HIGH, NOMINEES // max(1, min(top, len(self.corpus)))))

    def nearest(self, queries: Rows, top: int) -> Nearest:
        """The `top` rows for each of a block of queries, or all if there are fewer."""
        top = min(top, len(self.corpus))
        nominees = Nominees(self, queries, top)
        if not nominees.wanted:
            return Nearest(np.empty((len(queries), top), np.intp), np.empty((len(queries), top)))
        products = self.metric in ("cosine", "dot")
        blocks = self._product_blocks(queries) if products else self._other_blocks(queries)
        with np.errstate(over="ignore"):  # a distance beyond float32 is told by the exact similarity
            for start, block in blocks:
                nominees.add(block, start)
        return nominees.decided()

    def margins(self, queries: Rows) -> NDArray[np.float32]:
        """(b,): how far a row must lie behind another in a block to be certainly behind it."""
        if self.metric == "dot":
            magnitudes = np.ones(len(queries))  # `_product_blocks` makes them so
        else:
            longest = np.maximum(lengths(queries), self.lengths.max(initial=0.0))
            magnitudes = MAGNITUDES[self.metric](longest, queries.shape[1])
        return (2.0 * ROUNDING * magnitudes).astype(np.float32)  # either of two similarities may be off

    def _spans(self) -> Iterator[slice]:
        """Few rows at first, which are all nominated, and then as many as have been seen, up to a block."""
        start, width = 0, FIRST
        while start < len(self.corpus):
            yield slice(start, min(start + width, len(self.corpus)))
            start += width
            width = min(start, WIDE)

    def _product_blocks(self, queries: Rows) -> Iterator[tuple[int, Rows]]:
        """Products of rows of length 1; of "dot" the corpus is scaled as a whole, which keeps the order."""
        longest = self.lengths if self.metric == "cosine" else self.lengths.max()
        scales = np.broadcast_to(1.0 / np.maximum(longest, SMALLEST_NORM), len(self.corpus))
        prepared = BLOCKS["cosine"].prepare(queries)
        widest = max(FIRST, WIDE)
        part = np.empty((widest, queries.shape[1]), np.float32)
        room = np.empty(len(queries) * widest, np.float32)  # fresh memory for each block costs a third more
        for span in self._spans():
            width = span.stop - span.start
            rows = np.multiply(self.corpus[span], scales[span, None], out=part[:width], casting="same_kind")
            out = room[: len(queries) * width].reshape(len(queries), width)
            yield span.start, np.matmul(prepared, rows.T, out=out)

    def _other_blocks(self, queries: Rows) -> Iterator[tuple[int, Rows]]:
        blocks = BLOCKS[self.metric]
        prepared = blocks.prepare(queries)
        for span in self._spans():
            yield span.start, blocks.compare(prepared, blocks.prepare(self.corpus[span]))


class Nominees:
    """Those rows of the corpus that may be among the best of a query, as far as the blocks can tell.

    A block only nominates, by a threshold that rises as better rows are found. Who is found is decided by the
    exact similarity: a product of matrices rounds equal rows differently from place to place, and ties would
    be noise.
    """

    def __init__(self, searcher: Searcher, queries: Rows, top: int) -> None:
        self.searcher, self.queries, self.top = searcher, queries, top
        self.wanted = len(queries) * top
        self.margins = searcher.margins(queries)
        self.floors = np.full(len(queries), -np.inf, np.float32)
        self.query = np.empty(0, np.intp)
        self.row = np.empty(0, np.intp)
        self.value = np.empty(0, np.float32)

    def add(self, block: Rows, start: int) -> None:
        places = np.flatnonzero(block >= self.floors[:, None])
        query, column = np.divmod(places, block.shape[1])
        self.query = np.concatenate([self.query, query])
        self.row = np.concatenate([self.row, column + start])
        self.value = np.concatenate([self.value, block.ravel()[places]])
        if len(self.query) > 2 * self.wanted:  # not before `top` rows are seen: until then all are candidates
            self._thin()
        if len(self.query) > 4 * self.wanted:  # more ties than the blocks can tell apart
            self._decide()

    def _thin(self) -> None:
        """Leave out who lies certainly behind the last of the best."""
        self._keep(np.lexsort((-self.value, self.query)))
        self.floors = self.value[self._begins() + self.top - 1] - self.margins
        self._keep(np.flatnonzero(self.value >= self.floors[self.query]))

    def _decide(self) -> Wide:
        """Leave the best alone, in their order; their exact similarities."""
        similarities = exact(self.searcher.metric, self.queries, self.searcher.corpus, (self.query, self.row))
        order = np.lexsort((self.row, -similarities, self.query))
        self._keep(order)
        best = np.flatnonzero(np.arange(len(order)) - self._begins()[self.query] < self.top)
        self._keep(best)
        return similarities[order][best]

    def _begins(self) -> Places:
        """Where the candidates of each query begin once they are sorted; there are `top` of each or more."""
        return np.searchsorted(self.query, np.arange(len(self.queries)))

    def _keep(self, places: Places) -> None:
        self.query, self.row, self.value = self.query[places], self.row[places], self.value[places]

    def decided(self) -> Nearest:
        self._thin()
        shape = len(self.queries), self.top
        similarities = self._decide().reshape(shape)
        return Nearest(self.row.reshape(shape), similarities)
