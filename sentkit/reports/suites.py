"""Suites: their test sets in a folder or in files of pairs, and the published tables of the papers."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

from sentkit.errors import NoInputError, UsageError
from sentkit.formats.files import check_input, readable
from sentkit.formats.rows.rows import parse_fields
from sentkit.formats.urls import is_url
from sentkit.papers.published import INFERRED as INFERRED
from sentkit.papers.published import PaperTable as PaperTable
from sentkit.papers.published import missing_tasks as missing_tasks
from sentkit.papers.published import paper_tables, task_key
from sentkit.papers.published import published as published
from sentkit.papers.published import published_base as published_base
from sentkit.papers.published import same_base as same_base
from sentkit.papers.published import task_names as task_names

ENDS = (".jsonl", ".jsonl.gz")


@dataclass(frozen=True, slots=True)
class Suite:
    folder: str  # of --data; empty for --pairs
    names: tuple[str, ...]  # files in the folder; empty: all of them
    value: str  # the field of a result
    unit: str

    @property
    def has_pairs(self) -> bool:
        return self.value in ("spearman", "pearson")


STS = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr")
MULTILINGUAL = ("sts14_es", "sts17_track1_arar", "sts17_track3_eses", "sts17_track5_enen")
TRANSFER = ("mr", "cr", "subj", "mpqa", "sst2", "trec", "mrpc")
SUITES = {
    "sts": Suite("sts", STS, "spearman", "Spearman x 100"),
    "sts-multilingual": Suite("sts", MULTILINGUAL, "pearson", "Pearson x 100"),
    "clustering": Suite("clustering", (), "acc", "accuracy of k-means x 100"),
    "senteval": Suite("senteval", TRANSFER, "accuracy", "accuracy x 100"),
    "few-shot": Suite("senteval", TRANSFER, "accuracy", "accuracy x 100, from 16 rows of each class"),
    "retrieval": Suite("retrieval", (), "ndcg@10", "nDCG@10 x 100"),
    "pairs": Suite("", (), "spearman", "Spearman x 100"),
}
IN_FOLDERS = tuple(name for name, suite in SUITES.items() if suite.folder)
TASKS = {  # names of files -> names of the papers, where they differ by more than case and punctuation
    "sts17_track1_arar": "sts17ar",
    "sts17_track3_eses": "sts17es",
    "sts17_track5_enen": "sts17en",
}


@dataclass(frozen=True, slots=True)
class TestSet:
    suite: str
    name: str  # of the file
    path: str  # the rows to test on; for transfer tasks the rows to train on, or all rows; or the corpus
    # Further files: test and dev of a transfer task; queries and qrels of a corpus.
    parts: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)  # standard name -> name in the file

    @property
    def task(self) -> str:
        return task_key(TASKS.get(self.name, self.name))

    @property
    def files(self) -> list[str]:
        return [self.path, *self.parts.values()]


def find_tests(
    data: str | None, names: str | None, wanted: Sequence[str], pairs: Sequence[str], field: Sequence[str]
) -> tuple[list[TestSet], list[str]]:
    """The test sets of --pairs and --data, and the files of the folder that are not used.

    `names` are those of --suites; without them, those of a table (`wanted`), else all.
    """
    suites = wanted or IN_FOLDERS if names is None else names.split(",")
    for name in suites:
        if name not in IN_FOLDERS:
            raise UsageError(f'--suites "{name}"', advice=f"available: {', '.join(IN_FOLDERS)}")
    own = sets_of_pairs(pairs, parse_fields(field, ("text_a", "text_b", "score")))
    found, unused = ([], []) if data is None else find_test_sets(data, suites)
    return [*found, *own], unused


def find_test_sets(data: str, suites: Collection[str]) -> tuple[list[TestSet], list[str]]:
    """The test sets in the folder, and the files of its suites that are not used."""
    if not Path(data).is_dir():
        raise NoInputError(f"{data}: not a folder of test sets")
    every = [each for name in IN_FOLDERS for each in sets_of(data, name, SUITES[name])]
    sets = [each for each in every if each.suite in suites]
    folders = sorted({SUITES[name].folder for name in suites if SUITES[name].folder})
    used = {path for each in every for path in each.files}
    used |= {str(Path(each.path).parent) for each in every if each.suite == "retrieval"}
    splits = {f"{name}.{split}" for name in (*STS, *MULTILINGUAL) for split in ("train", "dev", "trial")}
    unused = [
        str(path)
        for folder in folders
        for path in sorted(Path(data, folder).glob("*"))
        if str(path) not in used
        and bare(path) not in splits
        and (path.is_file() or folder == SUITES["retrieval"].folder)
    ]
    if not sets:
        problem = f"{data}: no test set of {', '.join(suites)}"
        advice = f"expected files such as sts/stsb.test.jsonl in {', '.join(f'{name}/' for name in folders)}"
        if unused:
            problem += f"; {readable(unused[0])} has another name"
            advice = f"for pairs with scores, use --pairs {quote(f'{bare(Path(unused[0]))}={unused[0]}')}"
        raise NoInputError(problem, advice=advice)
    return sets, unused


def sets_of_pairs(arguments: Sequence[str], fields: Mapping[str, str]) -> list[TestSet]:
    """The files of --pairs NAME=FILE."""
    sets: dict[str, TestSet] = {}
    for argument in arguments:
        name, _, path = argument.partition("=")
        if not name or not path or "/" in name:
            raise UsageError(f'--pairs "{argument}": expected NAME=FILE')
        if name in sets:
            raise UsageError(f'--pairs "{argument}": two files have the name "{name}"')
        if is_url(path):
            check_input(path)
        elif not Path(path).exists():
            raise NoInputError(f"{readable(path)}: no such file")
        elif not Path(path).is_file():
            advice = "each row reads the file again; write the pairs to a file first"
            raise UsageError(f"--pairs {argument}: not a regular file", advice=advice)
        sets[name] = TestSet("pairs", name, path, fields=fields)
    return list(sets.values())


def sets_of(data: str, name: str, suite: Suite) -> list[TestSet]:
    folder = Path(data, suite.folder)
    if name == "retrieval":
        return sets_of_retrieval(folder)
    if not suite.names:
        files = sorted(path for path in folder.glob("*") if path.name.endswith(ENDS))
        first: dict[str, TestSet] = {}  # by task, because a packed copy is not a second task
        for file in files:
            test = TestSet(name, bare(file), str(file))
            first.setdefault(test.task, test)
        return list(first.values())
    found = []
    for stem in suite.names:
        if suite.folder == "senteval":
            path = first_file(folder, [f"{stem}.train", stem])
            parts = {part: first_file(folder, [f"{stem}.{part}"]) for part in ("test", "dev")}
            given = {part: file for part, file in parts.items() if file is not None}
        else:
            path, given = first_file(folder, [f"{stem}.test", stem]), {}
        if path is not None:
            found.append(TestSet(name, stem, path, given))
    return found


def sets_of_retrieval(folder: Path) -> list[TestSet]:
    """The folders in this folder that have a corpus, queries and judgements."""
    found = []
    for place in sorted(folder.glob("*")):
        corpus, queries = (first_file(place, [stem]) for stem in ("corpus", "queries"))
        qrels = place / "qrels.tsv"
        if corpus is not None and queries is not None and qrels.is_file():
            parts = {"queries": queries, "qrels": str(qrels)}
            found.append(TestSet("retrieval", place.name, corpus, parts))
    return found


def first_file(folder: Path, names: Sequence[str]) -> str | None:
    paths = (folder / f"{name}{end}" for name in names for end in ENDS)
    return next((str(path) for path in paths if path.exists()), None)


def bare(path: Path) -> str:
    return path.name.partition(".jsonl")[0]


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


def unaveraged(tests: Sequence[TestSet]) -> Iterator[str]:
    """Warnings about averages without all tasks."""
    for suite in dict.fromkeys(test.suite for test in tests):
        missing = missing_tasks(suite, {"avg", *(test.task for test in tests if test.suite == suite)})
        if missing:
            yield f"{suite} has no average: no test set of {', '.join(missing)}"
