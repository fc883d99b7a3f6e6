"""Scores by domain (figure 4 of SG-BERT): one group of bars per domain, one bar per encoder."""

from dataclasses import dataclass

import numpy as np

from sentkit.errors import DataError
from sentkit.formats.files import together
from sentkit.formats.rows.kinds import class_of
from sentkit.formats.rows.rows import Inputs, Row
from sentkit.formats.vectors.fingerprint import label_of
from sentkit.plots.picture import Axis, Panel, Picture, Series
from sentkit.plots.reports import (
    LABELS,
    Value,
    by_name,
    intervals,
    merged,
    read_rows,
    value_of,
    value_with_interval,
)


@dataclass(frozen=True, slots=True)
class DomainOptions:
    value: str = "spearman"
    name: str | None = None  # the fields of a table; None: the groups of reports
    domain: str | None = None


@dataclass(frozen=True, slots=True)
class Score:
    name: str
    domain: str
    value: Value


def domains(inputs: Inputs, options: DomainOptions) -> Picture:
    if options.name is None:
        reports = read_rows(inputs, lambda row: (row, groups_of(row, options.value)))
        names = names_of([row for row, _ in reports])
        both = zip(names, reports, strict=True)
        scores = [Score(name, domain, value) for name, (_, groups) in both for domain, value in groups]
        if not scores:
            advice = "sentkit score --gold score --group NAME writes the groups"
            raise DataError("no report has groups", source=together(inputs.paths), advice=advice)
    else:
        scores = read_rows(inputs, lambda row: table_score(row, options))
    return Picture((panel_of(scores, options.value),), height=0.7)


def names_of(rows: list[Row]) -> list[str]:
    """The label of the encoder of each report; if two are equal, the names of the files."""
    labels = [label_of(emb) if isinstance(emb := row.values.get("encoder"), str) else "" for row in rows]
    if len(set(labels)) == len(labels) and all(labels):
        return labels
    return [str(row.values.get("file", f"row {number}")) for number, row in enumerate(rows, start=1)]


def groups_of(row: Row, name: str) -> list[tuple[str, Value]]:
    """The groups of a report with their scores."""
    groups = row.values.get("groups")
    if groups is not None and not isinstance(groups, dict):
        raise row.error('"groups" is not an object, as in a report of sentkit score')
    values = []
    for domain, own in (groups or {}).items():
        if own is None:  # a column of Parquet that this report lacks
            continue
        value = own.get(name) if isinstance(own, dict) else None
        if not isinstance(own, dict) or name not in own or not isinstance(value, int | float | None):
            raise row.error(f'the group "{domain}" has no number "{name}"')
        values.append((domain, value_with_interval(row, own, name, value)))
    return values


def table_score(row: Row, options: DomainOptions) -> Score:
    assert options.name is not None
    assert options.domain is not None
    value = value_of(row, options.value)
    return Score(class_of(row, options.name), class_of(row, options.domain), value)


def panel_of(scores: list[Score], name: str) -> Panel:
    """A group of bars for each domain, in the order of their first appearance."""
    places = {domain: place for place, domain in enumerate(dict.fromkeys(score.domain for score in scores))}
    series = []
    for encoder, own in by_name((score.name, score) for score in scores).items():
        groups = by_name((score.domain, score.value) for score in own)
        values = [merged(each) for each in groups.values()]
        x, y = np.array([float(places[domain]) for domain in groups]), np.array([v.value for v in values])
        series.append(Series(encoder, x, y, "bars", **intervals(values)))
    return Panel(Axis("domain", "", names=tuple(places)), Axis(name, LABELS.get(name, name)), tuple(series))
