"""The corpus rows most similar to each query, or those that reach a threshold.

Upper bounds of products from few axes exclude most pairs of rows before their products. A row x is
a, its projection on the leading principal axes, and the rest, of length r. By the inequality of
Cauchy and Schwarz x . y <= a . b + r s, and this is the product of the rows (a, r) and (b, s),
which are shorter.

Letters in shapes: n rows of the corpus, d dimensions, b queries, k nearest rows of each query, c
candidates, p axes.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sentkit.arrays import Float32, Float64, Indices, Rows
from sentkit.formats.vectors.arrays import StoredVectors
from sentkit.formats.vectors.tensors import ONE
from sentkit.metrics.similarity import (
    BLOCKS,
    SMALLEST_NORM,
    UNDERFLOW,
    exact_similarities,
    lengths,
    margins,
)

if TYPE_CHECKING:
    from sentkit.metrics.device import Device, DeviceCorpus

QUERIES_PER_BLOCK = 1024
ROWS_PER_BLOCK = 1024  # of the corpus
QUERIES_ON_DEVICE = 2048  # of a block; all of a corpus beyond its memory is copied for each block
FEW_QUERIES = 128  # of a block; then factors of products take less time than factors of rows
# Bounds are made for a block of so many queries and a corpus of so many rows.
MANY_QUERIES = 256
MANY_ROWS = 8192
MAX_CANDIDATES = 1 << 20  # candidates kept, for all queries of a block
SAMPLE = 4096  # rows that determine the axes, at most one in four
COMPARED_ROWS = 512  # of them, compared with the others for the share of pairs that remain
AXES = (15, 31, 63, 127)
# rounding errors of the parts of unit rows, and of the squares of the lengths of their rests
LOST = 1e-5
DENSE = 1e-3  # share of pairs above which the products of a block are computed
# Times for a pair, relative to that of a dimension in a product.
TIME_OF_COMPARISON = 20.0
TIME_OF_CANDIDATE = 15_000.0
WORTHWHILE = 0.8  # largest time with bounds, relative to that without
# Candidates, in multiples of the size of the result, from which some are removed.
REMOVE_AT = 2  # by the values of blocks
DECIDE_AT = 4  # by their exact similarities, because they are near ties

IndexPairs = tuple[Indices, Indices]  # the index of a query, and of a corpus row
Bounds = tuple[Float32, Float32]  # the axes (d, p), and all rows reduced to them (n, p + 1)


class NearRows(NamedTuple):
    """Corpus rows and their similarities, (k,) of one query, or (b, k) of all queries of a
    block.
    """

    rows: Indices
    similarities: Float64


class Searcher:
    """A corpus and a metric. The vectors are not copied, except to a device that selects
    candidates.
    """

    def __init__(
        self, corpus: Rows, metric: str = "cosine", device: "Device | None" = None
    ) -> None:
        self.corpus = corpus
        self.metric = metric
        self.bounds: Bounds | None = None
        self.has_tried_bounds = False  # until a block has many queries
        self.on_device = None
        if device is not None:
            self.on_device = device.corpus(corpus, metric)

    @cached_property
    def lengths(self) -> Float64:
        """Of the rows, (n,)."""
        norms = np.empty(len(self.corpus))
        for start in range(0, len(norms), ROWS_PER_BLOCK):
            span = slice(start, start + ROWS_PER_BLOCK)
            wide = self.corpus[span].astype(np.float64)  # faster than the function `lengths`
            norms[span] = np.sqrt(np.vecdot(wide, wide))
        return norms

    def queries_at_once(self, top: int) -> int:
        """The number of queries in a block; it limits the memory for candidates."""
        max_queries = QUERIES_PER_BLOCK if self.on_device is None else QUERIES_ON_DEVICE
        rows_per_query = max(1, min(top, len(self.corpus)))
        return max(1, min(max_queries, MAX_CANDIDATES // rows_per_query))

    def nearest(self, queries: Float32, top: int) -> NearRows:
        """The `top` rows for each query of a block, or all rows, best first; ties in row order."""
        count = min(top, len(self.corpus))
        best = Best(self, queries, count)
        shape = (len(queries), count)
        return NearRows(best.row_indices.reshape(shape), best.similarities.reshape(shape))

    def reaching(self, queries: Float32, threshold: float) -> Iterator[NearRows]:
        """For each query, the rows that reach the threshold, in row order."""
        for span, query_indices, rows, similarities in self.pairs(queries, threshold):
            ends = np.searchsorted(query_indices, np.arange(span.start, span.stop + 1))
            for begin, end in pairwise(ends.tolist()):
                yield NearRows(rows[begin:end], similarities[begin:end])

    def pairs(
        self, queries: Float32, threshold: float, first: int = 0, start: int = 0
    ) -> Iterator[tuple[slice, Indices, Indices, Float64]]:
        """Yield spans of the queries with their pairs that reach the threshold, in order.

        The pairs have rows from `first` on. `start` is the number of the first query.
        Every row may reach the threshold, so the number of candidates per block is limited. If
        there are more, the block is halved and searched again, down to one query.
        """
        limit = MAX_CANDIDATES if len(queries) > 1 else None
        candidates = self._candidates(queries, threshold, first, limit)
        if candidates is None:
            middle = len(queries) // 2
            yield from self.pairs(queries[:middle], threshold, first, start)
            yield from self.pairs(queries[middle:], threshold, first, start + middle)
            return
        query_indices, rows = candidates
        similarities = exact_similarities(self.metric, queries, self.corpus, candidates)
        # a stable sort keeps the row order within a query
        order = np.argsort(query_indices, kind="stable")
        order = order[similarities[order] >= threshold]
        span = slice(start, start + len(queries))
        yield span, query_indices[order] + start, rows[order], similarities[order]

    def _candidates(
        self, queries: Float32, threshold: float, first: int, limit: int | None
    ) -> IndexPairs | None:
        """Queries and rows that may reach the threshold within rounding errors; None if too
        many.
        """
        if self.on_device is not None:
            return self.on_device.reaching(queries, threshold, first, limit)
        may_reach = self._filter(queries, threshold)
        query_indices = [np.empty(0, np.intp)]
        rows = [np.empty(0, np.intp)]
        count = 0
        with np.errstate(over="ignore"):
            for span in self.spans(first):
                queries_of_span, columns = may_reach(span)
                query_indices.append(queries_of_span)
                rows.append(columns + span.start)
                count += len(columns)
                if limit is not None and count > limit:
                    return None
        return np.concatenate(query_indices), np.concatenate(rows)

    def _filter(self, queries: Float32, threshold: float) -> Callable[[slice], IndexPairs]:
        """A function that returns the queries and columns of a span that may reach the
        threshold.
        """
        floors = self.lower_limits(queries, threshold)
        product = self.block_values(queries)
        is_large = len(queries) >= MANY_QUERIES and len(self.corpus) >= MANY_ROWS
        bounds = None
        if is_large and self.metric in ("cosine", "dot"):
            if not self.has_tried_bounds:
                # All later blocks use the axes for the floors of this one; only the speed depends
                # on them.
                self.bounds = find_bounds(self._scaled, len(self.corpus), float(floors.min()))
                self.has_tried_bounds = True
            bounds = self.bounds
        if bounds is None:
            return lambda span: at_least(product(span), floors)

        axes, reduced_rows = bounds
        reduced_queries = reduced(BLOCKS["cosine"].prepare(queries), axes)
        reduced_floors = floors - np.float32(LOST)
        buffer = np.empty((len(queries), ROWS_PER_BLOCK), np.float32)

        def may_reach(span: slice) -> IndexPairs:
            out = buffer[:, : span.stop - span.start]
            upper_bounds = np.matmul(reduced_queries, reduced_rows[span].T, out=out)
            pairs = at_least(upper_bounds, reduced_floors)
            if len(pairs[0]) > DENSE * upper_bounds.size:
                return at_least(product(span), floors)
            return pairs

        return may_reach

    def lower_limits(self, queries: Float32, threshold: float | Float64) -> Float32:
        """Lower limits of block values, (b,): a row with a smaller value certainly misses the
        threshold.
        """
        scales = np.ones(len(queries))
        if self.metric == "dot":  # `_scaled` divides by the longest length
            longest = self.lengths.max(initial=0.0)
            scales = np.maximum(lengths(queries), SMALLEST_NORM) * max(longest, SMALLEST_NORM)
        with np.errstate(over="ignore"):  # a limit beyond float32 becomes infinite
            return (threshold / scales - self.margins_of(queries)).astype(np.float32)

    def margins_of(self, queries: Float32) -> Float32:
        """The rounding margins of block values, (b,), by the largest sum that a metric adds up."""
        magnitudes = np.ones(len(queries))  # of products
        if self.metric not in ("cosine", "dot"):
            magnitudes = np.maximum(lengths(queries), self.lengths.max(initial=0.0))
        if self.metric == "manhattan":
            magnitudes *= np.sqrt(queries.shape[1])  # an upper bound
        return margins(magnitudes).astype(np.float32)

    def spans(self, first: int) -> Iterator[slice]:
        for start in range(first, len(self.corpus), ROWS_PER_BLOCK):
            yield slice(start, min(start + ROWS_PER_BLOCK, len(self.corpus)))

    @cached_property
    def _scales(self) -> Float32 | Float64:
        """Factors of the rows, (n,). For "dot" one factor scales the whole corpus, which keeps the
        order.
        """
        norms = self.lengths if self.metric == "cosine" else self.lengths.max(initial=0.0)
        scales = np.broadcast_to(1.0 / np.maximum(norms, SMALLEST_NORM), len(self.corpus))
        # A product with float64 takes more than twice the time.
        if scales.min(initial=1.0) > UNDERFLOW:
            return scales.astype(np.float32)
        return scales

    def _scaled(self, rows: slice | Indices, out: Float32 | None = None) -> Float32:
        """Rows of length 1, or for "dot" at most 1."""
        vectors = self.corpus[rows]
        if out is None:
            out = np.empty(vectors.shape, np.float32)
        return np.multiply(vectors, self._scales[rows, None], out=out, casting="same_kind")

    def block_values(self, queries: Float32) -> Callable[[slice], Float32]:
        """A function that returns block values: of cosine and dot, products of unit queries and a
        span.
        """
        corpus = self.corpus
        if self.metric not in ("cosine", "dot"):
            blocks = BLOCKS[self.metric]
            prepared_queries = blocks.prepare(queries)
            return lambda span: blocks.compare(prepared_queries, blocks.prepare(corpus[span]))

        unit_queries = BLOCKS["cosine"].prepare(queries)
        scales_products = len(queries) <= FEW_QUERIES and self._scales.dtype == np.float32
        # Memory that all spans reuse, which saves time.
        row_buffer = np.empty((ROWS_PER_BLOCK, queries.shape[1]), np.float32)
        value_buffer = np.empty(len(queries) * ROWS_PER_BLOCK, np.float32)

        def product(span: slice) -> Float32:
            width = span.stop - span.start
            out = value_buffer[: len(queries) * width].reshape(len(queries), width)
            if not scales_products:
                scaled_rows = self._scaled(span, row_buffer[:width])
                return np.matmul(unit_queries, scaled_rows.T, out=out)
            # Many products with the subnormal numbers of unscaled float16 are slow on some
            # processors.
            if isinstance(corpus, StoredVectors) and (corpus.kind == "int8" or len(queries) == 1):
                rows, factors = corpus.unscaled(span)
            else:
                rows = corpus[span]
                factors = ONE
            np.matmul(unit_queries * factors, rows.T, out=out)
            return np.multiply(out, self._scales[span], out=out)

        return product


def at_least(block: Float32, floors: Float32) -> IndexPairs:
    """The rows and columns, in order, of the values that reach the floor of their row."""
    rows, columns = np.divmod(np.flatnonzero(block >= floors[:, None]), max(1, block.shape[1]))
    return rows, columns


def reduced(rows: Float32, axes: Float32) -> Float32:
    """(n, d) -> (n, p + 1): coordinates of rows of length 1 or less in the axes, and lengths of the
    rests.
    """
    coordinates = np.empty((len(rows), axes.shape[1] + 1), np.float32)
    leading = np.matmul(rows, axes, out=coordinates[:, :-1])
    squares_of_rest = np.maximum(np.vecdot(rows, rows) - np.vecdot(leading, leading), 0)
    coordinates[:, -1] = np.sqrt(squares_of_rest + LOST)
    return coordinates


def find_bounds(
    scaled_rows: Callable[[slice | np.ndarray], Float32], count: int, floor: float
) -> Bounds | None:
    """The bounds that save most time for products of at least `floor`, or None, if none does."""
    # The principal axes of a sample, largest variance first. The rows of a file may be sorted, so
    # the order of the sample is random: its first rows are compared with the others.
    sample_size = min(SAMPLE, math.ceil(count / 4))
    sample = scaled_rows(np.linspace(0, count - 1, sample_size).astype(np.intp))
    sample = sample[np.random.default_rng(0).permutation(len(sample))]
    width = sample.shape[1]
    wide = sample.astype(np.float64)
    _, eigenvectors = np.linalg.eigh(wide.T @ wide)
    directions = eigenvectors[:, ::-1]

    # The number of axes with the shortest estimated time per pair.
    best_axes = None
    best_time = WORTHWHILE * (width + TIME_OF_COMPARISON)
    for axis_count in AXES:
        if 2 * (axis_count + 1) > width:  # bounds have at most half the width
            break
        axes = np.ascontiguousarray(directions[:, :axis_count], np.float32)
        reduced_sample = reduced(sample, axes)
        upper_bounds = reduced_sample[:COMPARED_ROWS] @ reduced_sample[COMPARED_ROWS:].T
        share = float(np.mean(upper_bounds >= floor - LOST))
        time = time_per_pair(width, axis_count, share)
        if time < best_time:
            best_axes = axes
            best_time = time
    if best_axes is None:
        return None

    reduced_rows = np.empty((count, best_axes.shape[1] + 1), np.float32)
    for start in range(0, count, ROWS_PER_BLOCK):
        span = slice(start, min(start + ROWS_PER_BLOCK, count))
        reduced_rows[span] = reduced(scaled_rows(span), best_axes)
    return best_axes, reduced_rows


def time_per_pair(width: int, axis_count: int, share: float) -> float:
    """The estimated time with bounds that exclude all but this share of the pairs."""
    # The remaining pairs are verified one by one, or by the product of the whole block, see DENSE.
    time_to_verify = min(share * TIME_OF_CANDIDATE, width)
    return axis_count + 1 + TIME_OF_COMPARISON + time_to_verify


class Limits(NamedTuple):
    """Limits of the similarities of each query, and of their block values: a smaller value than
    `surely_below` is certainly below the limit, a larger one than `surely_above` certainly not.
    """

    exact: Float64  # (b,)
    surely_below: Float32  # (b,): limit - margin
    surely_above: Float32  # (b,): limit + margin


@dataclass(frozen=True, slots=True)
class Candidates:
    """Pairs of a query and a row that may be among the best, (c,) each."""

    query_indices: Indices
    row_indices: Indices
    block_values: Float32

    def __len__(self) -> int:
        return len(self.query_indices)

    @property
    def pairs(self) -> IndexPairs:
        return self.query_indices, self.row_indices

    def select(self, indices: Indices) -> "Candidates":
        return Candidates(
            self.query_indices[indices], self.row_indices[indices], self.block_values[indices]
        )

    def extend(self, other: "Candidates") -> "Candidates":
        return Candidates(
            np.concatenate([self.query_indices, other.query_indices]),
            np.concatenate([self.row_indices, other.row_indices]),
            np.concatenate([self.block_values, other.block_values]),
        )


NO_PAIRS: IndexPairs = (np.empty(0, np.intp), np.empty(0, np.intp))


class Decision(NamedTuple):
    """The best of some pairs by exact similarity."""

    chosen: Indices  # indices of the pairs, by query, best first; ties in row order
    similarities: Float64  # of the chosen pairs
    count_reaching_limit: int  # pairs that reach their limit, which are not chosen


def decide(
    searcher: Searcher, queries: Float32, top: int, limits: Float64 | None, pairs: IndexPairs
) -> Decision:
    """Choose the `top` best pairs of each query, with limits only pairs below them."""
    query_indices, row_indices = pairs
    similarities = exact_similarities(searcher.metric, queries, searcher.corpus, pairs)
    order = np.lexsort((row_indices, -similarities, query_indices))
    if limits is not None:
        order = order[similarities[order] < limits[query_indices[order]]]
    count_reaching_limit = len(similarities) - len(order)
    sorted_queries = query_indices[order]
    begins = np.searchsorted(sorted_queries, np.arange(len(queries)))
    ranks = np.arange(len(order)) - begins[sorted_queries]
    chosen = order[ranks < top]
    return Decision(chosen, similarities[chosen], count_reaching_limit)


class HostSearch:
    """Finds candidates for the `top` best rows of each query, by the values of blocks.

    A block only selects candidates, by a floor that rises as better rows are found. A pair that
    reaches its limit is counted once: in `_add` if its block value is surely above the limit, or
    else where it is decided.
    """

    def __init__(
        self, searcher: Searcher, queries: Float32, top: int, limits: Float64 | None
    ) -> None:
        self.searcher = searcher
        self.queries = queries
        self.top = top
        # (b,): a larger difference between two block values is certain
        self.margins = searcher.margins_of(queries)
        self.limits: Limits | None = None
        if limits is not None:
            surely_below = searcher.lower_limits(queries, limits)
            self.limits = Limits(limits, surely_below, surely_below + 2 * self.margins)
        # (b,): a row with a smaller block value is not among the `top` best
        self.floors = np.full(len(queries), -np.inf, np.float32)
        self.candidates = Candidates(*NO_PAIRS, np.empty(0, np.float32))
        self.count_reaching_limit = 0  # pairs that reach their limit

    def run(self) -> None:
        product = self.searcher.block_values(self.queries)
        result_size = len(self.queries) * self.top
        with np.errstate(over="ignore"):  # the exact similarity decides beyond float32
            for span in self.searcher.spans(0):
                self._add(product(span), span.start)
                # All rows are candidates until a query has `top` of them.
                if len(self.candidates) > REMOVE_AT * result_size:
                    self._remove_worse()
                # Values of a block cannot separate so many near ties.
                if len(self.candidates) > DECIDE_AT * result_size:
                    self._keep_best()
        self._remove_worse()

    def _add(self, block: Float32, start: int) -> None:
        """Add the candidates among the rows from `start` on, by their block values (b, rows)."""
        # Without candidates there are no floors yet.
        if len(self.candidates) == 0 and block.shape[1] > self.top:
            self.floors = self._first_floors(block)

        # The candidates of the block. Rows that surely reach the limit are only counted.
        query_indices, columns = at_least(block, self.floors)
        values = block[query_indices, columns]
        candidates = Candidates(query_indices, columns + start, values)
        if self.limits is not None:
            may_be_below = values <= self.limits.surely_above[query_indices]
            self.count_reaching_limit += int(np.count_nonzero(~may_be_below))
            candidates = candidates.select(np.flatnonzero(may_be_below))
        self.candidates = self.candidates.extend(candidates)

    def _first_floors(self, block: Float32) -> Float32:
        """The floors for which `top` rows of this block are at least as good.

        Rows that may reach the limit do not count. Without `top` others, the floor is -inf, and all
        rows are candidates.
        """
        values_below = block
        if self.limits is not None:
            is_below = block < self.limits.surely_below[:, None]
            values_below = np.where(is_below, block, np.float32(-np.inf))
        worst_of_top = np.partition(values_below, -self.top, axis=1)[:, -self.top]
        floors: Float32 = worst_of_top - self.margins
        return floors

    def _remove_worse(self) -> None:
        """Remove the candidates that are certainly worse than the `top` best."""
        query_indices = self.candidates.query_indices
        values = self.candidates.block_values
        order = np.lexsort((-values, query_indices))  # by query, best first
        if self.limits is not None:
            # Rows near the limit remain candidates, but they do not raise the floor.
            surely_below = self.limits.surely_below[query_indices[order]]
            order = order[values[order] < surely_below]
        begins = np.searchsorted(query_indices[order], np.arange(len(self.queries) + 1))
        full = np.flatnonzero(np.diff(begins) >= self.top)  # queries with `top` candidates or more
        worst_of_top = values[order[begins[full] + self.top - 1]]
        self.floors[full] = worst_of_top - self.margins[full]
        self.candidates = self.candidates.select(
            np.flatnonzero(values >= self.floors[query_indices])
        )

    def _keep_best(self) -> None:
        """Keep the `top` best candidates of each query by exact similarity."""
        limits = None if self.limits is None else self.limits.exact
        decision = decide(self.searcher, self.queries, self.top, limits, self.candidates.pairs)
        self.candidates = self.candidates.select(decision.chosen)
        self.count_reaching_limit += decision.count_reaching_limit


class Best:
    """The `top` best rows of each query, best first; ties in row order. With limits, only rows
    below them.

    The exact similarity decides, also at a limit. A matrix product rounds equal rows differently at
    different positions, so ties would be random.
    """

    def __init__(
        self,
        searcher: Searcher,
        queries: Float32,
        top: int,
        limits: Float64 | None = None,
        *,
        use_device: bool = True,
    ) -> None:
        self.searcher = searcher
        self.queries = queries
        self.top = top
        self.limits = limits
        self.count_reaching_limit = 0  # number of pairs of a query and a row that reach the limit
        candidates = NO_PAIRS
        if len(queries) and top and len(searcher.corpus):
            if searcher.on_device is not None and use_device:
                candidates = self._candidates_on(searcher.on_device)
            else:
                search = HostSearch(searcher, queries, top, limits)
                search.run()
                candidates = search.candidates.pairs
                self.count_reaching_limit = search.count_reaching_limit

        query_indices, row_indices = candidates
        decision = decide(searcher, queries, top, limits, candidates)
        self.count_reaching_limit += decision.count_reaching_limit
        # The pairs of all queries, by query.
        self.query_indices = query_indices[decision.chosen]
        self.row_indices = row_indices[decision.chosen]
        self.similarities = decision.similarities

    def _candidates_on(self, device: "DeviceCorpus") -> IndexPairs:
        """Find candidates on the device. For queries that have too many there, search again."""
        candidates = device.best(self.queries, self.top, self.limits)
        self.count_reaching_limit = candidates.certain_count
        open_queries = candidates.undecided_queries
        if not len(open_queries):
            return candidates.pairs
        queries = self.queries[open_queries]
        pairs = None
        if self.limits is None:
            pairs = device.reaching(queries, candidates.floors, 0, MAX_CANDIDATES)
        if pairs is None:
            limits = None if self.limits is None else self.limits[open_queries]
            best = Best(self.searcher, queries, self.top, limits, use_device=False)
            pairs = (best.query_indices, best.row_indices)
            self.count_reaching_limit += best.count_reaching_limit
        query_indices, row_indices = candidates.pairs
        open_indices, open_rows = pairs
        return (
            np.concatenate([query_indices, open_queries[open_indices]]),
            np.concatenate([row_indices, open_rows]),
        )

    def rows(self) -> list[Indices]:
        """The rows of each query."""
        if not len(self.queries):
            return []
        # `decide` sorts the pairs by query.
        ends = np.searchsorted(self.query_indices, np.arange(1, len(self.queries)))
        return np.split(self.row_indices, ends)
