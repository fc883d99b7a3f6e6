"""Measured values and published figures -> tables -> text, Markdown or LaTeX."""

import math
import re
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from sentkit.digits import meaning_of_brackets
from sentkit.errors import SentkitError, UsageError
from sentkit.escaping import GAP, columns_of, cut_or_fill, escape, label_cells, widths_of
from sentkit.formats.files import bare_suffix
from sentkit.formats.outputs.names import check_rows_output, is_file_name
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
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}
MARKUP = re.compile(r"([|*_~`<\\])")  # of Markdown
LATEX_NOTE = "% needs \\usepackage{booktabs}"


UNITS = {name: suite.unit for name, suite in SUITES.items()} | {
    "ablation": "averages x 100",
    "glue": "accuracy or Matthews correlation x 100",
    "efficiency": "seconds",
    "steps": "the step that the dev pairs chose",
    "frequent-tokens": "Spearman x 100 that is gained without the most frequent tokens",
    "views": "average, Spearman x 100, without augmentation",
    "temperature": "the temperature with the best average",
    "space-of-ica": "average, Spearman x 100, in the ICA axes of entries",
    "layers": "Spearman x 100, the lowest and the highest",
    "domain-shift": "Spearman x 100 that other training texts lose",
}


def tables_of(paper: str | None, number: str | None) -> list[PaperTable]:
    """The tables of a paper, or one of them; none without a paper."""
    if paper is None:
        return []
    return paper_tables(paper, number, list(UNITS))


@dataclass(frozen=True, slots=True)
class Line:
    names: tuple[str, ...]  # such as base, system and readout: one for each of `Table.names`
    cells: tuple[str, ...]  # one for each of `Table.columns`
    is_measured: bool = False  # not published


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    names: tuple[str, ...]  # headers of the names
    columns: tuple[str, ...]  # headers of the cells, such as the tasks
    lines: tuple[Line, ...]
    # Of the lines of each base, the best value of a column is bold, and the second underlined.
    emphasizes: bool = False

    @property
    def caption(self) -> str:
        """The title, with the meaning of brackets in the cells."""
        cells = [cell for line in self.lines for cell in line.cells]
        return "; ".join([self.title, *meaning_of_brackets(cells)])


def suites_of(paper: str, number: str) -> list[str]:
    """The suites that a table needs."""
    tables = tables_of(paper, number)
    needed = set()
    for table in tables:
        for task in table.tasks:
            suite, _ = table.source(task)
            needed.add(suite)
    return [suite for suite in IN_FOLDERS if suite in needed]


def has_task(paper: str, number: str | None, tests: Sequence[TestSet]) -> bool:
    """Whether a table has a task of these test sets, or an average that needs no others."""
    tasks = {(test.suite, test.task) for test in tests}
    for suite in {test.suite for test in tests}:
        if not tasks_without_test(suite, tests):
            tasks.add((suite, "avg"))
    return any(
        table.source(task) in tasks for table in tables_of(paper, number) for task in table.tasks
    )


def tasks_without_test(suite: str, tests: Sequence[TestSet]) -> list[str]:
    """The tasks that the average of a suite needs, and that have no test set."""
    present = {test.task for test in tests if test.suite == suite}
    return missing_tasks(suite, {"avg", *present})


def unaveraged(tests: Sequence[TestSet]) -> Iterator[str]:
    """Warnings about averages without all tasks."""
    for suite in dict.fromkeys(test.suite for test in tests):
        missing = tasks_without_test(suite, tests)
        if missing:
            yield f"{suite} has no average: no test set of {', '.join(missing)}"


