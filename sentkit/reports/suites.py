"""The suites of `report`: their test sets in a folder, and how each of them is evaluated.

A measure is an entry of SUITES and a function from the vector files of a test set to a `Result`.
"""

import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sentkit.arrays import Float64
from sentkit.errors import NoInputError, UsageError
from sentkit.formats.files import check_input, is_input_file, shown_path
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.kinds import class_value, score_value
from sentkit.formats.rows.rows import Inputs, parse_fields
from sentkit.formats.vectors.store import field_names_of, open_inputs
from sentkit.formats.vectors.vectors import VectorReader
from sentkit.labels.clusters.clustering_run import ClusteringRun, accuracies_of_rows
from sentkit.labels.probes.probing import Probe, ProbeOptions
from sentkit.metrics.gold_pairs import ScoreOptions, read_gold_pairs
from sentkit.metrics.neighbours.corpus import read_search_corpus
from sentkit.metrics.neighbours.queries import Search
from sentkit.metrics.reports import defined
from sentkit.metrics.retrieval import MEASURES, Run, id_of, read_qrels, values_of
from sentkit.metrics.statistics import pearson, spearman
from sentkit.papers.published import task_key

GOLD = "score"  # fields of the test sets
LABEL = "label"
SEEDS = range(10)  # of k-means, as in PairSupCon
SHOTS = 16  # rows of each class, as in PairSupCon
TOP = 100  # hits of a query
OF_ROWS = "of rows"  # in the key of results; older ones have no values of rows
FOLDS = "folds"  # the name of a deviation that no paper prints
# SentEval divides the tasks without test rows into the same folds for all seeds of its network.
SEED_OF_FOLDS = 1111
ENDS = (".jsonl", ".jsonl.gz")
# names of files -> names of the papers, where they differ by more than case and punctuation
TASKS = {
    "sts17_track1_arar": "sts17ar",
    "sts17_track3_eses": "sts17es",
    "sts17_track5_enen": "sts17en",
}


@dataclass(frozen=True, slots=True)
class TestSet:
    suite: str
    name: str  # of the file
    # the rows to test on; for transfer tasks the rows to train on, or all rows; or the corpus
    path: str
    # test and dev of a transfer task; queries and qrels of a corpus
    further_files: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)  # standard name -> name in the file

    @property
    def task(self) -> str:
        return task_key(TASKS.get(self.name, self.name))

    @property
    def files(self) -> list[str]:
        return [self.path, *self.further_files.values()]


@dataclass(frozen=True, slots=True)
class Result:
    """The value of one checkpoint on one test set, x 100; None if it is undefined."""

    value: float | None
    deviations: Mapping[str, float] = field(default_factory=dict)  # by name, as in `Measured`
    n: int | None = None  # rows or queries that have a value; None in results of older versions
    encoder: str = ""  # the label of the space
    similarities: Float64 | None = None  # of the pairs of STS
    gold: Float64 | None = None
    # of each query of a retrieval, or of each tested or clustered row; their mean is `value`
    values: Float64 | None = None
    skipped: int = 0  # pairs without a score


@dataclass(frozen=True, slots=True)
class Settings:
    """Those of senteval. Its value is the mean over the seeds of classifiers."""

    head: str
    hidden: int
    folds: int
    seeds: Sequence[int]
    jobs: int
    warn: Callable[[str], None]


# name of a file of a test set -> its vector file; "rows" are those of `TestSet.path`
Files = Mapping[str, str]

CORRELATIONS = {"spearman": spearman, "pearson": pearson}  # by `Suite.value`


def correlation_of(name: str, files: Files, test: TestSet, settings: Settings) -> Result:
    options = ScoreOptions(test.fields.get(GOLD, GOLD))
    pairs = read_gold_pairs(inputs_of(files["rows"]), files["rows"], options)
    value = defined(100.0 * CORRELATIONS[name](pairs.similarities, pairs.gold))
    return Result(
        value,
        n=len(pairs),
        similarities=pairs.similarities,
        gold=pairs.gold,
        skipped=pairs.skipped,
    )


def clusters(files: Files, test: TestSet, settings: Settings) -> Result:
    path = files["rows"]

    def warn(message: str) -> None:
        settings.warn(message.replace(path, test.path))  # not the temporary file

    run = ClusteringRun(inputs=inputs_of(path), warn=warn, seeds=SEEDS)
    matched = 100.0 * accuracies_of_rows(run, LABEL)  # (seeds, rows)
    accuracies = matched.mean(axis=1).tolist()
    deviations = {"clusterings": statistics.stdev(accuracies)}
    values = matched.mean(axis=0)
    return Result(statistics.fmean(accuracies), deviations, n=len(values), values=values)


