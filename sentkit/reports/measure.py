"""Results of checkpoints -> the values of rows: mean, deviation, interval, difference to a
baseline.

Also without the rows of test sets that occur in training files, or nearly do.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Protocol

import numpy as np

from sentkit.arrays import Float32, Float64
from sentkit.errors import DataError, SentkitError
from sentkit.formats.files import json_line
from sentkit.formats.rows.block import Row as FileRow
from sentkit.formats.rows.kinds import TextParser
from sentkit.formats.rows.rows import Inputs, lists_of_size
from sentkit.formats.vectors.store import field_names_of, open_inputs
from sentkit.labels.clusters.clustering_run import mean_if_known
from sentkit.metrics.reports import defined, difference
from sentkit.metrics.retrieval import id_of, read_qrels, resampled
from sentkit.metrics.seen_pairs import normal_form, texts_of
from sentkit.metrics.statistics import (
    BOOTSTRAP_LIMIT,
    FEWEST_ROWS,
    Seed,
    fisher_interval,
    percentile_interval,
    resampled_mean,
    resamples_for,
)
from sentkit.model import find_encoder
from sentkit.model.groups import EncodeStats
from sentkit.model.query_encoder import encode_list, prepare_list
from sentkit.model.reading import ReadingOptions
from sentkit.papers.published import PUBLISHED_ROWS, task_names
from sentkit.reports.evaluate import Evaluator, Models, Results, Row
from sentkit.reports.suites import FOLDS, MULTILINGUAL, STS, SUITES, Result, TestSet

Task = tuple[str, str]  # suite and key of a task
# The stream of random numbers of each test set; those of other suites have the following ones.
STREAM_OF_TEST_SET = {name: number for number, name in enumerate((*STS, *MULTILINGUAL))}

SET = "set"  # the only readout of words:binary


@dataclass(frozen=True, slots=True)
class Measured:
    """The value of a row in a task, or its average over the tasks of a suite."""

    row: Row
    task: Task
    task_name: str
    values_of_checkpoints: tuple[float | None, ...]
    deviations: Mapping[str, float]  # by name: over seeds, classifiers, clusterings, draws, folds
    readout: str
    n: int | None = None  # rows of the test set that have a value; None for an average
    # the value for each resample of pairs, queries or rows, (resamples,), if they are needed
    resamples: Float64 | None = field(default=None, compare=False)
    is_correlation: bool = False  # of one checkpoint, as `sentkit score` has it
    interval: list[float | None] | None = None
    difference: dict[str, Any] | None = None  # to the baseline, by the paired bootstrap
    seen: int | None = None  # rows that occur in training files; None for an average
    near: int | None = None  # these and the rows that nearly occur; None without a threshold
    without: float | None = None  # the value without these rows

    @property
    def value(self) -> float | None:
        """The mean; None if one of the values is undefined."""
        return mean_if_known(self.values_of_checkpoints)

    @property
    def sd(self) -> float | None:
        """That over the seeds, as in the papers, or over what is drawn again; never that over the
        folds.
        """
        for name, deviation in self.deviations.items():
            if name != FOLDS:
                return deviation
        return None

    def record(self, baseline: Row | None) -> dict[str, Any]:
        suite, _ = self.task
        record: dict[str, Any] = {
            "row": self.row.label,
            "readout": self.readout,
            "suite": suite,
            "task": self.task_name,
            "metric": SUITES[suite].value,
            "n": self.n,
            "value": self.value,
            "sd": self.sd,
            "deviations": dict(self.deviations),
            "checkpoints": list(self.row.models),
            "values": list(self.values_of_checkpoints),
        }
        if any(self.row.transforms):
            record["transforms"] = list(self.row.transforms)
        if self.seen is not None or self.without is not None:
            training: dict[str, Any] = {"seen": self.seen}
            if self.near is not None:
                training["near"] = self.near
            training["value"] = self.without
            record["train"] = training
        if self.interval is not None:
            record["ci95"] = self.interval
        if self.difference is not None and baseline is not None:
            record["against"] = {"row": baseline.label, **self.difference}
        return record


def task_of(test: TestSet) -> Task:
    """The task of the papers that the test set is, or one with the name of its file."""
    name = test.task if test.task in task_names()[test.suite] else test.name
    return test.suite, name


def deviations_of(values: Sequence[float | None], results: Sequence[Result]) -> dict[str, float]:
    """Over the checkpoints (of a sample; none for one value), and the mean of those of each
    checkpoint.
    """
    deviations = {}
    defined_values = [value for value in values if value is not None]
    if len(defined_values) == len(values) > 1:
        deviations["seeds"] = statistics.stdev(defined_values)
    for name in dict.fromkeys(name for result in results for name in result.deviations):
        deviations[name] = statistics.fmean(result.deviations.get(name, 0.0) for result in results)
    return deviations


class Resampler(Protocol):
    """Draws the pairs, queries or rows of a test set again."""

    def __call__(self, *, seed: Seed) -> Float64:
        """The value of each resample, (resamples,)."""
        ...


class StreamResampler(NamedTuple):
    stream: int  # of random numbers
    resample: Resampler


def measure(
    rows: Sequence[Row],
    tests: Sequence[TestSet],
    results: Results,
    *,
    intervals: bool = False,
    baseline: Row | None = None,
) -> list[Measured]:
    """All rows in all tasks, with the averages of the papers. Failed evaluations have no result."""
    needs_resamples = intervals or baseline is not None
    measured: list[Measured] = []
    for row, suite in product(rows, SUITES):
        measured += measure_suite(row, suite, tests, results, needs_resamples=needs_resamples)

    of_baseline = {entry.task: entry for entry in measured if entry.row == baseline}
    completed = []
    for entry in measured:
        if entry.row != baseline and entry.task in of_baseline:
            entry = replace(entry, difference=difference_to(of_baseline[entry.task], entry))
        if intervals:
            entry = replace(entry, interval=interval_of(entry))
        completed.append(entry)
    return completed


def difference_to(baseline: Measured, entry: Measured) -> dict[str, Any] | None:
    """The difference to the baseline by the paired bootstrap; None without resamples of both."""
    if entry.resamples is None or baseline.resamples is None:
        return None
    change = np.nan
    if entry.value is not None and baseline.value is not None:
        change = entry.value - baseline.value
    # An average has resamples only if each of its test sets has enough rows.
    count = FEWEST_ROWS if entry.n is None else entry.n
    return difference(change, entry.resamples - baseline.resamples, count)


def warnings_about(
    measured: Sequence[Measured], baseline: Row | None, *, beside_published: bool
) -> list[str]:
    """Those about values that cannot be compared with the baseline or with published ones."""
    warnings = [*other_readouts(measured, baseline), *untested(measured)]
    if beside_published:
        warnings += other_sizes(measured)
    return warnings


def other_readouts(measured: Sequence[Measured], baseline: Row | None) -> list[str]:
    """Warnings about rows whose readout differs from that of the baseline, if no argument chose
    either.
    """
    if baseline is None or baseline.readout is not None:
        return []
    # without later transforms
    readouts = {entry.row: entry.readout.partition("/")[0] for entry in measured}
    base_readout = readouts.get(baseline)
    if base_readout is None:  # all of its evaluations failed
        return []
    warnings = []
    for row, readout in readouts.items():
        is_comparable = row.readout is None and SET not in (readout, base_readout)
        if is_comparable and readout != base_readout:
            problem = (
                f"{row.label} has the readout {readout}, the baseline {baseline.label} "
                f"{base_readout}"
            )
            warnings.append(f"{problem}; to compare equal ones, add #READOUT to both")
    return warnings


def untested(measured: Sequence[Measured]) -> list[str]:
    """Warnings about test sets that are too small for a paired test."""
    sizes = {
        entry.task_name: entry.n
        for entry in measured
        if entry.difference is not None and entry.n is not None and entry.n < FEWEST_ROWS
    }
    return [
        f"{name}: a paired test needs {FEWEST_ROWS} rows, n is {size}, so the difference has no p"
        for name, size in sizes.items()
    ]


def other_sizes(measured: Sequence[Measured]) -> list[str]:
    """The warning about test sets with other numbers of rows than those of the published values."""
    sizes = {}
    for entry in measured:
        suite, task = entry.task
        published = PUBLISHED_ROWS.get(suite, {}).get(task)
        if published is not None and entry.n is not None and entry.n != published:
            sizes[entry.task_name] = f"{entry.n:,} rows instead of {published:,}"
    if not sizes:
        return []
    listed = ", ".join(f"{name} ({size})" for name, size in sizes.items())
    return [f"the published values are of other test sets: {listed}"]


def interval_of(entry: Measured) -> list[float | None] | None:
    """The 95 % interval, as `sentkit score` computes it; None without resamples."""
    if entry.resamples is None:
        return None
    interval = percentile_interval(entry.resamples)
    count = entry.n or 0
    if entry.n is not None and entry.n < FEWEST_ROWS:
        return [None, None]
    if entry.is_correlation and count > BOOTSTRAP_LIMIT:
        metric = SUITES[entry.task[0]].value
        value = math.nan if entry.value is None else entry.value
        interval = fisher_interval(metric, value / 100.0, count)
    return [defined(limit) for limit in interval]


def measure_suite(
    row: Row, suite: str, tests: Sequence[TestSet], results: Results, *, needs_resamples: bool
) -> Iterator[Measured]:
    """A row in the tasks of a suite, and the mean over those of the papers, if all of them are
    present.
    """
    metric = SUITES[suite].value
    names_in_papers = task_names()[suite]  # by task; "avg" is one if the papers have an average
    entries_of_papers: list[Measured] = []
    resamplers: list[StreamResampler] = []  # of these entries

    # The test sets for which each checkpoint has a result.
    for test in tests:
        results_of_row = results.get((row.label, suite, test.name), [])
        if test.suite != suite or len(results_of_row) < len(row.models):
            continue
        entry = measure_test(row, test, results_of_row)
        resample = resampler_of(results_of_row, metric) if needs_resamples else None
        if resample is not None:
            entry = replace(entry, resamples=resample(seed=0))  # the seed of `sentkit score`
        yield entry

        # What the average needs. Test sets with other names have a stream by their position. It is
        # the same for all rows, because an average needs all test sets.
        _, task = entry.task
        if task not in names_in_papers:
            continue
        entries_of_papers.append(entry)
        if resample is not None:
            next_stream = len(STREAM_OF_TEST_SET) + len(resamplers)
            stream = STREAM_OF_TEST_SET.get(test.name, next_stream)
            resamplers.append(StreamResampler(stream, resample))

    task_count = len(names_in_papers) - 1  # without "avg"
    if "avg" in names_in_papers and len(entries_of_papers) >= task_count:
        yield average_of(entries_of_papers, resamplers)


def measure_test(row: Row, test: TestSet, results: Sequence[Result]) -> Measured:
    """A row in a task, from the results of its checkpoints; without resamples."""
    values = tuple(result.value for result in results)
    readouts = [result.encoder.partition("/")[2] for result in results]
    return Measured(
        row=row,
        task=task_of(test),
        task_name=task_names()[test.suite].get(test.task, test.name),
        values_of_checkpoints=values,
        deviations=deviations_of(values, results),
        readout=" ".join(dict.fromkeys(readouts)),
        n=results[0].n,
        is_correlation=len(results) == 1 and results[0].gold is not None,
    )


def average_of(entries: Sequence[Measured], resamplers: Sequence[StreamResampler]) -> Measured:
    """The average of a row over tasks, with its resamples if each of them has a resampler and
    enough rows.
    """
    values_of_entries = [entry.values_of_checkpoints for entry in entries]
    averages = tuple(map(mean_if_known, zip(*values_of_entries, strict=True)))
    suite, _ = entries[0].task
    average = Measured(
        row=entries[0].row,
        task=(suite, "avg"),
        task_name="avg",
        values_of_checkpoints=averages,
        deviations=deviations_of(averages, ()),
        readout=entries[0].readout,
    )
    fewest_rows = min(entry.n or 0 for entry in entries)
    if len(resamplers) < len(entries) or fewest_rows < FEWEST_ROWS:
        return average

    # Independent for different test sets, and the same pairs for all rows.
    resamples_of_tests = [resample(seed=(0, stream)) for stream, resample in resamplers]
    count = min(map(len, resamples_of_tests))  # a large test set has fewer
    columns = [resamples[:count] for resamples in resamples_of_tests]
    return replace(average, resamples=np.mean(columns, axis=0))


def resampler_of(results: Sequence[Result], metric: str) -> Resampler | None:
    """Draws pairs, queries or rows again, the same ones for each checkpoint; None if a result has
    only its value.

    The value of a resample is the mean over the checkpoints.
    """
    gold = results[0].gold
    if gold is not None:
        columns = [result.similarities for result in results if result.similarities is not None]
        refuse_other_sizes([gold, *columns], results)
        return partial(resampled_mean, columns, gold, metric, count=resamples_for(len(gold)))
    values_of_rows = [result.values for result in results if result.values is not None]
    if not values_of_rows:
        return None
    refuse_other_sizes(values_of_rows, results)
    means = np.mean(values_of_rows, axis=0)  # (n,)
    return lambda seed: resampled(means[:, None], seed)[0]


def refuse_other_sizes(arrays: Sequence[Float64], results: Sequence[Result]) -> None:
    """Refuse results of one test set with different numbers of rows: a file was changed."""
    if len(set(map(len, arrays))) > 1:
        problem = "the kept results of a test set have different numbers of rows"
        advice = "remove the files in the folder of --results"
        raise DataError(problem, source=results[0].encoder, advice=advice)


Forms = Mapping[str, str]  # normal form of a text -> text
NEAR_TEXTS = 256  # training texts to compare at once


@dataclass(frozen=True, slots=True)
class SeenTexts:
    """The texts of test sets that occur in training files, by normal form."""

    seen: frozenset[str]
    near: frozenset[str]  # these, and those with a cosine of the threshold with a training text
    has_threshold: bool


def with_training(
    measured: Sequence[Measured],
    tests: Sequence[TestSet],
    results: Results,
    texts: SeenTexts,
    evaluator: Evaluator,
    models: Models,
) -> list[Measured]:
    """Add the number of rows that occur in the training files, or nearly do, and the values without
    them.
    """
    with TemporaryDirectory(prefix="sentkit-report-") as folder:

        def warn(problem: str) -> None:
            without_folder = problem.replace(f"{folder}/", "")
            evaluator.settings.warn(f"without the rows that occur in --train: {without_folder}")

        counts_of_task, reduced_tests, seen_tests = without_seen(tests, texts, folder)
        for test in seen_tests:
            evaluator.settings.warn(f"{test.name}: all rows occur in --train")
        # The warnings about texts are among those of the whole test sets.
        reduced_evaluator = replace(
            evaluator, settings=replace(evaluator.settings, warn=warn), warn=lambda problem: None
        )
        reduced_results, _ = reduced_evaluator.evaluate_all(
            models, reduced_tests, lambda problem, advice: warn(problem), lambda count: None
        )

    # The values without these rows: the results of a reduced test set replace those of the whole
    # one.
    reduced_names = {(test.suite, test.name) for test in [*reduced_tests, *seen_tests]}
    other_results = {
        (label, suite, name): result
        for (label, suite, name), result in results.items()
        if (suite, name) not in reduced_names
    }
    rows = list(dict.fromkeys(entry.row for entry in measured))
    reduced_entries = measure(rows, tests, other_results | reduced_results)
    reduced_values = {(entry.row, entry.task): entry.value for entry in reduced_entries}

    completed = []
    for entry in measured:
        value = reduced_values.get((entry.row, entry.task))
        if entry.task in counts_of_task:
            seen, near = counts_of_task[entry.task]
            entry = replace(entry, seen=seen, without=value)
            if texts.has_threshold:
                entry = replace(entry, near=near)
        elif entry.task[1] == "avg":
            entry = replace(entry, without=value)
        completed.append(entry)
    return completed


def without_seen(
    tests: Sequence[TestSet], texts: SeenTexts, folder: str
) -> tuple[dict[Task, tuple[int, int]], list[TestSet], list[TestSet]]:
    """For each task, the rows that occur in the training files, and these and those that nearly do;
    the test sets that have such rows, without them; and those that have no other rows.

    A row occurs if all of its texts do, in any rows. With a test part, only this part counts, and
    of retrieval only the queries. Test sets that cannot be read are left out. `folder` gets the
    changed files.
    """
    counts_of_task = {}
    reduced_tests = []
    seen_tests = []
    for test in tests:
        row_count = 0
        seen_count = 0
        near_count = 0
        try:
            for _, forms in texts_of_rows(test):
                row_count += 1
                seen_count += texts.seen.issuperset(forms)
                near_count += texts.near.issuperset(forms)
        except SentkitError:  # the evaluation of this test set reported it
            continue
        counts_of_task[task_of(test)] = seen_count, near_count
        if near_count and near_count == row_count:
            seen_tests.append(test)
        elif near_count:
            reduced_file = Path(folder, f"{test.suite}-{test.name}.jsonl")
            reduced_tests.append(without_rows(test, texts.near, reduced_file))
    return counts_of_task, reduced_tests, seen_tests


def without_rows(test: TestSet, forms: frozenset[str], path: Path) -> TestSet:
    """The test set without the rows that have only these texts, in a new file."""
    with path.open("wb") as file:
        for records, forms_of_row in texts_of_rows(test):
            if not forms.issuperset(forms_of_row):
                file.writelines(json_line(record) for record in records)
    for name in ("qrels", "test"):
        if name in test.further_files:
            return replace(test, further_files={**test.further_files, name: str(path)})
    return replace(test, path=str(path))


def read_training_files(
    files: Sequence[tuple[str, float | None]], tests: Sequence[TestSet]
) -> SeenTexts | None:
    """The texts of test sets that occur in the files, or are near to a text there; None without
    files. Each file is read once.
    """
    if not files:
        return None
    test_texts: dict[str, str] = {}
    for test in tests:
        with suppress(SentkitError):  # the evaluation of this test set reports it
            for _, forms in texts_of_rows(test):
                test_texts |= {form: text for form, text in forms.items() if form}

    has_threshold = any(threshold is not None for _, threshold in files)
    compare = None
    if test_texts and has_threshold:
        compare = cosines_with(test_texts)
    seen: set[str] = set()
    is_near = np.zeros(len(test_texts), bool)
    for path, threshold in files:
        texts_of_file = chain.from_iterable(texts_of_training_rows(path))
        for texts in lists_of_size(texts_of_file, NEAR_TEXTS):
            seen.update(form for form in map(normal_form, texts) if form in test_texts)
            if threshold is not None and compare is not None:
                is_near |= (compare(texts) >= threshold).any(axis=0)
    near = {form for form, is_near_form in zip(test_texts, is_near, strict=True) if is_near_form}
    return SeenTexts(frozenset(seen), frozenset(near | seen), has_threshold)


def texts_of_training_rows(path: str) -> Iterator[list[str]]:
    """The texts of each row of a file; a vector file can record the names of their fields."""
    inputs = open_inputs([path])
    fields = field_names_of(inputs, path)
    advice = 'rename the field of the text to "text"; --field names only those of --pairs'
    return inputs.read(lambda row: texts_of(row, fields, advice))


def cosines_with(test_texts: Forms) -> Callable[[Sequence[str]], Float32]:
    """A function that returns the cosines of n texts with the test texts by static, (n, texts)."""
    model = find_encoder("static", ReadingOptions(normalize=True))
    encoder = model.encoder()

    def encode(texts: Sequence[str]) -> Float32:
        groups = encode_list(prepare_list(texts, model.tokenizer), encoder, EncodeStats())
        return np.concatenate([group.vectors[0][:, 0] for group in groups])

    test_vectors = encode([*test_texts.values()])
    return lambda texts: encode(texts) @ test_vectors.T


def texts_of_rows(test: TestSet) -> Iterator[tuple[list[dict[str, Any]], Forms]]:
    """Yield each row of the test set that has a value, with its texts by normal form; of retrieval,
    each query, as the records of its judgements.

    The normal form of a blank text is empty, and no training text counts as equal to it.
    """
    suite = SUITES[test.suite]
    parser = TextParser(test.fields)

    def parse(row: FileRow) -> tuple[FileRow, object, Forms]:
        texts = parser(row)
        value = suite.check(row, test.fields)
        return row, value, {normal_form(text): text for text in texts}

    qrels = test.further_files.get("qrels")
    path = test.further_files.get("queries") or test.further_files.get("test", test.path)
    inputs = open_inputs([path], fields=test.fields)
    if not qrels:
        for row, value, forms in inputs.read(parse):
            if value is not None:
                yield [dict(row.values)], forms
        return

    # The queries that have judgements.
    judgements = read_qrels(Inputs([qrels]), qrels)
    for row, _, forms in inputs.read(parse):
        query = id_of(row, inputs, "query")
        scores = judgements.get(query)
        if scores:
            records = [
                {"query-id": query, "corpus-id": document, "score": score}
                for document, score in scores.items()
            ]
            yield records, forms
