"""Draws a grid of values as shades, with their legend or with the values in the cells."""

import math
from typing import Any

import numpy as np

from sentkit.escaping import escape
from sentkit.plots.marks import SMALL
from sentkit.plots.picture import Grid

PIXELS = 600  # minimum width of a grid; viewers blur smaller images
SHADES = {"cmap": "Greys", "vmin": 0.0, "vmax": 1.15, "origin": "lower", "interpolation": "none"}
LEGEND = 2.0  # inches: maximum height of the legend


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
