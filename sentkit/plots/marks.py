"""Places the numbers beside their points, so that they cover neither each other nor points."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sentkit.arrays import Float64
from sentkit.escaping import escape
from sentkit.plots.picture import Panel

SMALL = 6.0  # font size in points
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
NUMBER, MARKER, LINE, RING = 100.0, 10.0, 1.0, 5.0


def write_marks(axes: Any, panel: Panel, colours: Sequence[str]) -> None:
    """Write the marks of all series. The layout of the figure must be final."""
    scale = 72 / axes.figure.dpi
    corners = axes.bbox.get_points() * scale
    close = CLOSE * np.hypot(*(corners[1] - corners[0]))
    texts, styles, at, own = [], [], [], []
    markers: list[Float64] = []
    lines: list[Float64] = []
    for series, colour in zip(panel.series, colours, strict=True):
        data = np.column_stack([series.x, series.y])
        places = axes.transData.transform(data) * scale
        markers.append(places)
        for number, place in enumerate(places):
            first = number - number % series.joined
            lines.append(samples(places[first], place))
            if series.marks and (number == first or np.hypot(*(place - places[first])) >= close):
                texts.append(escape(series.marks[number]))
                styles.append({"color": colour, "fontsize": SMALL})
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
        cost = NUMBER * over + MARKER * overlap(boxes, squares).sum(axis=1)
        cost += LINE * within.all(axis=2).sum(axis=1) + RING * np.repeat(np.arange(len(RINGS)), len(SIDES))
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