def published_table(
    table: PaperTable,
    measured_lines: Sequence[Line] = (),
    bases: Collection[str] = (),
    seeds: Sequence[str] = (),
) -> Table:
    """Measured lines, and then the published ones: all, or with `bases` those of `chosen_bases`.

    `seeds`: the number of seeds of each measured line, for a column of them.
    """
    title = f"{table.name}: {table.suite}, {UNITS[table.suite]}"

    # The published lines. The mark of inferred figures is in the name of the system if all are.
    lines = []
    for names, figures, decimals in table.systems():
        _, system, _ = names  # base, system and readout
        cells = {}
        for task, figure in figures.items():
            cells[task] = shown(figure["value"], figure["sd"], decimals)
            if figure.get("inferred") and not system.endswith(INFERRED):
                cells[task] += INFERRED
        ordered_cells = [cells.get(task, "") for task in table.tasks]
        lines.append(Line(names, tuple(ordered_cells)))

    # Those of the chosen bases, and those of no base.
    if bases:
        table_bases = list(dict.fromkeys(line.names[0] for line in lines if line.names[0]))
        chosen = chosen_bases(table_bases, bases)
        lines = [line for line in lines if line.names[0] in ("", *chosen)]
        if len(table_bases) > len(chosen):
            title += f"; published rows of {', '.join(chosen)}"

    # The column of seeds, which is empty in published lines.
    headers: tuple[str, ...] = ("base", "system", "readout")
    if seeds:
        headers = (*headers, "seeds")
        measured_lines = [
            replace(line, names=(*line.names, count))
            for line, count in zip(measured_lines, seeds, strict=True)
        ]
        lines = [replace(line, names=(*line.names, "")) for line in lines]
    higher_is_better = table.suite in (*IN_FOLDERS, "ablation", "glue")
    return Table(
        title,
        headers,
        columns=table.tasks,
        lines=(*measured_lines, *lines),
        emphasizes=higher_is_better,
    )


def chosen_bases(table_bases: Sequence[str], bases: Collection[str]) -> list[str]:
    """Those of the bases in a table that are among `bases`, else BERT-base, else the first one."""
    chosen = [name for name in table_bases if any(same_base(name, base) for base in bases)]
    if not chosen:
        chosen = [name for name in table_bases if same_base(name, "bert-base")]
    if not chosen:
        chosen = list(table_bases[:1])
    return chosen


def measured_tables(
    measured: Sequence[Measured], baseline: Row | None, paper: str | None, number: str | None
) -> list[Table]:
    """One table of all values, then those of the paper; with a number, only that one, own lines
    first.
    """
    # The encoders of the papers whose family and size the checkpoints have.
    bases: dict[str, None] = {}
    for name in dict.fromkeys(name for entry in measured for name in entry.row.models):
        with suppress(SentkitError):  # a static model has no transformer
            bases[published_base(name) or "unknown"] = None

    tables = []
    if not number:
        tables.append(measured_table(measured, baseline))
    measured_tasks = {entry.task for entry in measured}
    for table in tables_of(paper, number):
        tasks = [table.source(task) for task in table.tasks]
        if measured_tasks.isdisjoint(tasks):
            continue
        measured_lines = []
        seeds = []
        if number:
            for line in lines_of(tasks, measured, baseline):
                base = HERE if line.readout else ""  # only the line of values has it
                names = (base, line.name, line.readout)
                measured_lines.append(Line(names, line.cells, is_measured=True))
                if has_seeds(measured):
                    seeds.append(line.seeds)
        tables.append(published_table(table, measured_lines, bases or ["unknown"], seeds))
    return tables


