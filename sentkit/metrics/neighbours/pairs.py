"""Pairs of similar rows: the closest ones of a table, those that reach a threshold, and the whole
matrix.

Letters in shapes: n rows, d dimensions, k pairs.
"""

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sentkit.arrays import Float32, Float64, Indices, Rows
from sentkit.errors import UsageError
from sentkit.formats.rows.block import Row, RowBlock, empty_block
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.store import common_field_names
from sentkit.formats.vectors.vectors import VectorBlock
from sentkit.metrics.neighbours.corpus import naming_field
from sentkit.metrics.neighbours.search import MAX_CANDIDATES, Searcher
from sentkit.metrics.similarity import EXACT_BLOCKS, exact_similarities, has_cancelled

if TYPE_CHECKING:
    from sentkit.metrics.device import Device

FIRST_ROWS = 32  # rows whose nearest rows give the first limit of `closest_pairs`
ROWS_PER_SEARCH = 1024  # rows that are compared at once with all later rows
MATRIX_ELEMENTS = 4_194_304  # elements of a block of the matrix
LARGEST_MATRIX = 20_000  # rows
# the maximum similarity
CEILING = {
    "cosine": 1.0,
    "dot": math.inf,
    "euclidean": 0.0,
    "manhattan": 0.0,
}


class Pairs(NamedTuple):
    """Row a, a later row b, and their similarity."""

    rows_a: Indices  # (k,)
    rows_b: Indices  # (k,)
    similarities: Float64  # (k,)


def closest_pairs(vectors: Float32, top: int, metric: str = "cosine") -> Pairs:
    """The `top` most similar pairs of rows, or all if there are fewer; best first, ties in row
    order.

    The nearest rows of the first rows give a limit. Pairs of later rows must exceed it, and it
    rises.
    """
    # The pairs of the first rows. Among `top + first` nearest rows are the `top` best later ones.
    searcher = Searcher(vectors, metric)
    first = min(FIRST_ROWS, len(vectors), searcher.queries_at_once(top + FIRST_ROWS))
    nearest, similarities = searcher.nearest(vectors[:first], top + first)
    rows_a = np.repeat(np.arange(first), nearest.shape[1])
    rows_b = nearest.ravel()
    is_later = rows_a < rows_b
    best = best_of([Pairs(rows_a[is_later], rows_b[is_later], similarities.ravel()[is_later])], top)
    if top <= 0:
        return best

    # The pairs of the other rows.
    for start in range(first, len(vectors), ROWS_PER_SEARCH):
        lowest = -math.inf
        if len(best.similarities) == top:
            lowest = math.nextafter(best.similarities[-1], math.inf)
        if lowest > CEILING[metric]:
            break
        candidates = [best]
        count = 0
        for pairs in later_pairs(searcher, start, lowest):
            candidates.append(pairs)
            count += len(pairs.similarities)
            if count > max(top, MAX_CANDIDATES):
                candidates = [best_of(candidates, top)]
                count = 0
        best = best_of(candidates, top)
    return best


def best_of(candidates: list[Pairs], count: int) -> Pairs:
    """The `count` most similar pairs; ties in row order."""
    rows_a, rows_b, similarities = map(np.concatenate, zip(*candidates, strict=True))
    order = np.lexsort((rows_b, rows_a, -similarities))[: max(0, count)]
    return Pairs(rows_a[order], rows_b[order], similarities[order])


def pairs_reaching(
    vectors: Rows, threshold: float, metric: str = "cosine", device: "Device | None" = None
) -> Iterator[Pairs]:
    """The pairs that reach the threshold, in the order of (a, b), those of some rows a at a
    time.
    """
    searcher = Searcher(vectors, metric, device)
    for start in range(0, len(vectors), ROWS_PER_SEARCH):
        yield from later_pairs(searcher, start, threshold)


def later_pairs(searcher: Searcher, start: int, threshold: float) -> Iterator[Pairs]:
    """The pairs of the block of rows that begins at `start` with later rows."""
    block = searcher.corpus[start : start + ROWS_PER_SEARCH]
    for _, rows_a, rows_b, similarities in searcher.pairs(block, threshold, start, start):
        is_later = rows_a < rows_b
        yield Pairs(rows_a[is_later], rows_b[is_later], similarities[is_later])


def records(inputs: Inputs, rows: RowBlock, pairs: Pairs) -> Iterator[dict[str, Any]]:
    """The names and numbers of the rows of each pair, and its similarity."""
    fields = common_field_names(inputs)
    for index_a, index_b, similarity in zip(*pairs, strict=True):
        names: dict[str, Any] = {}
        numbers: dict[str, Any] = {}  # with the file, if there are several
        for side, row in (("a", rows.row(index_a)), ("b", rows.row(index_b))):
            for name, name_in_row in naming_field(row, fields).items():
                names[f"{name}_{side}"] = row.values[name_in_row]
            for name, value in inputs.place_of(row).items():
                numbers[f"{name}_{side}"] = value
        yield {**names, **numbers, "similarity": float(similarity)}


def read_all_rows(
    blocks: Iterable[VectorBlock], max_rows: int | None = None
) -> tuple[RowBlock, Float32]:
    """All rows without their vectors, and the first vectors (n, d)."""
    rows = empty_block()
    vectors = list[Float32]()
    for block in blocks:
        rows.extend(block.rows.without({*block.names, "_emb"}))
        vectors.append(block.vectors[:, 0])
        if max_rows is not None and len(rows) > max_rows:
            raise UsageError(f"--matrix accepts up to {max_rows} rows; the input has more")
    if not vectors:
        return rows, np.empty((0, 1), np.float32)
    return rows, np.concatenate(vectors)


def similarity_rows(
    blocks: Iterable[VectorBlock], *, metric: str
) -> Iterator[tuple[Row, Float32 | Float64]]:
    """Each row with its similarities to all rows. Those that the products of blocks cannot give are
    computed one by one: those beyond float32, in float64, and short distances between long rows.
    """
    rows, vectors = read_all_rows(blocks, max_rows=LARGEST_MATRIX)
    block_metric = EXACT_BLOCKS[metric]
    prepared = block_metric.prepare(vectors)
    size = max(1, MATRIX_ELEMENTS // max(1, len(vectors)))
    for start in range(0, len(vectors), size):
        block = slice(start, start + size)
        similarities: Float32 | Float64
        with np.errstate(over="ignore", invalid="ignore"):
            similarities = block_metric.compare(prepared[block], prepared)
        is_beyond = ~np.isfinite(similarities)
        is_inexact = is_beyond
        if metric == "euclidean":
            is_inexact = is_beyond | has_cancelled(similarities, prepared[block], prepared)
        if is_beyond.any():
            similarities = similarities.astype(np.float64)
        if is_inexact.any():
            rows_a, rows_b = np.nonzero(is_inexact)
            similarities[is_inexact] = exact_similarities(
                metric, vectors[block], vectors, (rows_a, rows_b)
            )
        for index, similarities_of_row in enumerate(similarities, start):
            yield rows.row(index), similarities_of_row
