"""Results of checkpoints -> the values of rows: mean, deviation, interval, difference to a baseline.

Also without the rows of test sets that occur in training files, or nearly do.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice, product
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
from sentkit.formats.vectors.store import open_inputs
from sentkit.labels.clusters.clustering_run import mean_if_known
from sentkit.metrics.gold_pairs import normal_form, texts_of
from sentkit.metrics.reports import defined, difference
from sentkit.metrics.retrieval import id_of, read_qrels, resampled
from sentkit.metrics.statistics import (
    BOOTSTRAP_LIMIT,
    fisher_interval,
    percentile_interval,
    resampled_mean,
    resamples_for,
)
from sentkit.model import find_encoder
from sentkit.model.encoding import Tally
from sentkit.model.query_encoder import encode_list, prepare_list
from sentkit.model.reading import ReadingOptions
from sentkit.papers.published import task_names
from sentkit.reports.evaluate import Evaluator, Models, Results, Row
from sentkit.reports.suites import FOLDS, MULTILINGUAL, STS, SUITES, Result, TestSet

Task = tuple[str, str]  # suite and key of a task
PLACES = {name: place for place, name in enumerate((*STS, *MULTILINGUAL))}


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
    interval: list[float | None] | None = None
    difference: dict[str, Any] | None = None  # to the baseline, by the paired bootstrap
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
        record: dict[str, Any] = {"row": self.row.label, "readout": self.readout, "suite": self.task[0]}
        record |= {"task": self.name, "metric": SUITES[self.task[0]].value, "n": self.n, "value": self.value}
        record |= {"sd": self.sd, "deviations": dict(self.deviations)}
        record |= {"checkpoints": list(self.row.models), "values": list(self.values)}
        if any(self.row.transforms):
            record["transforms"] = list(self.row.transforms)
        if self.seen is not None or self.without is not None:
            near = {} if self.near is None else {"near": self.near}
            record["train"] = {"seen": self.seen, **near, "value": self.without}
        if self.interval is not None:
            record["ci95"] = self.interval
        if self.difference is not None and baseline is not None:
            record["against"] = {"row": baseline.label, **self.difference}
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


Drawn = tuple[
    Float64, bool
]  # the value of each resample, and whether it is the correlation of one checkpoint
Draw = Callable[..., Float64]  # seed -> the value of each resample


def measure(
    rows: Sequence[Row],
    tests: Sequence[TestSet],
    results: Results,
    *,
    intervals: bool = False,
    baseline: Row | None = None,
) -> list[Measured]:
    """All rows in all tasks, with the averages of the papers. Failed evaluations have no result."""
    resamples = intervals or baseline is not None
    found: list[tuple[Measured, Drawn | None]] = []
    for row, suite in product(rows, SUITES):
        found += measured_suite(row, suite, tests, results, resamples=resamples)
    bases = {each.task: (each.value, drawn) for each, drawn in found if each.row == baseline}
    measured = []
    for each, own in found:
        value, theirs = bases.get(each.task, (None, None))
        if own is not None and theirs is not None and each.row != baseline:
            change = np.nan if each.value is None or value is None else each.value - value
            each = replace(each, difference=difference(change, own[0] - theirs[0]))
        if own is not None and intervals:
            interval, count = percentile_interval(own[0]), each.n or 0
            if own[1] and count > BOOTSTRAP_LIMIT:
                kind = SUITES[each.task[0]].value
                interval = fisher_interval(kind, (each.value or math.nan) / 100.0, count)
            each = replace(each, interval=[*map(defined, interval)])
        measured.append(each)
    return measured


def measured_suite(
    row: Row, suite: str, tests: Sequence[TestSet], results: Results, *, resamples: bool
) -> Iterator[tuple[Measured, Drawn | None]]:
    """A row in the tasks of a suite, and the mean over those of the papers, if all of them are present."""
    names, kind = task_names()[suite], SUITES[suite].value
    present, draws = list[Measured](), list[tuple[int, Draw]]()  # of the papers' tasks
    for test in (test for test in tests if test.suite == suite):
        own = results.get((row.label, suite, test.name), [])
        if len(own) < len(row.models):
            continue
        values = tuple(result.value for result in own)
        readout = " ".join(dict.fromkeys(result.encoder.partition("/")[2] for result in own))
        name, deviations = names.get(test.task, test.name), deviations_of(values, own)
        each = Measured(row, task_of(test), name, values, deviations, readout, own[0].n)
        drawn = None
        draw = draw_of(own, kind) if resamples else None
        if draw is not None:
            drawn = draw(seed=0), len(own) == 1 and own[0].gold is not None  # as `sentkit score`
            draws.append((PLACES.get(test.name, 0), draw))
        present += [each] if each.task[1] in names else []
        yield each, drawn
    if "avg" in names and len(present) >= len(names) - 1:
        values = tuple(map(mean_if_known, zip(*(each.values for each in present), strict=True)))
        average = Measured(row, (suite, "avg"), "avg", values, deviations_of(values, ()), present[0].readout)
        # Independent for different test sets, and the same pairs for all rows.
        parts = [draw(seed=(0, place)) for place, draw in draws]
        yield average, (np.mean(parts, axis=0), False) if parts else None


def draw_of(results: Sequence[Result], kind: str) -> Draw | None:
    """Draws pairs or queries again, the same ones for each checkpoint; None if a result has only its value.

    The value of a resample is the mean over the checkpoints.
    """
    gold = results[0].gold
    if gold is not None:
        columns = [result.similarities for result in results if result.similarities is not None]
        return partial(resampled_mean, columns, gold, kind, count=resamples_for(len(gold)))
    of_queries = [result.queries for result in results if result.queries is not None]
    if not of_queries:
        return None
    means = np.mean(of_queries, axis=0)  # (n,)
    return lambda seed: resampled(means[:, None], seed)[0]


Forms = Mapping[str, str]  # normal form of a text -> text
NEAR_TEXTS = 256  # training texts to compare at once


def with_training(
    measured: Sequence[Measured],
    tests: Sequence[TestSet],
    results: Results,
    files: Sequence[tuple[str, float | None]],
    evaluator: Evaluator,
    models: Models,
) -> list[Measured]:
    """Add the number of rows that occur in the training files, or nearly do, and the values without them."""
    with TemporaryDirectory(prefix="sentkit-report-") as folder:

        def failed(problem: str, _: str | None) -> None:
            own = problem.replace(f"{folder}/", "")
            evaluator.settings.warn(f"without the rows that occur in --train: {own}")

        found = without_seen(tests, files, folder)
        changed = [test for _, near, test in found if near]
        without, _ = evaluator.evaluate_all(models, changed, failed, lambda: None)
    names = {(test.suite, test.name) for test in changed}
    others = {key: result for key, result in results.items() if key[1:] not in names}
    rows = list(dict.fromkeys(each.row for each in measured))
    counts = {task_of(test): (seen, near) for seen, near, test in found}
    values = {(each.row, each.task): each.value for each in measure(rows, tests, others | without)}
    added = []
    for each in measured:
        seen, near = counts.get(each.task, (None, None))
        near = near if any(least is not None for _, least in files) else None
        value = values.get((each.row, each.task)) if seen is not None or each.task[1] == "avg" else None
        added.append(replace(each, seen=seen, near=near, without=value))
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
        for texts in open_inputs([path]).read(lambda row: texts_of(row, {})):
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
    rows = open_inputs([path]).read(lambda row: texts_of(row, {}))
    texts = chain.from_iterable(rows)
    while ours is not None and (block := [*islice(texts, NEAR_TEXTS)]):
        found |= (encode(block) @ ours >= least).any(axis=0)
    return {*forms[found]}


def rows_of(test: TestSet) -> Iterator[tuple[list[dict[str, Any]], Forms]]:
    """Rows that have a value, or judgements of queries, each with its texts; a blank one occurs nowhere."""
    texts = TextParser(test.fields)

    def parse(row: FileRow) -> tuple[FileRow, Forms]:
        return row, {normal_form(text): text for text in texts(row)[1]}

    qrels, path = test.parts.get("qrels", ""), test.parts.get("queries") or test.parts.get("test", test.path)
    inputs = open_inputs([path], fields=test.fields)
    judged = read_qrels(Inputs([qrels]), qrels) if qrels else {}
    for row, forms in inputs.read(parse):
        if not qrels:
            yield [dict(row.values)], forms
        elif relevant := judged.get(query := id_of(row, inputs, "query")):
            pairs = relevant.items()
            yield [{"query-id": query, "corpus-id": each, "score": score} for each, score in pairs], forms
