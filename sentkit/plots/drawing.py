"""The drawing of pictures with matplotlib, in one style.

It is readable in grey and at half the width of a page.
"""

import logging
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from sentkit.arrays import Float64
from sentkit.errors import UnavailableError
from sentkit.escaping import columns_of, escape
from sentkit.plots.names import MOST_LETTERS, TEXT_FONT, distinct_names, draw_legend, fonts_for
from sentkit.plots.picture import Axis, Grid, Panel, Picture, Series

FORMATS = ("svg", "png", "pdf")
INCH = 25.4  # millimetres
DPI = 300  # of a PNG
POINT = 1 / 72  # inches
TEXT = 7.5  # font sizes in points
SMALL = 6.0
LETTER = 0.5 * TEXT * POINT  # the usual width of a letter in inches
SLANT = 40  # degrees of names below a panel that have no room in one line
LINE = 1.27 * TEXT * POINT  # inches from one line of text to the next
NAME_SHARE = 1 / 3  # of the width of a panel, for the names beside it
MANY_NAMES = 30  # beside an axis; more are in the small font
HIGHEST = 1.3  # a panel for the sake of its names, relative to its width; more names are left out
MANY = 200  # points of a panel; more are smaller
MOST_MARKERS = 30  # points of a line; of more, the line has no markers
VALUES = 96  # characters of values above the bars of a page of 174 millimetres; more have no room
# From dark to light, so that neighbours differ in grey; Okabe and Ito's, except for the first.
COLOURS = ("#0b3c6f", "#d55e00", "#56b4e9", "#009e73", "#000000", "#cc79a7", "#e69f00", "#8c8c8c")
FILLS = ("#0b3c6f", "#9ecae1", "#d55e00", "#f0e0b0", "#555555", "#cccccc")
MARKERS = ("o", "^", "s", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))
FAINT = "#b8b8b8"
MARK_DISTANCE = 1.5  # points from a point to its text, in both directions
SIDES = ((1, 1), (1, -1), (-1, 1), (-1, -1))  # of the text: right or left, above or below
LINE_SAMPLES = 50  # of the line between two points, to find the texts on it
RING: Mapping[str, Any] = {
    "linestyle": "",
    "marker": "o",
    "fillstyle": "none",
    "markeredgewidth": 0.9,
}
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
    if form == "svg":
        families = [TEXT_FONT]
        missing = set[str]()
    else:
        families, missing = fonts_for(picture.texts())
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about characters that the font does not have
        matplotlib.rcdefaults()  # not the settings of the user, so that equal data give equal bytes
        matplotlib.rcParams.update(STYLE)
        matplotlib.rcParams["font.family"] = families
        figure_of(picture, width).savefig(file, format=form, dpi=DPI, metadata=NO_DATES[form])
    return missing