def senteval(files: Files, test: TestSet, settings: Settings) -> Result:
    options = ProbeOptions(
        LABEL, settings.head, settings.hidden, settings.folds, jobs=settings.jobs
    )
    if settings.head != "logreg":  # which has no seed, so that its seeds are those of folds
        options = replace(options, seed_of_folds=SEED_OF_FOLDS)
    options_of_seeds = [replace(options, seed=seed) for seed in settings.seeds]
    return probed(files, test, settings, options_of_seeds, FOLDS)


def settings_of_senteval(settings: Settings) -> dict[str, Any]:
    """Those that change the result. Results of the regression always had 10 folds."""
    record: dict[str, Any] = {
        "head": settings.head,
        "hidden": settings.hidden,
        "seeds": list(settings.seeds),
        "values": OF_ROWS,
    }
    if settings.head != "logreg":
        record["folds"] = settings.folds
        if list(settings.seeds) != [SEED_OF_FOLDS]:  # older results had other folds for each seed
            record["seed_of_folds"] = SEED_OF_FOLDS
    return record


def few_shot(files: Files, test: TestSet, settings: Settings) -> Result:
    without_dev = {name: path for name, path in files.items() if name != "dev"}
    options = ProbeOptions(LABEL, shots=SHOTS, jobs=settings.jobs)
    return probed(without_dev, test, settings, [options], "draws")


def probed(
    files: Files,
    test: TestSet,
    settings: Settings,
    options_of_probes: Sequence[ProbeOptions],
    deviation_name: str,
) -> Result:
    """The mean accuracy of several probes. `deviation_name` is that of the deviation within each of
    them.
    """
    path = files["rows"]
    inputs = inputs_of(path)
    reports = []
    for options in options_of_probes:
        probe = Probe(inputs, path, options, test=files.get("test"), dev=files.get("dev"))
        reports.append(probe.report())

    records = [report.record for report in reports]
    unfinished_count = sum(record.get("not_converged", 0) for record in records)
    if unfinished_count:
        settings.warn(f"{test.path}: {unfinished_count} fits did not converge")
    accuracies = [record["accuracy"] for record in records]
    deviations = {}
    if len(accuracies) > 1:
        deviations["classifiers"] = statistics.stdev(accuracies)
    deviations_within = [record["sd"] for record in records if "sd" in record]
    if deviations_within:
        deviations[deviation_name] = statistics.fmean(deviations_within)
    first = records[0]
    n = first.get("n_test")
    if n is None:
        # Folds predict all rows, a draw the rows that are not drawn.
        shots = options_of_probes[0].shots or 0
        n = first["n"] - shots * len(first["classes"])
    # The rows are the same for all seeds.
    values = np.mean([report.values for report in reports], axis=0)
    return Result(statistics.fmean(accuracies), deviations, n, values=values)


def retrieval(files: Files, test: TestSet, settings: Settings) -> Result:
    """The mean nDCG@10 of the queries in the corpus, and their number."""
    inputs = inputs_of(files["queries"])
    corpus = read_search_corpus(inputs.with_paths(files["rows"]))
    qrels_path = test.further_files["qrels"]
    qrels = read_qrels(Inputs([qrels_path]), qrels_path)
    run = Run(test.further_files["queries"], qrels)  # gets the ranked documents of each query
    search = Search(
        queries=VectorReader(inputs), corpus=corpus, inputs=inputs, source=files["queries"], top=TOP
    )
    for queries, hits_of_queries in search.blocks():
        for query, hits in zip(queries, hits_of_queries, strict=True):
            query_id = id_of(query, inputs, "query")
            if query_id in run.relevant:
                raise query.error(f'query "{query_id}" occurs a second time')
            documents = [corpus.table.row(index) for index, _ in hits]
            document_ids = [id_of(document, inputs, "document") for document in documents]
            run.add(query_id, document_ids)
    measures = values_of(run, qrels_path, missing_is_zero=False)  # (queries, measures)
    ndcg = measures[:, list(MEASURES).index("ndcg@10")]
    return Result(float(ndcg.mean()), n=len(ndcg), values=ndcg)


