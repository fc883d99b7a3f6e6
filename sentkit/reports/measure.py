"""Results of checkpoints -> the values of rows: mean, deviation, interval, difference to a baseline."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sentkit.arrays import Float64
from sentkit.metrics.sts.intervals import Interval, percentile_interval, resamples_for
from sentkit.metrics.sts.seeds import MeanDifference, SeedScores, mean_difference, resampled_mean
from sentkit.reports.evaluate import Result, defined
from sentkit.reports.published import task_names
from sentkit.reports.rows import Row
from sentkit.reports.suites import MULTILINGUAL, STS, SUITES, TestSet

Task = tuple[str, str]  # suite and key of a task
PLACES = {name: place for place, name in enumerate((*STS, *MULTILINGUAL))}


@dataclass(frozen=True, slots=True)
class Measured:
    """The value of a row in a task, or its average over the tasks of a suite."""

    row: Row
    task: Task
    name: str
    values: tuple[float | None, ...]  # of the checkpoints
    sd: float | None
    readout: str
    interval: Interval | None = None
    difference: MeanDifference | None = None

    @property
    def value(self) -> float | None:
        """The mean; None if one of the values is undefined."""
        return mean(self.values)

    def record(self, baseline: Row | None) -> dict[str, Any]:
        record: dict[str, Any] = {
            **{"row": self.row.label, "readout": self.readout, "suite": self.task[0], "task": self.name},
            **{"metric": SUITES[self.task[0]].value, "value": self.value, "sd": self.sd},
            **{"checkpoints": list(self.row.models), "values": list(self.values)},
        }
        if any(self.row.transforms):
            record["transforms"] = list(self.row.transforms)
        if self.interval is not None:
            record["ci95"] = bounds(self.interval)
        if self.difference is not None and baseline is not None:
            record["against"] = {
                **{"row": baseline.label, "difference": defined(self.difference.value)},
                **{"ci95": bounds(self.difference.interval), "p": defined(self.difference.p)},
            }
        return record


def bounds(interval: Interval) -> list[float | None]:
    return [defined(interval.low), defined(interval.high)]


def mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return statistics.fmean(present) if len(present) == len(values) else None


def deviation(values: Sequence[float | None]) -> float | None:
    """Of a sample; None for one value."""
    present = [value for value in values if value is not None]
    return statistics.stdev(present) if len(present) == len(values) > 1 else None


@dataclass(frozen=True, slots=True)
class Measurement:
    """`results` has a result for each row, checkpoint and test set that did not fail."""

    rows: Sequence[Row]
    tests: Sequence[TestSet]
    # by label of the row, place of the checkpoint, suite, name of the file
    results: Mapping[tuple[str, int, str, str], Result]
    intervals: bool = False
    baseline: Row | None = None

    def measure(self) -> list[Measured]:
        """All rows in all tasks, with the averages of the papers."""
        found: list[Measured] = []
        drawn: dict[tuple[str, Task], Float64] = {}  # resamples by label of the row
        for row in self.rows:
            for suite in SUITES:
                tasks = list(self.of_suite(row, suite, drawn))
                found += [*tasks, *self.average(row, suite, tasks, drawn)]
        return [self.with_resamples(each, found, drawn) for each in found]

    def of_suite(self, row: Row, suite: str, drawn: dict[tuple[str, Task], Float64]) -> Iterator[Measured]:
        for test in (test for test in self.tests if test.suite == suite):
            keys = [(row.label, place, suite, test.name) for place in range(len(row.models))]
            if not all(key in self.results for key in keys):
                continue
            results = [self.results[key] for key in keys]
            values = tuple(result.value for result in results)
            readouts = dict.fromkeys(result.encoder.partition("/")[2] for result in results)
            sd = results[0].sd if len(results) == 1 else deviation(values)
            known = task_names()[suite]
            task = (suite, test.task if test.task in known else test.name)
            name = known.get(test.task, test.name)
            yield Measured(row, task, name, values, sd, " ".join(readouts))
            if (self.intervals or self.baseline is not None) and results[0].gold is not None:
                drawn[row.label, task] = self.resamples(results, test)

    def resamples(self, results: Sequence[Result], test: TestSet) -> Float64:
        """Independent for different test sets, and the same pairs for all rows."""
        columns = [result.similarities for result in results if result.similarities is not None]
        gold = results[0].gold
        assert gold is not None
        own = [each.name for each in self.tests if each.suite == "pairs"]
        place = len(PLACES) + own.index(test.name) if test.suite == "pairs" else PLACES[test.name]
        count, seed = resamples_for(len(gold)), (0, place)
        return resampled_mean(SeedScores(columns, gold), SUITES[test.suite].value, count=count, seed=seed)

    def average(
        self, row: Row, suite: str, tasks: Sequence[Measured], drawn: dict[tuple[str, Task], Float64]
    ) -> Iterator[Measured]:
        """The mean over the tasks of the papers, if all of them are present."""
        names = task_names()[suite]
        present = [each for each in tasks if each.task[1] in names]
        if "avg" not in names or len(present) < len(names) - 1:
            return
        values = tuple(
            mean(of_checkpoint) for of_checkpoint in zip(*(each.values for each in present), strict=True)
        )
        yield Measured(row, (suite, "avg"), "avg", values, deviation(values), present[0].readout)
        arrays = [drawn[row.label, each.task] for each in present if (row.label, each.task) in drawn]
        if arrays:
            drawn[row.label, (suite, "avg")] = np.mean(arrays, axis=0)

    def with_resamples(
        self, each: Measured, found: Sequence[Measured], drawn: Mapping[tuple[str, Task], Float64]
    ) -> Measured:
        row, task = each.row, each.task
        if (row.label, task) not in drawn:
            return each
        interval = percentile_interval(drawn[row.label, task]) if self.intervals else None
        difference, base = None, self.baseline
        if base is not None and base != row and (base.label, task) in drawn:
            other = next(measured for measured in found if measured.row == base and measured.task == task)
            values = each.value, other.value
            value = np.nan if None in values else values[0] - values[1]  # type: ignore[operator]
            difference = mean_difference(value, drawn[row.label, task], drawn[base.label, task])
        return Measured(
            *(row, task, each.name, each.values, each.sd, each.readout),
            interval=interval,
            difference=difference,
        )
