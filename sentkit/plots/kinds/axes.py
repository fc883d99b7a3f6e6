"""Vectors before and after transforms (figures of DefSent+): two axes, or the correlation of axes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sentkit.arrays import Float32, Float64
from sentkit.errors import DataError
from sentkit.formats.files import readable
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.vectors import VectorReader, VectorRow
from sentkit.plots.picture import Axis, Grid, Panel, Picture, Series
from sentkit.plots.samples import Sample, titles
from sentkit.transforms.fitting import check_width
from sentkit.transforms.ica import IcaOptions, ica
from sentkit.transforms.kinds import KINDS, FitOptions
from sentkit.transforms.moments import Moments, moments_of

SHOWN = 32  # axes of a panel with correlations
FEWEST = 3  # vectors
# View -> title and name of an axis. "raw" is the vectors themselves.
VIEWS = {
    "raw": ("as they are", "number"),
    "svd": ("not centered", "singular vector"),
    "pca": ("centered", "component"),
    "whitening": ("whitened", "whitened component"),
    "ica": ("independent components", "independent component"),
}
Warn = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class AxesOptions:
    views: tuple[str, ...]
    correlation: bool = False
    most: int = 2000  # rows
    seed: int = 0
    iterations: int = 200  # of ICA


def axes(inputs: Inputs, options: AxesOptions, warn: Warn) -> Picture:
    panels = []
    for path, name in zip(inputs.paths, titles(inputs.paths), strict=True):
        vectors, numbers = read_vectors(inputs, path, options, warn)
        moments = moments_of(vectors)
        for view in options.views:
            values = seen(view, vectors, moments, options, path, warn)
            title = ": ".join(filter(None, (name, VIEWS[view][0])))
            panel = correlation_panel if options.correlation else points_panel
            panels.append(panel(values, view, title, numbers))
    return Picture(tuple(panels), height=1.0)


def read_vectors(
    inputs: Inputs, path: str, options: AxesOptions, warn: Warn
) -> tuple[Float32, Sequence[int]]:
    """The vectors of a file (n, d), or of a sample, and the numbers of their rows."""
    reader = VectorReader(inputs)

    def take(row: VectorRow) -> VectorRow:
        if len(row.vectors) != 1:
            raise row.row.error("this row has several vectors; plot axes draws rows with one vector")
        return row

    sample: Sample[tuple[int, Float32]] = Sample(options.most, options.seed)
    for row in reader.read_file(path, take):
        sample.add(lambda r=row: (r.row.number, r.vectors[0]))  # type: ignore[misc]
    items = sample.items
    if len(items) < FEWEST:
        raise DataError(f"{len(items)} vectors, expected {FEWEST} or more", source=readable(path))
    check_width(reader.width, path)
    if sample.seen > len(items):
        warn(f"{readable(path)}: the picture has a random sample of {len(items)} of {sample.seen} rows")
    vectors = np.stack([vector for _, vector in items])
    if (vectors == vectors[0]).all():
        problem = f"all {len(items)} vectors are equal, so there is nothing to draw"
        raise DataError(problem, source=readable(path))
    if reader.width < 2:
        raise DataError("vectors of 1 number have only one axis", source=readable(path))
    return vectors, [number for number, _ in items]


def seen(
    view: str, vectors: Float32, moments: Moments, options: AxesOptions, path: str, warn: Warn
) -> Float64:
    """The vectors after the transform of a view (n, k)."""
    if view == "raw":
        return vectors.astype(np.float64)
    if view == "ica":
        fit = ica(
            [vectors], moments, FitOptions(), IcaOptions(seed=options.seed, iterations=options.iterations)
        )
        if not fit.record["converged"]:
            problem = f"ICA did not converge in {options.iterations} iterations (--iterations)"
            warn(f"{readable(path)}: {problem}")
    else:
        fit = KINDS[view](moments, FitOptions())
    return (vectors - fit.mean) @ fit.kernel


def points_panel(values: Float64, view: str, title: str, numbers: Sequence[int]) -> Panel:
    """Two axes: the first ones, or of independent components the two with the largest skewness."""
    places = np.arange(values.shape[1])
    if view == "ica":
        skewness = ((values - values.mean(axis=0)) ** 3).mean(axis=0) / values.std(axis=0) ** 3
        places = np.argsort(-np.abs(skewness), kind="stable")
    if len(places) < 2:  # vectors on one line
        values, places = np.pad(values, ((0, 0), (0, 1))), np.array([0, 1])
    first, second = places[:2]
    series = Series("", values[:, first], values[:, second], fields={"row": numbers})
    names = [f"{VIEWS[view][1]} {place + 1}" for place in (first, second)]
    return Panel(Axis("x", names[0]), Axis("y", names[1]), (series,), title=title, square=True, origin=True)


def correlation_panel(values: Float64, view: str, title: str, numbers: Sequence[int]) -> Panel:
    """The absolute correlations of the first axes; those of a constant axis are missing."""
    deviations = values.std(axis=0)
    scaled = (values - values.mean(axis=0)) / np.where(deviations > 0, deviations, np.nan)
    correlations = np.abs(scaled.T @ scaled / len(values))
    others = correlations[~np.eye(len(correlations), dtype=bool)]
    defined = others[np.isfinite(others)]
    mean = f"mean {defined.mean():.3f}" if len(defined) else "undefined"
    count = min(SHOWN, len(correlations))
    places = np.arange(1.0, count + 1)
    grid = Grid("correlation", correlations[:count, :count], places, places, 0.0, 1.0, label="correlation")
    label = VIEWS[view][1]
    x, y = Axis("axis_a", label, whole=True), Axis("axis_b", label, whole=True)
    return Panel(x, y, grid=grid, title=title, note=mean, downward=True)
