"""Draws a picture with matplotlib, in one style that is readable in grey and at half the width of a page."""

import logging
import math
import warnings
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np

from sentkit.arrays import Float64
from sentkit.errors import UnavailableError
from sentkit.escaping import escape
from sentkit.plots.picture import Grid, Panel, Picture, Series

FORMATS = ("svg", "png", "pdf")
INCH = 25.4  # millimetres
DPI = 300  # of a PNG
POINT = 1 / 72  # inches
TEXT, SMALL = 7.5, 6.0  # font sizes in points
LETTER = 0.5  # width of a letter, relative to the font size
SLANT = 40  # degrees of names below a panel that have no room in one line
LINE = 9.5  # points from one name of a category to the next
MANY_NAMES = 40  # of an axis; more have the small font
SHOWN = 34  # characters of a name beside an axis
MANY = 200  # points of a panel; more are smaller
DIGIT_WIDTH = 0.62  # relative to the font size; bars narrower than their values have none
# From dark to light, so that neighbours differ in grey; Okabe and Ito's, except for the first.
COLOURS = ("#0b3c6f", "#d55e00", "#56b4e9", "#009e73", "#000000", "#cc79a7", "#e69f00", "#8c8c8c")
FILLS = ("#0b3c6f", "#9ecae1", "#d55e00", "#f0e0b0", "#555555", "#cccccc")
MARKERS = ("o", "^", "s", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))
FAINT = "#b8b8b8"
PIXELS = 600  # minimum width of a grid; viewers blur smaller images
SHADES = {"cmap": "Greys", "vmin": 0.0, "vmax": 1.15, "origin": "lower", "interpolation": "none"}
LEGEND = 2.0  # inches: maximum height of the legend
STYLE = {
    "font.size": TEXT,
    "axes.titlesize": TEXT,
    "axes.labelsize": TEXT,
    "xtick.labelsize": TEXT,
    "ytick.labelsize": TEXT,
    "legend.fontsize": TEXT,
    "axes.linewidth": 0.6,
    "axes.titlepad": 3.0,
    "axes.labelpad": 2.0,
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
    "svg.hashsalt": "sentkit",  # otherwise the names of clip paths are random
    "svg.fonttype": "none",  # text remains text
    "pdf.fonttype": 42,
    "text.parse_math": False,
    "axes.unicode_minus": True,
}
NO_DATES: Mapping[str, dict[str, None]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def import_matplotlib() -> Any:
    """The package matplotlib, or an UnavailableError."""
    logging.getLogger("matplotlib").setLevel(logging.CRITICAL)  # it reports its font cache
    try:
        import matplotlib
    except ImportError as error:
        advice = "pip install 'sentkit[plot]'"
        raise UnavailableError("pictures need the package matplotlib", advice=advice) from error
    return matplotlib


def draw(picture: Picture, file: BinaryIO, form: str, width: float) -> list[str]:
    """Write the picture as `svg`, `png` or `pdf`, `width` millimetres wide. Returns warnings."""
    matplotlib = import_matplotlib()
    from matplotlib.figure import Figure

    with matplotlib.rc_context(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        matplotlib.rcdefaults()  # not the settings of the user, so that equal data give equal bytes
        matplotlib.rcParams.update(STYLE)
        columns = min(picture.columns, len(picture.panels))
        rows = math.ceil(len(picture.panels) / columns)
        styles = numbers_of(picture)
        inches = width / INCH
        handles = legend_handles(picture, styles)
        longest = max((len(handle.get_label()) for handle in handles), default=0)
        lines = any(series.form in ("line", "level") for panel in picture.panels for series in panel.series)
        sample = 2.6 if lines else 1.6  # letters of a line in the legend: dashes need more
        letters = longest * LETTER + sample + 1.6
        entries = max(1, int(inches / POINT / (letters * TEXT)))  # in a line of the legend
        heights = [panel_height(panel, picture.height * inches / columns, inches) for panel in picture.panels]
        starts = range(0, len(heights), columns)
        height = sum(max(heights[start : start + columns]) for start in starts)
        figure = Figure((inches, height + math.ceil(len(handles) / entries) * LINE * POINT), dpi=DPI)
        figure.set_layout_engine("constrained", w_pad=0.02, h_pad=0.02, wspace=0.03, hspace=0.04)
        axes = [figure.add_subplot(rows, columns, number + 1) for number in range(len(picture.panels))]
        for each, panel in zip(axes, picture.panels, strict=True):
            draw_panel(each, panel, styles, inches / columns)
        if handles:
            look = {"handlelength": sample, "columnspacing": 1.0, "labelspacing": 0.3, "borderpad": 0.1}
            look |= {"handletextpad": 0.4, "frameon": False}
            count = min(entries, len(handles))
            # A legend is filled column by column, and read line by line.
            handles = [handle for column in range(count) for handle in handles[column::count]]
            figure.legend(handles=handles, loc="outside upper center", ncols=count, **look)
        if any(series.marks for panel in picture.panels for series in panel.series):
            figure.draw_without_rendering()
            figure.set_layout_engine("none")
            for each, panel in zip(axes, picture.panels, strict=True):
                write_marks(each, panel, styles)
        figure.savefig(file, format=form, dpi=DPI, metadata=NO_DATES[form])
    missing = [each for each in caught if "missing from font" in str(each.message)]
    return [f"{len(missing)} characters have no glyph in the font of the picture"] if missing else []


def numbers_of(picture: Picture) -> dict[str, int]:
    """A number for each name of a series: equal names have equal colours in all panels."""
    series = [each for panel in picture.panels for each in panel.series if not each.faint]
    return {name: number for number, name in enumerate(dict.fromkeys(each.name for each in series))}


def panel_height(panel: Panel, height: float, width: float) -> float:
    """The height in inches: enough for the names beside the panel, and for slanted names below it."""
    count = len(panel.y.names)
    names = (count * (LINE if count <= MANY_NAMES else 1.2 * SMALL) + 4 * TEXT) * POINT
    below = max((len(shortened(name)) for name in panel.x.names), default=0) * LETTER * TEXT * POINT
    return max(height, names) + (math.sin(math.radians(SLANT)) * below if is_slanted(panel, width) else 0.0)


def draw_panel(axes: Any, panel: Panel, styles: Mapping[str, int], width: float) -> None:
    """Draw a panel of this width in inches, with the space for the numbers beside it."""
    letters = int((width / POINT - 4 * TEXT) / (LETTER * TEXT))
    title = panel.title if len(panel.title) <= letters else f"…{panel.title[1 - letters :]}"
    # A title that has no room beside the note is in a line above it.
    above = "\n" if len(title) + 2 + len(panel.note) > letters and panel.note else ""
    axes.set_title(escape(title) + above, loc="left")
    if not panel.x.label:
        axes.margins(0.06)
    axes.set_title(escape(panel.note), loc="right", color="#333333")
    if panel.grid is not None:
        draw_grid(axes, panel.grid)
    if panel.origin:
        for line in (axes.axhline, axes.axvline):
            line(0, color="#666666", linewidth=0.5, zorder=0)
    bars = [series for series in panel.series if series.form == "bars"]
    crowd = sum(len(series.x) for series in panel.series if series.form == "points")
    for series in panel.series:
        if series.form == "bars":
            draw_bars(axes, series, bars, styles[series.name])
        else:
            draw_series(axes, series, styles.get(series.name, 0), crowd)
    set_axis(axes, "x", panel)
    set_axis(axes, "y", panel)
    if panel.downward and not axes.yaxis_inverted():
        axes.invert_yaxis()
    if panel.square:
        axes.set_aspect("equal", adjustable="datalim")
    for side in ("top", "right"):
        axes.spines[side].set_visible(panel.grid is not None or not (panel.x.label or panel.x.names))


def style_of(series: Series, number: int) -> dict[str, Any]:
    """The colour, marker and dashes of a series, in its panel and in the legend."""
    if series.form == "bars":
        hatch = "" if number < len(FILLS) else "////"
        fill = FILLS[number % len(FILLS)]
        return {"facecolor": fill, "edgecolor": "#333333", "linewidth": 0.5, "hatch": hatch}
    style: dict[str, Any] = {"color": FAINT if series.faint else COLOURS[number % len(COLOURS)]}
    if series.form == "level":
        return style | {"linestyle": DASHES[1 + number % (len(DASHES) - 1)], "linewidth": 0.9}
    marker = MARKERS[(number + number // len(COLOURS)) % len(MARKERS)]
    if series.form == "points":
        return style | {"linestyle": "", "marker": marker}
    few = np.isfinite(series.y).sum() <= 30
    dashes = "-" if series.faint else DASHES[number % len(DASHES)]
    return style | {"linestyle": dashes, "marker": marker if few else ""}


def draw_series(axes: Any, series: Series, number: int, crowd: int) -> None:
    """Draw points or a line. `crowd` is the number of points in the panel."""
    style, order = style_of(series, number), 1 if series.faint else 2
    if series.form == "level":
        axes.axhline(series.y[0], **style)
    elif series.form == "line":
        axes.plot(series.x, series.y, zorder=order, **style)
        if series.low is not None and series.high is not None:
            band = {"color": style["color"], "alpha": 0.15, "linewidth": 0}
            axes.fill_between(series.x, series.low, series.high, **band)
    else:
        for start in range(0, len(series.x), series.joined) if series.joined > 1 else ():
            part = slice(start, start + series.joined)
            line = {"color": style["color"], "linewidth": 0.5, "alpha": 0.7, "zorder": 1}
            axes.plot(series.x[part], series.y[part], **line)
        size, edge = (2.0, 0) if crowd > MANY else (3.2, 0.3)
        look = {"markersize": size, "markeredgewidth": edge, "markeredgecolor": "white", "zorder": order}
        axes.plot(series.x, series.y, **style, **look)


def draw_bars(axes: Any, series: Series, bars: Sequence[Series], number: int) -> None:
    place = next(place for place, each in enumerate(bars) if each is series)
    width = 0.8 / len(bars)
    x = series.x + (place - (len(bars) - 1) / 2) * width
    axes.bar(x, series.y, width * 0.92, **style_of(series, number))
    if series.low is not None and series.high is not None:
        error = np.abs(np.array([series.y - series.low, series.high - series.y]))
        axes.errorbar(x, series.y, error, fmt="none", ecolor="black", elinewidth=0.7, capsize=1.5)
    places = len(np.unique(np.concatenate([each.x for each in bars])))
    longest = max((len(f"{value:.1f}") for each in bars for value in each.y), default=0)
    if width * (axes.figure.get_figwidth() / POINT - 4 * TEXT) / places >= DIGIT_WIDTH * SMALL * longest:
        tops = series.y if series.high is None else np.fmax(series.y, series.high)
        for at, top, value in zip(x, tops, series.y, strict=True):
            if np.isfinite(value):
                below = value < 0
                offset = {"xytext": (0, -1.5 if below else 1.5), "textcoords": "offset points"}
                offset |= {"ha": "center", "va": "top" if below else "bottom"}
                axes.annotate(
                    f"{value:.1f}", (at, min(top, value) if below else top), fontsize=SMALL, **offset
                )


def set_axis(axes: Any, side: str, panel: Panel) -> None:
    from matplotlib.ticker import MaxNLocator, NullLocator

    axis = panel.x if side == "x" else panel.y
    ticks = getattr(axes, f"{side}axis")
    getattr(axes, f"set_{side}label")(escape(axis.label))
    if axis.log:
        getattr(axes, f"set_{side}scale")("log")
        ticks.set_minor_locator(NullLocator())
        ticks.set_major_formatter(lambda value, _: f"{value:,g}")
    getattr(axes, f"set_{side}lim")(**{"left" if side == "x" else "bottom": axis.low})
    getattr(axes, f"set_{side}lim")(**{"right" if side == "x" else "top": axis.high})
    if axis.names:
        ticks.set_ticks(range(len(axis.names)), [escape(shortened(name)) for name in axis.names])
        ticks.set_tick_params(length=0, labelsize=TEXT if len(axis.names) <= MANY_NAMES else SMALL)
        if side == "x" and is_slanted(panel, axes.figure.get_figwidth()):
            for label in ticks.get_ticklabels():
                label.set(rotation=SLANT, ha="right", rotation_mode="anchor")
    elif axis.ticks:
        ticks.set_ticks(axis.ticks)
    elif not axis.label:
        ticks.set_ticks([])
    elif not axis.log:
        ticks.set_major_locator(MaxNLocator(6, integer=axis.whole, steps=[1, 2, 2.5, 5, 10]))


def is_slanted(panel: Panel, width: float) -> bool:
    """Whether the names below a panel would overlap in one line, beside the names of its rows."""
    lengths = [len(shortened(name)) + 2 for name in panel.x.names]
    pair = max((sum(each) / 2 for each in pairwise(lengths)), default=0.0)  # of neighbours
    beside = max((len(shortened(name)) for name in panel.y.names), default=0)
    return (len(lengths) * pair + beside) * LETTER * TEXT > width / POINT - 4 * TEXT


def shortened(name: str) -> str:
    return name if len(name) <= SHOWN else f"{name[: SHOWN - 1]}…"


def legend_handles(picture: Picture, styles: Mapping[str, int]) -> list[Any]:
    """One entry for each name of all panels; none for a single name."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    named = {series.name: series for panel in picture.panels for series in panel.series if series.name}
    if len(named) < 2 and not any(series.form == "level" for series in named.values()):
        return []
    handles: list[Any] = []
    for name, series in named.items():
        look = style_of(series, styles.get(name, 0)) | {"label": escape(shortened(name))}
        handles.append(Patch(**look) if series.form == "bars" else Line2D([], [], **look))
    return handles


def draw_grid(axes: Any, grid: Grid) -> None:
    shades = np.ma.masked_invalid(grid.shades())
    rows, columns = shades.shape
    times = math.ceil(PIXELS / max(rows, columns))
    halves = [(values[1] - values[0]) / 2 if len(values) > 1 else 0.5 for values in (grid.x, grid.y)]
    extent = (grid.x[0] - halves[0], grid.x[-1] + halves[0], grid.y[0] - halves[1], grid.y[-1] + halves[1])
    large = shades.repeat(times, axis=0).repeat(times, axis=1)
    axes.imshow(large, extent=extent, aspect="auto", **SHADES)
    if not grid.shown:
        height = min(1.0, LEGEND / axes.figure.get_figheight())
        draw_legend(axes.inset_axes((1.03, 1 - height, 0.03, height)), grid)
        return
    for (row, column), value in np.ndenumerate(grid.values):
        colour = "white" if shades[row, column] > 0.7 else "black"
        where = {"ha": "center", "va": "center", "fontsize": SMALL}
        axes.text(grid.x[column], grid.y[row], f"{value:.2f}", color=colour, **where)


def draw_legend(axes: Any, grid: Grid) -> None:
    """A bar with all shades and round values."""
    from matplotlib.ticker import MaxNLocator

    axes.imshow(np.linspace(0, 1, 256)[:, np.newaxis], extent=(0, 1, 0, 1), aspect="auto", **SHADES)
    rounded = MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(grid.low, grid.high)
    powers = [first * 10**power for power in range(12) for first in (1, 3)]
    values = np.array(
        [value for value in (powers if grid.log else rounded) if grid.low <= value <= grid.high]
    )
    axes.set_xticks([])
    axes.set_yticks(grid.shades_of(values), [f"{value:,.4g}" for value in values])
    axes.yaxis.tick_right()
    axes.yaxis.set_label_position("right")
    axes.set_ylabel(escape(grid.label))


# The numbers beside points, which cover neither each other nor points.

DIGIT = 0.64 * SMALL, 0.73 * SMALL  # width and height
CLOSE = 0.035  # of the diagonal of a panel: two joined points have one number
RADIUS = 1.6  # points: of a marker
GAP = 0.6  # points between two numbers
STEP = 1.5  # points between the samples of a line
# Sides of a point, from the best one, and the distances from it in points.
SIDES = np.array([(1, 1), (-1, 1), (1, -1), (-1, -1), (1, 0), (-1, 0), (0, 1), (0, -1)])
RINGS = (1.0, 3.0, 6.0)
# Costs: of a square point over another number or outside the panel, and over another marker; of a sample of
# a line; and of a step to the next ring.
ON_NUMBER, ON_MARKER, ON_LINE, RING = 100.0, 10.0, 1.0, 5.0


def write_marks(axes: Any, panel: Panel, numbers: Mapping[str, int]) -> None:
    """Write the marks of all series. The layout of the figure must be final."""
    scale = 72 / axes.figure.dpi
    corners = axes.bbox.get_points() * scale
    close = CLOSE * np.hypot(*(corners[1] - corners[0]))
    texts, styles, at, own = [], [], [], []
    markers, lines = list[Float64](), list[Float64]()
    for series in panel.series:
        look = {"color": style_of(series, numbers.get(series.name, 0)).get("color"), "fontsize": SMALL}
        data = np.column_stack([series.x, series.y])
        places = axes.transData.transform(data) * scale
        markers.append(places[np.isfinite(places).all(axis=1)])
        for number, place in enumerate(places):
            if not np.isfinite(place).all():  # a missing value
                continue
            first = number - number % series.joined
            lines.append(samples(places[first], place))
            marked = series.marks and series.marks[number]
            if marked and (number == first or np.hypot(*(place - places[first])) >= close):
                texts.append(escape(series.marks[number]))
                styles.append(look)
                at.append(tuple(data[number]))
                own.append(place)
    offsets = offsets_of(texts, np.array(own), np.concatenate(markers), np.concatenate(lines), corners)
    for text, style, point, offset in zip(texts, styles, at, offsets, strict=True):
        axes.annotate(text, point, xytext=offset, textcoords="offset points", **style)


def samples(start: Float64, end: Float64) -> Float64:
    """Points of a line."""
    count = int(np.hypot(*(end - start)) / STEP)
    return start + np.linspace(0, 1, count + 2)[1:-1, np.newaxis] * (end - start)


def offsets_of(
    texts: Sequence[str], places: Float64, markers: Float64, lines: Float64, corners: Float64
) -> list[tuple[float, float]]:
    """From each place to the lower left corner of its text: one after the other, where it costs least."""
    squares = np.hstack([markers - RADIUS, markers + RADIUS])
    taken = np.zeros((0, 4))
    offsets = []
    for text, place in zip(texts, places, strict=True):
        size = np.array([DIGIT[0] * len(text), DIGIT[1]])
        choices = np.concatenate([beside(size, ring) for ring in RINGS])
        boxes = np.hstack([place + choices, place + choices + size])
        inside = overlap(boxes, corners.reshape(1, 4))[:, 0]
        over = overlap(boxes, taken).sum(axis=1) + np.prod(size) - inside
        within = (lines > boxes[:, np.newaxis, :2]) & (lines < boxes[:, np.newaxis, 2:])
        cost = ON_NUMBER * over + ON_MARKER * overlap(boxes, squares).sum(axis=1)
        cost += ON_LINE * within.all(axis=2).sum(axis=1) + RING * np.repeat(np.arange(len(RINGS)), len(SIDES))
        best = int(np.argmin(cost.round(6)))
        taken = np.vstack([taken, boxes[best] + GAP * np.array([-1, -1, 1, 1])])
        offsets.append((float(choices[best, 0]), float(choices[best, 1])))
    return offsets


def beside(size: Float64, ring: float) -> Float64:
    """The lower left corner of a text at each side of a point (8, 2)."""
    straight = (SIDES == 0).any(axis=1)
    gaps = ring + np.where(straight, RADIUS, RADIUS / 2)[:, np.newaxis]
    return np.select([SIDES > 0, SIDES < 0], [gaps, -gaps - size], -size / 2)


def overlap(boxes: Float64, others: Float64) -> Float64:
    """The common area of each two boxes (left, low, right, high): (n, 4), (m, 4) -> (n, m)."""
    low = np.maximum(boxes[:, np.newaxis, :2], others[:, :2])
    high = np.minimum(boxes[:, np.newaxis, 2:], others[:, 2:])
    area: Float64 = np.prod(np.clip(high - low, 0, None), axis=2)
    return area
