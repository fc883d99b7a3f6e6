"""The suites of `report`: their test sets in a folder, and how each of them is evaluated.

A measure is an entry of SUITES and a function from the vector files of a test set to a `Result`.
"""

import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from sentkit.arrays import Float64
from sentkit.errors import NoInputError, UsageError
from sentkit.formats.files import check_input, is_input_file, readable
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.kinds import class_of, scored
from sentkit.formats.rows.rows import Inputs, parse_fields
from sentkit.formats.vectors.store import open_inputs
from sentkit.formats.vectors.vectors import VectorReader
from sentkit.labels.clusters.clustering_run import ClusteringRun, agreement_records
from sentkit.labels.probes.probing import Probe, ProbeOptions
from sentkit.metrics.gold_pairs import ScoreOptions, read_gold_pairs
from sentkit.metrics.neighbours.corpus import read_search_corpus
from sentkit.metrics.neighbours.queries import Search
from sentkit.metrics.reports import defined
from sentkit.metrics.retrieval import Run, id_of, read_qrels, values_of
from sentkit.metrics.statistics import pearson, spearman
from sentkit.papers.published import task_key

GOLD, LABEL = "score", "label"  # fields of the test sets
SEEDS = range(10)  # of k-means, as in PairSupCon
SHOTS = 16  # rows of each class, as in PairSupCon
TOP = 100  # hits of a query
FOLDS = "folds"  # the name of a deviation that no paper prints
ENDS = (".jsonl", ".jsonl.gz")
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


@dataclass(frozen=True, slots=True)
class Result:
    """The value of one checkpoint on one test set, x 100; None if it is undefined."""

    value: float | None
    deviations: Mapping[str, float] = field(default_factory=dict)  # by name, as in `Measured`
    n: int | None = None  # rows or queries that have a value; None in results of older versions
    encoder: str = ""  # the label of the space
    similarities: Float64 | None = None  # of the pairs of STS
    gold: Float64 | None = None
    queries: Float64 | None = None  # the value of each query of a retrieval


@dataclass(frozen=True, slots=True)
class Settings:
    """Those of senteval. Its value is the mean over the seeds of folds and classifiers."""

    head: str
    hidden: int
    seeds: Sequence[int]
    jobs: int
    warn: Callable[[str], None]


Files = Mapping[str, str]  # part of a test set -> its vector file; "rows" are those of `TestSet.path`


def correlation_of(kind: Callable[..., float], files: Files, test: TestSet, settings: Settings) -> Result:
    gold = ScoreOptions(test.fields.get(GOLD, GOLD))
    pairs = read_gold_pairs(inputs_of(files["rows"]), files["rows"], gold, paired=False)
    value = defined(100.0 * kind(pairs.similarities, pairs.gold))
    return Result(value, n=len(pairs), similarities=pairs.similarities, gold=pairs.gold)


def clusters(files: Files, test: TestSet, settings: Settings) -> Result:
    run = ClusteringRun(inputs=inputs_of(files["rows"]), warn=settings.warn, seeds=SEEDS)
    *_, last = agreement_records(run, LABEL)
    return Result(last["acc_mean"], {"clusterings": last["acc_sd"]}, last["n"])


def senteval(files: Files, test: TestSet, settings: Settings) -> Result:
    options = ProbeOptions(LABEL, settings.head, settings.hidden, jobs=settings.jobs)
    return probed(files, test, settings, [replace(options, seed=seed) for seed in settings.seeds], FOLDS)


def few_shot(files: Files, test: TestSet, settings: Settings) -> Result:
    without_dev = {part: path for part, path in files.items() if part != "dev"}
    options = ProbeOptions(LABEL, shots=SHOTS, jobs=settings.jobs)
    return probed(without_dev, test, settings, [options], "draws")


def probed(
    files: Files, test: TestSet, settings: Settings, options: Sequence[ProbeOptions], inner: str
) -> Result:
    """The mean accuracy of several probes; `inner` is the name of the deviation within each of them."""
    inputs, path = inputs_of(files["rows"]), files["rows"]
    probes = [Probe(inputs, path, each, test=files.get("test"), dev=files.get("dev")) for each in options]
    records = [probe.report() for probe in probes]
    if unfinished := sum(record.get("not_converged", 0) for record in records):
        settings.warn(f"{test.path}: {unfinished} fits did not converge")
    values = [record["accuracy"] for record in records]
    within = [record["sd"] for record in records if "sd" in record]
    deviations = {"classifiers": statistics.stdev(values)} if len(values) > 1 else {}
    deviations |= {inner: statistics.fmean(within)} if within else {}
    return Result(statistics.fmean(values), deviations, records[0].get("n_test", records[0]["n"]))


