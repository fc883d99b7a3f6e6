"""The rows of a table, each with its checkpoints, and its columns: test sets and the published tables."""

import glob
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

from sentkit.errors import NoInputError, UsageError
from sentkit.formats.files import MARKS, check_input, exists, is_folder, readable
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

SEED = re.compile(r"seed-(\d+)")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: the checkpoints are the seeds of one method."""

    name: str
    readout: str | None  # None: as each checkpoint declares
    models: tuple[str, ...]
    transforms: tuple[str | None, ...]  # of the vectors of each model

    @property
    def label(self) -> str:
        return self.name if self.readout is None else f"{self.name}#{self.readout}"

    @property
    def seeds(self) -> tuple[int, ...]:
        """The numbers of folders such as seed-3; empty for other checkpoints."""
        return tuple(seed for model in self.models if (seed := seed_of(model)) is not None)


def rows_of(arguments: Sequence[str]) -> list[Row]:
    """Parse [NAME=]CHECKPOINT[#READOUT[@TRANSFORM]]. Those with the same name and readout are one row."""
    rows: dict[tuple[str, str | None], Row] = {}
    for argument in arguments:
        name, model, own, transform = split(argument)
        models = checkpoints_of(model)
        seeds = all(seed_of(each) is not None for each in models)
        transforms = (transform,) * len(models)
        row = Row(name or default_name(model, models), own, tuple(models), transforms)
        key = row.name, row.readout
        if key in rows:
            if not (name or seeds):
                problem = f'two rows have the name "{row.label}"'
                raise UsageError(problem, advice=f"give each a name, for example first={rows[key].models[0]}")
            row = Row(*key, (*rows[key].models, *models), (*rows[key].transforms, *transforms))
        if len(set(zip(row.models, row.transforms, strict=True))) < len(row.models):
            raise UsageError(f'row "{row.label}": {model} is given twice')
        rows[key] = row
    return list(rows.values())


def split(argument: str) -> tuple[str, str, str | None, str | None]:
    """The four parts; one that is absent is empty or None. An existing path is a path."""
    if exists(Path(argument)):
        return "", argument, None, None
    name, sign, model = argument.partition("=")
    if not sign or "/" in name:
        name, model = "", argument
    elif not name or not model:
        raise UsageError(f'"{argument}": expected NAME=CHECKPOINT')
    if "#" not in model or exists(Path(model)):
        return name, model, None, None
    model, _, rest = model.rpartition("#")
    readout, sign, transform = rest.partition("@")
    if not model or not readout or (sign and not transform):
        raise UsageError(f'"{argument}": expected CHECKPOINT#READOUT or CHECKPOINT#READOUT@TRANSFORM')
    return name, model, readout, transform or None


def checkpoints_of(model: str) -> list[str]:
    """The checkpoint itself, those that a pattern matches, or the folders seed-N of a folder of runs."""
    if not MARKS.isdisjoint(model) and not exists(Path(model)):
        found = by_seed(path for path in glob.glob(model) if is_folder(Path(path)))  # noqa: PTH207
        if not found:
            raise NoInputError(f"{model}: no folder matches this pattern")
        return found
    folder = Path(model)
    if is_folder(folder) and not any(folder.glob("*.json")):
        return by_seed(str(path) for path in folder.glob("seed-*") if SEED.fullmatch(path.name)) or [model]
    return [model]


def by_seed(paths: Iterable[str]) -> list[str]:
    """Sorted by number, so that seed-10 follows seed-9. Folders of unfinished runs are left out."""
    complete = (path for path in paths if not path.rstrip("/").endswith(".part"))
    return sorted(complete, key=lambda path: (seed_of(path) or 0, path))


def seed_of(model: str) -> int | None:
    match = SEED.fullmatch(Path(model).name)
    return int(match[1]) if match else None


def default_name(model: str, models: Sequence[str]) -> str:
    """The name of the folder, or of the folder above seed-N."""
    if seed_of(models[0]) is not None:
        return Path(models[0]).absolute().parent.name
    return Path(model).name or model


def find_baseline(rows: Sequence[Row], name: str) -> Row:
    found = [row for row in rows if name in (row.label, row.name)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(f'"{row.label}"' for row in rows)
    problem = "several rows have this name" if found else "no row has this name"
    raise UsageError(f'--baseline "{name}": {problem}', advice=f"the rows are {names}")


def seeds_warning(rows: Sequence[Row]) -> Iterator[str]:
    """A message if rows with seeds do not all have the same ones."""
    seeds = {row.label: row.seeds for row in rows if row.seeds}
    if len(set(seeds.values())) > 1:
        listed = "; ".join(f'"{name}" has {", ".join(map(str, each))}' for name, each in seeds.items())
        yield f"the seeds differ between the rows: {listed}"


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
