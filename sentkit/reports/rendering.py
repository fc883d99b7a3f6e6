"""Tables -> text, Markdown, LaTeX or HTML."""

import html
import re
from collections.abc import Callable, Iterator, Sequence

from sentkit.errors import UsageError
from sentkit.escaping import columns_of, escape, fit
from sentkit.formats.files import bare_suffix
from sentkit.formats.outputs.outputs import is_special
from sentkit.formats.vectors.sinks import JSONL, check_rows_output
from sentkit.reports.tables import NAMES, Table

GAP = "  "
LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}"},
}
MARKUP, BACKSLASH = re.compile(r"([|*_~`<\\])"), r"\\\1"  # of Markdown
LATEX_NOTE = "% needs \\usepackage{booktabs}"
STYLE = "table{border-collapse:collapse;margin:1em 0}td,th{padding:.1em .6em;text-align:right}"
STYLE += (
    "td:nth-child(-n+3),th:nth-child(-n+3){text-align:left}tr.here{font-weight:bold}caption{text-align:left}"
)


def text(tables: Sequence[Table], width: int | None = None) -> str:
    """Columns separated by blanks. A table that is wider than `width` is printed in several parts."""
    return "\n".join(f"{escape(table.title)}\n{''.join(parts(table, width))}" for table in tables)


def parts(table: Table, width: int | None) -> Iterator[str]:
    """The table in one part, or in several that repeat the names."""
    rows = [(*NAMES, *table.columns), *((*line.names, *line.cells) for line in table.lines)]
    cells = [[escape(cell) for cell in row] for row in rows]
    widths = [max(columns_of(row[place]) for row in cells) for place in range(len(cells[0]))]
    start, first = len(NAMES), True
    room = (width or 0) - sum(widths[:start]) - len(GAP) * (start - 1)
    while start < len(widths):
        stop = start + 1
        while stop < len(widths) and (
            width is None or sum(widths[start : stop + 1]) + len(GAP) * (stop + 1 - start) <= room
        ):
            stop += 1
        yield "" if first else "\n"
        for row in cells:
            names = [fit(row[place], widths[place]) for place in range(len(NAMES))]
            numbers = [fit(row[place], widths[place], right=True) for place in range(start, stop)]
            yield GAP.join([*names, *numbers]).rstrip() + "\n"
        start, first = stop, False


def markdown(tables: Sequence[Table]) -> str:
    return "\n".join("".join(f"{line}\n" for line in markdown_lines(table)) for table in tables)


def markdown_lines(table: Table) -> Iterator[str]:
    def row(cells: Sequence[str]) -> str:
        return f"| {' | '.join(MARKUP.sub(BACKSLASH, escape(cell.strip())) for cell in cells)} |"

    yield f"**{escape(table.title)}**"
    yield ""
    yield row((*NAMES, *table.columns))
    yield "|" + "---|" * len(NAMES) + "---:|" * len(table.columns)
    for line in table.lines:
        yield row((*line.names, *line.cells))


def latex(tables: Sequence[Table]) -> str:
    note = [f"{LATEX_NOTE}\n"] if tables else []
    return "\n".join([*note, *("".join(f"{line}\n" for line in latex_lines(each)) for each in tables)])


def latex_text(cell: str) -> str:
    return re.sub(r"[&%$#_{}~^\\<>]", lambda match: LATEX[match[0]], escape(cell))


def latex_lines(table: Table) -> Iterator[str]:
    def row(cells: Sequence[str]) -> str:
        return " & ".join(latex_text(cell.strip()) for cell in cells) + r" \\"

    yield r"\begin{table}"
    yield rf"\caption{{{latex_text(table.title)}}}"
    yield rf"\begin{{tabular}}{{{'l' * len(NAMES)}{'r' * len(table.columns)}}}"
    yield r"\toprule"
    yield row((*NAMES, *table.columns))
    previous = None
    for line in table.lines:
        if line.here != previous:  # before the published rows, and between them and the measured ones
            yield r"\midrule"
        previous = line.here
        yield row((*line.names, *line.cells))
    yield r"\bottomrule"
    yield r"\end{tabular}"
    yield r"\end{table}"


def html_page(tables: Sequence[Table]) -> str:
    body = "".join(line for table in tables for line in html_lines(table))
    head = f'<meta charset="utf-8">\n<title>sentkit report</title>\n<style>{STYLE}</style>\n'
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>\n{head}</head>\n<body>\n{body}</body>\n</html>\n'


def html_lines(table: Table) -> Iterator[str]:
    def row(cells: Sequence[str], tag: str = "td", kind: str = "") -> str:
        inside = "".join(f"<{tag}>{html.escape(escape(cell.strip()))}</{tag}>" for cell in cells)
        return f"<tr{kind}>{inside}</tr>\n"

    yield f"<table>\n<caption>{html.escape(escape(table.title))}</caption>\n"
    yield f"<thead>\n{row((*NAMES, *table.columns), 'th')}</thead>\n<tbody>\n"
    for line in table.lines:
        yield row((*line.names, *line.cells), kind=' class="here"' if line.here else "")
    yield "</tbody>\n</table>\n"


RENDERINGS: dict[str, Callable[[Sequence[Table]], str]] = {
    "text": text,
    "markdown": markdown,
    "latex": latex,
    "html": html_page,
}
SUFFIXES = {
    ".txt": "text",
    ".md": "markdown",
    ".tex": "latex",
    ".html": "html",
    ".jsonl": "json",
    ".json": "json",
}


def form_of(path: str, form: str | None, *, on_terminal: bool) -> str:
    """The format of an output: `form`, or by its suffix. Raises an error for a suffix of another format."""
    suffix = bare_suffix(path)
    form = form or SUFFIXES.get(suffix, "text" if on_terminal else "json")
    if form == "json":
        check_rows_output(path)
        return form
    own = next(each for each, name in SUFFIXES.items() if name == form)
    if suffix in {*SUFFIXES, *JSONL, ".parquet", ".safetensors"} - {own} and not is_special(path):
        advice = f"use a name with {own}"
        raise UsageError(f"{path}: an output with --format {form} cannot have this name", advice=advice)
    return form