def inputs_of(path: str) -> Inputs:
    return open_inputs([path])


def named_files(
    suite: str,
    folder: Path,
    names: Sequence[str],
    *,
    split: str,
    further_splits: Sequence[str] = (),
) -> Iterator[TestSet]:
    """NAME.SPLIT or NAME, and the files of further splits that are there: NAME.dev only beside
    NAME.test, because folds of the training rows are the test without it.
    """
    for name in names:
        path = first_file(folder, f"{name}.{split}", name)
        if path is None:
            continue
        files_of_splits = {}
        for further_split in further_splits:
            file = first_file(folder, f"{name}.{further_split}")
            if file is not None:
                files_of_splits[further_split] = file
        if "test" not in files_of_splits:
            files_of_splits.pop("dev", None)
        yield TestSet(suite, name, path, files_of_splits)


def every_file(suite: str, folder: Path, names: Sequence[str]) -> Iterator[TestSet]:
    """All files of rows, by name; a packed copy is not a second test set."""
    files = sorted(path for path in folder.glob("*") if path.name.endswith(ENDS))
    test_of_task: dict[str, TestSet] = {}
    for file in files:
        test = TestSet(suite, bare(file), str(file))
        test_of_task.setdefault(test.task, test)
    yield from test_of_task.values()


def folders_with_queries(suite: str, folder: Path, names: Sequence[str]) -> Iterator[TestSet]:
    """The folders that have a corpus, queries and judgements."""
    for test_folder in sorted(folder.glob("*")):
        corpus = first_file(test_folder, "corpus")
        queries = first_file(test_folder, "queries")
        qrels = test_folder / "qrels.tsv"
        if corpus and queries and qrels.is_file():
            yield TestSet(
                suite, test_folder.name, corpus, {"queries": queries, "qrels": str(qrels)}
            )


def first_file(folder: Path, *names: str) -> str | None:
    """The first file of these names that is there, plain or packed."""
    for name in names:
        for end in ENDS:
            path = folder / f"{name}{end}"
            if path.exists():
                return str(path)
    return None


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
    example: str = ""  # files in the folder, as an advice
    # Raises an error for a row without a value.
    check: Callable[[Row, Mapping[str, str]], object] = lambda row, fields: None
    settings: Callable[[Settings], dict[str, Any]] = lambda settings: {}  # that change the result
    # Part -> the names of its prompt; the first that the checkpoint declares is used. Titles are
    # read, too.
    prompts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


STS = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr")
MULTILINGUAL = ("sts14_es", "sts17_track1_arar", "sts17_track3_eses", "sts17_track5_enen")
TRANSFER = ("mr", "cr", "subj", "mpqa", "sst2", "trec", "mrpc")
SIDES = {"queries": ("query",), "rows": ("document", "passage", "corpus")}
PAIRS = Suite(
    folder="",
    find=partial(named_files, split="test"),
    check=lambda row, fields: score_value(row, fields.get(GOLD, GOLD)),
    value="spearman",
    unit="Spearman x 100",
    evaluate=partial(correlation_of, "spearman"),
)
SENTEVAL = Suite(
    folder="senteval",
    example="mr.jsonl",
    names=TRANSFER,
    find=partial(named_files, split="train", further_splits=("test", "dev")),
    check=lambda row, fields: class_value(row, LABEL),
    value="accuracy",
    unit="accuracy x 100",
    evaluate=senteval,
    settings=settings_of_senteval,
)
SUITES = {
    "sts": replace(PAIRS, folder="sts", names=STS, example="stsb.test.jsonl"),
    "sts-multilingual": replace(
        PAIRS,
        folder="sts",
        names=MULTILINGUAL,
        example="sts14_es.test.jsonl",
        value="pearson",
        unit="Pearson x 100",
        evaluate=partial(correlation_of, "pearson"),
    ),
    "clustering": Suite(
        folder="clustering",
        example="agnews.jsonl",
        find=every_file,
        check=SENTEVAL.check,
        value="acc",
        unit="accuracy of k-means x 100",
        evaluate=clusters,
        settings=lambda settings: {"seeds": list(SEEDS), "values": OF_ROWS},
    ),
    "senteval": SENTEVAL,
    "few-shot": replace(
        SENTEVAL,
        unit="accuracy x 100, from 16 rows of each class",
        evaluate=few_shot,
        # "n": older results had the number of all rows
        settings=lambda settings: {
            "shots": SHOTS,
            "draws": ProbeOptions(LABEL).samples,
            "n": "predicted rows",
            "values": OF_ROWS,
        },
    ),
    "retrieval": Suite(
        folder="retrieval",
        example="NAME/corpus.jsonl, NAME/queries.jsonl and NAME/qrels.tsv",
        find=folders_with_queries,
        value="ndcg@10",
        unit="nDCG@10 x 100",
        evaluate=retrieval,
        settings=lambda settings: {"top": TOP, "values": "of queries"},
        prompts=SIDES,
    ),
    "pairs": PAIRS,
}
IN_FOLDERS = tuple(name for name, suite in SUITES.items() if suite.folder)