def retrieval(files: Files, test: TestSet, settings: Settings) -> Result:
    """The mean nDCG@10 of the queries in the corpus, and their number."""
    inputs, judgements = inputs_of(files["queries"]), test.parts["qrels"]
    run = Run(test.parts["queries"], read_qrels(Inputs([judgements]), judgements))
    corpus = read_search_corpus(inputs.other(files["rows"]))
    search = Search(
        queries=VectorReader(inputs), corpus=corpus, inputs=inputs, source=files["queries"], top=TOP
    )
    for queries, found in search.blocks():
        for query, hits in zip(queries, found, strict=True):
            rows = (corpus.table.row(place) for place, _ in hits)
            run.add(id_of(query, inputs, "query"), [id_of(row, inputs, "document") for row in rows])
    values = values_of(run, judgements, missing_is_zero=False)[:, 0]
    return Result(float(values.mean()), n=len(values), queries=values)


def inputs_of(path: str) -> Inputs:
    return open_inputs([path])


def named_files(
    suite: str, folder: Path, names: Sequence[str], *, first: str, others: Sequence[str] = ()
) -> Iterator[TestSet]:
    """NAME.first or NAME, and NAME.other for each of the other parts that is there."""
    for name in names:
        parts = {part: first_file(folder, f"{name}.{part}") for part in others}
        if path := first_file(folder, f"{name}.{first}", name):
            yield TestSet(suite, name, path, {part: file for part, file in parts.items() if file})


def every_file(suite: str, folder: Path, names: Sequence[str]) -> Iterator[TestSet]:
    """All files of rows; a packed copy is not a second test set."""
    files = sorted(path for path in folder.glob("*") if path.name.endswith(ENDS))
    tests = [TestSet(suite, bare(file), str(file)) for file in files]
    yield from {test.task: test for test in reversed(tests)}.values()


def folders_with_queries(suite: str, folder: Path, names: Sequence[str]) -> Iterator[TestSet]:
    """The folders that have a corpus, queries and judgements."""
    for place in sorted(folder.glob("*")):
        corpus, queries = first_file(place, "corpus"), first_file(place, "queries")
        qrels = place / "qrels.tsv"
        if corpus and queries and qrels.is_file():
            yield TestSet(suite, place.name, corpus, {"queries": queries, "qrels": str(qrels)})


def first_file(folder: Path, *names: str) -> str | None:
    paths = (folder / f"{name}{end}" for name in names for end in ENDS)
    return next((str(path) for path in paths if path.exists()), None)


def bare(path: Path) -> str:
    return path.name.partition(".jsonl")[0]


@dataclass(frozen=True, slots=True)
class Suite:
    folder: str  # of --data; empty for --pairs
    find: Callable[[str, Path, Sequence[str]], Iterator[TestSet]]
    value: str  # the field of a result
    unit: str
    evaluate: Callable[[Files, TestSet, Settings], Result]
    names: tuple[str, ...] = ()  # files in the folder; empty: all of them
    # Raises an error for a row without a value.
    check: Callable[[Row, Mapping[str, str]], object] = lambda row, fields: None
    settings: Callable[[Settings], dict[str, Any]] = lambda settings: {}  # that change the result
    # Part -> the names of its prompt; the first that the checkpoint declares is used. Titles are read, too.
    prompts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    has_intervals: bool = False  # whether its results have the values of pairs or queries, to resample them


STS = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr")
MULTILINGUAL = ("sts14_es", "sts17_track1_arar", "sts17_track3_eses", "sts17_track5_enen")
TRANSFER = ("mr", "cr", "subj", "mpqa", "sst2", "trec", "mrpc")
SIDES = {"queries": ("query",), "rows": ("document", "passage", "corpus")}
PAIRS = Suite(
    folder="",
    find=partial(named_files, first="test"),
    check=lambda row, fields: scored(row, fields.get(GOLD, GOLD)),
    value="spearman",
    unit="Spearman x 100",
    evaluate=partial(correlation_of, spearman),
    has_intervals=True,
)
SENTEVAL = Suite(
    folder="senteval",
    names=TRANSFER,
    find=partial(named_files, first="train", others=("test", "dev")),
    check=lambda row, fields: class_of(row, LABEL),
    value="accuracy",
    unit="accuracy x 100",
    evaluate=senteval,
    settings=lambda own: {"head": own.head, "hidden": own.hidden, "seeds": list(own.seeds)},
)
SUITES = {
    "sts": replace(PAIRS, folder="sts", names=STS),
    "sts-multilingual": replace(
        PAIRS,
        folder="sts",
        names=MULTILINGUAL,
        value="pearson",
        unit="Pearson x 100",
        evaluate=partial(correlation_of, pearson),
    ),
    "clustering": Suite(
        folder="clustering",
        find=every_file,
        check=SENTEVAL.check,
        value="acc",
        unit="accuracy of k-means x 100",
        evaluate=clusters,
        settings=lambda settings: {"seeds": list(SEEDS)},
    ),
    "senteval": SENTEVAL,
    "few-shot": replace(
        SENTEVAL,
        unit="accuracy x 100, from 16 rows of each class",
        evaluate=few_shot,
        settings=lambda settings: {"shots": SHOTS, "draws": ProbeOptions(LABEL).samples},
    ),
    "retrieval": Suite(
        folder="retrieval",
        find=folders_with_queries,
        value="ndcg@10",
        unit="nDCG@10 x 100",
        evaluate=retrieval,
        settings=lambda settings: {"top": TOP, "values": "of queries"},
        prompts=SIDES,
        has_intervals=True,
    ),
    "pairs": PAIRS,
}
IN_FOLDERS = tuple(name for name, suite in SUITES.items() if suite.folder)


