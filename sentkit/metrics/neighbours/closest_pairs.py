"""The most similar pairs of rows of one table, pairs that reach a threshold, and all similarities.

Letters in shapes: n rows, d dimensions, b rows of a block, k pairs found.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sentkit.arrays import Float32, Float64, Indices, Rows
from sentkit.errors import UsageError
from sentkit.formats.rows.block import Row, RowBlock, empty_block
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.store import common_fields
from sentkit.formats.vectors.vectors import VectorBlock
from sentkit.metrics.neighbours.corpus import naming_field
from sentkit.metrics.neighbours.search import MAX_CANDIDATES, Searcher
from sentkit.metrics.similarity import BLOCKS

if TYPE_CHECKING:
    from sentkit.metrics.device import Device

FIRST_ROWS = 32  # rows whose nearest rows give the first limit of `closest_pairs`
ROWS_PER_SEARCH = 1024  # rows that are compared at once with all later rows
MATRIX_ELEMENTS = 4_194_304  # elements of a block of the matrix
LARGEST_MATRIX = 20_000  # rows
CEILING = {"cosine": 1.0, "dot": math.inf, "euclidean": 0.0, "manhattan": 0.0}  # the maximum similarity


@dataclass(frozen=True, slots=True)
class ClosestPairs:
    """Row numbers left < right. `closest_pairs` sorts them best first, ties in row order."""

    left: Indices  # (k,)
    right: Indices  # (k,)
    similarities: Float64  # (k,)

    def __len__(self) -> int:
        return len(self.similarities)


def closest_pairs(vectors: Float32, top: int, metric: str = "cosine") -> ClosestPairs:
    """The `top` most similar pairs of rows, or all if there are fewer.

    The nearest rows of the first rows give a limit. Pairs of later rows must exceed it, and it rises.
    """
    searcher = Searcher(vectors, metric)
    first = min(FIRST_ROWS, len(vectors), searcher.at_once(top + FIRST_ROWS))
    nearest = searcher.nearest(vectors[:first], top + first)  # among them the `top` best later rows
    left = np.repeat(np.arange(first), nearest.rows.shape[1])
    later = left < nearest.rows.ravel()
    best = best_of(
        [ClosestPairs(left[later], nearest.rows.ravel()[later], nearest.similarities.ravel()[later])], top
    )
    for start in range(first, len(vectors), ROWS_PER_SEARCH) if top > 0 else ():
        least = -math.inf if len(best) < top else math.nextafter(best.similarities[-1], math.inf)
        if least > CEILING[metric]:
            break
        parts, count = [best], 0
        for pairs in later_pairs(searcher, start, least):
            parts.append(pairs)
            count += len(pairs)
            if count > max(top, MAX_CANDIDATES):
                parts, count = [best_of(parts, top)], 0
        best = best_of(parts, top)
    return best


def best_of(parts: list[ClosestPairs], count: int) -> ClosestPairs:
    left, right, similarities = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("left", "right", "similarities")
    )
    order = np.lexsort((right, left, -similarities))[: max(0, count)]
    return ClosestPairs(left[order], right[order], similarities[order])


def pairs_reaching(
    vectors: Rows, threshold: float, metric: str = "cosine", device: "Device | None" = None
) -> Iterator[ClosestPairs]:
    """The pairs that reach the threshold, in the order of (left, right), those of some left rows at a time.

    Memory depends neither on the number of pairs nor on the number of rows.
    """
    searcher = Searcher(vectors, metric, device)
    for start in range(0, len(vectors), ROWS_PER_SEARCH):
        yield from later_pairs(searcher, start, threshold)


def later_pairs(searcher: Searcher, start: int, threshold: float) -> Iterator[ClosestPairs]:
    """The pairs of the block of rows that begins at `start` with later rows."""
    queries = searcher.corpus[start : start + ROWS_PER_SEARCH]
    for _, left, right, similarities in searcher.pairs(queries, threshold, start, start):
        later = right > left
        yield ClosestPairs(left[later], right[later], similarities[later])


def matrix_rows(vectors: Float32, metric: str = "cosine") -> Iterator[Float32]:
    """The rows of the matrix of all similarities, in blocks (b, n)."""
    blocks = BLOCKS[metric]
    prepared = blocks.prepare(vectors)
    rows = max(1, MATRIX_ELEMENTS // max(1, len(vectors)))
    for start in range(0, len(vectors), rows):
        yield blocks.compare(prepared[start : start + rows], prepared)


def records(inputs: Inputs, rows: RowBlock, pairs: ClosestPairs) -> Iterator[dict[str, Any]]:
    """The names and numbers of the rows of each pair, and its similarity."""
    fields = common_fields(inputs)
    for left, right, similarity in zip(pairs.left, pairs.right, pairs.similarities, strict=True):
        names, places = dict[str, Any](), dict[str, Any]()
        for side, row in (("_a", rows.row(left)), ("_b", rows.row(right))):
            names |= {f"{ours}{side}": row.values[name] for ours, name in naming_field(row, fields).items()}
            places |= {f"{name}{side}": value for name, value in inputs.place_of(row).items()}
        yield {**names, **places, "similarity": float(similarity)}


def whole(blocks: Iterable[VectorBlock], most: int | None = None) -> tuple[RowBlock, Float32]:
    """All rows without their vectors, and the first vectors (n, d)."""
    kept, parts = empty_block(), [np.empty((0, 1), np.float32)]
    for block in blocks:
        kept.extend(block.rows.without({*block.names, "_emb"}))
        parts.append(block.vectors[:, 0])
        if most is not None and len(kept) > most:
            raise UsageError(f"--matrix accepts up to {most} rows; the input has more")
    return kept, np.concatenate(parts[1:] or parts)


def matrix(blocks: Iterable[VectorBlock], *, metric: str) -> Iterator[tuple[Row, Float32]]:
    """Each row with its similarities to all rows."""
    rows, vectors = whole(blocks, most=LARGEST_MATRIX)
    similarities = (line for block in matrix_rows(vectors, metric) for line in block)
    for row, line in zip(rows, similarities, strict=True):
        yield row, np.ascontiguousarray(line, dtype=np.float32)
