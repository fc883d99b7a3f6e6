"""Figures of DefSent+: `python -m sentkit.papers.defsent.figures axes ENTRIES`; also
`correlations`.
"""

from collections.abc import Sequence

import numpy as np

from sentkit.arrays import Float32, Float64
from sentkit.errors import DataError
from sentkit.formats.vectors.vectors import VectorBlock, VectorReader
from sentkit.papers.figure_command import main, rows_of
from sentkit.plots.picture import Axis, Grid, Panel, Picture, Series
from sentkit.plots.reports import titles
from sentkit.plots.space import sampled
from sentkit.transforms.kinds import KINDS, FitOptions, ica, moments_of

MOST_ROWS = 2000
ITERATIONS = 200  # of ICA
MOST_AXES = 32  # of a panel with correlations
VIEWS = {  # title, and name of an axis
    "svd": ("not centered", "singular vector"),
    "pca": ("centered", "component"),
    "whitening": ("whitened", "whitened component"),
    "ica": ("independent components", "independent component"),
}


def axes(paths: Sequence[str]) -> Picture:
    """Figures 1 and 3 to 8: the entries before and after centering, whitening and ICA.

    The first two singular vectors without subtraction of the mean, the first two components of the
    centered vectors, the same with variance 1, and the two independent components with the largest
    skewness. From more than 2000 rows, a random sample is drawn, and the fits use only the sample.
    """
    panels = []
    for path, name in zip(paths, titles(paths), strict=True):
        vectors, row_numbers = read_vectors(path)
        moments = moments_of(vectors)
        for view, (title, label) in VIEWS.items():
            if view == "ica":
                fit = ica([vectors], moments, FitOptions(iterations=ITERATIONS))
            else:
                fit = KINDS[view](moments, FitOptions())
            values: Float64 = (vectors - fit.mean) @ fit.kernel

            # The two axes that are drawn.
            order = np.arange(values.shape[1])
            if view == "ica":
                centred = values - values.mean(axis=0)
                skewness = (centred**3).mean(axis=0) / values.std(axis=0) ** 3
                order = np.argsort(-np.abs(skewness), kind="stable")
            if len(order) < 2:  # vectors on one line
                values = np.pad(values, ((0, 0), (0, 1)))
                order = np.array([0, 1])
            first, second = order[:2]
            series = Series("", values[:, first], values[:, second], fields={"row": row_numbers})
            if name:  # of several files
                title = f"{name}, {title}"
            x_axis = Axis("x", f"{label} {first + 1}")
            y_axis = Axis("y", f"{label} {second + 1}")
            panels.append(
                Panel(x_axis, y_axis, (series,), title=title, has_equal_units=True, origin=True)
            )
    return Picture(tuple(panels), height=1.0)


def correlations(paths: Sequence[str]) -> Picture:
    """The absolute correlations of the first 32 axes, and the mean over all pairs of axes."""
    panels = []
    for path, title in zip(paths, titles(paths), strict=True):
        values = read_vectors(path)[0].astype(np.float64)
        deviations = values.std(axis=0)
        scaled = (values - values.mean(axis=0)) / np.where(deviations > 0, deviations, np.nan)
        correlations = np.abs(scaled.T @ scaled / len(values))  # (d, d)

        # The mean over all pairs of axes.
        is_pair = ~np.eye(len(correlations), dtype=bool)
        is_defined = np.isfinite(correlations)
        of_pairs = correlations[is_pair & is_defined]
        note = f"mean {of_pairs.mean():.3f}" if len(of_pairs) else "undefined"

        count = min(MOST_AXES, len(correlations))
        numbers = np.arange(1.0, count + 1)
        grid = Grid(
            "correlation",
            correlations[:count, :count],
            x=numbers,
            y=numbers,
            low=0.0,
            high=1.0,
            label="correlation",
        )
        x_axis = Axis("axis_a", "axis", whole=True)
        y_axis = Axis("axis_b", "axis", whole=True)
        panels.append(Panel(x_axis, y_axis, grid=grid, title=title, note=note, downward=True))
    return Picture(tuple(panels), height=1.0)


def read_vectors(path: str) -> tuple[Float32, Sequence[int]]:
    """The vectors of a file (n, d), or of a sample, and the numbers of their rows."""
    reader = VectorReader(rows_of([path]))

    def check(block: VectorBlock) -> VectorBlock:
        if block.vectors.shape[1] != 1:
            block.rows.refuse_all("this row has several vectors; expected rows with one vector")
        return block

    blocks = reader.blocks(check, paths=[path])
    numbered_vectors = (
        (number, vector)
        for block in blocks
        for number, vector in zip(block.rows.numbers, block.vectors[:, 0], strict=True)
    )
    sample, _ = sampled(numbered_vectors, MOST_ROWS, seed=0)
    vectors = np.array([vector for _, vector in sample])
    if len(vectors) < 3 or vectors.shape[1] < 2 or (vectors == vectors[0]).all():
        raise DataError(
            "expected 3 or more vectors of 2 or more numbers, which differ", source=path
        )
    return vectors, [number for number, _ in sample]


if __name__ == "__main__":
    main(__name__)