def figure_of(picture: Picture, width: float) -> Any:
    """The figure with all panels. Equal names of series have equal colours, and one entry of the
    legend.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    inches = width / INCH
    columns = min(picture.columns, len(picture.panels))
    rows = math.ceil(len(picture.panels) / columns)
    panel_width = inches / columns
    height = rows * max(panel_height(panel, picture, panel_width) for panel in picture.panels)
    figure = Figure((inches, height), dpi=DPI, layout="constrained")
    canvas = FigureCanvasAgg(figure)  # it measures texts

    # Panels. A colour, a marker and dashes belong to a name.
    every_series = [series for panel in picture.panels for series in panel.series]
    coloured_names = dict.fromkeys(series.name for series in every_series if not series.faint)
    style_indices = {name: index for index, name in enumerate(coloured_names)}
    artists: dict[str, Any] = {}
    axes_with_equal_units = []
    for position, panel in enumerate(picture.panels, start=1):
        axes = figure.add_subplot(rows, columns, position)
        artists |= draw_panel(axes, panel, style_indices, panel_width)
        if panel.has_equal_units:
            axes_with_equal_units.append(axes)

    # The legend, for which the figure grows. Bars and levels are named even if they are alone: no
    # axis says which encoder or readout they are of.
    names = dict.fromkeys(series.name for series in every_series if series.name)
    handles = {}
    if len(names) > 1 or any(
        series.name and series.form in ("bars", "level") for series in every_series
    ):
        handles = {name: artists[name] for name in names}
    if any(any(series.ringed) for series in every_series):
        handles[picture.meaning_of_ring] = ring_handle()
    if handles:
        # Lines need longer samples, which show their dashes.
        has_lines = any(series.form in ("line", "level") for series in every_series)
        legend = draw_legend(
            figure, handles, size_of_few=TEXT, size_of_many=SMALL, has_lines=has_lines
        )
        height += legend.get_window_extent(canvas.get_renderer()).height / figure.dpi
        figure.set_size_inches(inches, height)

    if axes_with_equal_units:
        set_equal_units(figure, axes_with_equal_units)
    for axes, panel in zip(figure.axes, picture.panels, strict=False):
        if any(any(series.marks) for series in panel.series):
            separate_marks(axes, panel, canvas.get_renderer())
    return figure


def separate_marks(axes: Any, panel: Panel, renderer: Any) -> None:
    """Move each text beside a point to the side of the point where the fewest other texts, points
    and lines are, in this order. A text that would be on another one is removed if another point
    already has it.
    """
    dots_per_point = axes.figure.dpi * POINT
    points = []  # in dots, of each series (n, 2)
    samples = [np.empty((0, 2))]  # on the lines between joined points
    for series in panel.series:
        positions = axes.transData.transform(np.column_stack([series.x, series.y]))
        points.append(positions)
        if series.joined > 1:
            groups = positions.reshape(-1, series.joined, 1, 2)
            shares = np.linspace(0, 1, LINE_SAMPLES)[:, None]
            lines = groups[:, :-1] * (1 - shares) + groups[:, 1:] * shares
            samples.append(lines.reshape(-1, 2))
    every_point = np.concatenate(points)
    every_sample = np.concatenate(samples)

    boxes: list[Any] = []  # of the texts that are placed
    written = set()
    for mark in list(axes.texts):
        marked_point = axes.transData.transform(mark.xy)
        is_other = np.abs(every_point - marked_point).max(axis=1) > 0.5
        obstacles_of_sides = []  # other texts, points, and samples of lines
        for side in SIDES:
            set_side(mark, side)
            box = mark.get_window_extent(renderer)
            distances = distances_to(box, every_point[is_other])
            obstacles_of_sides.append(
                (
                    box.count_overlaps(boxes),
                    (distances < MARK_DISTANCE * dots_per_point).sum(),
                    (distances_to(box, every_sample) == 0).sum(),
                )
            )
        fewest = min(obstacles_of_sides)
        other_texts, _, _ = fewest
        if other_texts and mark.get_text() in written:
            mark.remove()
            continue
        set_side(mark, SIDES[obstacles_of_sides.index(fewest)])
        boxes.append(mark.get_window_extent(renderer))
        written.add(mark.get_text())


def set_side(mark: Any, side: tuple[int, int]) -> None:
    """Put a text right (1) or left (-1) of its point, and above (1) or below (-1) it."""
    right, above = side
    mark.xyann = (MARK_DISTANCE * right, MARK_DISTANCE * above)
    mark.set_horizontalalignment("left" if right > 0 else "right")
    mark.set_verticalalignment("baseline" if above > 0 else "top")


def distances_to(box: Any, points: Float64) -> Float64:
    """The distance of each point (n, 2) to a box; 0 inside."""
    nearest = np.clip(points, box.min, box.max)
    distances: Float64 = np.hypot(*(points - nearest).T)
    return distances


def ring_handle() -> Any:
    """The sample of a ring in the legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color="#333333", **RING, markersize=RING_SIZES[0])


def set_equal_units(figure: Any, panels_axes: Sequence[Any]) -> None:
    """Give a unit the same length on both axes of each panel, with limits close to the data.

    matplotlib's equal aspect alone widens the limits in each pass of the layout, so that the points
    are drawn in a part of the panel.
    """
    figure.get_layout_engine().execute(figure)
    for axes in panels_axes:
        box = axes.get_window_extent()
        low_x, high_x = axes.get_xlim()
        low_y, high_y = axes.get_ylim()
        units_per_dot = max((high_x - low_x) / box.width, (high_y - low_y) / box.height)
        half_width = units_per_dot * box.width / 2
        half_height = units_per_dot * box.height / 2
        axes.set_xlim((low_x + high_x) / 2 - half_width, (low_x + high_x) / 2 + half_width)
        axes.set_ylim((low_y + high_y) / 2 - half_height, (low_y + high_y) / 2 + half_height)
        # after this, the widths of numbers change little
        axes.set_aspect("equal", adjustable="datalim")


def panel_height(panel: Panel, picture: Picture, width: float) -> float:
    """The height in inches: enough for the names beside the panel, and for slanted names
    below it.
    """
    beside = min(name_line(panel) * (len(panel.y.names) + 4), HIGHEST * width)
    below = 0
    if is_slanted(panel, width):
        below = max(columns_of(name) for name in distinct_names(panel.x.names))
    return max(picture.height * width, beside) + math.sin(math.radians(SLANT)) * below * LETTER


