"""Reports of `sentkit score` by layer and readout, logs of training runs, and tables of the
examples.
"""

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from sentkit.digits import natural
from sentkit.errors import DataError, NoInputError
from sentkit.formats.files import read_object_if_there, shown_path, text_of_paths
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.kinds import score_value, wrong_field
from sentkit.formats.rows.lines import json_type
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.fingerprint import MODEL_LABEL, emb_problem, label_of, space_of
from sentkit.plots.picture import Axis, Panel, Picture, Series

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

# values of an empty field of a table, or of a field that a row lacks
NO_VALUES = (None, "", "-")
# of a table, of a log without the record of its run, or of several metrics
UNKNOWN_METRIC = "score"
LABELS = {
    "loss": "loss",
    "spearman": "Spearman x 100",
    "pearson": "Pearson x 100",
    "lr": "learning rate",
    "norm": "norm of the gradient",
    "dev": f"{UNKNOWN_METRIC} x 100 on --dev",
}
SCALE = 2.0**64  # more than the number of values of a mean
LAYER = re.compile(r"L(?P<layer>\d+):(?P<readout>.+)")
UNFINISHED = ".part"  # end of the folder of an unfinished run
LOG = "steps.jsonl"  # the log of a run, in its folder
MEASURED = ("loss", "norm")  # fields of every step


@dataclass(frozen=True, slots=True)
class Value:
    """A number with its interval; NaN if they are undefined."""

    row: Row
    value: float
    interval: tuple[float, float] = (np.nan, np.nan)


def report_of(row: Row, name: str) -> tuple[str, Value] | None:
    """The encoder's label and the value in a report of `sentkit score`; None for an average of
    files.
    """
    if row.values.get("file") == "average":
        return None
    value = value_with_interval(row, name)
    emb = row.values.get("encoder")
    if not isinstance(emb, str) or emb_problem(emb):
        raise wrong_field(row, "encoder", "the name of a space, as in a report of sentkit score")
    label = label_of(emb)
    # `score --dim` has a second report, of the first numbers of the same vectors.
    against = row.values.get("against")
    if isinstance(against, dict) and "dim" in against:
        label += f"/{row.values.get('dim')}"
    return label, value


def value_with_interval(row: Row, name: str) -> Value:
    """The value of a field, and its interval NAME_ci95 or deviation NAME_sd, if the row has
    them.
    """
    row.check_duplicate_names()
    if name in row.values and row.values[name] in NO_VALUES:
        return Value(row, np.nan)
    value = score_value(row, name)
    if value is None:
        return Value(row, np.nan)
    match row.values.get(f"{name}_ci95"):
        case [int() | float() as low, int() | float() as high]:
            return Value(row, value, (float(low), float(high)))
    if row.values.get(f"{name}_sd") in NO_VALUES:
        return Value(row, value)
    deviation = score_value(row, f"{name}_sd") or 0.0
    return Value(row, value, (value - deviation, value + deviation))


def means_of_sets(
    scores_by_encoder: Mapping[K, list[Value]], name_of: Callable[[K], str]
) -> dict[K, Value]:
    """The mean of each encoder's scores, one for each data set; NaN if one is undefined.

    Only the score of a single data set keeps its interval. `name_of` gives the name of an encoder
    for an error.
    """
    count = max(len(scores) for scores in scores_by_encoder.values())
    for key, scores in scores_by_encoder.items():
        if len(scores) < count:
            reports = "1 report" if len(scores) == 1 else f"{len(scores)} reports"
            problem = f"{reports} of {name_of(key)}, but {count} of another encoder"
            raise scores[-1].row.error(problem, advice="draw all of them with the same data sets")
    if count == 1:
        return {key: scores[0] for key, scores in scores_by_encoder.items()}

    # Each encoder has files with other names; those of a data set have equal numbers of pairs.
    first_sizes, *_ = [sizes_of_sets(scores) for scores in scores_by_encoder.values()]
    for key, scores in scores_by_encoder.items():
        sizes = sizes_of_sets(scores)
        if sizes != first_sizes:
            problem = f"the reports of {name_of(key)} have {', '.join(sizes)} pairs, "
            problem += f"but others {', '.join(first_sizes)}"
            raise scores[-1].row.error(problem, advice="draw all of them with the same data sets")
    means = {}
    for key, scores in scores_by_encoder.items():
        mean = float(np.mean([score.value for score in scores]))
        means[key] = Value(scores[0].row, mean)
    return means


def sizes_of_sets(scores: Iterable[Value]) -> list[str]:
    """The numbers of pairs in reports, sorted."""
    return sorted(str(score.row.values.get("n")) for score in scores)


def series_of(
    name: str, values: Mapping[float, Value], form: Literal["line", "bars"] = "line"
) -> Series:
    """Values by x, with their intervals if a value has one."""
    x = np.array([*values], np.float64)
    y = np.array([value.value for value in values.values()])
    intervals = np.array([value.interval for value in values.values()]).T
    if not np.isfinite(intervals).any():
        return Series(name, x, y, form)
    return Series(name, x, y, form, intervals)


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key, in the order of their first appearance."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def titles(paths: Sequence[str]) -> list[str]:
    """The title of each file: its name without suffix, or its path if two names are equal; none for
    one.
    """
    if len(paths) < 2:
        return [""] * len(paths)
    names = [name_in_title(path) for path in paths]
    return [
        shown_path(name if names.count(name) == 1 else path)
        for name, path in zip(names, paths, strict=True)
    ]


