"""What pictures read: reports of `sentkit score`, tables of the examples, samples of rows, and titles."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from sentkit.formats.files import readable
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.kinds import scored, wrong_field
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
        return Value(row, np.nan, np.nan, np.nan)
    bounds = row.values.get(f"{name}_ci95")
    if (
        isinstance(bounds, list)
        and len(bounds) == 2
        and all(isinstance(each, int | float) for each in bounds)
    ):
        return Value(row, value, float(bounds[0]), float(bounds[1]))
    if row.values.get(f"{name}_sd") in MISSING:
        return Value(row, value, np.nan, np.nan)
    deviation = scored(row, f"{name}_sd") or 0.0
    return Value(row, value, value - deviation, value + deviation)


def means_of_sets(groups: Mapping[K, list[Value]], name: Callable[[K], str]) -> dict[K, Value]:
    """The mean of the scores on several data sets, without an interval; NaN if one score is undefined."""
    count = max(map(len, groups.values()))
    for key, own in groups.items():
        if len(own) < count:
            problem = f"{len(own)} reports of {name(key)}, but {count} of another encoder"
            raise own[-1].row.error(problem, advice="draw all of them with the same data sets")
    if count == 1:
        return {key: own[0] for key, own in groups.items()}
    means = {key: float(np.mean([each.value for each in own])) for key, own in groups.items()}
    return {key: Value(own[0].row, means[key], np.nan, np.nan) for key, own in groups.items()}


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


T = TypeVar("T")


class Sample(Generic[T]):
    """A uniform random sample of at most `most` items of a stream (algorithm R), in their order."""

    def __init__(self, most: int, seed: int) -> None:
        self.most, self.seen = most, 0
        self.random = np.random.Generator(np.random.Philox(seed))
        self._kept: list[tuple[int, T]] = []

    def add(self, item: T) -> None:
        self.seen += 1
        if self.seen <= self.most:
            self._kept.append((self.seen, item))
        elif (place := int(self.random.integers(0, self.seen))) < self.most:
            self._kept[place] = self.seen, item

    @property
    def items(self) -> list[T]:
        return [item for _, item in sorted(self._kept, key=lambda kept: kept[0])]


def titles(paths: Sequence[str]) -> list[str]:
    """The title of each file: its name without suffix, or its path if two names are equal; none for one."""
    if len(paths) < 2:
        return [""] * len(paths)
    names = [Path(path).stem for path in paths]
    return [
        readable(name if names.count(name) == 1 else path) for name, path in zip(names, paths, strict=True)
    ]
