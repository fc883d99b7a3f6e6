"""Results of checkpoints -> the values of rows: mean, deviation, interval, difference to a baseline.

Also without the rows of test sets that occur in training files, or nearly do.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from sentkit.arrays import Float32, Float64
from sentkit.errors import SentkitError
from sentkit.formats.files import json_line
from sentkit.formats.rows.block import Row as FileRow
from sentkit.formats.rows.kinds import TextParser
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.store import rows_in
from sentkit.labels.clusters.clustering_run import mean_if_known
from sentkit.metrics.reports import defined, limits
from sentkit.metrics.retrieval import id_of, read_qrels
from sentkit.metrics.seen import normal_form, texts_of
from sentkit.metrics.statistics import (
    BOOTSTRAP_LIMIT,
    Interval,
    fisher_interval,
    percentile_interval,
    resampled_mean,
    resamples_for,
    two_sided_p,
)
from sentkit.model import find_encoder
from sentkit.model.encoding import Tally
from sentkit.model.query_encoder import encode_list, prepare_list
from sentkit.model.reading import ReadingOptions
from sentkit.reports.evaluate import FOLDS, Evaluator, Models, Result
from sentkit.reports.suites import MULTILINGUAL, STS, SUITES, Row, TestSet, task_names

Task = tuple[str, str]  # suite and key of a task
PLACES = {name: place for place, name in enumerate((*STS, *MULTILINGUAL))}


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference to the baseline, by the paired bootstrap."""

    value: float
    interval: Interval
    p: float  # two-sided


@dataclass(frozen=True, slots=True)
class Measured:
    """The value of a row in a task, or its average over the tasks of a suite."""

    row: Row
    task: Task
    name: str
    values: tuple[float | None, ...]  # of the checkpoints
    deviations: Mapping[str, float]  # by name: over seeds, classifiers, clusterings, draws, folds
    readout: str
    n: int | None = None  # rows of the test set that have a value; None for an average
    interval: Interval | None = None
    difference: Difference | None = None
    seen: int | None = None  # rows that occur in training files; None for an average
    near: int | None = None  # these and the rows that nearly occur; None without a threshold
    without: float | None = None  # the value without these rows

    @property
    def value(self) -> float | None:
        """The mean; None if one of the values is undefined."""
        return mean_if_known(self.values)

    @property
    def sd(self) -> float | None:
        """That over the seeds, as in the papers, or over what is drawn again; never that over the folds."""
        return next((value for name, value in self.deviations.items() if name != FOLDS), None)

    def record(self, baseline: Row | None) -> dict[str, Any]:
        record: dict[str, Any] = {
            **{"row": self.row.label, "readout": self.readout, "suite": self.task[0], "task": self.name},
            **{"metric": SUITES[self.task[0]].value, "n": self.n, "value": self.value, "sd": self.sd},
            "deviations": dict(self.deviations),
            **{"checkpoints": list(self.row.models), "values": list(self.values)},
        }
        if any(self.row.transforms):
            record["transforms"] = list(self.row.transforms)
        if self.seen is not None or self.without is not None:
            near = {} if self.near is None else {"near": self.near}
            record["train"] = {"seen": self.seen, **near, "value": self.without}
        if self.interval is not None:
            record["ci95"] = limits(self.interval)
        if self.difference is not None and baseline is not None:
            record["against"] = {
                **{"row": baseline.label, "difference": defined(self.difference.value)},
                **{"ci95": limits(self.difference.interval), "p": defined(self.difference.p)},
            }
        return record


def task_of(test: TestSet) -> Task:
    return test.suite, test.task if test.task in task_names()[test.suite] else test.name


def deviations_of(values: Sequence[float | None], results: Sequence[Result]) -> dict[str, float]:
    """Over the checkpoints (of a sample; none for one value), and the mean of those of each checkpoint."""
    present = [value for value in values if value is not None]
    own = {"seeds": statistics.stdev(present)} if len(present) == len(values) > 1 else {}
    for name in dict.fromkeys(name for result in results for name in result.deviations):
        own[name] = statistics.fmean(result.deviations.get(name, 0.0) for result in results)
    return own


