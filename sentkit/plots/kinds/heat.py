"""The similarities of all sentences, with their texts."""

import numpy as np

from sentkit.errors import DataError
from sentkit.formats.files import readable
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.store import common_fields
from sentkit.formats.vectors.vectors import VectorBlock, VectorReader
from sentkit.metrics.neighbours.corpus import naming_field
from sentkit.metrics.neighbours.pairs import matrix
from sentkit.plots.picture import Axis, Grid, Panel, Picture

MOST = 100  # sentences
NUMBERED = 8  # at most so many sentences have numbers in the cells


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
