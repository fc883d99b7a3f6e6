"""The names in a picture: short enough, distinct, in fonts that have their characters; and the
legend.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from sentkit.escaping import escape, labels_of

MOST_LETTERS = 34  # of a name beside an axis or in the legend
# of a name in a legend with many entries, so that 84 millimetres have two columns
ENTRY_LETTERS = 29
FEW_ENTRIES = 8  # of a legend; more are in the small font
TEXT_FONT = "DejaVu Sans"  # a part of matplotlib
# a part of matplotlib; it draws boxes for all characters
LAST_RESORT = "Last Resort High-Efficiency"
POINT_WIDTH = 1.0  # of a legend, in font sizes: the width of the sample of points,
LINE_WIDTH = 2.4  # of a line, which shows its dashes,
HANDLE_GAP = 0.5  # from there to the name,
COLUMN_GAP = 1.4  # and from one column to the next
LINE_GAP = 0.3
EDGE = 0.5  # from the legend to the edge of the picture


def distinct_names(names: Sequence[str], letters: int = MOST_LETTERS) -> list[str]:
    """The names with so many letters at most; different names stay different."""
    labels = labels_of(set(names), letters)
    return [labels[name] for name in names]


@cache
def characters_of(font_file: str) -> frozenset[int]:
    """The code points that a font file can draw; none for a file that is not readable."""
    from matplotlib.ft2font import FT2Font

    try:
        return frozenset(FT2Font(font_file).get_charmap())
    except (OSError, RuntimeError):
        return frozenset()


def fonts_for(texts: Sequence[str]) -> tuple[list[str], set[str]]:
    """The families of fonts that draw the texts, and the characters that no installed font has."""
    from matplotlib import font_manager

    # Characters that are not printable are drawn as their escapes, in the font of the text.
    missing = {ord(character) for text in texts for character in text if character.isprintable()}
    missing -= characters_of(font_manager.findfont(TEXT_FONT))
    families = [TEXT_FONT]
    if missing:
        entries = sorted(
            font_manager.fontManager.ttflist, key=lambda entry: (entry.name, entry.fname)
        )
        for entry in entries:
            if entry.name == LAST_RESORT:
                continue
            drawn = missing & characters_of(entry.fname)
            if drawn:
                families.append(entry.name)
                missing -= drawn
    return families, {chr(code_point) for code_point in missing}


def draw_legend(
    figure: Any,
    handles: Mapping[str, Any],
    *,
    size_of_few: float,
    size_of_many: float,
    has_lines: bool,
) -> Any:
    """Draw the legend below the panels, in as many columns as there is room for.

    Its font size depends on the number of entries: up to FEW_ENTRIES, or many.
    """
    has_many = len(handles) > FEW_ENTRIES
    font_size = size_of_many if has_many else size_of_few
    letters = ENTRY_LETTERS if has_many else MOST_LETTERS
    labels = [escape(name) for name in distinct_names([*handles], letters)]
    sample_width = LINE_WIDTH if has_lines else POINT_WIDTH
    columns = legend_columns(figure, labels, font_size, sample_width)
    return figure.legend(
        [*handles.values()],
        labels,
        loc="outside lower center",
        ncols=columns,
        fontsize=font_size,
        handlelength=sample_width,
        handletextpad=HANDLE_GAP,
        columnspacing=COLUMN_GAP,
        labelspacing=LINE_GAP,
        borderaxespad=EDGE,
        borderpad=0,
        markerscale=1.0 if has_lines else 1.8,
    )


def legend_columns(
    figure: Any, labels: Sequence[str], font_size: float, sample_width: float
) -> int:
    """The number of columns of the legend with the fewest lines that fits into the width of the
    figure.
    """
    from matplotlib.font_manager import FontProperties

    renderer = figure.canvas.get_renderer()
    font = FontProperties(size=font_size)
    dots = font_size * figure.dpi / 72
    entry_widths = [
        renderer.get_text_width_height_descent(label, font, ismath=False)[0]
        + (sample_width + HANDLE_GAP) * dots
        for label in labels
    ]
    room = figure.bbox.width - 2 * EDGE * dots
    for lines in range(1, len(labels)):
        columns = math.ceil(len(labels) / lines)
        # Columns are filled from above; the first ones have one entry more than the others.
        longer_columns = len(labels) - columns * (len(labels) // columns)
        width = (columns - 1) * COLUMN_GAP * dots
        start = 0
        for column in range(columns):
            stop = start + len(labels) // columns + (column < longer_columns)
            width += max(entry_widths[start:stop])
            start = stop
        if width <= room:
            return columns
    return 1
