"""Scores by layer and readout (figure 1 of SG-BERT): one panel per model, one line per readout."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sentkit.errors import DataError
from sentkit.formats.files import together
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.rows import Inputs
from sentkit.plots.picture import Axis, Panel, Picture, Series
from sentkit.plots.reports import (
    LABELS,
    Value,
    by_name,
    intervals,
    means_of_sets,
    report_of,
)

TWIN = re.compile(r"mean-sqrt(?=$|/)")
CLOSE = 1e-3  # scores of equal cosines, which differ in the last bits
LAYER = re.compile(r"(?P<model>[^/]+)/L(?P<layer>\d+):(?P<readout>.+)")


@dataclass(frozen=True, slots=True)
class Score:
    """A report of `sentkit score`; `layer` is None if the readout uses several layers or the last one."""

    model: str
    readout: str
    layer: int | None
    value: Value


def sweep(inputs: Inputs, name: str, warn: Callable[[str], None]) -> Picture:
    scores = [score for score in inputs.read(lambda row: score_of(row, name)) if score is not None]
    if all(score.layer is None for score in scores):
        advice = "sentkit encode --readout 'L*:cls,L*:mean' makes one file for each layer"
        raise DataError("no report has one layer", source=together(inputs.paths), advice=advice)
    models = {
        model: without_twins(own) for model, own in by_name((each.model, each) for each in scores).items()
    }
    if sum(map(len, models.values())) < len(scores):
        warn("mean-sqrt is not drawn: its cosines are those of mean")
    layered = {score.readout for score in scores if score.layer is not None}
    panels = [panel_of(model, own, name, layered, several=len(models) > 1) for model, own in models.items()]
    return Picture(tuple(panels))


def without_twins(scores: list[Score]) -> list[Score]:
    """Without mean-sqrt, if it has the scores of mean, which has the same direction."""

    def values(readout: str) -> dict[int | None, float]:
        return {score.layer: score.value.value for score in scores if score.readout == readout}

    twins = set()
    for readout in {score.readout for score in scores if TWIN.match(score.readout)}:
        own, other = values(readout), values(TWIN.sub("mean", readout))
        if own.keys() == other.keys() and np.allclose(
            list(own.values()), [other[at] for at in own], atol=CLOSE
        ):
            twins.add(readout)
    return [score for score in scores if score.readout not in twins]


def score_of(row: Row, name: str) -> Score | None:
    if (report := report_of(row, name)) is None:
        return None
    label, value = report
    if match := LAYER.fullmatch(label):
        return Score(match["model"], match["readout"], int(match["layer"]), value)
    model, _, readout = label.partition("/")
    return Score(model, readout or model, None, value)


def panel_of(model: str, scores: list[Score], name: str, layered: set[str], *, several: bool) -> Panel:
    """The lines of a model. Several reports of one layer and readout are those of several data sets.

    A readout in `layered` is a line in one of the panels, so a level of this readout has another name.
    """
    groups = by_name([((score.readout, score.layer), score.value) for score in scores])
    means = means_of_sets(
        groups, lambda key: f"{model}/{key[0] if key[1] is None else f'L{key[1]}:{key[0]}'}"
    )
    series = []
    for readout in dict.fromkeys(readout for readout, _ in groups):
        layers = {at: value for (each, at), value in means.items() if each == readout and at is not None}
        values = [layers[layer] for layer in sorted(layers)]
        if values:
            x, y = np.array(sorted(layers), np.float64), np.array([each.value for each in values])
            series.append(Series(readout, x, y, "line", **intervals(values)))
        if (readout, None) in means:
            level = means[readout, None].value
            title = f"{readout} (last layer)" if readout in layered else readout
            series.append(Series(title, np.zeros(1), np.array([level]), "level"))
    axes = Axis("layer", "layer", whole=True), Axis(name, LABELS.get(name, name))
    return Panel(*axes, tuple(series), title=model if several else "")
