"""The outputs of a classifier -> the class of a row and its probability, or a score, as new fields."""

from dataclasses import dataclass

import numpy as np
import orjson

from sentkit.arrays import Float64, Floats
from sentkit.digits import significant
from sentkit.formats.rows.splice import NewFields


@dataclass(frozen=True, slots=True)
class Answers:
    """The meaning of the outputs of a classifier."""

    classes: tuple[str, ...]  # empty: the output is one score
    function: str  # of the outputs: sigmoid, identity, softmax or tanh

    def fields(self, outputs: Floats, name: str | None, *, every: bool) -> list[NewFields]:
        """The new fields of each row, from the outputs (n, k)."""
        values = self.values(outputs.astype(np.float64))
        if not self.classes:
            key = (name or "score").encode()
            return [[(key, number(value))] for value in values[:, 0].tolist()]
        key, labels = (name or "label").encode(), [orjson.dumps(each) for each in self.classes]
        best = values.argmax(1).tolist()
        if not every:
            return [
                [(key, labels[place]), (b"probability", number(row[place]))]
                for place, row in zip(best, values.tolist(), strict=True)
            ]
        return [
            [(key, labels[place]), (b"probabilities", b"{%b}" % b",".join(map(member, labels, row)))]
            for place, row in zip(best, values.tolist(), strict=True)
        ]

    def values(self, outputs: Float64) -> Float64:
        """The probability of each class, or the score; NaN for outputs that are not finite."""
        if self.function == "sigmoid":
            return 1 / (1 + np.exp(-outputs))
        if self.function != "softmax":
            return np.tanh(outputs) if self.function == "tanh" else outputs
        powers = np.exp(outputs - outputs.max(1, keepdims=True))
        return powers / powers.sum(1, keepdims=True)


def number(value: float) -> bytes:
    return repr(significant(value)).encode()


def member(label: bytes, value: float) -> bytes:
    return label + b":" + number(value)
