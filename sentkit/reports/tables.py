"""Measured values and published figures -> tables of text."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sentkit.metrics.sts.intervals import Interval
from sentkit.reports.measure import Measured, Task
from sentkit.reports.published import PaperTable, missing_tasks, paper_tables, task_names
from sentkit.reports.rows import Row
from sentkit.reports.suites import SUITES, TestSet

NAMES = ("base", "system", "readout")
HERE = "here"  # the base of measured rows


@dataclass(frozen=True, slots=True)
class Line:
    names: tuple[str, str, str]
    cells: tuple[str, ...]
    here: bool = False  # measured, not published


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    columns: tuple[str, ...]  # without NAMES
    lines: tuple[Line, ...]


def published_tables(paper: str | None, number: str | None) -> list[Table]:
    tables = selected(paper, number)
    return [Table(table.title, table.tasks, tuple(published_lines(table))) for table in tables]


def selected(paper: str | None, number: str | None) -> list[PaperTable]:
    tables = [table for table in paper_tables() if paper in (None, table.paper)]
    return [table for table in tables if number in (None, table.number)]


def has_task(paper: str, number: str | None, tests: Sequence[TestSet]) -> bool:
    """Whether a table has a task of these test sets, or an average that needs no others."""
    tasks = {(test.suite, test.task) for test in tests}
    for suite in {test.suite for test in tests}:
        if not missing_tasks(suite, {"avg", *(task for own, task in tasks if own == suite)}):
            tasks.add((suite, "avg"))
    return any(table.source(task) in tasks for table in selected(paper, number) for task in table.tasks)


def measured_tables(
    measured: Sequence[Measured], baseline: Row | None, paper: str | None, number: str | None
) -> list[Table]:
    """The tables of the papers with a task that was measured, and one for the other tasks of each suite."""
    present = {each.task for each in measured}
    tables = []
    for table in selected(paper, number):
        sources = [table.source(task) for task in table.tasks]
        if present.isdisjoint(sources):
            continue
        mine = [line for row in row_order(measured) for line in lines_of(row, sources, measured, baseline)]
        tables.append(Table(table.title, table.tasks, (*published_lines(table), *mine)))
    return tables if paper else [*tables, *other_tables(measured, baseline)]


def other_tables(measured: Sequence[Measured], baseline: Row | None) -> Iterator[Table]:
    """Test sets that are in no table of a paper."""
    for suite, each in SUITES.items():
        known = task_names()[suite]
        names = {m.task: m.name for m in measured if m.task[0] == suite and m.task[1] not in known}
        if names:
            lines = [
                line for row in row_order(measured) for line in lines_of(row, list(names), measured, baseline)
            ]
            yield Table(f"In no table of a paper: {suite}, {each.unit}", tuple(names.values()), tuple(lines))


def row_order(measured: Sequence[Measured]) -> list[Row]:
    return list(dict.fromkeys(each.row for each in measured))


def lines_of(
    row: Row, sources: Sequence[Task], measured: Sequence[Measured], baseline: Row | None
) -> Iterator[Line]:
    """A line of values, then lines of intervals, differences and p."""
    found = {each.task: each for each in measured if each.row == row}
    cells = [found.get(source) for source in sources]
    if not any(cells):
        return
    name = row.name if len(row.models) == 1 else f"{row.name}, {len(row.models)} checkpoints"
    readouts = dict.fromkeys(each.readout for each in cells if each is not None)

    def line(names: tuple[str, str, str], texts: list[str]) -> Line:
        return Line(names, tuple(texts), here=True)

    yield line((HERE, name, " ".join(readouts)), [value_cell(each) for each in cells])
    intervals = [each.interval if each else None for each in cells]
    if any(intervals):
        yield line(("", "  95 % interval", ""), [interval_cell(each) for each in intervals])
    differences = [each.difference if each else None for each in cells]
    if baseline is not None and any(differences):
        texts = [
            f"{shown(each.value)} {interval_cell(each.interval)}" if each else "" for each in differences
        ]
        yield line(("", f"  minus {baseline.label}", ""), texts)
        yield line(("", "  p", ""), [f"{each.p:.3f}" if each else "" for each in differences])


def value_cell(each: Measured | None) -> str:
    return "" if each is None else shown(each.value, each.sd)


def interval_cell(interval: Interval | None) -> str:
    return "" if interval is None else f"[{shown(interval.low)}, {shown(interval.high)}]"


def shown(value: float | None, sd: float | None = None) -> str:
    """A number with two decimals and its deviation in parentheses; "-" if it is undefined."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:.2f}" + ("" if sd is None else f" ({sd:.2f})")


def published_lines(table: PaperTable) -> Iterator[Line]:
    """A line for each system, in the order of the paper. (?) marks systems whose names were inferred."""
    systems: dict[tuple[str, str, str], dict[str, Any]] = defaultdict(dict)
    for figure in table.figures:
        name = figure["system"] + (" (?)" if figure.get("inferred") else "")
        names = figure["base"] or "", name, figure["readout"] or ""
        systems[names][figure["task"]] = shown(figure["value"], figure["sd"])
    for names, cells in systems.items():
        yield Line(names, tuple(cells.get(task, "") for task in table.tasks))
