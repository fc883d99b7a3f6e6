"""Similarities: of all sentences, with their texts, and of pairs over their gold scores."""

import numpy as np

from sentkit.arrays import Float64
from sentkit.errors import DataError
from sentkit.formats.files import readable
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.store import common_fields
from sentkit.formats.vectors.vectors import VectorBlock, VectorReader
from sentkit.metrics.neighbours.closest_pairs import matrix
from sentkit.metrics.neighbours.corpus import naming_field
from sentkit.metrics.sts.correlation import spearman
from sentkit.metrics.sts.gold_pairs import GoldPairs, ScoreOptions, read_gold_pairs
from sentkit.plots.picture import Axis, Grid, Panel, Picture, Series
from sentkit.plots.reports import titles

MOST = 100  # sentences
NUMBERED = 8  # at most so many sentences have numbers in the cells
FEW = 500  # at most so many pairs are drawn as points
CELLS = 40  # of the density, on each axis
Limits = tuple[tuple[float, float], tuple[float, float]]  # of the gold scores and of the similarities
BANDS = 10  # of gold scores, for the medians


def heat(inputs: Inputs, metric: str) -> Picture:
    def check(block: VectorBlock) -> VectorBlock:
        if block.vectors.shape[1] != 1:
            block.rows.refuse_all("this row has several vectors; plot heat draws sentences")
        return block

    blocks = list(VectorReader(inputs).blocks(check, MOST + 1))
    if sum(map(len, blocks)) > MOST:
        source, advice = readable(blocks[-1].rows.sources[-1]), f"draw a part: sentkit cat FILE --head {MOST}"
        raise DataError(f"more than {MOST} sentences", source=source, advice=advice)
    fields = common_fields(inputs)
    lines = list(matrix(blocks, metric=metric))
    names = tuple(
        next((str(row.values[name]) for name in naming_field(row, fields).values()), f"row {row.number}")
        for row, _ in lines
    )
    values = np.array([similarities for _, similarities in lines], np.float64)
    places = np.arange(len(lines), dtype=np.float64)
    low = min(0.0, float(values.min()))
    high = 1.0 if metric == "cosine" else float(values.max())
    numbered = len(lines) <= NUMBERED
    grid = Grid("similarity", values, places + 1, places, low, high, shown=numbered, label=metric)
    x = Axis("column", "row", whole=True, ticks=tuple(places + 1) if numbered else ())
    y = Axis("text", "", names=names)
    return Picture((Panel(x, y, grid=grid, note=metric if numbered else "", downward=True),), height=0.4)


def pairs(inputs: Inputs, gold: str, metric: str) -> Picture:
    """Figure 1 of ConSERT: one panel per file."""
    options = ScoreOptions(gold, metric=metric)
    files = [read_gold_pairs(inputs, path, options, paired=False) for path in inputs.paths]
    # Equal in all panels.
    limits = widened([each.gold for each in files]), widened([each.similarities for each in files])
    names = zip(files, titles(inputs.paths), strict=True)
    return Picture(tuple(panel_of(each, title, metric, limits) for each, title in names), height=0.9)


def widened(columns: list[Float64]) -> tuple[float, float]:
    """The range of the values, with a small margin."""
    low, high = min(float(each.min()) for each in columns), max(float(each.max()) for each in columns)
    margin = 0.02 * (high - low) or 0.5
    return low - margin, high + margin


def panel_of(pairs: GoldPairs, title: str, metric: str, limits: Limits) -> Panel:
    correlation = 100 * spearman(pairs.similarities, pairs.gold)
    shown = "undefined" if np.isnan(correlation) else f"Spearman {correlation:.1f}"
    note = f"{shown}, n = {len(pairs)}"
    x, y = Axis("gold", "gold score", *limits[0]), Axis("similarity", metric, *limits[1])
    if len(pairs) <= FEW:
        points = Series("", pairs.gold, pairs.similarities)
        return Panel(x, y, (points,), title=title, note=note)
    series, grid = (median_line(pairs),), density(pairs, limits)
    return Panel(x, y, series, grid, title=title, note=note)


def density(pairs: GoldPairs, limits: Limits) -> Grid:
    """The number of pairs in each cell."""
    edges = [np.linspace(low, high, CELLS + 1) for low, high in limits]
    counts, _, _ = np.histogram2d(pairs.gold, pairs.similarities, bins=edges)
    counts = counts.T
    centres = [(edge[1:] + edge[:-1]) / 2 for edge in edges]
    shown = np.where(counts > 0, counts, np.nan)
    return Grid("count", shown, centres[0], centres[1], 0.0, float(counts.max()), log=True, label="pairs")


def median_line(pairs: GoldPairs) -> Series:
    """The median similarity and the quartiles of each band of gold scores."""
    edges = np.linspace(pairs.gold.min(), pairs.gold.max(), BANDS + 1)
    bands = np.clip(np.searchsorted(edges, pairs.gold, side="right") - 1, 0, BANDS - 1)
    parts = [pairs.similarities[bands == band] for band in range(BANDS)]
    quartiles = np.array([np.percentile(p, (25, 50, 75)) if len(p) else [np.nan] * 3 for p in parts])
    low, middle, high = quartiles.T
    return Series("median", (edges[1:] + edges[:-1]) / 2, middle, "line", low, high)