def measured_table(measured: Sequence[Measured], baseline: Row | None) -> Table:
    """A line for each row and a column for each task, in the order of the suites."""
    suites = list(SUITES)

    def order(task: Task) -> tuple[int, bool]:
        suite, key = task
        return suites.index(suite), key == "avg"

    # The columns.
    name_of_task = {entry.task: entry.task_name for entry in measured}
    tasks = sorted(name_of_task, key=order)
    names = [name_of_task[task] for task in tasks]
    columns = []
    for (suite, _), name in zip(tasks, names, strict=True):
        is_unique = names.count(name) == 1
        columns.append(name if is_unique else f"{name}, {suite}")

    # The lines; without a column of seeds if each row has one checkpoint.
    headers: tuple[str, ...] = ("row", "readout")
    if has_seeds(measured):
        headers = ("row", "seeds", "readout")
    lines = []
    for line in lines_of(tasks, measured, baseline):
        names_of_line: tuple[str, ...] = (line.name, line.readout)
        if has_seeds(measured):
            names_of_line = (line.name, line.seeds, line.readout)
        lines.append(Line(names_of_line, line.cells, is_measured=True))

    units = [
        f"{suite}: {SUITES[suite].unit}" for suite in dict.fromkeys(suite for suite, _ in tasks)
    ]
    return Table("; ".join(units), headers, tuple(columns), tuple(lines))


def has_seeds(measured: Sequence[Measured]) -> bool:
    """Whether a row has several checkpoints, so that the number is shown for all rows."""
    return any(len(entry.values_of_checkpoints) > 1 for entry in measured)


@dataclass(frozen=True, slots=True)
class MeasuredLine:
    """A line of a row. Seeds and readout are empty except in its first line, that of the values."""

    name: str  # of the row, or of what a further line of it has, such as "95 % interval"
    cells: tuple[str, ...]  # one for each task
    seeds: str = ""
    readout: str = ""


def lines_of(
    tasks: Sequence[Task], measured: Sequence[Measured], baseline: Row | None
) -> Iterator[MeasuredLine]:
    """Numbers of rows or queries, then the lines of each row. A line has a cell for each task."""
    # The name of a line, and the attribute of `Measured` with its numbers.
    for name, field in (("n", "n"), ("n in --train", "seen"), ("n near --train", "near")):
        counts: dict[Task, str] = {}
        for entry in measured:
            count = getattr(entry, field)
            if count is not None:
                counts[entry.task] = str(count)
        if counts:
            yield MeasuredLine(name, tuple(counts.get(task, "") for task in tasks))
    for row in dict.fromkeys(entry.row for entry in measured):
        yield from lines_of_row(row, tasks, measured, baseline)


def lines_of_row(
    row: Row, tasks: Sequence[Task], measured: Sequence[Measured], baseline: Row | None
) -> Iterator[MeasuredLine]:
    """A line of values, then lines of intervals, differences and p."""
    entry_of_task = {entry.task: entry for entry in measured if entry.row == row}
    if entry_of_task.keys().isdisjoint(tasks):
        return

    def cells(text: Callable[[Measured], str]) -> tuple[str, ...]:
        """A cell for each task, which is empty if the row has no value."""
        return tuple(text(entry_of_task[task]) if task in entry_of_task else "" for task in tasks)

    entries = [entry_of_task[task] for task in tasks if task in entry_of_task]
    readouts = dict.fromkeys(entry.readout for entry in entries)
    yield MeasuredLine(
        row.name,
        cells(lambda entry: shown(entry.value, entry.sd)),
        seeds=str(len(row.models)),
        readout=" ".join(readouts),
    )
    if any(entry.interval for entry in entries):
        yield MeasuredLine("  95 % interval", cells(lambda entry: interval_cell(entry.interval)))
    if any(entry.seen is not None for entry in entries):
        without = cells(lambda entry: "" if entry.without is None else shown(entry.without))
        yield MeasuredLine("  without them", without)
    if baseline is not None and any(entry.difference for entry in entries):
        yield MeasuredLine(f"  minus {baseline.label}", cells(difference_cell))
        yield MeasuredLine("  p", cells(p_cell))


def interval_cell(interval: Sequence[float | None] | None) -> str:
    if interval is None:
        return ""
    return f"[{', '.join(shown(limit) for limit in interval)}]"


def difference_cell(entry: Measured) -> str:
    if not entry.difference:
        return ""
    return f"{shown(entry.difference['difference'])} {interval_cell(entry.difference['ci95'])}"


