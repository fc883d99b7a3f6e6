"""For each query, the most similar corpus rows below a limit of similarity; exact for any block size.

Letters in shapes: b queries, w corpus rows of a block, m candidates.
"""

import numpy as np

from sentkit.arrays import Float32, Float64, Indices
from sentkit.metrics.neighbours.search import Searcher, at_least
from sentkit.metrics.rounding import exact


class NearestBelow:
    """The `top` best rows of each query with a similarity below its limit, best first; ties in row order.

    `above` counts the pairs of a query and a row that reach the limit. As in `Nominees`, a block only selects
    candidates, and the exact similarity decides, here also between the two sides of the limit.
    """

    def __init__(self, searcher: Searcher, queries: Float32, top: int, limits: Float64) -> None:
        self.searcher, self.queries, self.top, self.limits = searcher, queries, top, limits
        self.margins = searcher.margins_of(queries)
        self.surely_below = searcher.floors(queries, limits)  # smaller block values are below the limit
        self.surely_above = self.surely_below + 2 * self.margins
        self.floors = np.full(len(queries), -np.inf, np.float32)
        self.query = np.empty(0, np.intp)
        self.row = np.empty(0, np.intp)
        self.value = np.empty(0, np.float32)
        self.above = 0
        with np.errstate(over="ignore"):  # the exact similarity decides beyond float32
            for start, block in searcher.blocks(queries):
                self._add(block, start)
        self.similarities = self._decide()

    def rows(self) -> list[Indices]:
        """The rows of each query."""
        return np.split(self.row, np.searchsorted(self.query, np.arange(1, len(self.queries))))

    def _add(self, block: Float32, start: int) -> None:
        query, column = at_least(block, self.floors)
        value = block[query, column]
        open_ = value <= self.surely_above[query]
        self.above += len(value) - int(np.count_nonzero(open_))
        self.query = np.concatenate([self.query, query[open_]])
        self.row = np.concatenate([self.row, column[open_] + start])
        self.value = np.concatenate([self.value, value[open_]])
        wanted = len(self.queries) * self.top
        if len(self.query) > 2 * wanted:
            self._thin()
        if len(self.query) > 4 * wanted:  # many candidates so near to the limit or to each other
            self._decide()

    def _thin(self) -> None:
        """Remove the candidates that are certainly worse than the `top` best below the limit."""
        below = np.flatnonzero(self.value < self.surely_below[self.query])
        below = below[np.lexsort((-self.value[below], self.query[below]))]
        begins = np.searchsorted(self.query[below], np.arange(len(self.queries) + 1))
        full = np.flatnonzero(np.diff(begins) >= self.top)
        self.floors[full] = self.value[below[begins[full] + self.top - 1]] - self.margins[full]
        self._keep(np.flatnonzero(self.value >= self.floors[self.query]))

    def _decide(self) -> Float64:
        """Keep only the best candidates below the limit, in order; return their exact similarities."""
        pairs = self.query, self.row
        similarities = exact(self.searcher.metric, self.queries, self.searcher.corpus, pairs)
        below = np.flatnonzero(similarities < self.limits[self.query])
        self.above += len(similarities) - len(below)
        order = below[np.lexsort((self.row[below], -similarities[below], self.query[below]))]
        begins = np.searchsorted(self.query[order], np.arange(len(self.queries)))
        order = order[np.arange(len(order)) - begins[self.query[order]] < self.top]
        self._keep(order)
        return similarities[order]

    def _keep(self, places: Indices) -> None:
        self.query, self.row, self.value = self.query[places], self.row[places], self.value[places]
