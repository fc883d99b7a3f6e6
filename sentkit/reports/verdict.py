"""The verdict about vectors from elsewhere: they are those of a model, or the causes why not.

Causes that the vectors alone show come first: the format of the numbers, missing vectors, another
order of the rows, a factor of the lengths. Then the model is changed (`model/causes`). What nothing
explains is the work of other weights, of another model, or has no name.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sentkit.digits import significant
from sentkit.formats.checkpoints.folders import is_endpoint
from sentkit.metrics.comparison.differences import (
    OVERFLOW,
    Difference,
    common_factor,
    find_row_order,
    order_of_rows,
)
from sentkit.metrics.comparison.matches import Matches, SidesOfModel
from sentkit.model.causes.compared import EQUAL, SAME_FACTOR, Result, compare
from sentkit.model.causes.search import Explanation, explain
from sentkit.model.checkpoint_model import CheckpointModel
from sentkit.reports.other_weights import another_model, other_weights

OTHER_WEIGHTS = "other weights: another revision, an adapter, or fewer bits"
ANOTHER_MODEL = "another model of the same width"
MISSING = "vectors that are zero or not finite"


@dataclass(frozen=True, slots=True)
class Cause:
    name: str
    explained: int  # texts, of
    differing: int
    share: float = 1.0  # of the difference that it removes
    same: Sequence[str] = ()  # other causes that give the same vectors

    def record(self) -> dict[str, Any]:
        return {
            "cause": self.name,
            "texts": self.explained,
            "of": self.differing,
            "share": self.share,
            "same_vectors": list(self.same),
        }


@dataclass(slots=True)
class Verdict:
    file: str
    model: str
    width: int  # of the vectors of the model
    causes: list[Cause] = field(default_factory=list)
    equal: bool = False  # the vectors are those of the model, apart from the causes
    largest_distance: float | None = None  # the largest distance, if they are
    rounding: float | None = None  # of bf16, if the distance is as large
    factor: float | None = None  # of the lengths, A by the model
    example: str = ""  # of another order
    best: Result | None = None
    declared: Result | None = None
    texts: int = 0  # that were encoded with changes
    results: Sequence[Result] = ()
    kind_of_model: str = ""  # of a model that cannot be changed
    same_directions: bool = False
    vectors: int = 0  # of the file, that were compared
    repeated: int = 0  # of these, those that are equal to that of another row
    repeated_by_model: int = 0  # the same of the model
    as_declared: int = 0  # vectors that are those of the model, if these are at least half of all
    different_row: int = 0  # of the other vectors, the row that differs most
    # distances that rounding in bf16 causes, if it was measured
    largest_noise: float = 0.0
    mean_noise: float = 0.0
    compared: int = 0  # texts, those of `refused` not among them
    refused: int = 0

    @property
    def is_mostly_repeated(self) -> bool:
        """Whether most vectors of a side are equal to one of another row. The few different ones
        also rank the texts alike, if a program gave texts of a batch the vector of its first text.
        """
        return max(self.repeated, self.repeated_by_model) > self.vectors / 2

    @property
    def is_guess(self) -> bool:
        """Whether no setting explains the vectors, and the causes only say what they look like."""
        return bool(self.causes) and self.causes[0].name in (OTHER_WEIGHTS, ANOTHER_MODEL)

    @property
    def explained(self) -> bool:
        has_cause = bool(self.causes) and not self.is_guess
        return self.equal or self.factor is not None or has_cause

    def record(self) -> dict[str, Any]:
        is_equal = self.equal and not self.causes and self.factor is None
        record: dict[str, Any] = {"equal": is_equal}
        if self.largest_distance is not None:
            record["within"] = self.largest_distance
        if self.rounding is not None:
            record["rounding_in_bf16"] = self.rounding
        if not is_equal:
            record["explained"] = self.explained
        record["text"] = self.text()
        if is_equal:
            return record
        if self.factor is not None:
            record["factor"] = self.factor
        record["changes"] = [cause.name for cause in self.causes]
        record["causes"] = [cause.record() for cause in self.causes]
        if self.texts:
            record["texts"] = self.texts
            record["variants"] = [result.record() for result in self.results]
        return record

    def text(self) -> str:
        """One sentence."""
        text = self.text_of_compared()
        if self.refused:
            text += f"; {self.refused} of {self.compared + self.refused} texts were refused"
        return text

    def text_of_compared(self) -> str:
        if self.causes:
            return self.text_of_causes()
        if self.equal:
            return self.text_of_equal()
        if self.as_declared:
            return self.text_of_other_rows()
        if self.same_directions:
            return (
                f"{self.file} has the directions of {self.model} as declared, but other lengths, "
                f"which nothing explains"
            )
        repeats = ""
        if self.is_mostly_repeated and self.repeated > self.repeated_by_model:
            repeats = (
                f"; {self.repeated:,} of {self.vectors:,} vectors are equal to that of another "
                f"row, of the model {self.repeated_by_model:,}"
            )
        if self.kind_of_model:
            text = f"no cause is known for the difference from {self.model}, {self.kind_of_model}"
            return text + repeats
        declared = f"its vectors have {self.width} numbers"
        if self.declared is not None:
            declared = measured(self.declared)
        return f"nothing explains the difference ({declared}){repeats}"

    def text_of_equal(self) -> str:
        if self.factor is not None:
            return (
                f"{self.file} has the directions of {self.model} as declared"
                f"{with_factor(self.factor)}"
            )
        text = f"{self.file} has the vectors that {self.model} gives as declared"
        if self.largest_distance is not None and self.largest_distance > EQUAL:
            text += f", within {self.largest_distance:.1e}"
        if self.rounding is not None:
            text += f", as by rounding in bf16 ({self.rounding:.1e} with this model)"
        return text

    def text_of_other_rows(self) -> str:
        text = (
            f"{self.as_declared:,} of {self.vectors:,} vectors of {self.file} are those that "
            f"{self.model} gives as declared; nothing explains "
        )
        if self.vectors - self.as_declared == 1:
            return text + f"row {self.different_row}"
        return text + f"the others, of which row {self.different_row} differs most"

    def text_of_causes(self) -> str:
        names = [cause.name for cause in self.causes]
        text = f"{self.file} has the vectors of {self.model} with {' and '.join(names)}"
        if self.is_guess:
            text = f"no setting explains {self.file}; it looks like {names[0]}"
        if self.example:
            text += f": {self.example}"
        if self.factor is not None:
            text += with_factor(self.factor)
        for cause in self.causes:
            if cause.same:
                text += f"; {' or '.join(cause.same)} gives the same vectors"
        last = self.causes[-1]
        if last.explained < last.differing:
            text += f"; tried with {last.explained} of {last.differing} texts that differ"
        if self.best is not None:
            declared = f"width {self.width}"
            if self.declared is not None:
                declared = measured(self.declared)
            text += f" ({measured(self.best)}; as declared: {declared})"
        return text


def with_factor(factor: float) -> str:
    return f"; the length differs by the factor {significant(factor)}"


def measured(result: Result) -> str:
    return (
        f"mean cosine {significant(float(result.cosines.mean()))}, mean norm ratio "
        f"{significant(float(result.ratios.mean()))}"
    )


def is_same_length(factor: float) -> bool:
    return abs(math.log(factor)) <= SAME_FACTOR


def judge(difference: Difference, sides: SidesOfModel, model: Any, *, refused: int = 0) -> Verdict:
    """The verdict about the vectors of A. `model` gave those of B, and A refused some texts."""
    file = sides.paths[0]
    if file == "-":
        file = "standard input"
    width = difference.record["b"]["width"]
    verdict = Verdict(file, model.name, width, compared=sides.compared, refused=refused)

    # Causes that the vectors alone show.
    if sides.number_format is not None:
        count = difference.rows
        verdict.causes.append(Cause(sides.number_format, count, count))
    if sides.missing:
        rows = ", ".join(map(str, sides.missing[:3]))
        name = f"{MISSING} in {len(sides.missing)} of {sides.compared} rows"
        verdict.causes.append(Cause(name, len(sides.missing), len(sides.missing)))
        verdict.example = f"{OVERFLOW}; the first rows are {rows}"
    if is_as_declared(verdict, difference):
        return verdict
    order = find_row_order(difference.sample, difference.rows)
    examples = difference.examples
    if order is not None:
        moved = difference.rows
        verdict.causes.append(Cause(order.name, moved, moved))
        verdict.example = order.example
        assert order.aligned is not None, "find_row_order aligns the rows"
        examples = order.aligned[: len(examples)]
        if has_factor(verdict, examples):
            return verdict

    # Changes of the model, and at last other weights.
    if isinstance(model, CheckpointModel):
        explain_by_changes(verdict, examples, model, sides.record)
    else:
        verdict.kind_of_model = "a static model"
        if is_endpoint(model.name):
            verdict.kind_of_model = "a model behind an API"
    verdict.vectors = difference.rows
    verdict.repeated = difference.repeated_a
    verdict.repeated_by_model = difference.repeated_b
    if verdict.explained:
        return verdict
    equal_count = vectors_of_model(difference, verdict)
    if 2 * equal_count >= difference.rows:
        verdict.as_declared = equal_count
        verdict.different_row = most_different_row(difference.examples)
    elif not verdict.same_directions:
        explain_by_weights(verdict, difference.examples)
    return verdict


def vectors_of_model(difference: Difference, verdict: Verdict) -> int:
    """The number of vectors of A that are those of the model, except for rounding; 0 if these
    differ more than by rounding.
    """
    if difference.cosines is None or difference.ratios is None:  # the widths differ
        return 0
    ratios = difference.ratios
    distances = (ratios + 1 / ratios) / 2 - difference.cosines  # as `compare` has them
    is_close = distances <= max(EQUAL, 3 * verdict.largest_noise)
    if not is_close.any() or distances[is_close].mean() > max(EQUAL, 2 * verdict.mean_noise):
        return 0
    return int(is_close.sum())


def most_different_row(examples: Matches) -> int:
    distances = compare((), examples.a, examples.b).distances
    row: int = examples.labels[distances.argmax()]["row"]
    return row


def is_as_declared(verdict: Verdict, difference: Difference) -> bool:
    """Whether the directions are those of the model, and all lengths differ by one factor."""
    cosine = difference.record.get("cosine")
    if cosine is None or 1 - cosine["lowest"] > EQUAL:
        return False
    ratios = difference.record["norm_ratio"]  # of the model by A
    within = 1 - cosine["lowest"]
    lowest = 1 / ratios["highest"]
    highest = 1 / ratios["lowest"]
    if is_same_length(lowest) and is_same_length(highest):
        verdict.equal = True
        verdict.largest_distance = max(0.0, within)
        return True
    factor = common_factor(lowest, highest)
    if factor is not None and difference.rows > 1:
        verdict.equal = True
        verdict.factor = factor
        return True
    verdict.same_directions = True
    return False


def has_factor(verdict: Verdict, aligned: Matches) -> bool:
    """Whether the vectors of rows in another order are those of the model, but for one factor."""
    lengths_of_a = np.linalg.norm(aligned.a, axis=1)
    lengths_of_b = np.maximum(np.linalg.norm(aligned.b, axis=1), 1e-12)
    ratios = lengths_of_a / lengths_of_b
    factor = common_factor(float(ratios.min()), float(ratios.max()))
    if factor is None:
        return False
    verdict.equal = True
    if not is_same_length(factor):
        verdict.factor = factor
    return True


def explain_by_changes(
    verdict: Verdict, examples: Matches, model: CheckpointModel, record: Mapping[str, Any]
) -> None:
    """Add the changes of the model that explain the difference."""
    texts = [label["text"] for label in examples.labels]
    declared = examples.b if examples.a.shape == examples.b.shape else None
    explanation = explain(model, texts, examples.a, declared, record)
    verdict.texts = len(texts)
    verdict.results = explanation.results
    verdict.largest_noise = explanation.rounding or 0.0
    verdict.mean_noise = explanation.mean_rounding
    if explanation.results and not explanation.results[0].variants:
        verdict.declared = explanation.results[0]
    if explanation.order is not None:
        lines = np.array([label["row"] for label in examples.labels])
        order = order_of_rows(lines[explanation.order], lines)
        count = len(texts)
        verdict.causes.append(Cause(order.name, count, count))
        verdict.example = order.example
    if explanation.equal:
        verdict.equal = True
        verdict.largest_distance = explanation.largest_distance
        verdict.rounding = explanation.rounding
        if explanation.best is not None:
            verdict.factor = explanation.best.factor
        return
    if explanation.explained and explanation.best is not None:
        verdict.causes += causes_of(explanation, explanation.best)
        verdict.best = explanation.best
        verdict.factor = explanation.best.factor


def causes_of(explanation: Explanation, best: Result) -> list[Cause]:
    """A cause for each change; those that give the same vectors stand beside the last one."""
    same = [
        " and ".join(variant.name for variant in result.variants)
        for result in explanation.equivalent_results
    ]
    causes = []
    for variant in best.variants:
        causes.append(
            Cause(
                variant.name,
                explanation.explained,
                explanation.differing,
                share=explanation.share,
                same=same if variant is best.variants[-1] else (),
            )
        )
    return causes


def explain_by_weights(verdict: Verdict, examples: Matches) -> None:
    """Add other weights or another model, if the vectors look like that."""
    count = len(examples)
    if examples.a.shape != examples.b.shape:
        return
    if other_weights(examples.a, examples.b):
        verdict.causes.append(Cause(OTHER_WEIGHTS, count, count, share=0.0))
    elif not verdict.is_mostly_repeated and another_model(examples.a, examples.b):
        verdict.causes.append(Cause(ANOTHER_MODEL, count, count, share=0.0))