def p_cell(entry: Measured) -> str:
    return shown(entry.difference["p"], decimals=3) if entry.difference else ""


def shown(value: float | None, sd: float | None = None, decimals: int = 2) -> str:
    """A number and its deviation in parentheses; "-" if it is undefined."""
    if value is None or math.isnan(value):
        return "-"
    text = f"{value:.{decimals}f}"
    if sd is not None:
        text += f" ({sd:.{decimals}f})"
    return text


def text_lines(table: Table, width: int) -> Iterator[str]:
    """Columns separated by blanks. A table that is too wide is printed in parts that repeat the
    names.
    """
    yield from textwrap.wrap(escape(table.caption), width)
    rows = [(*table.names, *table.columns), *((*line.names, *line.cells) for line in table.lines)]
    cells = [[escape(cell) for cell in row] for row in rows]
    widths = [max(columns_of(row[column]) for row in cells) for column in range(len(cells[0]))]

    # The columns of names are as wide as there is room beside the widest number.
    name_count = len(table.names)
    names_and_number = [*widths[:name_count], max(widths[name_count:])]
    is_text = [True] * name_count + [False]
    *name_widths, _ = widths_of(names_and_number, is_text, (), width).values()
    widths[:name_count] = name_widths
    for column in range(name_count):
        labels = label_cells([row[column] for row in cells[1:]], widths[column])
        for row, label in zip(cells[1:], labels, strict=True):
            row[column] = label

    # Parts with as many columns of numbers as there is room for.
    room = width - sum(name_widths) - GAP * (name_count - 1)
    start = name_count
    while start < len(widths):
        stop = start + 1
        while (
            stop < len(widths) and sum(widths[start : stop + 1]) + GAP * (stop + 1 - start) <= room
        ):
            stop += 1
        if start > name_count:
            yield ""
        for row in cells:
            names = [cut_or_fill(row[column], widths[column]) for column in range(name_count)]
            numbers = [
                cut_or_fill(row[column], widths[column], right=True)
                for column in range(start, stop)
            ]
            yield (" " * GAP).join([*names, *numbers]).rstrip()
        start = stop


BEST = 1  # ranks of emphasized values
SECOND = 2
LATEX_MARKS = {BEST: r"\textbf{%s}", SECOND: r"\underline{%s}"}
MARKDOWN_MARKS = {BEST: "**%s**", SECOND: "<ins>%s</ins>"}
FEWEST_VALUES = 3  # of a base, to emphasize some of them


def ranks_of(table: Table) -> list[list[int]]:
    """BEST, SECOND or 0 for each cell of each line. Equal values have one rank."""
    ranks = [[0] * len(table.columns) for _ in table.lines]
    if not table.emphasizes:
        return ranks
    for column in range(len(table.columns)):
        values_of_base: dict[str, dict[int, float]] = {}  # base -> line -> value
        for number, line in enumerate(table.lines):
            value = re.match(r"-?\d+(\.\d+)?", line.cells[column].strip())
            base = line.names[0]
            # The lines of intervals and differences have no base.
            if value and (base or not line.is_measured):
                values_of_base.setdefault(base, {})[number] = float(value[0])
        for values in values_of_base.values():
            highest = sorted(set(values.values()), reverse=True)
            if len(values) < FEWEST_VALUES or len(highest) == 1:
                continue
            for number, value_of_line in values.items():
                if value_of_line == highest[0]:
                    ranks[number][column] = BEST
                elif value_of_line == highest[1]:
                    ranks[number][column] = SECOND
    return ranks


def caption_with_marks(table: Table, ranks: Sequence[Sequence[int]]) -> str:
    """The caption, with the meaning of the marks of `emphasized` if cells have some."""
    if not any(map(any, ranks)):
        return table.caption
    return f"{table.caption}; bold, underlined: the best and the second value of a base"


