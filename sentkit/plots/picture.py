"""A picture: panels with points, lines, bars or a grid of values, and its values as JSON
objects.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from sentkit.arrays import Float64

Record = dict[str, Any]  # a JSON object
LARGEST = 1e300  # magnitude of a value: the range of an axis and its margins must be finite


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
    numbers: tuple[int, ...] = ()  # in place of the values 1, 2, 3 ...


@dataclass(frozen=True, slots=True)
class Series:
    """Values with one colour. A NaN in `y` is a missing value."""

    name: str  # in the legend; empty: not in the legend
    x: Float64
    y: Float64
    # level: a horizontal line at the first y
    form: Literal["points", "line", "bars", "level"] = "points"
    interval: Float64 | None = None  # (2, n): the lowest and the highest values
    marks: tuple[str, ...] = ()  # texts beside the points
    ringed: tuple[bool, ...] = ()  # points in a ring, which the legend of the picture explains
    term: bool = False  # a part of what another panel shows: thin lines and hollow points
    joined: int = 1  # so many consecutive points are joined by a line
    faint: bool = False  # in the background, in grey
    # further fields of the records
    fields: Mapping[str, Sequence[Any]] = field(default_factory=dict)


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
    has_equal_units: bool = False  # a unit has the same length on both axes
    downward: bool = False  # y grows downward
    origin: bool = False  # lines at 0


@dataclass(frozen=True, slots=True)
class Picture:
    panels: tuple[Panel, ...]
    height: float = 0.75  # of a panel, relative to its width
    columns: int = 2  # panels beside each other, if there are so many
    meaning_of_ring: str = ""  # what a ring around a point means
    is_wide: bool = False  # a single panel needs the width of a page, too

    @property
    def needs_page(self) -> bool:
        """Whether the picture has no room on half of the width of a page."""
        return self.is_wide or len(self.panels) > 1

    def largest_value(self) -> float:
        """The largest magnitude of a finite value; 0 if there is none."""
        arrays = list[Float64]()
        for panel in self.panels:
            if panel.grid is not None:
                arrays.append(panel.grid.values)
            for series in panel.series:
                arrays += [series.x, series.y]
                if series.interval is not None:
                    arrays.append(series.interval)
        largest = 0.0
        for values in arrays:
            finite = np.abs(values[np.isfinite(values)])
            largest = max(largest, float(finite.max(initial=0.0)))
        return largest

    def texts(self) -> list[str]:
        """The texts of the data in the picture: names, titles and marks."""
        texts = []
        for panel in self.panels:
            texts += [panel.title, panel.note]
            for axis in (panel.x, panel.y):
                texts += [axis.label, *axis.names]
            for series in panel.series:
                texts += [series.name, *series.marks]
        return texts

    def records(self) -> Iterator[Record]:
        """One object for each point or cell."""
        for panel in self.panels:
            title = {}
            if panel.title:
                title["panel"] = panel.title
            for series in panel.series:
                for record in series_records(series, panel):
                    yield title | record
            if panel.grid is not None:
                for record in grid_records(panel.grid, panel):
                    yield title | record


def series_records(series: Series, panel: Panel) -> Iterator[Record]:
    for index, (x, y) in enumerate(zip(series.x.tolist(), series.y.tolist(), strict=True)):
        record: Record = {}
        if series.name:
            record["series"] = series.name
        for name, values in series.fields.items():
            record[name] = values[index]
        if series.form != "level":
            record[panel.x.name] = axis_value(panel.x, x)
        record[panel.y.name] = axis_value(panel.y, y)
        if series.interval is not None:
            low, high = series.interval[:, index]
            record[f"{panel.y.name}_interval"] = [json_number(low), json_number(high)]
        yield record


def grid_records(grid: Grid, panel: Panel) -> Iterator[Record]:
    for row, column in np.argwhere(np.isfinite(grid.values)):
        yield {
            panel.x.name: axis_value(panel.x, grid.x[column]),
            panel.y.name: axis_value(panel.y, grid.y[row]),
            grid.name: json_number(grid.values[row, column]),
        }


def axis_value(axis: Axis, value: float) -> float | str | None:
    """The name or the number at this value of an axis that has them, otherwise the value."""
    if axis.names:
        return axis.names[int(value)]
    if axis.numbers:
        return axis.numbers[int(value) - 1]
    return json_number(value)


def json_number(value: float) -> float | int | None:
    """A whole number without a decimal point; null for NaN."""
    if not np.isfinite(value):
        return None
    if abs(value) < 2**53 and float(value).is_integer():
        return int(value)
    return float(value)