def name_in_title(path: str) -> str:
    """The name of a file without its suffix. A folder has none, except that of an unfinished
    run.
    """
    if Path(path).is_dir():
        return Path(path).name.removesuffix(UNFINISHED)
    return Path(path).stem


LayerKey = tuple[str, int | None]  # a readout, and its layer if it reads one


def sweep(inputs: Inputs, name: str) -> Picture:
    """Figure 1 of SG-BERT: one panel per model, one line per readout; a report without a layer is a
    level.
    """
    scores = [score for score in inputs.read(lambda row: score_of(row, name)) if score is not None]
    scores_by_model = grouped(scores)
    layered_readouts = {readout for _, ((readout, layer), _) in scores if layer is not None}
    if not layered_readouts:
        advice = "sentkit encode --readout 'L*:cls,L*:mean' makes one file for each layer"
        raise DataError(
            "no report has one layer", source=text_of_paths(inputs.paths), advice=advice
        )

    x_axis = Axis("layer", "layer", whole=True)
    y_axis = Axis(name, LABELS.get(name, name))
    panels = []
    for model, model_scores in scores_by_model.items():
        series = sweep_series(model, model_scores, layered_readouts)
        title = model if len(scores_by_model) > 1 else ""
        panels.append(Panel(x_axis, y_axis, tuple(series), title=title))
    return Picture(tuple(panels))


def sweep_series(
    model: str, scores: Iterable[tuple[LayerKey, Value]], layered_readouts: Collection[str]
) -> list[Series]:
    """The lines of a model's readouts by layer, and the levels of readouts without a layer."""

    def space_name(key: LayerKey) -> str:
        readout, layer = key
        if layer is None:
            return f"{model}/{readout}"
        return f"{model}/L{layer}:{readout}"

    # Several reports of one key are those of several data sets.
    scores_by_key = grouped(scores)
    for key, scores_of_key in scores_by_key.items():
        _, layer = key
        if layer is not None:
            refuse_other_models(scores_of_key, space_name(key))
    means = means_of_sets(scores_by_key, space_name)
    series = []
    for readout in dict.fromkeys(readout for readout, _ in means):
        layers = sorted(layer for name, layer in means if name == readout and layer is not None)
        if layers:
            series.append(series_of(readout, {layer: means[readout, layer] for layer in layers}))
        if (readout, None) in means:
            level = means[readout, None].value
            title = readout
            if readout in layered_readouts:
                title += " (last layer)"
            no_layer = np.zeros(1)  # a level has no x, and its line has the whole width
            series.append(Series(title, no_layer, np.array([level]), "level"))
    return series


def refuse_other_models(scores: Sequence[Value], name: str) -> None:
    """Refuse scores of two models with one name, because their mean is that of neither.

    A transform of another fit is accepted: each data set can have its own.
    """
    embs = [score.row.values["encoder"] for score in scores]
    if not MODEL_LABEL.fullmatch(embs[0]):
        return
    for score, emb in zip(scores, embs, strict=True):
        if space_of(emb) != space_of(embs[0]):
            advice = "draw one of them, or encode again from folders with other names"
            raise score.row.error(f"the reports of {name} are those of two models", advice=advice)


def score_of(row: Row, name: str) -> tuple[str, tuple[LayerKey, Value]] | None:
    """The model, and the readout and layer with their value."""
    report = report_of(row, name)
    if report is None:
        return None
    label, value = report
    model, _, readout = label.partition("/")
    match = LAYER.fullmatch(readout)
    if match:
        return model, ((match["readout"], int(match["layer"])), value)
    return model, ((readout or model, None), value)


