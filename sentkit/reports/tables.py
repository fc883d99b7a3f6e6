"""Measured values and published figures -> tables -> text, Markdown or LaTeX."""

import math
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby

from sentkit.digits import meaning_of_brackets
from sentkit.errors import SentkitError
from sentkit.escaping import GAP, columns_of, escape, fit, label_cells, widths_of
from sentkit.formats.files import bare_suffix
from sentkit.formats.outputs.names import check_rows_output
from sentkit.papers.published import (
    INFERRED,
    PaperTable,
    missing_tasks,
    paper_tables,
    published_base,
    same_base,
)
from sentkit.reports.evaluate import Row
from sentkit.reports.measure import Measured, Task
from sentkit.reports.suites import IN_FOLDERS, SUITES, TestSet

HERE = "here"  # the base of measured rows in a published table
LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    **{"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}"},
}
MARKUP, BACKSLASH = re.compile(r"([|*_~`<\\])"), r"\\\1"  # of Markdown
LATEX_NOTE = "% needs \\usepackage{booktabs}"


UNITS = {name: suite.unit for name, suite in SUITES.items()} | {
    "ablation": "averages x 100",
    "glue": "accuracy or Matthews correlation x 100",
    "efficiency": "seconds",
    "steps": "the step that the dev pairs chose",
    "layers": "Spearman x 100, the lowest and the highest",
    "domain-shift": "Spearman x 100 that other training texts lose",
}


def tables_of(paper: str | None, number: str | None) -> list[PaperTable]:
    """The tables of a paper, or one of them; none without a paper."""
    return [] if paper is None else paper_tables(paper, number, list(UNITS))


@dataclass(frozen=True, slots=True)
class Line:
    names: tuple[str, ...]
    cells: tuple[str, ...]
    here: bool = False  # measured, not published


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    names: tuple[str, ...]  # headers of the names
    columns: tuple[str, ...]
    lines: tuple[Line, ...]

    @property
    def caption(self) -> str:
        """The title, with the meaning of brackets in the cells."""
        return "; ".join(
            [self.title, *meaning_of_brackets(cell for line in self.lines for cell in line.cells)]
        )


def suites_of(paper: str, number: str) -> list[str]:
    """The suites that a table needs."""
    tables = tables_of(paper, number)
    found = {table.source(task)[0] for table in tables for task in table.tasks}
    return [suite for suite in IN_FOLDERS if suite in found]


def has_task(paper: str, number: str | None, tests: Sequence[TestSet]) -> bool:
    """Whether a table has a task of these test sets, or an average that needs no others."""
    tasks = {(test.suite, test.task) for test in tests}
    for suite in {test.suite for test in tests}:
        if not missing_tasks(suite, {"avg", *(task for own, task in tasks if own == suite)}):
            tasks.add((suite, "avg"))
    return any(table.source(task) in tasks for table in tables_of(paper, number) for task in table.tasks)


def unaveraged(tests: Sequence[TestSet]) -> Iterator[str]:
    """Warnings about averages without all tasks."""
    for suite in dict.fromkeys(test.suite for test in tests):
        missing = missing_tasks(suite, {"avg", *(test.task for test in tests if test.suite == suite)})
        if missing:
            yield f"{suite} has no average: no test set of {', '.join(missing)}"


def published_table(table: PaperTable, added: Sequence[Line] = (), bases: Collection[str] = ()) -> Table:
    """Measured lines, and published ones: of these bases, else of BERT-base or the first one; or all."""
    names, title = ("base", "system", "readout"), f"{table.name}: {table.suite}, {UNITS[table.suite]}"
    lines = []
    for systems, figures, decimals in table.systems():
        cells = {task: shown(each["value"], each["sd"], decimals) for task, each in figures.items()}
        if not systems[1].endswith(INFERRED):
            cells |= {task: cells[task] + INFERRED for task, each in figures.items() if each.get("inferred")}
        lines.append(Line(systems, tuple(cells.get(task, "") for task in table.tasks)))
    if bases:
        present = dict.fromkeys(line.names[0] for line in lines if line.names[0])
        of = {name for name in present for base in bases if same_base(name, base)}
        of = of or {name for name in present if same_base(name, "bert-base")} or {*[*present][:1]}
        own = [name for name in present if name in of]
        lines = [line for line in lines if line.names[0] in ("", *own)]
        if len(present) > len(own):
            title += f"; published rows of {', '.join(own)}"
    return Table(title, names, table.tasks, (*added, *lines))


