"""The contents of a picture, independent of its form: panels with points, lines, bars or a grid of values."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from sentkit.arrays import Float64

Record = dict[str, Any]  # a JSON object


@dataclass(frozen=True, slots=True)
class Axis:
    name: str  # the field of a record
    label: str  # the text beside the axis; without it and without names, the axis has no numbers
    low: float | None = None  # None: by the data
    high: float | None = None
    log: bool = False
    names: tuple[str, ...] = ()  # of the values 0, 1, 2 ...
    whole: bool = False  # only whole numbers
    ticks: tuple[float, ...] = ()  # the values with a number; none: chosen by the range


@dataclass(frozen=True, slots=True)
class Series:
    """Values with one colour. A NaN in `y` is a missing value."""

    name: str  # in the legend; empty: not in the legend
    x: Float64
    y: Float64
    form: Literal["points", "line", "bars", "level"] = "points"  # level: a horizontal line at the first y
    low: Float64 | None = None  # of an interval
    high: Float64 | None = None
    marks: tuple[str, ...] = ()  # texts beside the points
    joined: int = 1  # so many consecutive points are joined by a line
    faint: bool = False  # in the background, in grey
    fields: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # further fields of the records


@dataclass(frozen=True, slots=True)
class Grid:
    """Values (r, c) of the cells at `x` (c,) and `y` (r,), ascending; NaN is an empty cell."""

    name: str  # the field of a record
    values: Float64
    x: Float64
    y: Float64
    low: float  # white
    high: float  # black
    log: bool = False  # of counts: the logarithm of 1 + count determines the shade
    shown: bool = False  # the numbers are in the cells
    label: str = ""  # of the bar with all shades


@dataclass(frozen=True, slots=True)
class Panel:
    x: Axis
    y: Axis
    series: tuple[Series, ...] = ()
    grid: Grid | None = None
    title: str = ""
    note: str = ""  # in a corner
    square: bool = False  # a unit has the same length on both axes
    downward: bool = False  # y grows downward
    origin: bool = False  # lines at 0


@dataclass(frozen=True, slots=True)
class Picture:
    panels: tuple[Panel, ...]
    height: float = 0.75  # of a panel, relative to its width
    columns: int = 2  # panels beside each other, if there are so many

    def records(self) -> Iterator[Record]:
        """One object for each point or cell."""
        for panel in self.panels:
            title = {"panel": panel.title} if panel.title else {}
            for series in panel.series:
                yield from (title | record for record in series_records(panel, series))
            if panel.grid is not None:
                yield from (title | record for record in grid_records(panel, panel.grid))


def series_records(panel: Panel, series: Series) -> Iterator[Record]:
    name = {"series": series.name} if series.name else {}
    for place, (x, y) in enumerate(zip(series.x.tolist(), series.y.tolist(), strict=True)):
        record: Record = dict(name)
        record |= {key: values[place] for key, values in series.fields.items()}
        if series.form != "level":
            record[panel.x.name] = named(panel.x, x)
        record[panel.y.name] = named(panel.y, y)
        if series.low is not None and series.high is not None:
            record[f"{panel.y.name}_interval"] = [number(series.low[place]), number(series.high[place])]
        yield record


def grid_records(panel: Panel, grid: Grid) -> Iterator[Record]:
    for row, y in zip(grid.values.tolist(), grid.y.tolist(), strict=True):
        for value, x in zip(row, grid.x.tolist(), strict=True):
            if np.isfinite(value):
                place = {panel.x.name: named(panel.x, x), panel.y.name: named(panel.y, y)}
                yield {**place, grid.name: number(value)}


def named(axis: Axis, value: float) -> float | str | None:
    return axis.names[int(value)] if axis.names else number(value)


def number(value: float) -> float | int | None:
    """A number of JSON; null for NaN."""
    if not np.isfinite(value):
        return None
    whole = abs(value) < 2**53 and float(value).is_integer()
    return int(value) if whole else float(value)