@dataclass(frozen=True, slots=True)
class Measurement:
    """`results` has a result for each row, checkpoint and test set that did not fail."""

    rows: Sequence[Row]
    tests: Sequence[TestSet]
    # by label of the row, place of the checkpoint, suite, name of the file
    results: Mapping[tuple[str, int, str, str], Result]
    intervals: bool = False
    baseline: Row | None = None
    # By label of the row: a function from a seed to the mean correlation of all seeds in each resample of the
    # pairs, with the place of the test set among those of the averages; and the resamples of `sentkit score`.
    scored: dict[tuple[str, Task], tuple[Callable[..., Float64], int]] = field(default_factory=dict)
    drawn: dict[tuple[str, Task], Float64] = field(default_factory=dict)

    def measure(self) -> list[Measured]:
        """All rows in all tasks, with the averages of the papers."""
        found: list[Measured] = []
        for row in self.rows:
            for suite in SUITES:
                tasks = list(self.of_suite(row, suite))
                found += [*tasks, *self.average(row, suite, tasks)]
        return [self.with_resamples(each, found) for each in found]

    def of_suite(self, row: Row, suite: str) -> Iterator[Measured]:
        for test in (test for test in self.tests if test.suite == suite):
            keys = [(row.label, place, suite, test.name) for place in range(len(row.models))]
            if not all(key in self.results for key in keys):
                continue
            results = [self.results[key] for key in keys]
            values = tuple(result.value for result in results)
            readouts = dict.fromkeys(result.encoder.partition("/")[2] for result in results)
            deviations = deviations_of(values, results)
            task, name = task_of(test), task_names()[suite].get(test.task, test.name)
            yield Measured(row, task, name, values, deviations, " ".join(readouts), results[0].n)
            if (self.intervals or self.baseline is not None) and results[0].gold is not None:
                columns = [result.similarities for result in results if result.similarities is not None]
                gold, kind = results[0].gold, SUITES[suite].value
                draw = partial(resampled_mean, columns, gold, kind, count=resamples_for(len(gold)))
                self.scored[row.label, task] = draw, PLACES.get(test.name, 0)
                self.drawn[row.label, task] = draw(seed=0)

    def average(self, row: Row, suite: str, tasks: Sequence[Measured]) -> Iterator[Measured]:
        """The mean over the tasks of the papers, if all of them are present."""
        names = task_names()[suite]
        present = [each for each in tasks if each.task[1] in names]
        if "avg" not in names or len(present) < len(names) - 1:
            return
        values = tuple(map(mean_if_known, zip(*(each.values for each in present), strict=True)))
        yield Measured(row, (suite, "avg"), "avg", values, deviations_of(values, ()), present[0].readout)
        keys = [(row.label, each.task) for each in present]
        if parts := [self.scored[key] for key in keys if key in self.scored]:
            # Independent for different test sets, and the same pairs for all rows.
            arrays = [draw(seed=(0, place)) for draw, place in parts]
            self.drawn[row.label, (suite, "avg")] = np.mean(arrays, axis=0)

    def with_resamples(self, each: Measured, found: Sequence[Measured]) -> Measured:
        own, difference = self.drawn.get((each.row.label, each.task)), None
        if own is None:
            return each
        base = self.baseline
        if base is not None and base != each.row and (base.label, each.task) in self.drawn:
            other = next(one.value for one in found if one.row == base and one.task == each.task)
            value = np.nan if each.value is None or other is None else each.value - other
            resampled = own - self.drawn[base.label, each.task]
            difference = Difference(value, percentile_interval(resampled), two_sided_p(resampled))
        if not self.intervals:
            return replace(each, difference=difference)
        interval, count = percentile_interval(own), each.n or 0
        is_single = (each.row.label, each.task) in self.scored and len(each.values) == 1
        if is_single and count > BOOTSTRAP_LIMIT:
            kind = SUITES[each.task[0]].value
            interval = fisher_interval(kind, (each.value or math.nan) / 100.0, count)
        return replace(each, interval=interval, difference=difference)


Forms = Mapping[str, str]  # normal form of a text -> text
NEAR_TEXTS = 256  # training texts to compare at once


