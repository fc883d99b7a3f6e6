"""Sketches a picture in characters, for a terminal."""

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from sentkit.digits import decimals
from sentkit.escaping import columns_of, escape, fit
from sentkit.plots.picture import Axis, Grid, Panel, Picture, Series

SYMBOLS = "oxv+*#@%&abcdefghijklmnpqrstuwyz"
LEVELS = " ░▒▓█"
NAMED = 12  # columns for the name of a row beside its cells
LARGEST = 100  # columns of a terminal
TALLEST = 18  # lines of a panel
TALL = 0.5  # the width of a character, relative to its height


def sketch(picture: Picture, width: int) -> Iterator[str]:
    """Lines of at most `width` columns: one panel below the other, with its legend."""
    names = dict.fromkeys(s.name for panel in picture.panels for s in panel.series if not s.faint)
    symbols = dict(zip(names, SYMBOLS * (1 + len(names) // len(SYMBOLS)), strict=False))
    for number, panel in enumerate(picture.panels):
        if number:
            yield ""
        yield from panel_lines(panel, symbols, width, picture.height)
    levels = {s.name for panel in picture.panels for s in panel.series if s.form == "level"}
    legend = [f"{'-' if name in levels else symbols[name]} {escape(name)}" for name in names if name]
    bars = all(series.form == "bars" for panel in picture.panels for series in panel.series)
    if len(legend) > 1 and not bars:
        yield from wrapped(legend, width)


def cut(text: str, width: int) -> str:
    return fit(escape(text), width).rstrip()


def wrapped(entries: list[str], width: int) -> Iterator[str]:
    line = ""
    for entry in entries:
        if line and columns_of(line) + 3 + columns_of(entry) > width:
            yield line
            line = ""
        line = f"{line}   {entry}" if line else cut(entry, width)
    yield line


def panel_lines(panel: Panel, symbols: dict[str, str], width: int, height: float) -> Iterator[str]:
    heading = "   ".join(filter(None, (panel.title, panel.note)))
    if heading:
        yield cut(heading, width)
    some = min(width, LARGEST)
    if any(series.form == "bars" for series in panel.series):
        yield from bar_lines(panel, some)
    elif panel.grid is not None and panel.y.names:
        yield from heat_lines(panel, panel.grid, width)
    else:
        yield from plane_lines(panel, symbols, some, min(TALLEST, max(8, round(some * height * TALL))))
    if panel.grid is not None:
        yield cut(shades_line(panel.grid), width)


def bar_lines(panel: Panel, width: int) -> Iterator[str]:
    """A line for each bar; of several series, below the name of their place."""
    several = len(panel.series) > 1
    names = [f"  {series.name}" for series in panel.series] if several else panel.x.names
    longest = min(max(columns_of(escape(name)) for name in names), width // 2)
    every = np.concatenate([series.y for series in panel.series])
    most = max(np.abs(every[np.isfinite(every)]), default=0.0) or 1.0
    if panel.y.label:
        yield cut(panel.y.label, width)
    for place, heading in enumerate(panel.x.names):
        if several:
            yield cut(heading, width)
        for series in panel.series:
            for y in series.y[series.x == place].tolist():
                name = f"  {series.name}" if several else heading
                length = round(abs(y) / most * (width - longest - 10)) if math.isfinite(y) else 0
                value = decimals(y if math.isfinite(y) else None)
                yield f"{fit(escape(name), longest)} {'█' * length} {value}"


def heat_lines(panel: Panel, grid: Grid, width: int) -> Iterator[str]:
    """A line for each row of the grid: its name and two characters for each cell, or one if it is wide.

    If the terminal has no room for all cells, the last line has the columns that are not shown.
    """
    shades = grid.shades()
    count = shades.shape[1]
    names = [escape(name) for name in panel.y.names]
    longest = max(map(columns_of, names), default=0)
    least = min(longest, NAMED, width // 2)
    each = 2 if least + 1 + 2 * count <= width else 1
    cells = max(1, min(count, width - least - 1))
    longest = min(longest, max(least, width - each * cells - 1))
    order = range(len(names)) if panel.downward else range(len(names) - 1, -1, -1)
    for row in order:
        shown = "".join(each * level(shade) for shade in shades[row, :cells])
        yield f"{fit(names[row], longest, right=True)} {shown}"
    if cells < count:
        left = f"column {count}" if cells == count - 1 else f"columns {cells + 1} to {count}"
        yield cut(f"{left} not shown", width)


def level(shade: float) -> str:
    return " " if math.isnan(shade) else LEVELS[min(len(LEVELS) - 1, round(float(shade) * (len(LEVELS) - 1)))]


def shades_line(grid: Grid) -> str:
    """The values of the shades, and their name."""
    values = [grid.value_of(place / (len(LEVELS) - 1)) for place in range(1, len(LEVELS))]
    texts = [f"{max(1, round(value))}" if grid.log else f"{value:.2g}" for value in values]
    return "   ".join([*map(" ".join, zip(LEVELS[1:], texts, strict=True)), grid.label]).rstrip()


def plane_lines(panel: Panel, symbols: dict[str, str], width: int, height: int) -> Iterator[str]:
    """Points and lines in a plane, with the limits of both axes."""
    columns = [series.x for series in panel.series if series.form != "level"]
    rows = [series.y for series in panel.series]
    if panel.grid is not None:
        columns.append(panel.grid.x)
        rows.append(panel.grid.y)
    (left, right), (bottom, top) = limits(panel.x, columns), limits(panel.y, rows)
    if panel.y.label:
        yield cut(panel.y.label, width)
    tags = [f"{top:.4g}", f"{bottom:.4g}"] if panel.y.label else ["", ""]
    if panel.downward:
        tags.reverse()
    margin = max(map(len, tags))
    plane = Plane(panel, (left, right), (bottom, top), width - margin - 2, height)
    if panel.grid is not None:
        plane.grid(panel.grid)
    for series in sorted(panel.series, key=lambda series: not series.faint):
        plane.series(series, "." if series.faint else symbols[series.name])
    for tag, line in zip([tags[0], *[""] * (height - 2), tags[1]], plane.cells, strict=True):
        yield f"{tag:>{margin}} │{''.join(line)}".rstrip()
    yield f"{'':>{margin}} └{'─' * plane.width}"
    if panel.x.label:
        ends = f"{left:.4g}", f"{right:.4g}"
        room = plane.width - len(ends[0]) - len(ends[1])
        label = cut(panel.x.label, room - 2)
        middle = fit(" " * ((room - columns_of(label)) // 2) + label, room)
        yield f"{'':>{margin}}  {ends[0]}{middle}{ends[1]}"


def limits(axis: Axis, columns: list[np.ndarray]) -> tuple[float, float]:
    values = np.concatenate([*columns, np.zeros(0)])
    values = values[np.isfinite(values) & ((values > 0) if axis.log else True)]
    low = axis.low if axis.low is not None else float(values.min()) if len(values) else 0.0
    high = axis.high if axis.high is not None else float(values.max()) if len(values) else 1.0
    return (low, high) if high > low else (low - 0.5, low + 0.5)


class Plane:
    """The characters of a panel with axes. The limits are those of its x and of its y."""

    def __init__(
        self, panel: Panel, across: tuple[float, float], upward: tuple[float, float], width: int, height: int
    ) -> None:
        self.panel, self.across, self.upward = panel, across, upward
        self.width, self.height = width, height
        self.cells = [[" "] * width for _ in range(height)]

    def column(self, x: float) -> int:
        return position(x, self.across, self.width, log=self.panel.x.log)

    def line(self, y: float) -> int:
        place = position(y, self.upward, self.height, log=self.panel.y.log)
        return place if self.panel.downward else self.height - 1 - place

    def put(self, line: int, column: int, text: str) -> None:
        for offset, character in enumerate(text):
            if 0 <= line < self.height and 0 <= column + offset < self.width:
                self.cells[line][column + offset] = character

    def grid(self, grid: Grid) -> None:
        """The darkest cell of the grid in each character. A cell can have several characters."""
        across, upward = (each[1] - each[0] if len(each) > 1 else 1.0 for each in (grid.x, grid.y))
        columns = [extent(self.column(x - across / 2), self.column(x + across / 2)) for x in grid.x]
        lines = [extent(self.line(y - upward / 2), self.line(y + upward / 2)) for y in grid.y]
        cells = np.ndenumerate(np.nan_to_num(grid.shades()))
        for (row, column), shade in sorted(cells, key=lambda cell: cell[1]):
            if shade > 0:
                mark = max(level(shade), LEVELS[1], key=LEVELS.index)
                for line in lines[row]:
                    self.put(line, columns[column].start, mark * len(columns[column]))

    def series(self, series: Series, symbol: str) -> None:
        if series.form == "level":
            for column in range(0, self.width, 2):
                self.put(self.line(series.y[0]), column, "-")
            return
        some = np.flatnonzero(np.isfinite(series.y))
        places = [(self.column(series.x[each]), float(series.y[each])) for each in some]
        for (start, first), (end, second) in pairwise(places) if series.form == "line" else ():
            for column in range(start, end + 1):
                share = (column - start) / max(1, end - start)
                self.put(self.line(first + share * (second - first)), column, "·")
        for each, (column, y) in zip(some, places, strict=True):
            self.put(self.line(y), column, symbol + (series.marks[each] if series.marks else ""))


def extent(one: int, other: int) -> range:
    """The characters between two places, at least one."""
    return range(min(one, other), max(min(one, other) + 1, max(one, other)))


def position(value: float, ends: tuple[float, float], count: int, *, log: bool) -> int:
    """The number of the character from the low end."""
    low, high = ends
    if log:
        value, low, high = (math.log(max(each, 1e-300)) for each in (value, low, high))
    return round((value - low) / (high - low) * (count - 1))
