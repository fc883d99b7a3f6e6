"""Rows with a zero vector, which a command compares like all others."""

from collections.abc import Iterable, Iterator

import numpy as np

from sentkit.arrays import Bools, Float32, Indices
from sentkit.formats.files import shown_path
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.vectors import VectorBlock


def rows_with_zero_vector(vectors: Float32) -> Indices:
    """The indices of the rows (n, k, d) that have a zero vector."""
    # Of most rows, one number is enough.
    has_zero: Bools = vectors[:, :, 0] == 0.0
    candidates = np.flatnonzero(has_zero.any(axis=1))
    is_zero = ~np.any(vectors[candidates], axis=2)  # (candidates, k)
    return candidates[is_zero.any(axis=1)]


class ZeroVectorCounter:
    """Counts the rows of a file, and those with a zero vector, for a warning."""

    def __init__(self, word: str) -> None:
        """`word` names the rows in the message."""
        self.word = word
        self.rows = 0
        self.zero = 0

    def add(self, vectors: Float32) -> None:
        """Count rows with these vectors (n, k, d)."""
        self.rows += len(vectors)
        self.zero += len(rows_with_zero_vector(vectors))

    def counted(self, blocks: Iterable[VectorBlock]) -> Iterator[VectorBlock]:
        for block in blocks:
            self.add(block.vectors)
            yield block

    def warn(self, inputs: Inputs, path: str) -> None:
        """Warn of the rows with a zero vector, if there are any."""
        if self.zero:
            problem = "have a zero vector, as empty texts do, and are not left out"
            count = f"{self.zero:,} of {self.rows:,} {self.word}"
            inputs.rejects.warn(f"{shown_path(path)}: {count} {problem}")
