"""The most similar pairs of rows of one table, pairs that reach a threshold, and all similarities.

Letters in shapes: n rows, d dimensions, b rows of a block, k pairs found.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sentkit.arrays import Float32, Float64, Indices, Rows
from sentkit.errors import UsageError
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.rows import Inputs, blocks
from sentkit.formats.vectors.store import common_fields
from sentkit.formats.vectors.vectors import VectorRow, without_vectors
from sentkit.metrics.neighbours.corpus import naming_field
from sentkit.metrics.neighbours.search import Searcher
from sentkit.metrics.similarity import BLOCKS, CANDIDATES, MAGNITUDES, exact, lengths, margins

LEFT_ROWS, RIGHT_ROWS = 2048, 512  # of a block; left rows are prepared once for many right rows
ROWS_PER_SEARCH = 1024  # rows of `pairs_reaching` that are compared at once with all later rows
MATRIX_ELEMENTS = 4_194_304  # elements of a block of the matrix
CEILING = {"cosine": 1.0, "dot": math.inf, "euclidean": 0.0, "manhattan": 0.0}  # the maximum similarity


@dataclass(frozen=True, slots=True)
class ClosestPairs:
    """Row numbers left < right. `closest_pairs` sorts them best first, ties in row order."""

    left: Indices  # (k,)
    right: Indices  # (k,)
    similarities: Float64  # (k,)

    def __len__(self) -> int:
        return len(self.similarities)


def _upper_blocks(vectors: Float32, metric: str) -> Iterator[tuple[int, int, Float32]]:
    """Each block with pairs i < j, after its first row and column; other pairs in it are NaN."""
    blocks = BLOCKS[metric]
    for top in range(0, len(vectors), LEFT_ROWS):
        rows = blocks.prepare(vectors[top : top + LEFT_ROWS])
        for start in range(top, len(vectors), RIGHT_ROWS):
            block = blocks.compare(rows, blocks.prepare(vectors[start : start + RIGHT_ROWS]))
            if start < top + LEFT_ROWS:
                under = np.arange(start, start + block.shape[1]) <= np.arange(top, top + len(block))[:, None]
                block[under] = np.nan  # comparisons with NaN are false, so these pairs are never found
            yield top, start, block


def _hits(block: Float32, *, floor: float, count: int, margin: float) -> Indices:
    """Flat positions, ascending, of all pairs that may be among the `count` best and reach the floor."""
    values = block.ravel()
    hits = np.flatnonzero(values >= floor)
    if len(hits) > count:
        candidates = values[hits]
        least = np.partition(candidates, len(candidates) - count)[len(candidates) - count]
        hits = hits[candidates >= least - margin]
    return hits


def _merged(best: ClosestPairs, more: ClosestPairs, count: int) -> ClosestPairs:
    left = np.concatenate([best.left, more.left])
    right = np.concatenate([best.right, more.right])
    similarities = np.concatenate([best.similarities, more.similarities])
    order = np.lexsort((right, left, -similarities))[:count]
    return ClosestPairs(left[order], right[order], similarities[order])


def _settled(best: ClosestPairs, row: int, column: int, *, count: int, ceiling: float) -> bool:
    """True if no pair from (row, column) on can enter: all best pairs have the maximum similarity."""
    full = len(best) == count and best.similarities[-1] == ceiling
    return full and (int(best.left[-1]), int(best.right[-1])) < (row, column)


def closest_pairs(vectors: Float32, top: int, metric: str = "cosine") -> ClosestPairs:
    """The `top` most similar pairs of rows, or all if there are fewer. Memory: one block and the result.

    A block only selects candidates, by a limit that rises as better pairs are found. The exact similarity
    decides. A matrix product rounds equal pairs differently at different positions, so ties would be random.
    """
    best = ClosestPairs(np.empty(0, np.intp), np.empty(0, np.intp), np.empty(0))
    if top < 1:
        return best
    magnitude = MAGNITUDES[metric](lengths(vectors).max(initial=0.0), vectors.shape[1])
    margin = float(margins(magnitude))
    for row, column, block in _upper_blocks(vectors, metric):
        if _settled(best, row, 0, count=top, ceiling=CEILING[metric]):
            break
        floor = float(best.similarities[-1]) - margin if len(best) == top else -math.inf
        hits = _hits(block, floor=floor, count=top, margin=margin)
        step = max(CANDIDATES, top)  # a merge sorts all found pairs
        for start in range(0, len(hits), step):
            left, right = np.divmod(hits[start : start + step], block.shape[1])
            left += row
            right += column
            if _settled(best, left[0], right[0], count=top, ceiling=CEILING[metric]):
                break
            more = ClosestPairs(left, right, exact(metric, vectors, vectors, (left, right)))
            best = _merged(best, more, top)
    return best


def pairs_reaching(vectors: Rows, threshold: float, metric: str = "cosine") -> Iterator[ClosestPairs]:
    """For each row, its pairs with later rows that reach the threshold, in the order of (left, right).

    Memory depends neither on the number of pairs nor on the number of rows.
    """
    searcher = Searcher(vectors, metric)
    for start in range(0, len(vectors), ROWS_PER_SEARCH):
        queries = vectors[start : start + ROWS_PER_SEARCH]
        for row, reached in enumerate(searcher.reaching(queries, threshold, start), start=start):
            later = reached.rows > row
            right = reached.rows[later]
            yield ClosestPairs(np.full_like(right, row), right, reached.similarities[later])


def matrix_rows(vectors: Float32, metric: str = "cosine") -> Iterator[Float32]:
    """The rows of the matrix of all similarities, in blocks (b, n)."""
    blocks = BLOCKS[metric]
    prepared = blocks.prepare(vectors)
    rows = max(1, MATRIX_ELEMENTS // max(1, len(vectors)))
    for start in range(0, len(vectors), rows):
        yield blocks.compare(prepared[start : start + rows], prepared)


LARGEST_MATRIX = 20_000  # rows
ROWS_PER_BLOCK = 256


def closest(inputs: Inputs, rows: Iterable[VectorRow], *, top: int, metric: str) -> Iterator[dict[str, Any]]:
    """The `top` most similar pairs, best first, with the names and numbers of the rows."""
    kept, vectors = _all(rows)
    yield from _records(inputs, closest_pairs(vectors, top, metric), kept)


def reaching(
    inputs: Inputs, rows: Iterable[VectorRow], *, threshold: float, metric: str
) -> Iterator[dict[str, Any]]:
    """All pairs that reach the threshold, in row order."""
    kept, vectors = _all(rows)
    for pairs in pairs_reaching(vectors, threshold, metric):
        yield from _records(inputs, pairs, kept)


def _records(inputs: Inputs, pairs: ClosestPairs, kept: Sequence[Row]) -> Iterator[dict[str, Any]]:
    fields = common_fields(inputs)
    for left, right, similarity in zip(pairs.left, pairs.right, pairs.similarities, strict=True):
        sides = {"_a": kept[left], "_b": kept[right]}
        yield {
            **{
                f"{ours}{side}": row.values[theirs]
                for side, row in sides.items()
                for ours, theirs in naming_field(row, fields).items()
            },
            **{
                f"{name}{side}": value
                for side, row in sides.items()
                for name, value in inputs.place_of(row).items()
            },
            "similarity": float(similarity),
        }


def matrix(rows: Iterable[VectorRow], *, metric: str) -> Iterator[tuple[Row, Float32]]:
    """Each row with its similarities to all rows."""
    kept, vectors = _all(rows, most=LARGEST_MATRIX)
    similarities = (line for block in matrix_rows(vectors, metric) for line in block)
    for row, line in zip(kept, similarities, strict=True):
        yield row, np.ascontiguousarray(line, dtype=np.float32)


def _all(rows: Iterable[VectorRow], most: int | None = None) -> tuple[list[Row], Float32]:
    """All rows without their vectors, and the vectors (n, d)."""
    kept: list[Row] = []
    parts: list[Float32] = []
    for block in blocks(rows, ROWS_PER_BLOCK):
        kept += [without_vectors(row.row, row.names) for row in block]
        parts.append(np.concatenate([row.vectors for row in block]))
        if most is not None and len(kept) > most:
            raise UsageError(f"--matrix accepts up to {most} rows; the input has more")
    return kept, np.concatenate(parts) if parts else np.empty((0, 1), np.float32)
