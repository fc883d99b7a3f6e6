"""A classifier of frozen vectors as a file: its weights, its classes and the space of its vectors."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import orjson

from sentkit.arrays import Float32, Float64
from sentkit.errors import DataError
from sentkit.formats.rows.answers import Answers
from sentkit.formats.rows.rows import Inputs, blocks
from sentkit.formats.vectors.safetensors_header import put_arrays, read_array
from sentkit.formats.vectors.vectors import VectorReader, VectorRow
from sentkit.transforms.steps import check_fitted, read_fit_note

KIND = "classifier"
ROWS = 1024  # rows that are classified at a time


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


@dataclass(frozen=True, slots=True)
class VectorClassifier:
    path: str
    classes: tuple[str, ...]
    weight: Float64  # (k, d), for the features of a row
    bias: Float64  # (k,)

    def __post_init__(self) -> None:
        weight, bias = self.weight, self.bias
        if (
            weight.ndim != 2
            or 0 in weight.shape
            or not (np.isfinite(weight).all() and np.isfinite(bias).all())
        ):
            raise DataError("the weights have a wrong shape, or NaN or infinity", source=self.path)

    @property
    def answers(self) -> Answers:
        return Answers(self.classes, "softmax")

    def outputs(self, inputs: Inputs) -> Iterator[tuple[list[VectorRow], Float64]]:
        """Yield groups of rows, and their outputs (n, k)."""
        reader = VectorReader(inputs)

        def take(row: VectorRow) -> tuple[VectorRow, np.ndarray]:
            if reader.emb != checked.get("emb", ...):
                check_fitted(self.path, reader.emb)
                checked["emb"] = reader.emb
            features = features_of(row)
            if len(features) != self.weight.shape[1]:
                problem = (
                    f"the classifier takes {self.weight.shape[1]} features, this row has {len(features)}"
                )
                raise row.row.error(problem)
            return row, features

        checked: dict[str, Any] = {}
        for block in blocks(reader.read(take), ROWS):
            rows, features = zip(*block, strict=True)
            yield list(rows), np.stack(features).astype(np.float64) @ self.weight.T + self.bias


def read_classifier(path: str) -> VectorClassifier:
    """Read a file of `sentkit probe -o`; raise a DataError for other files."""
    note = read_fit_note(path)
    if note.get("kind") != KIND:
        raise DataError(
            "not a classifier", source=path, advice="make one with sentkit probe -o FILE.safetensors"
        )
    classes: Any = note.get("classes")
    weight, bias = read_array(path, "weight"), read_array(path, "bias")
    named = isinstance(classes, list) and all(isinstance(name, str) for name in classes)
    agree = named and len({*classes}) == len(classes) and weight.shape[:1] == bias.shape == (len(classes),)
    if not agree:
        raise DataError("the classes and the weights do not match", source=path)
    return VectorClassifier(path, tuple(classes), weight.astype(np.float64), bias.astype(np.float64))


def write_classifier(file: BinaryIO, found: VectorClassifier, record: dict[str, Any]) -> None:
    """Write a classifier; `record` describes the fit."""
    note = {"kind": KIND, "classes": list(found.classes), **record}
    metadata = {"format": "np", "sentkit": orjson.dumps(note).decode()}
    put_arrays(file, {"weight": found.weight, "bias": found.bias}, metadata)