def with_training(
    measured: Sequence[Measured],
    measurement: Measurement,
    files: Sequence[tuple[str, float | None]],
    evaluator: Evaluator,
    models: Models,
) -> list[Measured]:
    """Add the number of rows that occur in the training files, and the values without these rows.

    A file with a threshold also has all texts whose cosine with one of its texts is not below the threshold.
    """

    with TemporaryDirectory(prefix="sentkit-report-") as folder:

        def failed(problem: str, _: str | None) -> None:
            own = problem.replace(f"{folder}/", "")
            evaluator.warn(f"without the rows that occur in --train: {own}")

        found = without_seen(measurement.tests, files, folder)
        changed = [test for _, near, test in found if near]
        results, _ = evaluator.evaluate_all(models, changed, failed, lambda: None)
    names = {(test.suite, test.name) for test in changed}
    others = {key: result for key, result in measurement.results.items() if key[2:] not in names}
    cleaned = replace(measurement, results=others | results).measure()
    counts = {task_of(test): (seen, near) for seen, near, test in found}
    values = {
        (each.row, each.task): each.value for each in cleaned if each.task in counts or each.task[1] == "avg"
    }
    with_near = any(least is not None for _, least in files)
    added = []
    for each in measured:
        seen, near = counts.get(each.task, (None, None))
        without = values.get((each.row, each.task))
        added.append(replace(each, seen=seen, near=near if with_near else None, without=without))
    return added


def without_seen(
    tests: Sequence[TestSet], files: Sequence[tuple[str, float | None]], folder: str
) -> list[tuple[int, int, TestSet]]:
    """For each test set, how many of its rows occur in the files, also nearly, and the set without these.

    A row occurs if all of its texts do, in any rows. With a test part, only this part counts, and of
    retrieval only the queries. Test sets that cannot be read are left out. `folder` gets the changed files.
    """
    rows: list[tuple[TestSet, list[Forms]]] = []
    for test in tests:
        with suppress(SentkitError):  # the evaluation of this test set reports it
            rows.append((test, [forms for _, forms in rows_of(test)]))
    wanted = {form: text for _, own in rows for forms in own for form, text in forms.items() if form}
    seen, near = set[str](), set[str]()
    for path, least in files:
        for texts in Inputs([path], vector_file=rows_in).read(lambda row: texts_of(row, {})):
            seen.update(form for form in map(normal_form, texts) if form in wanted)
        if least is not None:
            near |= near_texts(path, wanted, least)
    near |= seen
    found = []
    for test, own in rows:
        count = sum(near.issuperset(forms) for forms in own)
        if count:
            clean = Path(folder, f"{test.suite}-{test.name}.jsonl")
            with clean.open("wb") as file:
                for records, forms in rows_of(test):
                    if not near.issuperset(forms):
                        file.writelines(map(json_line, records))
            part = next((part for part in ("qrels", "test") if part in test.parts), None)
            parts = {**test.parts, part: str(clean)} if part else test.parts
            test = replace(test, path=test.path if part else str(clean), parts=parts)
        found.append((sum(seen.issuperset(forms) for forms in own), count, test))
    return found


def near_texts(path: str, wanted: Forms, least: float) -> set[str]:
    """The forms whose texts have a cosine of at least `least` with a text of the file, by static."""
    model = find_encoder("static", ReadingOptions(normalize=True))
    encoder, forms = model.encoder(), np.array([*wanted], object)

    def encode(texts: Sequence[str]) -> Float32:
        done = encode_list(prepare_list(texts, model.tokenizer), encoder, Tally())
        return np.concatenate([group.vectors[0][:, 0] for group in done])

    found = np.zeros(len(wanted), bool)
    ours = encode([*wanted.values()]).T if wanted else None
    rows = Inputs([path], vector_file=rows_in).read(lambda row: texts_of(row, {}))
    texts = chain.from_iterable(rows)
    while ours is not None and (block := [*islice(texts, NEAR_TEXTS)]):
        found |= (encode(block) @ ours >= least).any(axis=0)
    return {*forms[found]}


def rows_of(test: TestSet) -> Iterator[tuple[list[dict[str, Any]], Forms]]:
    """Rows that have a value, or judgements of queries, each with its texts; a blank one occurs nowhere."""
    texts = TextParser(test.fields)

    def parse(row: FileRow) -> tuple[FileRow, Forms]:
        return row, {normal_form(text): text for text in texts(row)[1]}

    part, qrels = ("queries" if test.suite == "retrieval" else "test"), test.parts.get("qrels", "")
    inputs = Inputs([test.parts.get(part, test.path)], fields=test.fields, vector_file=rows_in)
    judged = read_qrels(Inputs([qrels]), qrels) if qrels else {}
    for row, forms in inputs.read(parse):
        if not qrels:
            yield [dict(row.values)], forms
        elif relevant := judged.get(query := id_of(row, inputs, "query")):
            pairs = relevant.items()
            yield [{"query-id": query, "corpus-id": each, "score": score} for each, score in pairs], forms
