"""Reports of `sentkit score` by layer and readout, logs of training runs, and tables of the examples."""

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from sentkit.digits import natural
from sentkit.errors import DataError, NoInputError
from sentkit.formats.files import read_object_if_there, readable, together
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.kinds import scored, wrong_field
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.fingerprint import emb_problem, label_of
from sentkit.plots.picture import Axis, Panel, Picture, Series

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MISSING = (None, "", "-")  # values of a table that mean that there is none
LABELS = {
    "loss": "loss",
    "spearman": "Spearman x 100",
    "pearson": "Pearson x 100",
    "lr": "learning rate",
    "norm": "norm of the gradient",
    "dev": "Spearman x 100 on --dev",
}
LAYER = re.compile(r"L(?P<layer>\d+):(?P<readout>.+)")
LOG = "steps.jsonl"  # the log of a run, in its folder
MEASURED = ("loss", "norm")  # fields of every step


@dataclass(frozen=True, slots=True)
class Value:
    """A number with its interval; NaN if they are undefined."""

    row: Row
    value: float
    interval: tuple[float, float] = (np.nan, np.nan)


def report_of(row: Row, name: str) -> tuple[str, Value] | None:
    """The encoder's label and the value in a report of `sentkit score`; None for an average of files."""
    if row.values.get("file") == "average":
        return None
    value, emb = value_of(row, name), row.values.get("encoder")
    if not isinstance(emb, str) or emb_problem(emb):
        raise wrong_field(row, "encoder", "the name of a space, as in a report of sentkit score")
    return label_of(emb), value


def value_of(row: Row, name: str) -> Value:
    """The value of a field, and its interval NAME_ci95 or deviation NAME_sd, if the row has them."""
    row.refuse_duplicates()
    missing = name in row.values and row.values[name] in MISSING
    value = None if missing else scored(row, name)
    if value is None:
        return Value(row, np.nan)
    bounds: Any = row.values.get(f"{name}_ci95")
    two = isinstance(bounds, list) and len(bounds) == 2
    if two and all(isinstance(each, int | float) for each in bounds):
        return Value(row, value, (float(bounds[0]), float(bounds[1])))
    if row.values.get(f"{name}_sd") in MISSING:
        return Value(row, value)
    deviation = scored(row, f"{name}_sd") or 0.0
    return Value(row, value, (value - deviation, value + deviation))


def means_of_sets(groups: Mapping[K, list[Value]], name: Callable[[K], str]) -> dict[K, Value]:
    """The mean of the scores on several data sets, without an interval; NaN if one score is undefined."""
    count = max(map(len, groups.values()))
    for key, own in groups.items():
        if len(own) < count:
            problem = f"{len(own)} reports of {name(key)}, but {count} of another encoder"
            raise own[-1].row.error(problem, advice="draw all of them with the same data sets")
    if count == 1:
        return {key: own[0] for key, own in groups.items()}
    means = ((key, own[0].row, np.mean([each.value for each in own])) for key, own in groups.items())
    return {key: Value(row, float(mean)) for key, row, mean in means}


def series_of(name: str, values: Mapping[float, Value], form: Literal["line", "bars"] = "line") -> Series:
    """Values by x, with their intervals if a value has one."""
    x, y = np.array([*values], np.float64), np.array([each.value for each in values.values()])
    interval = np.array([each.interval for each in values.values()]).T
    return Series(name, x, y, form, interval if np.isfinite(interval).any() else None)