def find_tests(
    data: str | None,
    suite_names: str | None,
    suites_of_table: Sequence[str],
    pairs: Sequence[str],
    field: Sequence[str],
) -> tuple[list[TestSet], list[str]]:
    """The test sets of --data and --pairs, and the files that are not used.

    The suites in --data are those of --suites, otherwise those that a table needs, otherwise all of
    them.
    """
    suites: Sequence[str] = suites_of_table or IN_FOLDERS
    if suite_names is not None:
        suites = suite_names.split(",")
    for name in suites:
        if name not in IN_FOLDERS:
            raise UsageError(f'--suites "{name}"', advice=f"available: {', '.join(IN_FOLDERS)}")

    fields = parse_fields(field, ("text_a", "text_b", "score"))
    tests_of_pairs: dict[str, TestSet] = {}
    for argument in pairs:
        name, _, path = argument.partition("=")
        if not name or not path or "/" in name:
            raise UsageError(f'--pairs "{argument}": expected NAME=FILE')
        if name in tests_of_pairs:
            raise UsageError(f'--pairs "{argument}": two files have the name "{name}"')
        if not Path(path).exists():
            check_input(path)
        if not is_input_file(path):
            advice = "each row reads the file again; write the pairs to a file first"
            raise UsageError(f"--pairs {argument}: not a regular file", advice=advice)
        # A vector file can record the names of its fields.
        fields_of_file = field_names_of(open_inputs([path], fields=fields), path)
        tests_of_pairs[name] = TestSet("pairs", name, path, fields=fields_of_file)

    if data is None:
        return [*tests_of_pairs.values()], []
    tests, unused = find_test_sets(data, suites)
    return [*tests, *tests_of_pairs.values()], unused


def find_test_sets(data: str, suites: Collection[str]) -> tuple[list[TestSet], list[str]]:
    """The test sets in the folder, and the files of its suites that are not used."""
    if not Path(data).is_dir():
        raise NoInputError(f"{data}: not a folder of test sets")
    all_tests: list[TestSet] = []
    for name in IN_FOLDERS:
        suite = SUITES[name]
        all_tests += suite.find(name, Path(data, suite.folder), suite.names)
    tests = [test for test in all_tests if test.suite in suites]

    # Files that no suite uses: a name may be misspelt. Those of other splits are expected.
    used = {Path(path) for test in all_tests for path in test.files}
    used |= {path.parent for path in used}  # folders of retrieval
    splits = {
        f"{name}.{split}" for name in (*STS, *MULTILINGUAL) for split in ("train", "dev", "trial")
    }
    unused = []
    for folder in sorted({SUITES[name].folder for name in suites}):
        for path in sorted(Path(data, folder).glob("*")):
            if path not in used and bare(path) not in splits:
                unused.append(str(path))

    if not tests:
        problem = f"{data}: no test set of {', '.join(suites)}"
        if unused:
            problem += f"; {shown_path(unused[0])} has another name"
        first = SUITES[next(iter(suites))]
        advice = f"expected files such as {first.folder}/{first.example}"
        if first.folder == "sts":
            advice += "; for other pairs, use --pairs NAME=FILE"
        raise NoInputError(problem, advice=advice)
    return tests, unused


def refuse_idle_flags(tests: Sequence[TestSet], flags_of_classifiers: Sequence[str]) -> None:
    """Refuse the given flags of classifiers if no suite trains one."""
    suites = dict.fromkeys(test.suite for test in tests)
    if flags_of_classifiers and "senteval" not in suites:
        problem = f"{flags_of_classifiers[0]} has no effect on {', '.join(suites)}"
        raise UsageError(problem, advice=f"{flags_of_classifiers[0]} is for senteval")
