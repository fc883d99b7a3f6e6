"""A classifier of frozen vectors as a file: its weights, its classes and the space of its vectors."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np
import orjson

from sentkit.arrays import Float32, Float64
from sentkit.errors import DataError
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.sinks import Answers
from sentkit.formats.vectors.tensors import put_arrays, read_array
from sentkit.formats.vectors.vectors import VectorBlock, VectorReader, joined, resized
from sentkit.transforms.steps import check_fitted, read_fit_note

KIND = "classifier"
ROWS = 1024  # rows that are classified at a time


def features_of(block: VectorBlock) -> Float32:
    """The vectors of sentences; (|u - v|, u * v) of pairs, as in SentEval (arXiv 1803.05449)."""
    if block.vectors.shape[1] == 1:
        return block.vectors[:, 0]
    left, right = block.vectors[:, 0], block.vectors[:, 1]
    with np.errstate(over="ignore"):
        return np.concatenate([abs(left - right), left * right], axis=1)


def refuse_without_features(block: VectorBlock) -> VectorBlock:
    """Mark triplets, and pairs whose products are not finite."""
    if block.vectors.shape[1] > 2:
        block.rows.refuse_all("this row is a triplet; probe reads sentences and pairs")
    for place in np.flatnonzero(~np.isfinite(features_of(block)).all(axis=1)).tolist():
        block.rows.refuse(place, "the vectors of this pair are too large to multiply")
    return block


@dataclass(frozen=True, slots=True)
class VectorClassifier:
    path: str
    classes: tuple[str, ...]
    weight: Float64  # (k, d), for the features of a row
    bias: Float64  # (k,)
    spec: Mapping[str, Any] = field(default_factory=dict)  # of the vectors, as far as it is known

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

    def outputs(self, inputs: Inputs) -> Iterator[tuple[VectorBlock, Float64]]:
        """Yield blocks of rows, and their outputs (n, k)."""
        reader = VectorReader(inputs)

        def check(block: VectorBlock) -> VectorBlock:
            try:
                if not reader.begun:
                    check_fitted(self.path, reader.emb)
            except DataError as error:  # of the first row, which is alone in its block
                block.rows.bad.setdefault(0, error)
            return self.checked(block)

        for block in resized(reader.blocks(check), joined, ROWS):
            yield block, self.outputs_of(block)

    def checked(self, block: VectorBlock) -> VectorBlock:
        width, wanted = features_of(refuse_without_features(block)).shape[1], self.weight.shape[1]
        if width != wanted:
            block.rows.refuse_all(f"the classifier takes {wanted} features, this row has {width}")
        return block

    def outputs_of(self, block: VectorBlock) -> Float64:
        return features_of(block).astype(np.float64) @ self.weight.T + self.bias


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
    weights = weight.astype(np.float64), bias.astype(np.float64)
    return VectorClassifier(path, tuple(classes), *weights, spec_of(note))


def spec_of(note: Mapping[str, Any]) -> dict[str, Any]:
    """The recorded source of the vectors, or what the label of their space says: model/readout/steps."""
    recorded = note.get("spec")
    if isinstance(recorded, dict):
        return recorded
    label, _, _ = (note.get("_emb") or "").rpartition(":")
    if ">" in label or "/" not in label:
        return {}
    model, readout, *steps = label.split("/")
    return {"model": model, "readout": readout, "steps": [f"/{step}:" for step in steps]}


def write_classifier(file: BinaryIO, found: VectorClassifier, record: dict[str, Any]) -> None:
    """Write a classifier; `record` describes the fit."""
    spec = {"spec": found.spec} if found.spec else {}
    note = {"kind": KIND, "classes": list(found.classes), **record, **spec}
    metadata = {"format": "np", "sentkit": orjson.dumps(note).decode()}
    put_arrays(file, {"weight": found.weight, "bias": found.bias}, metadata)
