"""Rows of numbers: the reports of `sentkit score` and the tables of the examples."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from sentkit.errors import DataError
from sentkit.formats.files import together
from sentkit.formats.rows.kinds import scored
from sentkit.formats.rows.rows import Inputs, Row

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

LABELS = {"spearman": "Spearman x 100", "pearson": "Pearson x 100"}


@dataclass(frozen=True, slots=True)
class Value:
    """A number with its interval; NaN if it is undefined."""

    row: Row
    value: float
    low: float
    high: float


def read_rows(inputs: Inputs, take: Callable[[Row], V]) -> list[V]:
    """All rows; no rows are an error."""
    rows = list(inputs.read(take))
    if not rows:
        raise DataError("no rows", source=together(inputs.paths))
    return rows


def value_of(row: Row, name: str) -> Value:
    """The value of a field, and its interval NAME_ci95 or deviation NAME_sd, if the row has them."""
    value = scored(row, name)
    low = high = np.nan
    interval = row.values.get(f"{name}_ci95")
    if (
        isinstance(interval, list)
        and len(interval) == 2
        and all(isinstance(each, int | float) for each in interval)
    ):
        low, high = map(float, interval)
    elif value is not None and f"{name}_sd" in row.values and row.values[f"{name}_sd"] != "-":
        deviation = scored(row, f"{name}_sd")
        if deviation is not None:
            low, high = value - deviation, value + deviation
    return Value(row, np.nan if value is None else value, low, high)


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
