"""The outputs of a classifier as new fields of its rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import orjson

from sentkit.arrays import Float64, Floats
from sentkit.digits import significant
from sentkit.formats.rows.block import NewFields
from sentkit.formats.rows.kinds import Label


@dataclass(frozen=True, slots=True)
class Answers:
    """The meaning of the outputs of a classifier."""

    classes: tuple[str, ...]  # empty: the output is one score
    function: str  # of the outputs: sigmoid, identity, softmax or tanh
    labels: Sequence[Label] = ()  # of the classes, in place of their names

    def fields(
        self,
        outputs: Floats,
        name: str | None,
        *,
        every: bool,
        threshold: float = 0.0,
        label_below: str = "",
    ) -> list[NewFields]:
        """The new fields of each row, from the outputs (n, k). With `every`, all probabilities.

        A row gets the label `label_below` if all classes are less probable than `threshold`.
        """
        values = self.values(outputs.astype(np.float64))
        if not self.classes:
            name_of_score = (name or "score").encode()
            return [[(name_of_score, json_number(score))] for score in values[:, 0].tolist()]
        name_of_label = (name or "label").encode()
        names = list(map(orjson.dumps, self.classes))
        labels = list(map(orjson.dumps, self.labels or self.classes))
        label_of_class = dict(zip(self.classes, labels, strict=True))
        json_below = label_of_class.get(label_below, orjson.dumps(label_below))
        fields = list[NewFields]()
        for best, row in zip(values.argmax(1).tolist(), values.tolist(), strict=True):
            label = labels[best] if row[best] >= threshold else json_below
            if every:
                pairs = zip(names, map(json_number, row), strict=True)
                members = b",".join(b"%b:%b" % pair for pair in pairs)
                fields.append([(name_of_label, label), (b"probabilities", b"{%b}" % members)])
            else:
                fields.append([(name_of_label, label), (b"probability", json_number(row[best]))])
        return fields

    def values(self, outputs: Float64) -> Float64:
        """The probability of each class, or the score; NaN for outputs that are not finite."""
        if self.function == "sigmoid":
            return 1 / (1 + np.exp(-outputs))
        if self.function == "tanh":
            return np.tanh(outputs)
        if self.function == "softmax":
            powers = np.exp(outputs - outputs.max(1, keepdims=True))
            return powers / powers.sum(1, keepdims=True)
        return outputs


def json_number(value: float) -> bytes:
    return repr(significant(value)).encode()