def by_name(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each name, in the order of their first appearance."""
    groups: dict[K, list[V]] = {}
    for name, value in pairs:
        groups.setdefault(name, []).append(value)
    return groups


def titles(paths: Sequence[str]) -> list[str]:
    """The title of each file: its name without suffix, or its path if two names are equal; none for one."""
    if len(paths) < 2:
        return [""] * len(paths)
    names = [Path(path).stem for path in paths]
    return [
        readable(name if names.count(name) == 1 else path) for name, path in zip(names, paths, strict=True)
    ]


def sweep(inputs: Inputs, name: str) -> Picture:
    """Figure 1 of SG-BERT: one panel per model, one line per readout; a report without a layer is a level."""
    models = by_name(filter(None, inputs.read(lambda row: score_of(row, name))))
    layered = {readout for scores in models.values() for (readout, layer), _ in scores if layer is not None}
    if not layered:
        advice = "sentkit encode --readout 'L*:cls,L*:mean' makes one file for each layer"
        raise DataError("no report has one layer", source=together(inputs.paths), advice=advice)
    panels = []
    for model, scores in models.items():
        series, groups = [], by_name(scores)  # several reports of a group are those of several data sets

        def called(key: tuple[str, int | None], model: str = model) -> str:
            return f"{model}/{key[0] if key[1] is None else f'L{key[1]}:{key[0]}'}"

        means = means_of_sets(groups, called)
        for readout in dict.fromkeys(readout for readout, _ in groups):
            layers = {at: value for (each, at), value in means.items() if each == readout and at is not None}
            if layers:
                series.append(series_of(readout, {at: layers[at] for at in sorted(layers)}))
            if (readout, None) in means:
                level = means[readout, None].value
                title = f"{readout} (last layer)" if readout in layered else readout
                series.append(Series(title, np.zeros(1), np.array([level]), "level"))
        axes = Axis("layer", "layer", whole=True), Axis(name, LABELS.get(name, name))
        panels.append(Panel(*axes, tuple(series), title=model if len(models) > 1 else ""))
    return Picture(tuple(panels))


def score_of(row: Row, name: str) -> tuple[str, tuple[tuple[str, int | None], Value]] | None:
    """The model, and the readout and layer with their value."""
    found = report_of(row, name)
    if found is None:
        return None
    model, _, readout = found[0].partition("/")
    match = LAYER.fullmatch(readout)
    key = (match["readout"], int(match["layer"])) if match else (readout or model, None)
    return model, (key, found[1])


def logs_of(path: str) -> list[str]:
    """The log in a folder of sentkit train, or those of its seeds; other paths are files."""
    for folder in (Path(path), Path(f"{path.rstrip('/')}.part")):
        if (folder / LOG).is_file():
            return [str(folder / LOG)]
        if found := sorted(folder.glob(f"seed-*/{LOG}"), key=lambda log: natural(log.parent.stem)):
            return list(map(str, found))
    if Path(path).is_dir():
        raise NoInputError(f"{readable(path)}: no {LOG}", advice="give a folder of sentkit train")
    return [path]


@dataclass(slots=True)
class Log:
    """The values of a run by name, each with its step."""

    name: str
    values: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    terms: dict[str, None] = field(default_factory=dict)
    kept: float | None = None  # the step whose weights are kept

    def add(self, row: Row) -> None:
        row.refuse_duplicates()
        step = scored(row, "step") or 0.0
        terms, rates = row.values.get("terms"), row.values.get("lr")
        if terms is None and "dev" in row.values:
            self.put("dev", step, scored(row, "dev"))
            self.kept = step if row.values.get("best") is True else self.kept
            return
        if not isinstance(terms, dict) or not all(isinstance(each, int | float) for each in terms.values()):
            raise wrong_field(row, "terms", "the terms of a loss, as in a log of sentkit train")
        for name in MEASURED:
            if name in row.values:
                self.put(name, step, scored(row, name))
        for name, value in terms.items():
            self.terms[name] = None
            self.put(name, step, float(value))
        if isinstance(rates, list) and rates and isinstance(rates[-1], int | float):
            self.put("lr", step, float(max(rates)))

    def put(self, name: str, step: float, value: float | None) -> None:
        """Add a value; null is an undefined value."""
        self.values.setdefault(name, []).append((step, np.nan if value is None else value))


def curve(inputs: Inputs, shown: Sequence[str], points: int) -> Picture:
    """One panel for each name of `shown`; without names, all but the norm of the gradient."""
    names = titles([path.removesuffix(f"/{LOG}") for path in inputs.paths])
    names = names if len(names) > 1 else ["run"]
    logs = [Log(name) for name in names]
    for path, log in zip(inputs.paths, logs, strict=True):
        for _ in inputs.read(log.add, path):
            pass
        if Path(path).name == LOG:  # with --set final=last, it is not the best step
            log.kept = read_object_if_there(Path(path).parent / "sentkit.json").get("step", log.kept)
        if not log.values:
            raise DataError("no steps", source=readable(path))
    available = dict.fromkeys(name for log in logs for name in log.values)
    for name in shown:
        if name not in available:
            source, advice = readable(inputs.paths[0]), f"available: {', '.join(available)}"
            raise DataError(f"no run has {name}", source=source, advice=advice)
    if not shown:
        terms = dict.fromkeys(name for log in logs for name in log.terms)
        every = dict.fromkeys(["loss", *(terms if len(terms) > 1 else ()), "lr", "dev"])
        shown = [name for name in every if name in available]
    panels = []
    for name in shown:
        lines = tuple(line_of(log, points, name) for log in logs if name in log.values)
        label = LABELS.get(name, f"{name}, a term of the loss")
        panels.append(Panel(Axis("step", "step", whole=True), Axis(name, label), lines))
    return Picture(tuple(panels), height=0.62, ring="kept")


def line_of(log: Log, points: int, name: str) -> Series:
    """The values by step, the kept step marked; of a long run, means of steps, except for scores on --dev."""
    array = np.array(sorted(log.values[name]), np.float64)  # (n, 2)
    kept = (array[:, 0] == log.kept) & np.isfinite(array[:, 1]) & (name == "dev")
    if name != "dev" and len(array) > points:
        array = np.array([part.mean(axis=0) for part in np.array_split(array, points)])
    line = Series(log.name, array[:, 0], array[:, 1], "line", term=name not in LABELS)
    if not kept.any():
        return line
    return replace(line, ringed=tuple(kept.tolist()), fields={"kept": kept.tolist()})
