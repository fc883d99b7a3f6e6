"""The published tables: published.jsonl in the folder of a paper has a line for each figure."""

import re
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import Any

import orjson

from sentkit.papers import PAPERS
from sentkit.reports.suites import SUITES, task_key

UNITS = {name: suite.unit for name, suite in SUITES.items()} | {
    "ablation": "averages x 100",
    "glue": "accuracy or Matthews correlation x 100",
    "efficiency": "seconds",
}
# The averages of tables about settings -> the suite with this average.
AVERAGES = {"avg": "sts", "stsavg": "sts", "clusteringavg": "clustering"}


@dataclass(frozen=True, slots=True)
class PaperTable:
    paper: str
    number: str
    suite: str
    tasks: tuple[str, ...]  # as in the paper
    figures: tuple[dict[str, Any], ...]

    @property
    def title(self) -> str:
        return f"{PAPERS[self.paper].name}, table {self.number}: {self.suite}, {UNITS[self.suite]}"

    def source(self, task: str) -> tuple[str, str]:
        """The suite and task of a column; a table about settings has averages of other suites."""
        key = task_key(task)
        if self.suite == "ablation":
            return AVERAGES[key], "avg"
        return self.suite, key


@cache
def published() -> tuple[dict[str, Any], ...]:
    return tuple(orjson.loads(line) for paper in PAPERS.values() for line in paper.figures().splitlines())


def paper_tables() -> list[PaperTable]:
    """All tables, by suite and then in the order of the papers."""
    grouped: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for figure in published():
        grouped[figure["suite"], figure["paper"], figure["table"]].append(figure)
    suites, papers = list(UNITS), list(PAPERS)
    places = sorted(grouped, key=lambda key: (suites.index(key[0]), papers.index(key[1]), int(key[2])))
    return [
        PaperTable(
            paper,
            number,
            suite,
            tasks_of(grouped[suite, paper, number]),
            tuple(grouped[suite, paper, number]),
        )
        for suite, paper, number in places
    ]


def tasks_of(figures: list[dict[str, Any]]) -> tuple[str, ...]:
    """STS by year, averages last, the others in the order of the paper."""

    def place(task: str) -> tuple[bool, bool, str]:
        return task == "avg", task in ("STS-B", "SICK-R"), task if re.fullmatch(r"STS\d\d", task) else ""

    return tuple(sorted(dict.fromkeys(figure["task"] for figure in figures), key=place))


@cache
def task_names() -> dict[str, dict[str, str]]:
    """For each suite, the key of a task -> its name in the papers."""
    names: dict[str, dict[str, str]] = defaultdict(dict)
    for figure in published():
        names[figure["suite"]][task_key(figure["task"])] = figure["task"]
    return names


def missing_tasks(suite: str, present: Collection[str]) -> list[str]:
    """The tasks without which a suite has no average; empty if the papers have no average of it."""
    names = task_names()[suite]
    return [name for key, name in names.items() if key not in present] if "avg" in names else []
