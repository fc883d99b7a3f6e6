"""Reports as JSON objects, as `score --gold` prints them. Values x 100; undefined values are null."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from sentkit.formats.files import readable
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.fingerprint import space_of
from sentkit.metrics.sts.gold_pairs import Judged, Question, check_same_pairs, judge
from sentkit.metrics.sts.report import Comparison, Difference, Estimate, Group, Report, compare, report

Record = dict[str, Any]
KINDS = ("spearman", "pearson")


def file_records(inputs: Inputs, question: Question, baseline: str | None) -> list[Record]:
    """One record for each file, and one for their average if one encoder made all files."""
    paired = baseline is not None
    base = None if baseline is None else judge(inputs, baseline, question, paired=True)
    records = []
    for path in inputs.paths:
        judged = judge(inputs, path, question, paired=paired)
        found = report(judged.pairs, aggregate=question.aggregate, seed=question.seed)
        record = report_record(judged, found, question.metric)
        if base is not None:
            check_same_pairs(judged, base)
            both = compare(judged.pairs, base.pairs, aggregate=question.aggregate, seed=question.seed)
            record["against"] = comparison_record(base, both)
        records.append(record)
    average = average_record(records)
    return records if average is None else [*records, average]


def remarks(records: Sequence[Record]) -> Iterator[str]:
    """Warnings about skipped rows and undefined correlations."""
    for record in records:
        file = record["file"]
        if record.get("skipped"):
            yield f"{file}: {record['skipped']} rows without a score were left out"
        if record["spearman"] is None and not record.get("undefined"):
            yield f"{file}: no correlation: all pairs are equally alike"
        for name in record.get("undefined", ()):
            yield f'{file}: group "{name}" has no correlation: too few pairs, or all alike'


def report_record(judged: Judged, report: Report, metric: str) -> Record:
    found: Record = {
        "file": readable(judged.path),
        "encoder": judged.emb,
        "metric": metric,
        "aggregate": report.aggregate,
        "n": report.n,
        "skipped": judged.skipped,
        **_estimates(report),
        "interval": report.spearman.interval.method,
    }
    if report.groups:
        found["averages"] = {
            name: {"spearman": _number(average.spearman), "pearson": _number(average.pearson)}
            for name, average in report.averages.items()
        }
        found["groups"] = {group.name: {"n": group.n, **_estimates(group)} for group in report.groups}
        found["undefined"] = list(report.undefined)
    return found


def comparison_record(baseline: Judged, comparison: Comparison) -> Record:
    return {
        "file": readable(baseline.path),
        "encoder": baseline.emb,
        "spearman": _difference(comparison.spearman),
        "pearson": _difference(comparison.pearson),
    }


def average_record(records: Sequence[Record]) -> Record | None:
    """The mean over several files of one encoder; None otherwise."""
    encoders = [record["encoder"] for record in records]
    if len(records) < 2 or None in encoders or len(set(map(space_of, encoders))) > 1:
        return None
    found = {"file": "average", "encoder": encoders[0], "n": sum(r["n"] for r in records)}
    for name in KINDS:
        values = [record[name] for record in records]
        found[name] = None if None in values else sum(values) / len(values)
    return found


def under(records: Sequence[Record], floor: float | None) -> str | None:
    """A message about the first record with Spearman below the floor or undefined; None if all pass."""
    for record in records:
        value = record["spearman"]
        if floor is not None and (value is None or value < floor):
            shown = "undefined" if value is None else f"{value:.2f}"
            return f"{record['file']}: spearman is {shown}, under {floor:g}"
    return None


def _estimates(of: Report | Group) -> Record:
    return {**_estimate("spearman", of.spearman), **_estimate("pearson", of.pearson)}


def _estimate(name: str, estimate: Estimate) -> Record:
    interval = [_number(estimate.interval.low), _number(estimate.interval.high)]
    return {name: _number(estimate.value), f"{name}_ci95": interval}


def _difference(difference: Difference) -> Record:
    interval = [_number(difference.interval.low), _number(difference.interval.high)]
    return {"difference": _number(difference.value), "ci95": interval, "p": _number(difference.p)}


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
