"""Scores by a number, such as the batch size or the number of sentences (figure 5 and table 4 of ConSERT)."""

from dataclasses import dataclass

import numpy as np

from sentkit.errors import DataError
from sentkit.formats.files import together
from sentkit.formats.rows.kinds import class_of, scored
from sentkit.formats.rows.rows import Inputs, Row
from sentkit.plots.picture import Axis, Panel, Picture, Series
from sentkit.plots.reports import LABELS, MISSING, Value, by_name, intervals, merged, read_rows, value_of

FEW = 7  # at most so many numbers are ticks of a logarithmic axis


@dataclass(frozen=True, slots=True)
class ScaleOptions:
    x: str
    value: str
    name: str | None = None  # the field with the name of a line
    log: bool = False


@dataclass(frozen=True, slots=True)
class Point:
    name: str
    x: float
    value: Value


def scale(inputs: Inputs, options: ScaleOptions) -> Picture:
    points = [point for point in read_rows(inputs, lambda row: point_of(row, options)) if point is not None]
    if not points:
        raise DataError(f'no row has a number in "{options.x}"', source=together(inputs.paths))
    series = []
    for name, own in by_name((point.name, point) for point in points).items():
        groups = by_name((point.x, point.value) for point in sorted(own, key=lambda point: point.x))
        values = [merged(each) for each in groups.values()]
        x, y = np.array(list(groups)), np.array([each.value for each in values])
        series.append(Series(name, x, y, "line", **intervals(values)))
    numbers = sorted({point.x for point in points})
    ticks = tuple(numbers) if options.log and len(numbers) <= FEW else ()
    x_axis = Axis(options.x, options.x, log=options.log, ticks=ticks)
    y_axis = Axis(options.value, LABELS.get(options.value, options.value))
    return Picture((Panel(x_axis, y_axis, tuple(series)),), height=0.7)


def point_of(row: Row, options: ScaleOptions) -> Point | None:
    """The point of a row; None if its x is missing, as in the line of examples/sweep.sh with all defaults."""
    if row.values.get(options.x) in MISSING:
        return None
    x = scored(row, options.x)
    value = value_of(row, options.value)
    if x is None:
        return None
    if options.log and x <= 0:
        raise row.error(f'"{options.x}" is {x:g}, but --log needs numbers above 0')
    return Point("" if options.name is None else class_of(row, options.name), x, value)
