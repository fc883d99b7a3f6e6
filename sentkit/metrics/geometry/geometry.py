"""The geometry of a vector space, in one pass and constant memory: directions, alignment, moments.

Wang and Isola (arXiv:2005.10242) define uniformity on the unit sphere, so vectors are scaled to length 1.
Letters in shapes: n rows, d dimensions.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sentkit.arrays import Float32, Float64
from sentkit.formats.rows.kinds import scored
from sentkit.formats.vectors.vectors import VectorRow
from sentkit.metrics.geometry import moments, spectrum
from sentkit.metrics.geometry.moments import AxisMoments
from sentkit.metrics.sts.gold_pairs import expect_pair

SAMPLE_VECTORS = 20_000  # vectors; the distances of all their pairs are computed
LEFT_ROWS, RIGHT_ROWS = 512, 2048  # rows and columns of a block


def nonzero_directions(rows: Float64) -> Float64:
    """Scale rows to length 1, (n, d) -> (m, d); zero vectors are omitted."""
    lengths = np.sqrt(np.vecdot(rows, rows))
    return rows[lengths > 0] / lengths[lengths > 0, None]


class Directions:
    """The sum of unit vectors, and a uniform random sample of them."""

    def __init__(self, width: int, seed: int) -> None:
        self.count = 0
        self.total = np.zeros(width)
        self.sample = np.empty((0, width), np.float32)
        self.random = np.random.Generator(np.random.Philox(seed))

    def add(self, units: Float64) -> None:
        """Add unit vectors (n, d)."""
        self.total += units.sum(axis=0)
        held = len(self.sample)
        fitting = units[: SAMPLE_VECTORS - held]
        if len(fitting):
            self.sample.resize((held + len(fitting), units.shape[1]), refcheck=False)  # without a copy
            self.sample[held:] = fitting
            self.count += len(fitting)
        self._replace(units[len(fitting) :])

    def _replace(self, units: Float64) -> None:
        """Row number k replaces a random sampled row with probability SAMPLE_VECTORS / k (algorithm R)."""
        numbers = np.arange(self.count, self.count + len(units))
        places = self.random.integers(0, numbers + 1)
        chosen = np.flatnonzero(places < len(self.sample))
        self.sample[places[chosen]] = units[chosen]  # of two rows at one index the later one is kept
        self.count += len(units)

    def mean_cosine(self) -> float | None:
        """The mean over all pairs of two rows: the squared sum of unit vectors, minus each row's own 1."""
        if self.count < 2:
            return None
        mean = (self.total @ self.total - self.count) / (self.count * (self.count - 1))
        return min(1.0, max(-1.0, float(mean)))  # limit rounding errors

    @property
    def sampled(self) -> bool:
        """True if the sample does not contain all vectors."""
        return self.count > len(self.sample)

    def uniformity(self) -> float | None:
        return uniformity(self.sample)


def uniformity(units: Float32) -> float | None:
    """Log mean exp(-2 |x - y|^2) over all pairs of rows (n, d), equal rows included; lower is more even."""
    count, total = len(units), 0.0
    if count < 2:
        return None
    for top in range(0, count, LEFT_ROWS):
        rows = units[top : top + LEFT_ROWS]
        for start in range(top, count, RIGHT_ROWS):
            block = rows @ units[start : start + RIGHT_ROWS].T
            block -= 1.0
            block *= 4.0  # -2 |x - y|^2 of two unit vectors
            np.exp(block, out=block)
            if start < top + LEFT_ROWS:
                block = np.triu(block, top - start + 1)
            total += float(block.sum(dtype=np.float64))
    return math.log(total / (count * (count - 1) / 2))


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


ROWS_PER_BLOCK = 1024  # rows processed at once
SEED = 0  # of the sample for the uniformity


