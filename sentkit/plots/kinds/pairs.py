"""Gold scores and similarities of pairs (figure 1 of ConSERT): one panel per file."""

import numpy as np

from sentkit.arrays import Float64
from sentkit.formats.rows.rows import Inputs
from sentkit.metrics.gold_pairs import GoldPairs, ScoreOptions, read_gold_pairs
from sentkit.metrics.statistics import spearman
from sentkit.plots.picture import Axis, Grid, Panel, Picture, Series
from sentkit.plots.reports import titles

FEW = 500  # at most so many pairs are drawn as points
CELLS = 40  # of the density, on each axis
Limits = tuple[tuple[float, float], tuple[float, float]]  # of the gold scores and of the similarities
BANDS = 10  # of gold scores, for the medians


def pairs(inputs: Inputs, gold: str, metric: str) -> Picture:
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
