"""A picture: panels with points, lines, bars or a grid of values, and their drawing with matplotlib.

All have one style that is readable in grey and at half the width of a page.
"""

import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal

import numpy as np

from sentkit.arrays import Float64
from sentkit.errors import UnavailableError
from sentkit.escaping import columns_of, escape
from sentkit.plots.names import MOST_LETTERS, TEXT_FONT, distinct_names, draw_legend, fonts_for

FORMATS = ("svg", "png", "pdf")
INCH = 25.4  # millimetres
DPI = 300  # of a PNG
POINT = 1 / 72  # inches
TEXT, SMALL = 7.5, 6.0  # font sizes in points
LETTER = 0.5 * TEXT * POINT  # the usual width of a letter in inches
SLANT = 40  # degrees of names below a panel that have no room in one line
LINE = 1.27 * TEXT * POINT  # inches from one line of text to the next
NAME_SHARE = 1 / 3  # of the width of a panel, for the names beside it
MANY_NAMES = 30  # beside an axis; more are in the small font
HIGHEST = (
    1.3  # the height of a panel for the sake of its names, relative to its width; more names are left out
)
MANY = 200  # points of a panel; more are smaller
VALUES = 96  # characters of values above the bars of a page of 174 millimetres; more have no room
# From dark to light, so that neighbours differ in grey; Okabe and Ito's, except for the first.
COLOURS = ("#0b3c6f", "#d55e00", "#56b4e9", "#009e73", "#000000", "#cc79a7", "#e69f00", "#8c8c8c")
FILLS = ("#0b3c6f", "#9ecae1", "#d55e00", "#f0e0b0", "#555555", "#cccccc")
MARKERS = ("o", "^", "s", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))
FAINT = "#b8b8b8"
RING: Mapping[str, Any] = {"linestyle": "", "marker": "o", "fillstyle": "none", "markeredgewidth": 0.9}
RING_SIZES = (6.5, 9.0, 11.5)
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
    ringed: tuple[bool, ...] = ()  # points in a ring, which the legend of the picture explains
    term: bool = False  # a part of what another panel shows: thin lines and hollow points
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
    ring: str = ""  # what a ring around a point means
    is_wide: bool = False  # a single panel needs the width of a page, too

    @property
    def needs_page(self) -> bool:
        """Whether the picture has no room on half of the width of a page."""
        return self.is_wide or len(self.panels) > 1

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


def draw(picture: Picture, file: BinaryIO, form: str, width: float) -> set[str]:
    """Write the picture as `svg`, `png` or `pdf`, `width` millimetres wide.

    Returns the characters that no installed font has. An SVG file needs no font.
    """
    matplotlib = import_matplotlib()
    families, missing = [TEXT_FONT], set[str]()
    if form != "svg":
        families, missing = fonts_for(picture.texts())
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about characters that the font does not have
        matplotlib.rcdefaults()  # not the settings of the user, so that equal data give equal bytes
        matplotlib.rcParams.update(STYLE)
        matplotlib.rcParams["font.family"] = families
        figure_of(picture, width).savefig(file, format=form, dpi=DPI, metadata=NO_DATES[form])
    return missing


def figure_of(picture: Picture, width: float) -> Any:
    """The figure with all panels. Equal names of series have equal colours, and one entry of the legend."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    inches = width / INCH
    columns = min(picture.columns, len(picture.panels))
    rows = math.ceil(len(picture.panels) / columns)
    panel_width = inches / columns
    height = rows * max(panel_height(panel, picture, panel_width) for panel in picture.panels)
    figure = Figure((inches, height), dpi=DPI, layout="constrained")
    canvas = FigureCanvasAgg(figure)  # it measures texts

    # Panels. A colour belongs to a name.
    every_series = [series for panel in picture.panels for series in panel.series]
    coloured_names = dict.fromkeys(series.name for series in every_series if not series.faint)
    colour_numbers = {name: number for number, name in enumerate(coloured_names)}
    artists: dict[str, Any] = {}
    square_axes = []
    for number, panel in enumerate(picture.panels, start=1):
        axes = figure.add_subplot(rows, columns, number)
        artists |= draw_panel(axes, panel, colour_numbers, panel_width)
        if panel.square:
            square_axes.append(axes)

    # The legend, for which the figure grows.
    names = dict.fromkeys(series.name for series in every_series if series.name)
    handles = {}
    if len(names) > 1 or any(series.name and series.form in ("bars", "level") for series in every_series):
        handles = {name: artists[name] for name in names}
    if any(any(series.ringed) for series in every_series):
        handles[picture.ring] = ring_handle()
    if handles:
        has_lines = any(series.form in ("line", "level") for series in every_series)
        legend = draw_legend(figure, handles, (TEXT, SMALL), has_lines=has_lines)
        height += legend.get_window_extent(canvas.get_renderer()).height / figure.dpi
        figure.set_size_inches(inches, height)

    if square_axes:
        set_equal_units(figure, square_axes)
    return figure


def ring_handle() -> Any:
    """The sample of a ring in the legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color="#333333", **RING, markersize=RING_SIZES[0])