def measured_tables(
    measured: Sequence[Measured], baseline: Row | None, paper: str | None, number: str | None
) -> list[Table]:
    """One table of all values, then those of the paper; with a number, only that one, own lines first."""
    bases: dict[str, None] = {}  # the encoders of the papers whose family and size the checkpoints have
    for name in dict.fromkeys(name for each in measured for name in each.row.models):
        with suppress(SentkitError):  # a static model has no transformer
            bases[published_base(name) or "unknown"] = None
    present = {each.task for each in measured}
    every = tables_of(paper, number)
    published = [table for table in every if not present.isdisjoint(map(table.source, table.tasks))]
    tables = [] if number else [own_table(measured, baseline)]
    for table in published:
        lines = lines_of(map(table.source, table.tasks), measured, baseline) if number else ()
        added = (Line((HERE if line[2] else "", line[0], line[2]), line[3], here=True) for line in lines)
        tables.append(published_table(table, [*added], bases or ["unknown"]))
    return tables


def own_table(measured: Sequence[Measured], baseline: Row | None) -> Table:
    """A line for each row and a column for each task, in the order of the suites."""
    tasks = {each.task: each.name for each in measured}
    suites = list(SUITES)
    order = sorted(tasks, key=lambda task: (suites.index(task[0]), task[1] == "avg"))
    names = [tasks[task] for task in order]
    columns = [
        f"{name}, {task[0]}" if names.count(name) > 1 else name
        for name, task in zip(names, order, strict=True)
    ]
    several = any(len(each.values) > 1 for each in measured)
    lines = tuple(
        Line((name, seeds, readout) if several else (name, readout), cells, here=True)
        for name, seeds, readout, cells in lines_of(order, measured, baseline)
    )
    title = "; ".join(f"{suite}: {SUITES[suite].unit}" for suite in dict.fromkeys(task[0] for task in order))
    return Table(title, ("row", "seeds", "readout") if several else ("row", "readout"), tuple(columns), lines)


def lines_of(
    tasks: Iterable[Task], measured: Sequence[Measured], baseline: Row | None
) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """Name, seeds, readout and cells of each line: numbers of rows or queries, then the lines of each row."""
    sources = list(tasks)
    for name, field in (("n", "n"), ("n in --train", "seen"), ("n near --train", "near")):
        counts = {each.task: str(value) for each in measured if (value := getattr(each, field)) is not None}
        if counts:
            yield name, "", "", tuple(counts.get(source, "") for source in sources)
    for row in dict.fromkeys(each.row for each in measured):
        yield from lines_of_row(row, sources, measured, baseline)


def lines_of_row(
    row: Row, sources: Sequence[Task], measured: Sequence[Measured], baseline: Row | None
) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """A line of values, then lines of intervals, differences and p."""
    found = {each.task: each for each in measured if each.row == row}
    cells = [found.get(source) for source in sources]
    if not any(cells):
        return
    readouts = dict.fromkeys(each.readout for each in cells if each is not None)
    values = tuple("" if each is None else shown(each.value, each.sd) for each in cells)
    yield row.name, str(len(row.models)), " ".join(readouts), values
    intervals = [each.interval if each else None for each in cells]
    if any(intervals):
        yield "  95 % interval", "", "", tuple(map(interval_cell, intervals))
    if any(each is not None and each.seen is not None for each in cells):
        without = [None if each is None else each.without for each in cells]
        yield "  without them", "", "", tuple("" if each is None else shown(each) for each in without)
    differences = [each.difference if each else None for each in cells]
    if baseline is not None and any(differences):
        texts = [
            f"{shown(each['difference'])} {interval_cell(each['ci95'])}" if each else ""
            for each in differences
        ]
        yield f"  minus {baseline.label}", "", "", tuple(texts)
        yield "  p", "", "", tuple(shown(each["p"], decimals=3) if each else "" for each in differences)