class Geometry:
    """Accumulates vectors, in blocks of one size, so that the input blocks do not affect the result."""

    def __init__(self, alignment: Alignment | None = None) -> None:
        self.alignment = alignment
        self.left_out = 0
        self._begin(0)

    def _begin(self, width: int) -> None:
        self.waiting = np.empty((0, width), np.float32)
        self.moments, self.directions = AxisMoments(width), Directions(width, SEED)

    def take(self, row: VectorRow) -> VectorRow:
        """Add the row's pair to the alignment if it is computed; return the row."""
        return self.alignment.take(row) if self.alignment else row

    def watch(self, blocks: Iterable[Float32]) -> Iterator[Float32]:
        """Add and yield blocks (n, k, d); all their vectors count as rows."""
        for block in blocks:
            self.add(block.reshape(-1, block.shape[-1]))
            yield block

    def add(self, vectors: Float32) -> None:
        """Add vectors (n, d)."""
        if self.waiting.shape[1] != vectors.shape[1]:
            self._begin(vectors.shape[1])
        whole = np.isfinite(vectors).all(axis=1)
        self.left_out += int((~whole).sum())
        rows = np.concatenate([self.waiting, vectors[whole]])
        ready = len(rows) - len(rows) % ROWS_PER_BLOCK
        for start in range(0, ready, ROWS_PER_BLOCK):
            self._take(rows[start : start + ROWS_PER_BLOCK])
        self.waiting = rows[ready:].copy()

    def _take(self, rows: Float32) -> None:
        wide = rows.astype(np.float64)
        self.moments.add(wide)
        self.directions.add(nonzero_directions(wide))

    def record(self) -> dict[str, Any]:
        """The report; None for values that too few or equal vectors leave undefined."""
        if len(self.waiting):
            self._take(self.waiting)
            self.waiting = self.waiting[:0]
        directions = self.directions
        sampled = {"vectors": len(directions.sample), "seed": SEED} if directions.sampled else None
        return {
            "vectors": self.moments.count,
            "left_out": self.left_out,
            "directions": directions.count,
            "mean_cosine": directions.mean_cosine(),
            "uniformity": directions.uniformity(),
            "uniformity_sample": sampled,
            **(asdict(self.alignment.report()) if self.alignment else {}),
            **covariance_record(self.moments),
            **asdict(axes_report(self.moments)),
        }


@dataclass(frozen=True, slots=True)
class ComponentShare:
    """Shares of the variance in the first principal components."""

    first: float | None
    first_3: float | None
    first_10: float | None
    first_uncentred: float | None


@dataclass(frozen=True, slots=True)
class Covariance:
    isoscore: float | None
    effective_rank: float | None
    rank: int
    component_share: ComponentShare
    axis_correlation: float | None


@dataclass(frozen=True, slots=True)
class Skewness:
    mean_absolute: float | None
    largest: float | None
    axis: int | None


@dataclass(frozen=True, slots=True)
class Kurtosis:
    mean: float | None
    max: float | None
    axis: int | None


@dataclass(frozen=True, slots=True)
class Axes:
    constant_axes: int
    skewness: Skewness
    excess_kurtosis: Kurtosis


def covariance_record(sums: AxisMoments) -> dict[str, Any]:
    """The fields about the covariance; for very wide vectors only a message, because no scatter is held."""
    if sums.scatter is None:
        empty = np.zeros((0, 0))
        reason = f"not held: vectors of {len(sums.mean)} numbers, more than {moments.MAX_SCATTER_WIDTH}"
        return {"covariance": reason, **asdict(covariance(empty, empty)), "rank": None}
    about_zero = sums.scatter + sums.count * np.outer(sums.mean, sums.mean)
    return asdict(covariance(sums.scatter, about_zero))


def covariance(scatter: Float64, about_zero: Float64) -> Covariance:
    """`about_zero` is the scatter about zero instead of the mean."""
    values, uncentred = spectrum.eigenvalues(scatter), spectrum.eigenvalues(about_zero)
    first, first_3, first_10 = (spectrum.first_share(values, count) for count in (1, 3, 10))
    return Covariance(
        isoscore=spectrum.isoscore(values),
        effective_rank=spectrum.effective_rank(values),
        rank=spectrum.rank(values),
        component_share=ComponentShare(first, first_3, first_10, spectrum.first_share(uncentred, 1)),
        axis_correlation=moments.mean_absolute_correlation(scatter),
    )


def axes_report(sums: AxisMoments) -> Axes:
    """The distribution along the axes, with the axes furthest from a normal distribution."""
    shapes = moments.shapes(sums)
    constant = len(sums.mean) - len(shapes.axes)
    if not len(shapes.axes):
        return Axes(constant, Skewness(None, None, None), Kurtosis(None, None, None))
    skewness, kurtosis, sizes = shapes.skewness, shapes.excess_kurtosis, np.abs(shapes.skewness)
    skewed, heavy = int(sizes.argmax()), int(kurtosis.argmax())
    return Axes(
        constant,
        Skewness(float(sizes.mean()), float(skewness[skewed]), int(shapes.axes[skewed])),
        Kurtosis(float(kurtosis.mean()), float(kurtosis[heavy]), int(shapes.axes[heavy])),
    )
