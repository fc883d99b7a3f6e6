"""The log of training runs: one panel each for the loss, its terms, the learning rate and the dev score."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from sentkit.digits import natural
from sentkit.errors import DataError, NoInputError
from sentkit.formats.files import read_object_if_there, readable
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.kinds import scored, wrong_field
from sentkit.formats.rows.rows import Inputs
from sentkit.plots.picture import Axis, Panel, Picture, Series
from sentkit.plots.reports import titles

LABELS = {"lr": "learning rate", "norm": "norm of the gradient", "dev": "Spearman x 100 on --dev"}
LOG = "steps.jsonl"  # the log of a run, in its folder
MEASURED = ("loss", "norm")  # fields of every step
Points = list[tuple[float, float]]  # step and value


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
    """The values of a run by name."""

    name: str
    values: dict[str, Points] = field(default_factory=dict)
    terms: dict[str, None] = field(default_factory=dict)
    kept: float | None = None  # the step whose weights are kept

    def add(self, row: Row) -> None:
        row.refuse_duplicates()
        step = scored(row, "step")
        if step is None:
            raise wrong_field(row, "step", "a number")
        terms, rates = row.values.get("terms"), row.values.get("lr")
        if terms is None and "dev" in row.values:
            self.put("dev", step, scored(row, "dev"))
            self.kept = step if row.values.get("best") is True else self.kept
            return
        if not isinstance(terms, dict):
            raise wrong_field(row, "terms", "the terms of a loss, as in a log of sentkit train")
        for name in MEASURED:
            if name in row.values:
                self.put(name, step, scored(row, name))
        for name, value in terms.items():
            if not isinstance(value, int | float):
                raise row.error(f'the term "{name}" is not a number')
            self.terms[name] = None
            self.put(name, step, float(value))
        if isinstance(rates, list) and rates and isinstance(rates[-1], int | float):
            self.put("lr", step, float(max(rates)))

    def put(self, name: str, step: float, value: float | None) -> None:
        """Add a value; null is an undefined value."""
        self.values.setdefault(name, []).append((step, np.nan if value is None else value))


def curve(inputs: Inputs, shown: Sequence[str], points: int) -> Picture:
    """`shown` are the names of the panels; if there are none, all but the norm of the gradient."""
    names = titles([path.removesuffix(f"/{LOG}") for path in inputs.paths])
    names = names if len(names) > 1 else ["run"]
    logs = [Log(name) for name in names]
    for path, log in zip(inputs.paths, logs, strict=True):
        for _ in inputs.read_file(path, log.add):
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
    panels = [panel_of(name, logs, points) for name in shown or default_panels(logs)]
    return Picture(tuple(panels), height=0.62)


def default_panels(logs: Sequence[Log]) -> list[str]:
    """The loss, its terms if there are several, the learning rate and the dev score."""
    terms = dict.fromkeys(name for log in logs for name in log.terms)
    names = ["loss", *(terms if len(terms) > 1 else ()), "lr", "dev"]
    return [name for name in dict.fromkeys(names) if any(name in log.values for log in logs)]


def panel_of(name: str, logs: Sequence[Log], points: int) -> Panel:
    series = [line_of(log, points, name) for log in logs if name in log.values]
    y = Axis(name, LABELS.get(name, name if name == "loss" else f"loss: {name}"))
    return Panel(Axis("step", "step", whole=True), y, tuple(series), title="")


def line_of(log: Log, points: int, name: str) -> Series:
    """The values by step; of a long run, means of consecutive steps. Scores on --dev are never averaged.

    The score of the kept step is marked.
    """
    array = np.array(sorted(log.values[name]), np.float64)  # (n, 2)
    kept = (array[:, 0] == log.kept) & np.isfinite(array[:, 1]) & (name == "dev")
    if name != "dev" and len(array) > points:
        array = np.array([part.mean(axis=0) for part in np.array_split(array, points)])
    series = Series(log.name, array[:, 0], array[:, 1], "line")
    if not kept.any():
        return series
    return replace(series, marks=tuple(np.where(kept, "kept", "")), fields={"kept": kept.tolist()})