def name_size(panel: Panel) -> float:
    """The font size of the names beside a panel."""
    if len(panel.y.names) > MANY_NAMES:
        return SMALL
    return TEXT


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


def draw_panel(
    axes: Any, panel: Panel, style_indices: Mapping[str, int], width: float
) -> dict[str, Any]:
    """Draw a panel of this width in inches. Returns one artist for each name of a series."""
    # The title; of a long one, its end. The note is its second line.
    letters = int(width / LETTER) - 8
    title = panel.title
    if len(title) > letters:
        title = f"…{title[1 - letters :]}"
    title_lines = [escape(line) for line in (title, panel.note) if line]
    axes.set_title("\n".join(title_lines), loc="left")

    # What is behind the series.
    if not panel.x.label:
        axes.margins(0.06)
    if panel.grid is not None:
        draw_grid(axes, panel.grid)
    if panel.origin:
        axes.axhline(0, color="#666666", linewidth=0.5, zorder=0)
        axes.axvline(0, color="#666666", linewidth=0.5, zorder=0)

    bars = [series for series in panel.series if series.form == "bars"]
    point_count = sum(len(series.x) for series in panel.series if series.form == "points")
    handles = {}
    for series in panel.series:
        style_index = style_indices.get(series.name, 0)  # a faint series has none
        if series.form == "bars":
            handles[series.name] = draw_bars(axes, series, bars, style_index, width)
        elif series.form == "level":
            handles[series.name] = draw_level(axes, series, style_index)
        elif series.form == "line":
            handles[series.name] = draw_line(axes, series, style_index)
        else:
            handles[series.name] = draw_points(axes, series, style_index, point_count)

    # The axes.
    set_axis(axes, "x", panel.x)
    set_axis(axes, "y", panel.y)
    if panel.x.names:
        set_names_below(axes, panel, width)
    if panel.y.names:
        set_names_beside(axes, panel, width)
    axes.yaxis.set_inverted(panel.downward)
    has_frame = panel.grid is not None or not (panel.x.label or panel.x.names)
    axes.spines[["top", "right"]].set_visible(has_frame)
    return handles


def set_names_below(axes: Any, panel: Panel, width: float) -> None:
    """Write the names of the columns, slanted if they have no room in one line."""
    labels = [escape(name) for name in distinct_names(panel.x.names)]
    axes.set_xticks(range(len(labels)), labels)
    if is_slanted(panel, width):
        for label in axes.get_xticklabels():
            label.set(rotation=SLANT, ha="right", rotation_mode="anchor")


def set_names_beside(axes: Any, panel: Panel, width: float) -> None:
    """Write the names of the rows; if there is no room for all, those of every second or
    third row.
    """
    needed = name_line(panel) * len(panel.y.names)
    step = math.ceil(needed / (HIGHEST * width))
    letters = letters_beside(width)
    indices = range(0, len(panel.y.names), step)
    names = distinct_names(panel.y.names, letters)
    labels = [escape(names[index]) for index in indices]
    axes.set_yticks(indices, labels, fontsize=name_size(panel))


def colour_of(series: Series, style_index: int) -> str:
    if series.faint:
        return FAINT
    return COLOURS[style_index % len(COLOURS)]