def interval_cell(interval: Sequence[float | None] | None) -> str:
    return "" if interval is None else f"[{', '.join(map(shown, interval))}]"


def shown(value: float | None, sd: float | None = None, decimals: int = 2) -> str:
    """A number and its deviation in parentheses; "-" if it is undefined."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.{decimals}f}" + ("" if sd is None else f" ({sd:.{decimals}f})")


def text_lines(table: Table, width: int) -> Iterator[str]:
    """Columns separated by blanks. A table that is too wide is printed in parts that repeat the names."""
    yield from textwrap.wrap(escape(table.caption), width)
    rows = [(*table.names, *table.columns), *((*line.names, *line.cells) for line in table.lines)]
    cells = [[escape(cell) for cell in row] for row in rows]
    widths = [max(columns_of(row[place]) for row in cells) for place in range(len(cells[0]))]
    start = len(table.names)
    first_part = [*widths[:start], max(widths[start:])]
    widths[:start] = [*widths_of(first_part, [True] * start + [False], (), width).values()][:-1]
    for i in range(start):  # columns of names
        labels = label_cells([row[i] for row in cells[1:]], widths[i])
        for row, label in zip(cells[1:], labels, strict=True):
            row[i] = label
    room = width - sum(widths[:start]) - GAP * (start - 1)
    while start < len(widths):
        stop = start + 1
        while stop < len(widths) and sum(widths[start : stop + 1]) + GAP * (stop + 1 - start) <= room:
            stop += 1
        if start > len(table.names):
            yield ""
        for row in cells:
            names = [fit(row[place], widths[place]) for place in range(len(table.names))]
            numbers = [fit(row[place], widths[place], right=True) for place in range(start, stop)]
            yield (" " * GAP).join([*names, *numbers]).rstrip()
        start = stop


def markdown_lines(table: Table) -> Iterator[str]:
    def row(cells: Sequence[str]) -> str:
        return f"| {' | '.join(MARKUP.sub(BACKSLASH, escape(cell.strip())) for cell in cells)} |"

    yield f"**{escape(table.caption)}**"
    yield ""
    yield row((*table.names, *table.columns))
    yield "|" + "---|" * len(table.names) + "---:|" * len(table.columns)
    for line in table.lines:
        yield row((*line.names, *line.cells))


def latex_text(cell: str) -> str:
    return re.sub(r"[&%$#_{}~^\\<>]", lambda match: LATEX[match[0]], escape(cell))


def latex_lines(table: Table) -> Iterator[str]:
    def row(cells: Sequence[str]) -> str:
        return " & ".join(latex_text(cell.strip()) for cell in cells) + r" \\"

    yield r"\begin{table}"
    yield rf"\caption{{{latex_text(table.caption)}}}"
    yield rf"\begin{{tabular}}{{{'l' * len(table.names)}{'r' * len(table.columns)}}}"
    yield r"\toprule"
    yield row((*table.names, *table.columns))
    for _, lines in groupby(table.lines, key=lambda line: line.here):  # measured, then published ones
        yield r"\midrule"
        yield from (row((*line.names, *line.cells)) for line in lines)
    yield r"\bottomrule"
    yield r"\end{tabular}"
    yield r"\end{table}"


def rendered(tables: Sequence[Table], form: str, width: int) -> str:
    """The tables as `text` of this width, `markdown` or `latex`."""
    lines = {"text": lambda table: text_lines(table, width), "markdown": markdown_lines, "latex": latex_lines}
    parts = ["".join(f"{line}\n" for line in lines[form](table)) for table in tables]
    if form == "latex" and tables:
        parts.insert(0, f"{LATEX_NOTE}\n")
    return "\n".join(parts)


SUFFIXES = {".txt": "text", ".md": "markdown", ".tex": "latex", ".jsonl": "json", ".json": "json"}


def form_of(path: str, form: str | None, *, on_terminal: bool) -> str:
    """The format of an output: `form`, or by its suffix."""
    form = form or SUFFIXES.get(bare_suffix(path), "text" if on_terminal else "json")
    if form == "json":
        check_rows_output(path)
    return form
