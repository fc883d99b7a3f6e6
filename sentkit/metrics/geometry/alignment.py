"""Alignment: the distance between the vectors of pairs with a high gold score (arXiv:2005.10242)."""

from dataclasses import dataclass

import numpy as np

from sentkit.formats.rows.kinds import scored
from sentkit.formats.vectors.vectors import VectorRow
from sentkit.metrics.geometry.directions import nonzero_directions
from sentkit.metrics.sts.gold_pairs import expect_pair


@dataclass(slots=True)
class Alignment:
    """The mean |a - b|^2 of unit vectors over pairs with a score above a threshold."""

    gold: str  # the field with the gold score
    above: float = 4.0  # as in SimCSE (arXiv:2104.08821)
    pairs: int = 0
    unscored: int = 0  # rows with a null score
    left_out: int = 0  # pairs above the threshold with a vector that is zero, NaN or infinite
    total: float = 0.0

    def take(self, row: VectorRow) -> VectorRow:
        """Add the row, and return it."""
        score = scored(expect_pair(row).row, self.gold)
        if score is None:
            self.unscored += 1
        elif score > self.above:
            self._add(row)
        return row

    def _add(self, row: VectorRow) -> None:
        finite = row.vectors[np.isfinite(row.vectors).all(axis=1)]
        units = nonzero_directions(finite.astype(np.float64))
        if len(units) < 2:
            self.left_out += 1
            return
        gap = units[0] - units[1]
        self.pairs += 1
        self.total += float(gap @ gap)

    def report(self) -> "AlignmentReport":
        mean = self.total / self.pairs if self.pairs else None
        pairs = AlignedPairs(self.gold, self.above, self.pairs, self.unscored, self.left_out)
        return AlignmentReport(mean, pairs)


@dataclass(frozen=True, slots=True)
class AlignedPairs:
    gold: str
    above: float
    pairs: int
    unscored: int
    left_out: int


@dataclass(frozen=True, slots=True)
class AlignmentReport:
    alignment: float | None  # None without pairs
    alignment_pairs: AlignedPairs
