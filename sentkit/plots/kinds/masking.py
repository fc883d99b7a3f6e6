"""Scores by the number of tokens that the readout leaves out (figure 4 of ConSERT): one line per encoder."""

import re
from dataclasses import dataclass

import numpy as np

from sentkit.errors import DataError
from sentkit.formats.files import together
from sentkit.formats.rows.rows import Inputs, Row
from sentkit.plots.picture import Axis, Panel, Picture, Series
from sentkit.plots.reports import (
    LABELS,
    Value,
    by_name,
    intervals,
    means_of_sets,
    read_rows,
    report_of,
)

LEFT_OUT = re.compile(r"/out(\d+)(?=/|$)")  # in the label of a space


@dataclass(frozen=True, slots=True)
class Score:
    encoder: str  # the label of its space, without the number
    left_out: int
    value: Value


def masking(inputs: Inputs, name: str) -> Picture:
    scores = [score for score in read_rows(inputs, lambda row: score_of(row, name)) if score is not None]
    if not any(score.left_out for score in scores):
        advice = "sentkit encode --leave-out TOKENS leaves tokens out"
        raise DataError("no report has left out tokens", source=together(inputs.paths), advice=advice)
    groups = by_name(((score.encoder, score.left_out), score.value) for score in scores)
    means = means_of_sets(groups, lambda key: f"{key[0]} without {key[1]} tokens")
    series = []
    for encoder in dict.fromkeys(encoder for encoder, _ in means):
        own = sorted((count, value) for (each, count), value in means.items() if each == encoder)
        x, y = np.array([float(count) for count, _ in own]), np.array([value.value for _, value in own])
        series.append(Series(encoder, x, y, "line", **intervals([value for _, value in own])))
    axes = Axis("left_out", "tokens left out", whole=True), Axis(name, LABELS.get(name, name))
    return Picture((Panel(*axes, tuple(series)),), height=0.7)


def score_of(row: Row, name: str) -> Score | None:
    report = report_of(row, name)
    if report is None:
        return None
    label, value = report
    found = LEFT_OUT.search(label)
    return Score(LEFT_OUT.sub("", label), int(found[1]) if found else 0, value)
