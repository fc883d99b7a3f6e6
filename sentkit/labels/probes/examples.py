"""Rows with vectors and a class -> features and codes for a classifier."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sentkit.arrays import Float32, Indices
from sentkit.digits import natural
from sentkit.errors import DataError, NoRowsError
from sentkit.formats.rows.kinds import class_of
from sentkit.formats.vectors.vectors import VectorReader, VectorRow

CLASSES_SHOWN = 8  # unknown classes in a message


@dataclass(frozen=True, slots=True)
class Examples:
    """The rows of one file."""

    path: str
    features: Float32  # (n, d), or (n, 2 d) for pairs
    names: tuple[str, ...]  # the class of each row

    def __len__(self) -> int:
        return len(self.names)


def read_examples(reader: VectorReader, path: str, label: str) -> Examples:
    """Read all rows of a file; all files of one reader must have one space and one shape."""

    def take(row: VectorRow) -> tuple[Float32, str]:
        return features_of(row), class_of(row.row, label)

    rows = list(reader.read_file(path, take))
    if not rows:
        raise NoRowsError([path])
    features, names = zip(*rows, strict=True)
    return Examples(path, np.stack(features), names)


def features_of(row: VectorRow) -> Float32:
    """The vector of a sentence; (|u - v|, u * v) for a pair, as in SentEval (arXiv 1803.05449)."""
    if len(row.vectors) == 1:
        return row.vectors[0]
    if len(row.vectors) > 2:
        raise row.row.error("this row is a triplet; probe reads sentences and pairs")
    left, right = row.vectors
    with np.errstate(over="ignore"):
        features = np.concatenate([abs(left - right), left * right])
    if not np.isfinite(features).all():
        raise row.row.error("the vectors of this pair are too large to multiply")
    return features


def classes_of(examples: Examples, label: str) -> dict[str, int]:
    """The classes in alphabetical order with their numbers of rows; refuse a single class."""
    names, counts = np.unique(np.array(examples.names, dtype=object), return_counts=True)
    if len(names) < 2:
        raise DataError(
            f'"{label}" is "{names[0]}" in all {len(examples)} rows, expected 2 classes or more',
            source=examples.path,
        )
    return dict(zip(names.tolist(), counts.tolist(), strict=True))


def codes_of(examples: Examples, classes: Sequence[str], label: str) -> Indices:
    """The index of each row's class; raises DataError for a class that the training rows do not contain."""
    places = {name: place for place, name in enumerate(classes)}
    unknown = sorted(set(examples.names) - places.keys(), key=natural)
    if unknown:
        names = ", ".join(f'"{name}"' for name in unknown[:CLASSES_SHOWN])
        more = f" and {len(unknown) - CLASSES_SHOWN} more" if len(unknown) > CLASSES_SHOWN else ""
        raise DataError(f'"{label}": TRAIN does not contain the classes {names}{more}', source=examples.path)
    return np.array([places[name] for name in examples.names], dtype=np.intp)


def check_members(counts: Mapping[str, int], least: int, why: str, path: str) -> None:
    """Refuse a class with fewer than `least` rows."""
    name = min(counts, key=lambda name: counts[name])
    if counts[name] < least:
        raise DataError(f'class "{name}" has {counts[name]} rows, fewer than {why}', source=path)


def check_nested(counts: Mapping[str, int], folds: int, path: str) -> None:
    """Refuse rows that are too few for nested folds: a fold may remove two rows of each class."""
    if max(counts.values()) < folds + 2:
        raise DataError(
            f"--folds {folds}: no class has {folds + 2} rows or more",
            source=path,
            advice="use fewer folds",
        )
