"""Tables and lists on standard output, for a reader at a terminal."""

import os
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, BinaryIO, Literal, TypeVar

from sentkit.console.messages import close_bar
from sentkit.digits import meaning_of_brackets
from sentkit.escaping import escape

NAME_COLUMN, MEANING = 26, 30  # of `print_described`: largest name column, smallest text column
GAP = 2  # between the columns of a table
PAGE = 1000  # lines of a table below one header
SHORTEST, LEGIBLE = 8, 14  # minimum width of a truncated name; width to preserve by omitting optional columns

R = TypeVar("R", bound=Mapping[str, Any])  # a record
Line = Mapping[str, str]  # column -> cell


def terminal_width() -> int:
    return shutil.get_terminal_size().columns


def show(
    records: Iterable[R],
    lines: Callable[[R], Iterable[Line]],
    out: BinaryIO,
    *,
    as_table: bool,
    flush: bool = True,
    **layout: Any,
) -> None:
    """Print records as a table, or write each one as a line of JSON as soon as it is computed.

    `lines` converts a record to lines of the table. A long table repeats its header after each PAGE lines.
    A line below it explains brackets around numbers.
    `layout` are arguments of `print_table`: `texts`, `optional`, `wrap` and `pairs`.
    """
    if as_table:
        every_line, meanings = (line for record in records for line in lines(record)), list[str]()
        while page := list(islice(every_line, PAGE)):
            columns = list(page[0])
            rows = [[line[column] for column in columns] for line in page]
            print_table(columns, rows, **layout)
            if not layout.get("pairs"):  # pairs of rows have names of files beside their numbers
                numbers = [column for column in columns if column not in layout.get("texts", ())]
                meanings += meaning_of_brackets(line[column] for line in page for column in numbers)
        if meanings:
            print_text(["; ".join(dict.fromkeys(meanings))])
        return
    from sentkit.formats.files import json_line

    for record in records:
        out.write(json_line(record))
        if flush:
            out.flush()


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    texts: Sequence[str] = (),
    optional: Sequence[str] = (),
    wrap: bool = False,
    pairs: bool = False,
) -> None:
    """Print a table on standard output. Columns in `texts` are shortened, or wrapped if `wrap` is true.

    A shortened cell shows how it differs from the others of its column, or with `pairs` of its row.
    Columns in `optional` are omitted, in this order, if the terminal is too narrow.
    """
    from rich.cells import cell_len
    from rich.console import Console as Terminal
    from rich.table import Table
    from rich.text import Text

    close_bar()
    terminal = Terminal()
    table_rows = [[escape(cell) for cell in row] for row in rows]
    lengths = [max(map(cell_len, column)) for column in zip(columns, *table_rows, strict=True)]
    may_shrink = [column in texts for column in columns]
    order = [columns.index(name) for name in optional if name in columns]
    places = kept_columns(lengths, may_shrink, order, terminal.width)
    columns = [columns[place] for place in places]
    cells = [[row[place] for place in places] for row in table_rows]
    widths = fitted(
        [lengths[place] for place in places], [may_shrink[place] for place in places], terminal.width
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, width in zip(columns, widths, strict=True):
        justify: Literal["left", "right"] = "left" if column in texts else "right"
        overflow: Literal["fold", "ellipsis"] = "fold" if wrap else "ellipsis"
        table.add_column(
            Text(escape(column)), justify=justify, width=width, no_wrap=not wrap, overflow=overflow
        )
    named = [] if wrap else [place for place, column in enumerate(columns) if column in texts]
    for group in ([row] for row in cells) if pairs else [cells]:
        for some in [named] if pairs else [[place] for place in named]:
            spots = [(row, place) for row in group for place in some]
            short = shortened([row[place] for row, place in spots], min(widths[place] for place in some))
            for (row, place), cell in zip(spots, short, strict=True):
                row[place] = cell
    for row in cells:
        table.add_row(*map(Text, row))
    terminal.width = max(terminal.width, sum(widths) + GAP * len(widths))
    terminal.print(table)


def shortened(cells: Sequence[str], width: int) -> list[str]:
    """The cells that are compared, with their differences in the first `width` places of each.

    Long cells lose words or folders with which all of them begin. Those that would still be cut to the same
    text lose their middle.
    """
    from rich.cells import cell_len, set_cell_size

    long = {cell for cell in cells if cell_len(cell) > width}
    roots = [cell for cell in long if not cell.startswith(" ")]
    common = os.path.commonprefix(roots)  # noqa: RUF071  # also of texts, not only of paths
    ends = [place for place, letter in enumerate(common, start=1) if letter in "/ "] if len(long) > 1 else []
    excess = max(map(cell_len, long), default=0) - width + 1
    shared = common[: next((end for end in ends if end >= excess), ends[-1] if ends else 0)]
    short = {cell: cell.replace(shared, "…", 1) if shared else cell for cell in long}
    cut = Counter(set_cell_size(cell, width - 1) for cell in short.values())
    tail = (width - 1) * 2 // 3
    for cell, rest in short.items():
        if cell_len(rest) > width and cut[set_cell_size(rest, width - 1)] > 1:
            end = set_cell_size(rest[::-1], tail)[::-1]
            short[cell] = f"{set_cell_size(rest, width - 1 - tail)}…{end}"
    return [short.get(cell, cell) for cell in cells]


def kept_columns(
    lengths: Sequence[int], may_shrink: Sequence[bool], optional: Sequence[int], room: int
) -> list[int]:
    """The indexes of the columns that fit, if names are truncated to LEGIBLE characters."""
    least = [
        min(length, LEGIBLE) if shrinks else length
        for length, shrinks in zip(lengths, may_shrink, strict=True)
    ]
    kept = list(range(len(lengths)))
    for place in optional:
        if sum(least[each] for each in kept) + GAP * (len(kept) - 1) <= room:
            break
        kept.remove(place)
    return kept


def fitted(lengths: Sequence[int], may_shrink: Sequence[bool], room: int) -> list[int]:
    """Column widths: the widest name column shrinks until all columns fit or none can shrink."""
    widths = list(lengths)
    while sum(widths) + GAP * (len(widths) - 1) > room:
        shrinkable = ((width, place) for place, width in enumerate(widths) if may_shrink[place])
        widest = max(shrinkable, default=(0, 0))
        if widest[0] <= SHORTEST:
            break
        widths[widest[1]] -= 1
    return widths


def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Print one name and value per line on standard output; nothing is truncated."""
    pairs = [(escape(name), value) for name, value in pairs]
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        sys.stdout.write(f"{name:<{width}}  {escape(value)}\n")


def print_text(lines: Iterable[str]) -> None:
    """Print lines on standard output."""
    sys.stdout.writelines(f"{escape(line)}\n" for line in lines)


def print_described(items: Sequence[tuple[str, str]]) -> None:
    """Print names and their descriptions, wrapped to the width of the terminal."""
    items = [(escape(name), escape(" ".join(words.split()))) for name, words in items]
    column = min(max(len(name) for name, _ in items), NAME_COLUMN) + GAP
    for name, words in items:
        lines = textwrap.wrap(words, max(terminal_width() - column, MEANING), break_long_words=False)
        first = name.ljust(column) if len(name) + GAP <= column else f"{name}\n{' ' * column}"
        sys.stdout.write(first + f"\n{' ' * column}".join(lines) + "\n")
