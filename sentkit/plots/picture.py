"""A picture: panels with points, lines, bars or a grid of values, and their drawing with matplotlib.

All have one style that is readable in grey and at half the width of a page.
"""

import logging
import math
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal

import numpy as np

from sentkit.arrays import Float64
from sentkit.errors import UnavailableError
from sentkit.escaping import escape, labels_of

FORMATS = ("svg", "png", "pdf")
INCH = 25.4  # millimetres
DPI = 300  # of a PNG
POINT = 1 / 72  # inches
TEXT, SMALL = 7.5, 6.0  # font sizes in points
LETTER = 0.5 * TEXT * POINT  # the usual width of a letter in inches
SLANT = 40  # degrees of names below a panel that have no room in one line
LINE = 1.27 * TEXT * POINT  # inches from one line of text to the next
SHOWN = 34  # characters of a name beside an axis
MANY = 200  # points of a panel; more are smaller
VALUES = 96  # characters of values above the bars of a page of 174 millimetres; more have no room
# From dark to light, so that neighbours differ in grey; Okabe and Ito's, except for the first.
COLOURS = ("#0b3c6f", "#d55e00", "#56b4e9", "#009e73", "#000000", "#cc79a7", "#e69f00", "#8c8c8c")
FILLS = ("#0b3c6f", "#9ecae1", "#d55e00", "#f0e0b0", "#555555", "#cccccc")
MARKERS = ("o", "^", "s", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))
FAINT = "#b8b8b8"
STYLE = {
    "font.size": TEXT,
    "axes.titlesize": TEXT,
    "axes.linewidth": 0.6,
    "axes.edgecolor": "#333333",
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.4,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "svg.hashsalt": "sentkit",  # otherwise the names of clip paths are random
    "svg.fonttype": "none",  # text remains text
    "pdf.fonttype": 42,
    "text.parse_math": False,
}
NO_DATES: Mapping[str, dict[str, None]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


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
    interval: Float64 | None = None  # (2, n): the lowest and the highest values
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
                for point, (x, y) in enumerate(zip(series.x.tolist(), series.y.tolist(), strict=True)):
                    record: Record = title | ({"series": series.name} if series.name else {})
                    record |= {key: values[point] for key, values in series.fields.items()}
                    if series.form != "level":
                        record[panel.x.name] = named(panel.x, x)
                    record[panel.y.name] = named(panel.y, y)
                    if series.interval is not None:
                        record[f"{panel.y.name}_interval"] = [*map(number, series.interval[:, point])]
                    yield record
            if (grid := panel.grid) is not None:
                for row, column in np.argwhere(np.isfinite(grid.values)):
                    place = {panel.x.name: named(panel.x, grid.x[column])}
                    place[panel.y.name] = named(panel.y, grid.y[row])
                    yield {**title, **place, grid.name: number(grid.values[row, column])}


def named(axis: Axis, value: float) -> float | str | None:
    return axis.names[int(value)] if axis.names else number(value)


def number(value: float) -> float | int | None:
    """A number of JSON; null for NaN."""
    if not np.isfinite(value):
        return None
    whole = abs(value) < 2**53 and float(value).is_integer()
    return int(value) if whole else float(value)


def import_matplotlib() -> Any:
    """The package matplotlib, or an UnavailableError."""
    logging.getLogger("matplotlib").setLevel(logging.CRITICAL)  # it reports its font cache
    try:
        import matplotlib
    except ImportError as error:
        advice = "pip install 'sentkit[plot]'"
        raise UnavailableError("pictures need the package matplotlib", advice=advice) from error
    return matplotlib


def draw(picture: Picture, file: BinaryIO, form: str, width: float) -> None:
    """Write the picture as `svg`, `png` or `pdf`, `width` millimetres wide."""
    matplotlib = import_matplotlib()
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about characters that the font does not have
        matplotlib.rcdefaults()  # not the settings of the user, so that equal data give equal bytes
        matplotlib.rcParams.update(STYLE)
        figure_of(picture, width).savefig(file, format=form, dpi=DPI, metadata=NO_DATES[form])


def figure_of(picture: Picture, width: float) -> Any:
    """The figure with all panels. Equal names of series have equal colours, and one entry of the legend."""
    from matplotlib.figure import Figure

    inches, columns = width / INCH, min(picture.columns, len(picture.panels))
    rows = math.ceil(len(picture.panels) / columns)
    series = [each for panel in picture.panels for each in panel.series]
    named = dict.fromkeys(each.name for each in series if each.name)
    has_legend = len(named) > 1 or any(each.name and each.form in ("bars", "level") for each in series)
    letters = max(map(len, shown_names(named)), default=0) + 9  # with the sample of the series
    entries = max(1, min(len(named), int(inches / LETTER / letters)))  # in a line of the legend
    height = rows * max(panel_height(each, picture, inches / columns) for each in picture.panels)
    height += LINE * math.ceil(len(named) / entries) if has_legend else 0
    figure = Figure((inches, height), dpi=DPI, layout="constrained")
    coloured = dict.fromkeys(each.name for each in series if not each.faint)
    numbers = {name: number for number, name in enumerate(coloured)}
    handles: dict[str, Any] = {}
    for number, panel in enumerate(picture.panels):
        handles |= draw_panel(figure.add_subplot(rows, columns, number + 1), panel, numbers, inches / columns)
    if has_legend:
        labels = [*map(escape, shown_names(named))]
        places = [handles[name] for name in named]
        figure.legend(places, labels, loc="outside upper center", ncols=entries)
    return figure


def panel_height(panel: Panel, picture: Picture, width: float) -> float:
    """The height in inches: enough for the names beside the panel, and for slanted names below it."""
    names = LINE * (len(panel.y.names) + 4)
    below = max(map(len, shown_names(panel.x.names)), default=0) if is_slanted(panel, width) else 0
    return max(picture.height * width, names) + math.sin(math.radians(SLANT)) * below * LETTER


def is_slanted(panel: Panel, width: float) -> bool:
    """Whether the names below a panel have no room in one line, beside the names of its rows."""
    below = len(panel.x.names) * max((len(name) + 2 for name in shown_names(panel.x.names)), default=0)
    beside = max(map(len, shown_names(panel.y.names)), default=0)
    return (below + beside + 8) * LETTER > width


def shown_names(names: Collection[str]) -> list[str]:
    """The names in at most SHOWN columns; different names stay different."""
    labels = labels_of(set(names), SHOWN)
    return [labels[name] for name in names]


def draw_panel(axes: Any, panel: Panel, numbers: Mapping[str, int], width: float) -> dict[str, Any]:
    """Draw a panel of this width in inches. Returns one artist for each name of a series."""
    room = int(width / LETTER) - 8
    title = panel.title if len(panel.title) <= room else f"…{panel.title[1 - room :]}"
    axes.set_title("\n".join(map(escape, filter(None, (title, panel.note)))), loc="left")
    if not panel.x.label:
        axes.margins(0.06)
    if panel.grid is not None:
        draw_grid(axes, panel.grid)
    if panel.origin:
        for line in (axes.axhline, axes.axvline):
            line(0, color="#666666", linewidth=0.5, zorder=0)
    bars = [series for series in panel.series if series.form == "bars"]
    crowd = sum(len(series.x) for series in panel.series if series.form == "points")
    handles = {}
    for series in panel.series:
        if series.form == "bars":
            handles[series.name] = draw_bars(axes, series, bars, numbers[series.name], width)
        else:
            handles[series.name] = draw_series(axes, series, numbers.get(series.name, 0), crowd)
    set_axis(axes, "x", panel.x)
    set_axis(axes, "y", panel.y)
    for label in axes.get_xticklabels() if is_slanted(panel, width) else ():
        label.set(rotation=SLANT, ha="right", rotation_mode="anchor")
    axes.yaxis.set_inverted(panel.downward)
    if panel.square:
        axes.set_aspect("equal", adjustable="datalim")
    framed = panel.grid is not None or not (panel.x.label or panel.x.names)
    axes.spines[["top", "right"]].set_visible(framed)
    return handles


def draw_series(axes: Any, series: Series, number: int, crowd: int) -> Any:
    """Draw points or a line. `crowd` is the number of points in the panel."""
    colour, order = FAINT if series.faint else COLOURS[number % len(COLOURS)], 1 if series.faint else 2
    if series.form == "level":
        return axes.axhline(series.y[0], color=colour, linestyle=DASHES[1 + number % 5], linewidth=0.9)
    marker = MARKERS[(number + number // len(COLOURS)) % len(MARKERS)]
    if series.form == "line":
        if series.interval is not None:
            axes.fill_between(series.x, *series.interval, color=colour, alpha=0.15, linewidth=0)
        look: dict[str, Any] = {"linestyle": "-" if series.faint else DASHES[number % len(DASHES)]}
        look["marker"] = marker if np.isfinite(series.y).sum() <= 30 else ""
    else:
        for start in range(0, len(series.x), series.joined) if series.joined > 1 else ():
            part = slice(start, start + series.joined)
            axes.plot(series.x[part], series.y[part], color=colour, linewidth=0.5, alpha=0.7, zorder=1)
        size, edge = (2.0, 0.0) if crowd > MANY else (3.2, 0.3)
        look = {"linestyle": "", "marker": marker, "markersize": size}
        look |= {"markeredgewidth": edge, "markeredgecolor": "white"}
    [artist] = axes.plot(series.x, series.y, color=colour, zorder=order, **look)
    for x, y, mark in zip(series.x, series.y, series.marks, strict=False):
        if mark and np.isfinite(y):
            beside = {"xytext": (1.5, 1.5), "textcoords": "offset points"}
            axes.annotate(escape(mark), (x, y), color=colour, fontsize=SMALL, **beside)
    return artist


def draw_bars(axes: Any, series: Series, bars: list[Series], number: int, width: float) -> Any:
    """Draw one bar of each group, with its interval, and with its value if the bars are wide enough."""
    thickness = 0.8 / len(bars)
    place = next(place for place, each in enumerate(bars) if each is series)
    drawn = axes.bar(
        series.x + (place - (len(bars) - 1) / 2) * thickness,
        series.y,
        thickness * 0.92,
        yerr=None if series.interval is None else np.abs(series.interval - series.y),
        error_kw={"elinewidth": 0.7, "capsize": 1.5},
        facecolor=FILLS[number % len(FILLS)],
        edgecolor="#333333",
        linewidth=0.5,
        hatch="" if number < len(FILLS) else "////",
    )
    letters = len(bars) * max(len(f"{value:.1f}") for each in bars for value in each.y)  # of a group
    if letters * len({x for each in bars for x in each.x}) <= VALUES * width * INCH / 174:
        axes.bar_label(drawn, fmt="%.1f", fontsize=SMALL, padding=1.5)
    return drawn


def draw_grid(axes: Any, grid: Grid) -> None:
    """Draw the cells, with their values in them or with a bar of all shades."""
    from matplotlib.colors import FuncNorm, Normalize

    norm: Any = Normalize(grid.low, grid.high)
    if grid.log:
        norm = FuncNorm((np.log1p, np.expm1), grid.low, grid.high)
    cells, edges = np.ma.masked_invalid(grid.values), (edges_of(grid.x), edges_of(grid.y))
    mesh = axes.pcolormesh(*edges, cells, cmap="Greys", norm=norm, rasterized=True)
    if not grid.shown:
        ticks = [first * 10**power for power in range(12) for first in (1, 3)]
        shades: Any = {"ticks": [tick for tick in ticks if tick <= grid.high]} if grid.log else {}
        bar = axes.figure.colorbar(mesh, ax=axes, format="{x:,.4g}", aspect=40, fraction=0.05, **shades)
        bar.set_label(escape(grid.label))
        return
    for row, column in np.argwhere(np.isfinite(grid.values)):
        value = grid.values[row, column]
        look = {"color": "white" if norm(value) > 0.6 else "black", "fontsize": SMALL}
        axes.text(grid.x[column], grid.y[row], f"{value:.2f}", ha="center", va="center", **look)


def edges_of(centres: Float64) -> Float64:
    """The edges of cells with these centres, which have equal distances."""
    width = centres[1] - centres[0] if len(centres) > 1 else 1.0
    return np.append(centres, centres[-1] + width) - width / 2


def set_axis(axes: Any, side: str, axis: Axis) -> None:
    """Set the label, the limits and the ticks of the `x` or the `y` axis."""
    from matplotlib.ticker import MaxNLocator, NullLocator

    ticks = getattr(axes, f"{side}axis")
    ticks.set_label_text(escape(axis.label))
    if axis.log:
        axes.set(**{f"{side}scale": "log"})
        ticks.set_minor_locator(NullLocator())
        ticks.set_major_formatter("{x:,g}")
    if axis.low is not None:
        axes.set(**{f"{side}lim": (axis.low, axis.high)})
    if axis.names:
        ticks.set_ticks(range(len(axis.names)), [*map(escape, shown_names(axis.names))])
        ticks.set_tick_params(length=0)
    elif axis.ticks:
        ticks.set_ticks(axis.ticks)
    elif not axis.label:
        ticks.set_ticks([])
    elif not axis.log:
        ticks.set_major_locator(MaxNLocator("auto", integer=axis.whole, steps=[1, 2, 2.5, 5, 10]))
