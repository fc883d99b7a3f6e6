"""Figures of DefSent+: `python -m sentkit.papers.defsent.figures axes ENTRIES`; also `correlations`."""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from sentkit.arrays import Float32, Float64
from sentkit.errors import DataError
from sentkit.formats.vectors.vectors import VectorBlock, VectorReader
from sentkit.papers.figure_command import main, rows_of
from sentkit.plots.picture import Axis, Grid, Panel, Picture, Series
from sentkit.plots.reports import titles
from sentkit.plots.space import sampled
from sentkit.transforms.kinds import KINDS, FitOptions, ica, moments_of

MOST = 2000  # rows
ITERATIONS = 200  # of ICA
SHOWN = 32  # axes of a panel with correlations
VIEWS = {  # title, and name of an axis
    "svd": ("not centered", "singular vector"),
    "pca": ("centered", "component"),
    "whitening": ("whitened", "whitened component"),
    "ica": ("independent components", "independent component"),
}


def axes(paths: Sequence[str]) -> Picture:
    """Figures 1 and 3 to 8: the entries before and after centering, whitening and ICA.

    The first two singular vectors without subtraction of the mean, the first two components of the centered
    vectors, the same with variance 1, and the two independent components with the largest skewness. From more
    than 2000 rows, a random sample is drawn, and the fits use only the sample.
    """
    panels = []
    for path in paths:
        vectors, numbers = read_vectors(path)
        moments = moments_of(vectors)
        for view, (title, label) in VIEWS.items():
            if view == "ica":
                fit = ica([vectors], moments, FitOptions(iterations=ITERATIONS))
            else:
                fit = KINDS[view](moments, FitOptions())
            values: Float64 = (vectors - fit.mean) @ fit.kernel
            places = np.arange(values.shape[1])
            if view == "ica":
                skewness = ((values - values.mean(axis=0)) ** 3).mean(axis=0) / values.std(axis=0) ** 3
                places = np.argsort(-np.abs(skewness), kind="stable")
            if len(places) < 2:  # vectors on one line
                values, places = np.pad(values, ((0, 0), (0, 1))), np.array([0, 1])
            first, second = values[:, places[:2]].T
            series = Series("", first, second, fields={"row": numbers})
            names = [f"{label} {place + 1}" for place in places[:2]]
            x, y = Axis("x", names[0]), Axis("y", names[1])
            panels.append(Panel(x, y, (series,), title=title, square=True, origin=True))
    return Picture(tuple(panels), height=1.0)


def correlations(paths: Sequence[str]) -> Picture:
    """The absolute correlations of the first 32 axes, and the mean over all pairs of axes."""
    panels = []
    for path, title in zip(paths, titles(paths), strict=True):
        values = read_vectors(path)[0].astype(np.float64)
        deviations = values.std(axis=0)
        scaled = (values - values.mean(axis=0)) / np.where(deviations > 0, deviations, np.nan)
        found = np.abs(scaled.T @ scaled / len(values))
        others = found[~np.eye(len(found), dtype=bool)]
        defined = others[np.isfinite(others)]
        mean = f"mean {defined.mean():.3f}" if len(defined) else "undefined"
        count = min(SHOWN, len(found))
        places = np.arange(1.0, count + 1)
        grid = Grid("correlation", found[:count, :count], places, places, 0.0, 1.0, label="correlation")
        x, y = Axis("axis_a", "axis", whole=True), Axis("axis_b", "axis", whole=True)
        panels.append(Panel(x, y, grid=grid, title=title, note=mean, downward=True))
    return Picture(tuple(panels), height=1.0)


def read_vectors(path: str) -> tuple[Float32, Sequence[int]]:
    """The vectors of a file (n, d), or of a sample, and the numbers of their rows."""
    reader = VectorReader(rows_of([path]))

    def check(block: VectorBlock) -> VectorBlock:
        if block.vectors.shape[1] != 1:
            block.rows.refuse_all("this row has several vectors; expected rows with one vector")
        return block

    blocks = reader.blocks(check, paths=[path])
    items = (zip(each.rows.numbers, each.vectors[:, 0], strict=True) for each in blocks)
    rows, _ = sampled(chain.from_iterable(items), MOST, seed=0)
    vectors = np.array([vector for _, vector in rows])
    if len(vectors) < 3 or vectors.shape[1] < 2 or (vectors == vectors[0]).all():
        raise DataError("expected 3 or more vectors of 2 or more numbers, which differ", source=path)
    return vectors, [number for number, _ in rows]


if __name__ == "__main__":
    main(axes, correlations)
