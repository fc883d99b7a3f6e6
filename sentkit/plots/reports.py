"""Rows of numbers: the reports of `sentkit score` and the tables of the examples."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from sentkit.formats.rows.kinds import scored, wrong_field
from sentkit.formats.rows.rows import Inputs, Row
from sentkit.formats.vectors.fingerprint import emb_problem, label_of

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MISSING = (None, "", "-")  # values of a table that mean that there is none
LABELS = {"spearman": "Spearman x 100", "pearson": "Pearson x 100"}


@dataclass(frozen=True, slots=True)
class Value:
    """A number with its interval; NaN if it is undefined."""

    row: Row
    value: float
    low: float
    high: float


def read_rows(inputs: Inputs, take: Callable[[Row], V]) -> list[V]:
    return list(inputs.read(take))


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
    missing = name in row.values and row.values[name] in MISSING
    return value_with_interval(row, row.values, name, None if missing else scored(row, name))


def value_with_interval(row: Row, fields: Mapping[str, Any], name: str, value: float | None) -> Value:
    """A value with the interval that is in the same object."""
    if value is None:
        return Value(row, np.nan, np.nan, np.nan)
    interval = fields.get(f"{name}_ci95")
    if (
        isinstance(interval, list)
        and len(interval) == 2
        and all(isinstance(each, int | float) for each in interval)
    ):
        return Value(row, value, float(interval[0]), float(interval[1]))
    if fields.get(f"{name}_sd") in MISSING:
        return Value(row, value, np.nan, np.nan)
    deviation = scored(row, f"{name}_sd") or 0.0
    return Value(row, value, value - deviation, value + deviation)


def merged(values: Sequence[Value]) -> Value:
    """The mean of the scores of several runs, with their standard deviation (of a sample)."""
    if len(values) == 1:
        return values[0]
    numbers = np.array([each.value for each in values])
    mean, deviation = float(numbers.mean()), float(numbers.std(ddof=1))
    return Value(values[0].row, mean, mean - deviation, mean + deviation)


def means_of_sets(groups: Mapping[K, list[Value]], name: Callable[[K], str]) -> dict[K, Value]:
    """The mean of the scores on several data sets, without an interval; NaN if one score is undefined."""
    count = max(map(len, groups.values()))
    for key, own in groups.items():
        if len(own) < count:
            problem = f"{len(own)} reports of {name(key)}, but {count} of another encoder"
            raise own[-1].row.error(problem, advice="draw all of them with the same data sets")
    return {key: own[0] if count == 1 else mean_of(own) for key, own in groups.items()}


def mean_of(values: Sequence[Value]) -> Value:
    return Value(values[0].row, float(np.mean([each.value for each in values])), np.nan, np.nan)


def intervals(values: list[Value]) -> dict[str, Any]:
    """The columns `low` and `high` of a series; none if no value has an interval."""
    low, high = np.array([each.low for each in values]), np.array([each.high for each in values])
    return {"low": low, "high": high} if np.isfinite(low).any() else {}


def by_name(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each name, in the order of their first appearance."""
    groups: dict[K, list[V]] = {}
    for name, value in pairs:
        groups.setdefault(name, []).append(value)
    return groups