def find_tests(
    data: str | None, names: str | None, wanted: Sequence[str], pairs: Sequence[str], field: Sequence[str]
) -> tuple[list[TestSet], list[str]]:
    """The test sets of --pairs and --data (of --suites, else of a table: `wanted`), and unused files."""
    suites = wanted or IN_FOLDERS if names is None else names.split(",")
    for name in suites:
        if name not in IN_FOLDERS:
            raise UsageError(f'--suites "{name}"', advice=f"available: {', '.join(IN_FOLDERS)}")
    fields = parse_fields(field, ("text_a", "text_b", "score"))
    own: dict[str, TestSet] = {}
    for argument in pairs:
        name, _, path = argument.partition("=")
        if not name or not path or "/" in name:
            raise UsageError(f'--pairs "{argument}": expected NAME=FILE')
        if name in own:
            raise UsageError(f'--pairs "{argument}": two files have the name "{name}"')
        if not Path(path).exists():
            check_input(path)
        if not is_input_file(path):
            advice = "each row reads the file again; write the pairs to a file first"
            raise UsageError(f"--pairs {argument}: not a regular file", advice=advice)
        own[name] = TestSet("pairs", name, path, fields=fields)
    found, unused = ([], []) if data is None else find_test_sets(data, suites)
    return [*found, *own.values()], unused


def find_test_sets(data: str, suites: Collection[str]) -> tuple[list[TestSet], list[str]]:
    """The test sets in the folder, and the files of its suites that are not used."""
    if not Path(data).is_dir():
        raise NoInputError(f"{data}: not a folder of test sets")
    every = [
        test
        for name, suite in SUITES.items()
        if suite.folder
        for test in suite.find(name, Path(data, suite.folder), suite.names)
    ]
    sets = [test for test in every if test.suite in suites]
    folders = sorted({SUITES[name].folder for name in suites})
    used = {Path(path) for test in every for path in test.files}
    used |= {path.parent for path in used}  # folders of retrieval
    splits = {f"{name}.{split}" for name in (*STS, *MULTILINGUAL) for split in ("train", "dev", "trial")}
    found = (path for folder in folders for path in sorted(Path(data, folder).glob("*")))
    unused = [str(path) for path in found if path not in used and bare(path) not in splits]
    if not sets:
        problem = f"{data}: no test set of {', '.join(suites)}"
        problem += f"; {readable(unused[0])} has another name" if unused else ""
        advice = "expected files such as sts/stsb.test.jsonl; for other pairs, use --pairs NAME=FILE"
        raise NoInputError(problem, advice=advice)
    return sets, unused


def ignored_flags(
    tests: Sequence[TestSet], of_intervals: Sequence[str], of_classifiers: Sequence[str]
) -> list[str]:
    """Warnings about suites that ignore flags; an error if all of them ignore one.

    `of_intervals` and `of_classifiers` are the flags that are given.
    """
    suites = list(dict.fromkeys(test.suite for test in tests))
    with_intervals = [name for name, suite in SUITES.items() if suite.has_intervals]
    warnings = []
    for flags, users in ((of_intervals, with_intervals), (of_classifiers, ["senteval"])):
        without_effect = [name for name in suites if name not in users]
        for flag in flags:
            problem = f"{flag} has no effect on {', '.join(without_effect)}"
            if without_effect == suites:
                raise UsageError(problem, advice=f"{flag} is for {', '.join(users)}")
            if without_effect and flags is of_intervals:
                warnings.append(problem)
    return warnings
