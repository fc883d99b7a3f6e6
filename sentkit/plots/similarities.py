"""Similarities: of all sentences to each other, or of pairs over their gold scores."""

from collections.abc import Sequence

import numpy as np

from sentkit.arrays import Float64
from sentkit.errors import DataError
from sentkit.formats.files import shown_path, text_of_paths
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.store import common_field_names
from sentkit.formats.vectors.vectors import VectorBlock, VectorReader
from sentkit.metrics.gold_pairs import GoldPairs, ScoreOptions, read_gold_pairs
from sentkit.metrics.neighbours.corpus import naming_field
from sentkit.metrics.neighbours.pairs import similarity_rows
from sentkit.metrics.statistics import spearman
from sentkit.metrics.zero_vectors import ZeroVectorCounter
from sentkit.plots.picture import LARGEST, Axis, Grid, Panel, Picture, Series
from sentkit.plots.reports import titles

MOST_SENTENCES = 100
MOST_WITH_NUMBERS = 8  # sentences; of more, the cells have no numbers
MOST_POINTS = 500  # pairs; of more, the density is drawn
CELLS = 40  # of the density, on each axis
BANDS = 10  # of gold scores, for the medians
Limits = tuple[float, float]  # of an axis
# The texts of metrics whose values are not what their name says: distances are made negative.
METRIC_LABELS = {
    "euclidean": "negative Euclidean distance",
    "manhattan": "negative Manhattan distance",
}


def heat(inputs: Inputs, metric: str) -> Picture:
    """The similarity of each sentence to each sentence."""

    def check(block: VectorBlock) -> VectorBlock:
        if block.vectors.shape[1] != 1:
            block.rows.refuse_all("this row has several vectors; plot heat draws sentences")
        return block

    zero_vectors = ZeroVectorCounter("rows")
    reader = VectorReader(inputs)
    blocks = list(zero_vectors.counted(reader.blocks(check, MOST_SENTENCES + 1)))
    if sum(len(block) for block in blocks) > MOST_SENTENCES:
        source = shown_path(blocks[-1].rows.sources[-1])
        advice = f"draw a part: sentkit cat FILE --head {MOST_SENTENCES}"
        raise DataError(f"more than {MOST_SENTENCES} sentences", source=source, advice=advice)
    zero_vectors.warn(inputs, text_of_paths(inputs.paths))

    # The similarities (n, n), and the number and the text of each row.
    fields = common_field_names(inputs)
    numbers = []
    names = []
    similarities = []
    rows = similarity_rows(blocks, metric=metric)
    for position, (row, similarities_of_row) in enumerate(rows, start=1):
        number = row.number
        if len(inputs.paths) > 1:
            number = position  # each file has a row 1
        numbers.append(number)
        name = f"row {number}"
        for field in naming_field(row, fields).values():
            name = str(row.values[field])
        names.append(name)
        similarities.append(similarities_of_row)
    values = np.array(similarities, np.float64)

    # The picture; of few sentences, with the numbers.
    label = METRIC_LABELS.get(metric, metric)
    has_numbers = len(names) <= MOST_WITH_NUMBERS
    indices = np.arange(len(names), dtype=np.float64)
    grid = Grid(
        "similarity",
        values,
        x=indices + 1,
        y=indices,
        low=min(0.0, float(values.min())),
        high=1.0 if metric == "cosine" else float(values.max()),
        shown=has_numbers,
        label=label,
    )
    y = Axis("text", "", names=tuple(names))
    if has_numbers:
        x = Axis("column", "row", ticks=tuple(indices + 1), numbers=tuple(numbers))
        return Picture((Panel(x, y, grid=grid, note=label, downward=True),), height=0.4)
    x = Axis("column", "row", whole=True, numbers=tuple(numbers))
    return Picture((Panel(x, y, grid=grid, downward=True),), height=0.65, is_wide=True)


def pairs(inputs: Inputs, gold: str, metric: str) -> Picture:
    """Figure 1 of ConSERT: one panel per file."""
    options = ScoreOptions(gold, metric=metric)
    pairs_of_files = [read_gold_pairs(inputs, path, options) for path in inputs.paths]

    for gold_pairs in pairs_of_files:
        largest = np.abs(gold_pairs.gold).max()
        if largest > LARGEST:
            problem = f'"{gold}" has a value of {largest:g}, which is too large for a picture'
            raise DataError(problem, source=shown_path(gold_pairs.file))

    # The limits are equal in all panels.
    gold_limits = widened_range([gold_pairs.gold for gold_pairs in pairs_of_files])
    similarity_limits = widened_range([gold_pairs.similarities for gold_pairs in pairs_of_files])
    x = Axis("gold", "gold score", *gold_limits)
    y = Axis("similarity", METRIC_LABELS.get(metric, metric), *similarity_limits)

    panels = []
    for gold_pairs, title in zip(pairs_of_files, titles(inputs.paths), strict=True):
        correlation = 100 * spearman(gold_pairs.similarities, gold_pairs.gold)
        score = "undefined" if np.isnan(correlation) else f"Spearman {correlation:.1f}"
        note = f"{score}, n = {len(gold_pairs)}"
        if len(gold_pairs) > MOST_POINTS:
            grid = density(gold_pairs, gold_limits, similarity_limits)
            line = median_line(gold_pairs)
            panel = Panel(x, y, (line,), grid, title=title, note=note)
        else:
            points = Series("", gold_pairs.gold, gold_pairs.similarities)
            panel = Panel(x, y, (points,), title=title, note=note)
        panels.append(panel)
    return Picture(tuple(panels), height=0.9)


def widened_range(arrays: Sequence[Float64]) -> Limits:
    """The range of the values, with a small margin."""
    low = min(float(values.min()) for values in arrays)
    high = max(float(values.max()) for values in arrays)
    margin = 0.02 * (high - low) or 0.5
    return low - margin, high + margin


def density(pairs: GoldPairs, gold_limits: Limits, similarity_limits: Limits) -> Grid:
    """The number of pairs in each cell."""
    gold_edges = np.linspace(*gold_limits, CELLS + 1)
    similarity_edges = np.linspace(*similarity_limits, CELLS + 1)
    edges = [gold_edges, similarity_edges]
    counts, _, _ = np.histogram2d(pairs.gold, pairs.similarities, bins=edges)
    counts = counts.T  # a row for each range of similarities
    return Grid(
        "count",
        np.where(counts > 0, counts, np.nan),
        x=centres_of(gold_edges),
        y=centres_of(similarity_edges),
        low=0.0,
        high=float(counts.max()),
        log=True,
        label="pairs",
    )


def median_line(pairs: GoldPairs) -> Series:
    """The median similarity and the quartiles of each band of gold scores."""
    edges = np.linspace(pairs.gold.min(), pairs.gold.max(), BANDS + 1)
    band_of_pair = np.clip(np.searchsorted(edges, pairs.gold, side="right") - 1, 0, BANDS - 1)
    quartiles = np.full((3, BANDS), np.nan)
    for band in range(BANDS):
        similarities = pairs.similarities[band_of_pair == band]
        if len(similarities):
            quartiles[:, band] = np.percentile(similarities, (25, 50, 75))
    return Series("median", centres_of(edges), quartiles[1], "line", quartiles[::2])


def centres_of(edges: Float64) -> Float64:
    centres: Float64 = (edges[1:] + edges[:-1]) / 2
    return centres
