"""The published tables of the papers: published.jsonl in the folder of a paper has a line for each
figure.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import orjson

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.formats.files import read_object_if_there
from sentkit.model.checkpoint_reading import depth_of, width_of
from sentkit.papers import PAPERS

Figure = dict[str, Any]
# The averages of tables about settings -> the suite with this average.
AVERAGES = {"avg": "sts", "stsavg": "sts", "clusteringavg": "clustering"}
INFERRED = " (?)"  # the mark of a name that the table lost
FEW_FIGURES = 3  # they may all end in 0 by chance


def task_key(task: str) -> str:
    """The name of a task without differences of spelling: stsb is STS-B."""
    return re.sub(r"[^a-z0-9]", "", task.lower())


@dataclass(frozen=True, slots=True)
class PaperTable:
    paper: str
    number: str
    suite: str
    tasks: tuple[str, ...]  # as in the paper
    figures: tuple[Figure, ...]

    @property
    def name(self) -> str:
        return f"{PAPERS[self.paper].name}, {'table ' * self.number.isdecimal()}{self.number}"

    def source(self, task: str) -> tuple[str, str]:
        """The suite and task of a column; a table about settings has averages of other suites."""
        key = task_key(task)
        if self.suite == "ablation":
            return AVERAGES[key], "avg"
        return self.suite, key

    def systems(self) -> Iterator[tuple[tuple[str, str, str], dict[str, Figure], int]]:
        """Base, system and readout with their figures by task and decimals, in the order of the
        paper.

        (?) marks systems whose names were inferred. The figures have the decimals of the paper:
        those of their line, or of the table if the line is short.
        """
        systems: dict[tuple[str, str, str], dict[str, Figure]] = defaultdict(dict)
        for figure in self.figures:
            key = (figure["base"] or "", figure["system"], figure["readout"] or "")
            systems[key][figure["task"]] = figure
        for (base, name, readout), figures in systems.items():
            if all(figure.get("inferred") for figure in figures.values()):
                name += INFERRED
            is_short = len(figures) <= FEW_FIGURES
            decimals = most_decimals(self.figures if is_short else figures.values())
            yield (base, name, readout), figures, decimals


def most_decimals(figures: Iterable[Figure]) -> int:
    """The largest number of decimals of the values and their deviations."""
    decimals = [0]
    for figure in figures:
        for number in (figure["value"], figure["sd"]):
            if number is not None:
                _, _, digits = repr(number).partition(".")
                decimals.append(len(digits.rstrip("0")))
    return max(decimals)


@cache
def published() -> tuple[Figure, ...]:
    lines = [line for paper in PAPERS.values() for line in paper.figures().splitlines()]
    return tuple(orjson.loads(line) for line in lines)


def paper_tables(paper: str, number: str | None, suites: Sequence[str]) -> list[PaperTable]:
    """The tables of a paper, or one of them: at least one, in the order of these suites."""
    grouped: dict[tuple[str, str], list[Figure]] = defaultdict(list)
    for figure in published():
        if figure["paper"] == paper and number in (None, figure["table"]):
            grouped[figure["suite"], figure["table"]].append(figure)
    if not grouped:
        tables_of_paper = {figure["table"] for figure in published() if figure["paper"] == paper}
        names = ", ".join(sorted(filter(str.isdecimal, tables_of_paper), key=int))
        raise UsageError(
            f"--table {number}: {paper} has no figures in a table with this number",
            advice=f"the tables are {names}",
        )

    def order(key: tuple[str, str]) -> tuple[int, int, str]:
        suite, table = key
        return suites.index(suite), len(table), table  # 2 comes before 10

    tables = []
    for suite, table in sorted(grouped, key=order):
        figures = grouped[suite, table]
        tables.append(PaperTable(paper, table, suite, tasks_of(figures), tuple(figures)))
    return tables


def tasks_of(figures: list[Figure]) -> tuple[str, ...]:
    """STS by year, averages last, the others in the order of the paper."""

    def order(task: str) -> tuple[bool, bool, str]:
        year = task if re.fullmatch(r"STS\d\d", task) else ""
        return task == "avg", task in ("STS-B", "SICK-R"), year

    return tuple(sorted(dict.fromkeys(figure["task"] for figure in figures), key=order))


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
    if "avg" not in names:
        return []
    return [name for key, name in names.items() if key not in present]


# The rows of the test sets, of which the papers have the values.
PUBLISHED_ROWS = {
    "sts": {
        "sts12": 3_108,
        "sts13": 1_500,
        "sts14": 3_750,
        "sts15": 3_000,
        "sts16": 1_186,
        "stsb": 1_379,
        "sickr": 4_927,
    },
    "senteval": {
        "mr": 10_662,
        "cr": 3_775,
        "subj": 10_000,
        "mpqa": 10_606,
        "sst2": 1_821,
        "trec": 500,
        "mrpc": 1_725,
    },
    "clustering": {
        "agnews": 8_000,
        "searchsnippets": 12_340,
        "stackoverflow": 20_000,
        "biomedical": 20_000,
        "tweet": 2_472,
        "googlenewsts": 11_109,
        "googlenewss": 11_109,
        "googlenewst": 11_109,
    },
}


# Which encoder of the papers a checkpoint is: their recipes follow the family and the size of the
# base.
SIZES = {(12, 768): "base", (24, 1024): "large"}  # layers and width
DISTILLED = {(6, 768): "base"}
MULTILINGUAL = 100_000  # mBERT has more tokens than any BERT of one language


def published_base(model: str) -> str | None:
    """The name in the published tables, such as roberta-large; None for an encoder that no paper
    has.
    """
    checkpoint = read_checkpoint(model)
    name = name_of(checkpoint.config)
    method = read_object_if_there(checkpoint.folder / "sentkit.json").get("method")
    if method == "sbert" and name in ("bert-base", "bert-large"):
        return f"s{name}"
    return name


def same_base(published: str | None, base: str) -> bool:
    """Whether a published row is of this encoder, or of none; table 1 of ConSERT names only the
    family.
    """
    return published in (None, "", base) or (published, base) == ("bert", "bert-base")


def name_of(config: Mapping[str, Any]) -> str | None:
    family = config.get("model_type")
    sizes = {"bert": SIZES, "roberta": SIZES, "distilbert": DISTILLED}.get(str(family), {})
    size = sizes.get((depth_of(config), width_of(config)))
    if size is None:
        return None
    if family == "bert" and config.get("vocab_size", 0) > MULTILINGUAL:
        return "mbert"
    return f"{family}-{size}"