def emphasized(text: str, rank: int, marks: Mapping[int, str]) -> str:
    return marks[rank] % text if rank else text


def markdown_lines(table: Table) -> Iterator[str]:
    """The caption and the table in Markdown, in which the best cells of a column are bold."""

    def cell_text(cell: str) -> str:
        return MARKUP.sub(r"\\\1", escape(cell.strip()))

    def row(texts: Sequence[str]) -> str:
        return f"| {' | '.join(texts)} |"

    ranks_of_lines = ranks_of(table)
    yield f"**{escape(caption_with_marks(table, ranks_of_lines))}**"
    yield ""
    yield row([cell_text(cell) for cell in (*table.names, *table.columns)])
    yield "|" + "---|" * len(table.names) + "---:|" * len(table.columns)
    for line, ranks in zip(table.lines, ranks_of_lines, strict=True):
        texts = [cell_text(cell) for cell in line.names]
        for cell, rank in zip(line.cells, ranks, strict=True):
            texts.append(emphasized(cell_text(cell), rank, MARKDOWN_MARKS))
        yield row(texts)


def latex_text(cell: str) -> str:
    return re.sub(r"[&%$#_{}~^\\<>]", lambda match: LATEX[match[0]], escape(cell))


def latex_lines(table: Table) -> Iterator[str]:
    """The caption and the table for booktabs, in which the best cells of a column are bold."""

    def row(texts: Sequence[str]) -> str:
        return " & ".join(texts) + r" \\"

    yield r"\begin{table}"
    ranks_of_lines = ranks_of(table)
    caption = latex_text(caption_with_marks(table, ranks_of_lines))
    caption = caption.replace(" x 100", r" \(\times\) 100")
    yield rf"\caption{{{caption}}}"
    yield rf"\begin{{tabular}}{{{'l' * len(table.names)}{'r' * len(table.columns)}}}"
    yield r"\toprule"
    yield row([latex_text(cell.strip()) for cell in (*table.names, *table.columns)])
    ranked_lines = zip(table.lines, ranks_of_lines, strict=True)
    # Measured lines, then published ones.
    for _, lines in groupby(ranked_lines, key=lambda ranked_line: ranked_line[0].is_measured):
        yield r"\midrule"
        for line, ranks in lines:
            texts = [latex_text(cell.strip()) for cell in line.names]
            for cell, rank in zip(line.cells, ranks, strict=True):
                texts.append(emphasized(latex_text(cell.strip()), rank, LATEX_MARKS))
            yield row(texts)
    yield r"\bottomrule"
    yield r"\end{tabular}"
    yield r"\end{table}"


def rendered(tables: Sequence[Table], form: str, width: int) -> str:
    """The tables as `text` of this width, `markdown` or `latex`."""
    texts = []
    if form == "latex" and tables:
        texts.append(f"{LATEX_NOTE}\n")
    for table in tables:
        if form == "text":
            lines = text_lines(table, width)
        elif form == "markdown":
            lines = markdown_lines(table)
        else:
            lines = latex_lines(table)
        texts.append("".join(f"{line}\n" for line in lines))
    return "\n".join(texts)


SUFFIXES = {".txt": "text", ".md": "markdown", ".tex": "latex", ".jsonl": "json", ".json": "json"}


def form_of(path: str, form: str | None, *, on_terminal: bool) -> str:
    """The format of an output: `form`, or by its suffix."""
    if form is None:
        form = SUFFIXES.get(bare_suffix(path), "text" if on_terminal else "json")
        is_unknown = bare_suffix(path) not in (*SUFFIXES, ".parquet", ".csv", ".tsv")
        if is_unknown and is_file_name(path):
            names = ", ".join(SUFFIXES)
            advice = f"use a name with one of {names}, or give --format"
            raise UsageError(f"{path}: unknown output format {Path(path).suffix}", advice=advice)
    if form == "json":
        check_rows_output(path)
    return form
