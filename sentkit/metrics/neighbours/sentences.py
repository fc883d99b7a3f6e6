"""Rows with one vector -> the closest pairs, the pairs that reach a threshold, or all similarities."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from sentkit.arrays import Float32
from sentkit.errors import UsageError
from sentkit.formats.rows.rows import Inputs, Row, blocks
from sentkit.formats.vectors.store import common_fields
from sentkit.formats.vectors.vectors import VectorRow, without_vectors
from sentkit.metrics.neighbours.closest_pairs import ClosestPairs, closest_pairs, matrix_rows, pairs_reaching
from sentkit.metrics.neighbours.corpus import naming_field

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