def logs_of(path: str) -> list[str]:
    """The log in a folder of sentkit train, or those of its seeds; other paths are files."""
    for folder in (Path(path), Path(path.rstrip("/") + UNFINISHED)):
        if (folder / LOG).is_file():
            return [str(folder / LOG)]
        seed_logs = sorted(folder.glob(f"seed-*/{LOG}"), key=lambda log: natural(log.parent.stem))
        if seed_logs:
            return [str(log) for log in seed_logs]
    if Path(path).is_dir():
        raise NoInputError(f"{shown_path(path)}: no {LOG}", advice="give a folder of sentkit train")
    return [path]


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A line of a log: the values of a step. One is None if it is undefined."""

    step: float
    values: Sequence[tuple[str, float | None]]  # a term may have the name of another value
    terms: tuple[str, ...] = ()  # those of the names that are terms of the loss
    is_best: bool = False  # the score on --dev is the best so far


def log_entry(row: Row) -> LogEntry:
    row.check_duplicate_names()
    step = score_value(row, "step") or 0.0
    terms = row.values.get("terms")
    if terms is None and "dev" in row.values:
        score = score_value(row, "dev")
        return LogEntry(step, [("dev", score)], is_best=row.values.get("best") is True)
    if not isinstance(terms, dict) or not all(
        isinstance(term, int | float) for term in terms.values()
    ):
        raise wrong_field(row, "terms", "the terms of a loss, as in a log of sentkit train")
    values = [(name, score_value(row, name)) for name in MEASURED if name in row.values]
    values += [(name, float(value)) for name, value in terms.items()]
    # The highest rate of the groups of parameters.
    rates = row.values.get("lr")
    if isinstance(rates, list) and rates:
        if not all(isinstance(rate, int | float) for rate in rates):
            raise wrong_field(row, "lr", "learning rates, as in a log of sentkit train")
        values.append(("lr", float(max(rates))))
    return LogEntry(step, values, tuple(terms))


@dataclass(slots=True)
class Log:
    """The values of a run by name, each with its step."""

    name: str
    values: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    terms: dict[str, None] = field(default_factory=dict)
    best_step: float | None = None  # the one whose weights the run saved
    metric: str = UNKNOWN_METRIC  # on --dev

    def add(self, entry: LogEntry) -> None:
        for name, value in entry.values:
            if value is None:
                value = np.nan
            self.values.setdefault(name, []).append((entry.step, value))
        self.terms |= dict.fromkeys(entry.terms)
        if entry.is_best:
            self.best_step = entry.step


def curve(inputs: Inputs, shown: Sequence[str], points: int) -> Picture:
    """One panel for each name of `shown`, with lines of at most `points`; without names, all but
    the norm of the gradient.
    """
    run_names = ["run"]
    if len(inputs.paths) > 1:
        run_names = titles([path.removesuffix(f"/{LOG}") for path in inputs.paths])
    logs = [
        read_log(inputs, path, run_name)
        for path, run_name in zip(inputs.paths, run_names, strict=True)
    ]

    # The values that have a panel.
    available = dict.fromkeys(name for log in logs for name in log.values)
    for name in shown:
        if name not in available:
            advice = f"available: {', '.join(available)}"
            raise DataError(f"no run has {name}", source=shown_path(inputs.paths[0]), advice=advice)
    if not shown:
        terms = dict.fromkeys(name for log in logs for name in log.terms)
        if len(terms) == 1:  # equal to the loss, which has its own panel
            terms = {}
        shown = [name for name in dict.fromkeys(["loss", *terms, "lr", "dev"]) if name in available]

    x_axis = Axis("step", "step", whole=True)
    panels = []
    for name in shown:
        lines = tuple(line_of(log, points, name) for log in logs if name in log.values)
        label = LABELS.get(name, f"{name}, a term of the loss")
        if name == "dev":
            label = label_of_dev(logs)
        panels.append(Panel(x_axis, Axis(name, label), lines))
    return Picture(tuple(panels), height=0.62, meaning_of_ring="kept")


def label_of_dev(logs: Sequence[Log]) -> str:
    """The label of the scores on --dev, with their metric if all runs have the same."""
    metrics = {log.metric for log in logs if "dev" in log.values}
    metric = UNKNOWN_METRIC
    if len(metrics) == 1:
        [metric] = metrics
    return f"{metric} x 100 on --dev"


def read_log(inputs: Inputs, path: str, run_name: str) -> Log:
    log = Log(run_name)
    for entry in inputs.read(log_entry, path):
        log.add(entry)
    # The record of the run knows better: with --set final=last, it is the last step.
    if Path(path).name == LOG:
        record_path = Path(path).parent / "sentkit.json"
        record = read_object_if_there(record_path)
        for name, expected in (("step", int), ("metric", str)):
            if name in record and type(record[name]) is not expected:
                problem = f'"{name}" is {json_type(record[name])}'
                raise DataError(problem, source=shown_path(str(record_path)))
        log.best_step = record.get("step", log.best_step)
        if record:  # it names a metric that is not Spearman's correlation
            log.metric = record.get("metric", "Spearman")
    if not log.values:
        raise DataError("no steps", source=shown_path(path))
    return log


def line_of(log: Log, points: int, name: str) -> Series:
    """The values by step; for scores on --dev, with a ring at the step whose weights the run saved.

    The line of a long run joins means of `points` groups of steps, except for scores on --dev.
    """
    steps_and_values = np.array(sorted(log.values[name]), np.float64)  # (n, 2)
    if name != "dev" and len(steps_and_values) > points:
        groups = np.array_split(steps_and_values, points)
        # Scaled, because the sum of large values can exceed float64.
        means = [(group / SCALE).mean(axis=0) * SCALE for group in groups]
        steps_and_values = np.array(means)
    steps = steps_and_values[:, 0]
    values = steps_and_values[:, 1]
    line = Series(log.name, steps, values, "line", term=name not in LABELS)
    if name != "dev":
        return line
    is_best = (steps == log.best_step) & np.isfinite(values)
    if not is_best.any():
        return line
    return replace(line, ringed=tuple(is_best.tolist()), fields={"kept": is_best.tolist()})
