"""The corpus rows most similar to each query, or those that reach a threshold; also by sign bits.

Upper bounds of products from few axes exclude most pairs of rows before their products. A row x is a, its
part in the leading principal axes, and the rest, of length r. By the inequality of Cauchy and Schwarz
x . y <= a . b + r s, and this is the product of the rows (a, r) and (b, s), which are shorter.

Letters in shapes: n rows of the corpus, d dimensions, b queries, k rows found for each query, c candidates of
a query, p axes, w words of 64 bits.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sentkit.arrays import Float32, Float64, Indices, Rows
from sentkit.formats.vectors.arrays import SelectedVectors, StoredVectors
from sentkit.formats.vectors.tensors import ONE, sign_bits
from sentkit.metrics.similarity import BLOCKS, SMALLEST_NORM, UNDERFLOW, exact, lengths, margins

if TYPE_CHECKING:
    from sentkit.metrics.device import Corpus, Device

QUERIES_PER_BLOCK, ROWS_PER_BLOCK = 1024, 1024  # queries and corpus rows of a block
QUERIES_ON_DEVICE = 2048  # of a block; all of a corpus beyond its memory is copied for each block
FEW_QUERIES = 128  # of a block; then factors of products take less time than factors of rows
MANY_QUERIES, MANY_ROWS = 256, 8192  # of a block and a corpus for which bounds are made
MAX_CANDIDATES = 1 << 20  # candidates kept, for all queries of a block
SAMPLE = 4096  # rows that determine the axes, at most one in four
COMPARED = 512  # of them, compared with the others to estimate the share of pairs that remain
AXES = (15, 31, 63, 127)
LOST = 1e-5  # rounding errors of the parts of unit rows, and of the squares of the lengths of their rests
DENSE = 1e-3  # share of pairs above which the products of a block are computed
# Times for a pair, relative to that of a dimension in a product: to compare it, and to verify it.
COMPARE, VERIFY = 20.0, 15_000.0
WORTHWHILE = 0.8  # largest time with bounds, relative to that without

Pairs = tuple[Indices, Indices]  # the index of a query, and of a corpus row
Bounds = tuple[Float32, Float32]  # the axes (d, p), and all rows reduced to them (n, p + 1)


class Found(NamedTuple):
    """Corpus rows and their similarities, (k,) of one query, or (b, k) of all queries of a block."""

    rows: Indices
    similarities: Float64


class Searcher:
    """A corpus and a metric. The vectors are not copied, except to a device that selects candidates."""

    def __init__(self, corpus: Rows, metric: str = "cosine", device: "Device | None" = None) -> None:
        self.corpus, self.metric = corpus, metric
        self.found_bounds: list[Bounds | None] = []  # empty until a block has many queries
        self.on_device = None if device is None else device.corpus(corpus, metric)

    @cached_property
    def lengths(self) -> Float64:
        """Of the rows, (n,)."""
        found = np.empty(len(self.corpus))
        for start in range(0, len(found), ROWS_PER_BLOCK):
            span = slice(start, start + ROWS_PER_BLOCK)
            wide = self.corpus[span].astype(np.float64)  # faster than the function `lengths`
            found[span] = np.sqrt(np.vecdot(wide, wide))
        return found

    def at_once(self, top: int) -> int:
        """The number of queries in a block; it limits the memory for candidates."""
        most = QUERIES_PER_BLOCK if self.on_device is None else QUERIES_ON_DEVICE
        return max(1, min(most, MAX_CANDIDATES // max(1, min(top, len(self.corpus)))))

    def nearest(self, queries: Float32, top: int) -> Found:
        """The `top` rows for each query of a block, or all rows, best first; ties in row order."""
        shape = len(queries), min(top, len(self.corpus))
        best = Best(self, queries, shape[1])
        return Found(best.row.reshape(shape), best.similarities.reshape(shape))

    def reaching(self, queries: Float32, threshold: float) -> Iterator[Found]:
        """For each query, the rows that reach the threshold, in row order."""
        for span, query, row, similarities in self.pairs(queries, threshold):
            ends = np.searchsorted(query, np.arange(span.start, span.stop + 1))
            for begin, end in pairwise(ends.tolist()):
                yield Found(row[begin:end], similarities[begin:end])

    def pairs(
        self, queries: Float32, threshold: float, first: int = 0, start: int = 0
    ) -> Iterator[tuple[slice, Indices, Indices, Float64]]:
        """Yield spans of the queries with their pairs that reach the threshold, in order.

        The pairs have rows from `first` on. `start` is the number of the first query.
        Every row may reach the threshold, so the number of candidates per block is limited. If there are
        more, the block is halved and searched again, down to one query.
        """
        limit = MAX_CANDIDATES if len(queries) > 1 else None
        candidates = self._candidates(queries, threshold, first, limit)
        if candidates is None:
            middle = len(queries) // 2
            yield from self.pairs(queries[:middle], threshold, first, start)
            yield from self.pairs(queries[middle:], threshold, first, start + middle)
            return
        query, row = candidates
        similarities = exact(self.metric, queries, self.corpus, (query, row))
        order = np.argsort(query, kind="stable")  # a stable sort keeps the row order within a query
        order = order[similarities[order] >= threshold]
        yield slice(start, start + len(queries)), query[order] + start, row[order], similarities[order]

    def _candidates(self, queries: Float32, threshold: float, first: int, limit: int | None) -> Pairs | None:
        """Queries and rows that may reach the threshold within rounding errors; None if too many."""
        if self.on_device is not None:
            return self.on_device.reaching(queries, threshold, first, limit)
        may_reach = self._filter(queries, threshold)
        parts, count = [(np.empty(0, np.intp), np.empty(0, np.intp))], 0
        with np.errstate(over="ignore"):
            for span in self.spans(first):
                query, column = may_reach(span)
                parts.append((query, column + span.start))
                count += len(query)
                if limit is not None and count > limit:
                    return None
        of_queries, of_rows = zip(*parts, strict=True)
        return np.concatenate(of_queries), np.concatenate(of_rows)

    def _filter(self, queries: Float32, threshold: float) -> Callable[[slice], Pairs]:
        """A function that returns the queries and columns of a span that may reach the threshold."""
        floors, product, bounds = self.floors(queries, threshold), self.product(queries), None
        many = len(queries) >= MANY_QUERIES and len(self.corpus) >= MANY_ROWS
        if many and self.metric in ("cosine", "dot"):
            if not self.found_bounds:
                self.found_bounds.append(find_bounds(self._scaled, len(self.corpus), float(floors.min())))
            bounds = self.found_bounds[0]
        if bounds is None:
            return lambda span: at_least(product(span), floors)
        axes, reduced_rows = bounds
        short, lower = reduced(BLOCKS["cosine"].prepare(queries), axes), floors - np.float32(LOST)
        room = np.empty((len(queries), ROWS_PER_BLOCK), np.float32)

        def may_reach(span: slice) -> Pairs:
            block = np.matmul(short, reduced_rows[span].T, out=room[:, : span.stop - span.start])
            found = at_least(block, lower)
            return at_least(product(span), floors) if len(found[0]) > DENSE * block.size else found

        return may_reach

    def floors(self, queries: Float32, threshold: float | Float64) -> Float32:
        """Lower limits of block values, (b,): a row with a smaller value certainly misses the threshold."""
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
        """Factors of the rows. For "dot" one factor scales the whole corpus, which keeps the order."""
        longest = self.lengths if self.metric == "cosine" else self.lengths.max(initial=0.0)
        scales = np.broadcast_to(1.0 / np.maximum(longest, SMALLEST_NORM), len(self.corpus))
        # A product with float64 takes more than twice the time.
        return scales.astype(np.float32) if scales.min(initial=1.0) > UNDERFLOW else scales

    def _scaled(self, rows: slice | Indices, out: Float32 | None = None) -> Float32:
        """Rows of length 1, or for "dot" at most 1."""
        vectors = self.corpus[rows]
        out = np.empty(vectors.shape, np.float32) if out is None else out
        return np.multiply(vectors, self._scales[rows, None], out=out, casting="same_kind")

    def product(self, queries: Float32) -> Callable[[slice], Float32]:
        """A function that returns block values: of cosine and dot, products of unit queries and a span."""
        corpus = self.corpus
        if self.metric not in ("cosine", "dot"):
            blocks = BLOCKS[self.metric]
            left = blocks.prepare(queries)
            return lambda span: blocks.compare(left, blocks.prepare(corpus[span]))
        prepared = BLOCKS["cosine"].prepare(queries)
        part = np.empty((ROWS_PER_BLOCK, queries.shape[1]), np.float32)
        room = np.empty(len(queries) * ROWS_PER_BLOCK, np.float32)  # reused, which saves time
        few = len(queries) <= FEW_QUERIES and self._scales.dtype == np.float32

        def product(span: slice) -> Float32:
            width = span.stop - span.start
            out = room[: len(queries) * width].reshape(len(queries), width)
            if not few:
                return np.matmul(prepared, self._scaled(span, part[:width]).T, out=out)
            # Many products with the subnormal numbers of unscaled float16 are slow on some processors.
            if isinstance(corpus, StoredVectors) and (corpus.kind == "int8" or len(queries) == 1):
                rows, factors = corpus.unscaled(span)
            else:
                rows, factors = corpus[span], ONE
            return np.multiply(np.matmul(prepared * factors, rows.T, out=out), self._scales[span], out=out)

        return product


def at_least(block: Float32, floors: Float32) -> Pairs:
    """The rows and columns, in order, of the values that reach the floor of their row."""
    row, column = np.divmod(np.flatnonzero(block >= floors[:, None]), max(1, block.shape[1]))
    return row, column


def reduced(rows: Float32, axes: Float32) -> Float32:
    """Rows of length 1 or less, (n, d) -> (n, p + 1): their parts in the axes, and the length of the rest."""
    parts = np.empty((len(rows), axes.shape[1] + 1), np.float32)
    leading = np.matmul(rows, axes, out=parts[:, :-1])
    parts[:, -1] = np.sqrt(np.maximum(np.vecdot(rows, rows) - np.vecdot(leading, leading), 0) + LOST)
    return parts


def find_bounds(read: Callable[[slice | np.ndarray], Float32], count: int, floor: float) -> Bounds | None:
    """The bounds that save most time for products of at least `floor`, or None, if none does."""
    sample = read(np.linspace(0, count - 1, min(SAMPLE, -(-count // 4))).astype(np.intp))
    sample = sample[np.random.default_rng(0).permutation(len(sample))]
    width, wide = sample.shape[1], sample.astype(np.float64)
    directions = np.linalg.eigh(wide.T @ wide)[1][:, ::-1]  # best first
    best, least = None, WORTHWHILE * (width + COMPARE)
    for number in AXES:
        if 2 * (number + 1) > width:
            break
        axes = np.ascontiguousarray(directions[:, :number], np.float32)
        parts = reduced(sample, axes)
        share = float(np.mean(parts[:COMPARED] @ parts[COMPARED:].T >= floor - LOST))
        time = number + 1 + COMPARE + min(share * VERIFY, width)
        if time < least:
            best, least = axes, time
    if best is None:
        return None
    rows = np.empty((count, best.shape[1] + 1), np.float32)
    for start in range(0, count, ROWS_PER_BLOCK):
        span = slice(start, min(start + ROWS_PER_BLOCK, count))
        rows[span] = reduced(read(span), best)
    return best, rows


class Best:
    """The `top` best rows of each query, best first; ties in row order. With limits, only rows below them.

    A block only selects candidates, by a floor that rises as better rows are found. The exact similarity
    decides, also at a limit. A matrix product rounds equal rows differently at different positions, so ties
    would be random.
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
        self.searcher, self.queries, self.top, self.limits = searcher, queries, top, limits
        self.query, self.row = np.empty(0, np.intp), np.empty(0, np.intp)
        self.value = np.empty(0, np.float32)
        self.above = 0  # pairs of a query and a row that reach the limit
        if len(queries) * top * len(searcher.corpus):
            if searcher.on_device is not None and use_device:
                self._search_on(searcher.on_device)
            else:
                self._search()
        self.similarities = self._decide()

    def _search(self) -> None:
        self.margins = self.searcher.margins_of(self.queries)
        if self.limits is not None:
            self.surely_below = self.searcher.floors(self.queries, self.limits)  # smaller values are below it
            self.surely_above = self.surely_below + 2 * self.margins
        self.floors = np.full(len(self.queries), -np.inf, np.float32)
        wanted, product = len(self.queries) * self.top, self.searcher.product(self.queries)
        with np.errstate(over="ignore"):  # the exact similarity decides beyond float32
            for span in self.searcher.spans(0):
                self._add(product(span), span.start)
                if len(self.query) > 2 * wanted:  # before `top` rows are seen, all rows are candidates
                    self._thin()
                if len(self.query) > 4 * wanted:  # too many ties for the precision of a block
                    self._decide()
        self._thin()

    def _search_on(self, device: "Corpus") -> None:
        """Find candidates on the device. For queries that have too many there, search again."""
        found = device.best(self.queries, self.top, self.limits)
        (self.query, self.row), self.above, open_ = found.pairs, found.above, found.open
        if len(open_):
            queries, limits = self.queries[open_], None if self.limits is None else self.limits[open_]
            more = None if limits is not None else device.reaching(queries, found.floors, 0, MAX_CANDIDATES)
            if more is None:
                rest = Best(self.searcher, queries, self.top, limits, use_device=False)
                more, self.above = (rest.query, rest.row), self.above + rest.above
            self.query = np.concatenate([self.query, open_[more[0]]])
            self.row = np.concatenate([self.row, more[1]])
        self.value = np.zeros(len(self.query), np.float32)

    def rows(self) -> list[Indices]:
        """The rows of each query."""
        return np.split(self.row, np.searchsorted(self.query, np.arange(1, len(self.queries))))

    def _add(self, block: Float32, start: int) -> None:
        if len(self.query) == 0 and block.shape[1] > self.top:
            sure = block
            if self.limits is not None:
                sure = np.where(block < self.surely_below[:, None], block, np.float32(-np.inf))
            self.floors = np.partition(sure, -self.top, axis=1)[:, -self.top] - self.margins
        query, column = at_least(block, self.floors)
        value = block[query, column]
        if self.limits is not None:
            open_ = value <= self.surely_above[query]
            self.above += len(value) - int(np.count_nonzero(open_))
            query, column, value = query[open_], column[open_], value[open_]
        self.query = np.concatenate([self.query, query])
        self.row = np.concatenate([self.row, column + start])
        self.value = np.concatenate([self.value, value])

    def _thin(self) -> None:
        """Remove the candidates that are certainly worse than the `top` best."""
        order = np.lexsort((-self.value, self.query))
        if self.limits is not None:
            order = order[self.value[order] < self.surely_below[self.query[order]]]
        begins = np.searchsorted(self.query[order], np.arange(len(self.queries) + 1))
        full = np.flatnonzero(np.diff(begins) >= self.top)
        self.floors[full] = self.value[order[begins[full] + self.top - 1]] - self.margins[full]
        self._keep(np.flatnonzero(self.value >= self.floors[self.query]))

    def _decide(self) -> Float64:
        """Keep only the best candidates, in order; return their exact similarities."""
        similarities = exact(self.searcher.metric, self.queries, self.searcher.corpus, (self.query, self.row))
        order = np.lexsort((self.row, -similarities, self.query))
        if self.limits is not None:
            order = order[similarities[order] < self.limits[self.query[order]]]
            self.above += len(similarities) - len(order)
        begins = np.searchsorted(self.query[order], np.arange(len(self.queries)))
        order = order[np.arange(len(order)) - begins[self.query[order]] < self.top]
        self._keep(order)
        return similarities[order]

    def _keep(self, places: Indices) -> None:
        self.query, self.row, self.value = self.query[places], self.row[places], self.value[places]


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

    def at_once(self, top: int) -> int:
        """The number of queries in a block; it limits the memory for distances and candidates."""
        limits = QUERIES_PER_BLOCK, MAX_DISTANCES // len(self.signs), MAX_CANDIDATES // self.count(top)
        return max(1, min(limits))

    def count(self, top: int) -> int:
        """The number of candidates of a query."""
        return min(self.candidates or CANDIDATES_PER_HIT * top, len(self.signs))

    def nearest(self, queries: Float32, top: int) -> Found:
        """The `top` candidates for each query of a block, best first; ties in row order."""
        count = self.count(top)
        best = [smallest(distances, count) for distances in self.distances(queries)]
        rows = np.array(best, np.intp).reshape(len(queries), count)  # (b, c)
        query = np.repeat(np.arange(len(queries)), count)
        similarities = exact(self.metric, queries, self.vectors, (query, rows.ravel())).reshape(rows.shape)
        order = np.argsort(-similarities, axis=1, kind="stable")[:, :top]
        return Found(np.take_along_axis(rows, order, 1), np.take_along_axis(similarities, order, 1))

    def distances(self, queries: Float32) -> NDArray[np.unsignedinteger]:
        """The number of different signs, (b, d) -> (b, n)."""
        width = self.signs.shape[1]
        distances = np.empty((len(queries), len(self.signs)), np.min_scalar_type(width))
        wanted = words(sign_bits(queries), width)  # (w, b)
        for start in range(0, len(self.signs), SIGN_ROWS_PER_BLOCK):
            span = slice(start, start + SIGN_ROWS_PER_BLOCK)
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