def marker_of(style_index: int) -> str:
    """The marker. Series with one colour have different markers."""
    return MARKERS[(style_index + style_index // len(COLOURS)) % len(MARKERS)]


def draw_level(axes: Any, series: Series, style_index: int) -> Any:
    """Draw a horizontal line, which is never solid."""
    dashes = DASHES[1 + style_index % (len(DASHES) - 1)]
    colour = colour_of(series, style_index)
    return axes.axhline(series.y[0], color=colour, linestyle=dashes, linewidth=0.9)


def draw_line(axes: Any, series: Series, style_index: int) -> Any:
    """Draw a line with its band, with markers if it joins few points."""
    if series.interval is not None:
        low, high = series.interval
        colour = colour_of(series, style_index)
        axes.fill_between(series.x, low, high, color=colour, alpha=0.15, linewidth=0)
    look: dict[str, Any] = {"linestyle": "-"}
    if not series.faint:
        look["linestyle"] = DASHES[style_index % len(DASHES)]
    if np.isfinite(series.y).sum() <= MOST_MARKERS:
        look["marker"] = marker_of(style_index)
    if series.term:
        look["markerfacecolor"] = "white"
        look["linewidth"] = 0.6
    return draw_marked(axes, series, style_index, look)


def draw_points(axes: Any, series: Series, style_index: int, point_count: int) -> Any:
    """Draw points, and thin lines between those that belong together.

    `point_count` is that of the panel.
    """
    if series.joined > 1:
        for start in range(0, len(series.x), series.joined):
            stop = start + series.joined
            axes.plot(
                series.x[start:stop],
                series.y[start:stop],
                color=colour_of(series, style_index),
                linewidth=0.5,
                alpha=0.7,
                zorder=1,
            )
    look = {
        "linestyle": "",
        "marker": marker_of(style_index),
        "markersize": 3.2,
        "markeredgewidth": 0.3,
        "markeredgecolor": "white",
    }
    if point_count > MANY:
        look["markersize"] = 2.3
        look["markeredgewidth"] = 0.0
    return draw_marked(axes, series, style_index, look)


def draw_marked(axes: Any, series: Series, style_index: int, look: Mapping[str, Any]) -> Any:
    """Draw a line or points, then their rings and the texts beside them."""
    colour = colour_of(series, style_index)
    order = 1 if series.faint else 2
    [artist] = axes.plot(series.x, series.y, color=colour, zorder=order, **look)
    if any(series.ringed):
        is_ringed = np.array(series.ringed)
        # Rings of several sizes, because two runs can have the same point.
        axes.plot(
            series.x[is_ringed],
            series.y[is_ringed],
            color=colour,
            zorder=3,
            **RING,
            markersize=RING_SIZES[style_index % len(RING_SIZES)],
        )
    for x, y, mark in zip(series.x, series.y, series.marks, strict=False):
        if mark and np.isfinite(y):
            axes.annotate(
                escape(mark),
                (x, y),
                color=colour,
                fontsize=SMALL,
                xytext=(MARK_DISTANCE, MARK_DISTANCE),
                textcoords="offset points",
            )
    return artist


def draw_bars(axes: Any, series: Series, bars: list[Series], style_index: int, width: float) -> Any:
    """Draw one bar of each group, with its interval, and with its value if the bars are wide
    enough.
    """
    thickness = 0.8 / len(bars)
    [bar_index] = [index for index, other in enumerate(bars) if other is series]
    distance = bar_index - (len(bars) - 1) / 2  # from the centre of the group, in bars
    errors = None
    if series.interval is not None:
        errors = np.abs(series.interval - series.y)
    artist = axes.bar(
        series.x + distance * thickness,
        series.y,
        thickness * 0.92,
        yerr=errors,
        error_kw={"elinewidth": 0.7, "capsize": 1.5},
        facecolor=FILLS[style_index % len(FILLS)],
        edgecolor="#333333",
        linewidth=0.5,
        hatch="" if style_index < len(FILLS) else "////",
    )
    group_count = len({x for other in bars for x in other.x})
    value_letters = max(len(f"{value:.1f}") for other in bars for value in other.y)
    if value_letters * len(bars) * group_count <= VALUES * width * INCH / 174:
        axes.bar_label(artist, fmt="%.1f", fontsize=SMALL, padding=1.5)
    return artist


def draw_grid(axes: Any, grid: Grid) -> None:
    """Draw the cells, with their values in them or with a bar of all shades."""
    from matplotlib.colors import FuncNorm, Normalize

    norm: Any = Normalize(grid.low, grid.high)
    if grid.log:
        norm = FuncNorm((np.log1p, np.expm1), grid.low, grid.high)
    cells = np.ma.masked_invalid(grid.values)
    mesh = axes.pcolormesh(
        edges_of(grid.x), edges_of(grid.y), cells, cmap="Greys", norm=norm, rasterized=True
    )
    if grid.shown:
        for row, column in np.argwhere(np.isfinite(grid.values)):
            value = grid.values[row, column]
            colour = "white" if norm(value) > 0.6 else "black"
            axes.text(
                grid.x[column],
                grid.y[row],
                f"{value:z.2f}",  # z: no sign of a zero
                ha="center",
                va="center",
                color=colour,
                fontsize=SMALL,
            )
    else:
        ticks = None  # chosen by matplotlib
        if grid.log:
            powers = [factor * 10**power for power in range(12) for factor in (1, 3)]
            ticks = [tick for tick in powers if tick <= grid.high]
        bar = axes.figure.colorbar(
            mesh, ax=axes, format="{x:,.4g}", aspect=40, fraction=0.05, ticks=ticks
        )
        bar.set_label(escape(grid.label))


def edges_of(centres: Float64) -> Float64:
    """The edges of cells with these centres, which have equal distances."""
    width = 1.0
    if len(centres) > 1:
        width = centres[1] - centres[0]
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
    if axis.numbers:
        ticks.set_major_formatter(lambda value, _: number_at(axis.numbers, value))


def number_at(numbers: Sequence[int], value: float) -> str:
    """The text of a tick on an axis with numbers. It has ticks outside of the data, too."""
    if 1 <= value <= len(numbers):
        return str(numbers[int(value) - 1])
    return ""
