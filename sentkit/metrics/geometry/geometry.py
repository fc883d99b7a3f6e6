"""The geometry of a vector space, in one pass and constant memory."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sentkit.arrays import Float32, Float64
from sentkit.formats.vectors.vectors import VectorRow
from sentkit.metrics.geometry import moments, spectrum
from sentkit.metrics.geometry.alignment import Alignment
from sentkit.metrics.geometry.directions import Directions, nonzero_directions
from sentkit.metrics.geometry.moments import AxisMoments

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