def set_equal_units(figure: Any, square_axes: Sequence[Any]) -> None:
    """Give a unit the same length on both axes of each panel, with limits close to the data.

    matplotlib's equal aspect alone widens the limits in each pass of the layout, so that the points are
    drawn in a part of the panel.
    """
    figure.get_layout_engine().execute(figure)
    for axes in square_axes:
        box = axes.get_window_extent()
        low_x, high_x = axes.get_xlim()
        low_y, high_y = axes.get_ylim()
        units_per_dot = max((high_x - low_x) / box.width, (high_y - low_y) / box.height)
        half_width = units_per_dot * box.width / 2
        half_height = units_per_dot * box.height / 2
        axes.set_xlim((low_x + high_x) / 2 - half_width, (low_x + high_x) / 2 + half_width)
        axes.set_ylim((low_y + high_y) / 2 - half_height, (low_y + high_y) / 2 + half_height)
        axes.set_aspect("equal", adjustable="datalim")  # after this, the widths of numbers change little


def panel_height(panel: Panel, picture: Picture, width: float) -> float:
    """The height in inches: enough for the names beside the panel, and for slanted names below it."""
    beside = min(name_line(panel) * (len(panel.y.names) + 4), HIGHEST * width)
    below = 0
    if is_slanted(panel, width):
        below = max(columns_of(name) for name in distinct_names(panel.x.names))
    return max(picture.height * width, beside) + math.sin(math.radians(SLANT)) * below * LETTER


def name_size(panel: Panel) -> float:
    """The font size of the names beside a panel."""
    return TEXT if len(panel.y.names) <= MANY_NAMES else SMALL


def name_line(panel: Panel) -> float:
    """The height of a name beside a panel in inches."""
    return LINE * name_size(panel) / TEXT


def is_slanted(panel: Panel, width: float) -> bool:
    """Whether the names below a panel have no room in one line, beside the names of its rows."""
    below = len(panel.x.names) * max(
        (columns_of(name) + 2 for name in distinct_names(panel.x.names)), default=0
    )
    letters = letters_beside(width)
    beside = max((columns_of(name) for name in distinct_names(panel.y.names, letters)), default=0)
    return (below + beside + 8) * LETTER > width


def letters_beside(width: float) -> int:
    """The most letters of a name beside a panel of this width in inches."""
    return max(8, min(MOST_LETTERS, int(NAME_SHARE * width / LETTER)))


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
    if panel.x.names:
        set_names_below(axes, panel, width)
    if panel.y.names:
        set_names_beside(axes, panel, width)
    axes.yaxis.set_inverted(panel.downward)
    framed = panel.grid is not None or not (panel.x.label or panel.x.names)
    axes.spines[["top", "right"]].set_visible(framed)
    return handles


def set_names_below(axes: Any, panel: Panel, width: float) -> None:
    """Write the names of the columns, slanted if they have no room in one line."""
    axes.set_xticks(range(len(panel.x.names)), [*map(escape, distinct_names(panel.x.names))])
    if is_slanted(panel, width):
        for label in axes.get_xticklabels():
            label.set(rotation=SLANT, ha="right", rotation_mode="anchor")


def set_names_beside(axes: Any, panel: Panel, width: float) -> None:
    """Write the names of the rows; if there is no room for all, those of every second or third row."""
    needed = name_line(panel) * len(panel.y.names)
    step = math.ceil(needed / (HIGHEST * width))
    letters = letters_beside(width)
    indices = range(0, len(panel.y.names), step)
    names = distinct_names(panel.y.names, letters)
    labels = [escape(names[index]) for index in indices]
    axes.set_yticks(indices, labels, fontsize=name_size(panel))


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
        if series.term:
            look |= {"markerfacecolor": "white", "linewidth": 0.6}
    else:
        for start in range(0, len(series.x), series.joined) if series.joined > 1 else ():
            part = slice(start, start + series.joined)
            axes.plot(series.x[part], series.y[part], color=colour, linewidth=0.5, alpha=0.7, zorder=1)
        look = {"linestyle": "", "marker": marker, "markersize": 3.2}
        look |= {"markeredgewidth": 0.3, "markeredgecolor": "white"}
        if crowd > MANY:
            look |= {"markeredgewidth": 0.0, "markersize": 2.3}
    [artist] = axes.plot(series.x, series.y, color=colour, zorder=order, **look)
    if any(series.ringed):
        ringed = np.array(series.ringed)
        ring_size = RING_SIZES[number % len(RING_SIZES)]  # two runs can have the same point
        axes.plot(series.x[ringed], series.y[ringed], color=colour, zorder=3, **RING, markersize=ring_size)
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
        ticks.set_tick_params(length=0)
    elif axis.ticks:
        ticks.set_ticks(axis.ticks)
    elif not axis.label:
        ticks.set_ticks([])
    elif not axis.log:
        ticks.set_major_locator(MaxNLocator("auto", integer=axis.whole, steps=[1, 2, 2.5, 5, 10]))
