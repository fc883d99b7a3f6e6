"""Judges vectors from elsewhere: they are those of a model, or have causes why not.

Causes that the vectors alone show come first: the format of the numbers, missing vectors, another
order of the rows, a factor of the lengths. Then the model is changed (`model/causes`). What nothing
explains is the work of other weights, of another model, or has no name.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sentkit.arrays import Float32
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
from sentkit.reports.verdict import ANOTHER_MODEL, OTHER_WEIGHTS, Cause, Repeats, Trials, Verdict

MISSING = "vectors that are zero or not finite"


def judge(difference: Difference, sides: SidesOfModel, model: Any, *, refused: int = 0) -> Verdict:
    """The verdict about the vectors of A. `model` gave those of B, and A refused some texts."""
    file = sides.paths[0]
    if file == "-":
        file = "standard input"
    count = difference.rows
    verdict = Verdict(
        file=file,
        model=model.name,
        width=difference.record["b"]["width"],
        compared=sides.compared,
        refused=refused,
        repeats=Repeats(count, difference.repeated_a, difference.repeated_b),
    )
    verdict = with_damage(verdict, sides)

    # A factor of the lengths, and another order of the rows.
    lengths = lengths_if_directions_are_equal(difference)
    if lengths is not None and lengths.is_explained:
        return replace(
            verdict,
            equal_but_for_causes=True,
            factor=lengths.factor,
            largest_distance=lengths.largest_distance,
        )
    verdict = replace(verdict, same_directions=lengths is not None)
    order = find_row_order(difference.sample, count)
    examples = difference.examples
    if order is not None:
        verdict = verdict.with_cause(Cause(order.name, count, count), order.example)
        assert order.aligned is not None, "find_row_order aligns the rows"
        examples = order.aligned[: len(examples)]
        factor = factor_of_aligned(examples)
        if factor is not None:
            if is_same_length(factor):
                factor = None
            return replace(verdict, equal_but_for_causes=True, factor=factor)

    # Changes of the model, and at last other weights.
    explanation = None
    if isinstance(model, CheckpointModel):
        texts = [label["text"] for label in examples.labels]
        declared = examples.b if examples.a.shape == examples.b.shape else None
        explanation = explain(model, texts, examples.a, declared, sides.record)
        verdict = with_changes(verdict, examples, explanation)
    else:
        kind = "a model behind an API" if is_endpoint(model.name) else "a static model"
        verdict = replace(verdict, kind_of_model=kind)
        if verdict.same_directions:
            verdict = with_unit_length(verdict, examples)
    if verdict.is_explained:
        return verdict
    equal_vectors = count_vectors_of_model(difference, explanation)
    if 2 * equal_vectors >= count:
        different_row = most_different_row(difference.examples)
        return replace(verdict, equal_vectors=equal_vectors, different_row=different_row)
    if verdict.same_directions:
        return verdict
    return with_other_weights(verdict, difference.examples)


def with_damage(verdict: Verdict, sides: SidesOfModel) -> Verdict:
    """Add the causes that the reader of A noticed: the format of the numbers, missing vectors."""
    if sides.number_format is not None:
        count = verdict.repeats.vectors
        verdict = verdict.with_cause(Cause(sides.number_format, count, count))
    if sides.missing:
        count = len(sides.missing)
        rows = ", ".join(map(str, sides.missing[:3]))
        cause = Cause(f"{MISSING} in {count} of {sides.compared} rows", count, count)
        example = f"the first rows are {rows}"
        if sides.has_not_finite:
            example += f"; {OVERFLOW}"
        verdict = verdict.with_cause(cause, example)
    return verdict


def with_unit_length(verdict: Verdict, examples: Matches) -> Verdict:
    """Add unit length, if all vectors of A have it and few of the model, or no unit length."""
    count = len(examples)
    units_in_a = count_unit_length(examples.a)
    units_in_b = count_unit_length(examples.b)
    if units_in_a == count and 2 * units_in_b < count:
        return verdict.with_cause(Cause("unit length", count, count))
    if units_in_b == count and 2 * units_in_a < count:
        return verdict.with_cause(Cause("no unit length", count, count))
    return verdict


def count_unit_length(vectors: Float32) -> int:
    lengths = np.linalg.norm(vectors, axis=1)
    return int((abs(lengths - 1) <= SAME_FACTOR).sum())


@dataclass(frozen=True, slots=True)
class Lengths:
    """The lengths of vectors with the directions of the model."""

    is_explained: bool = False  # they are those of the model, or all differ by the factor
    factor: float | None = None  # A by the model, if it is not 1
    largest_distance: float | None = None  # if the lengths are those of the model


def is_same_length(factor: float) -> bool:
    return abs(math.log(factor)) <= SAME_FACTOR


def lengths_if_directions_are_equal(difference: Difference) -> Lengths | None:
    """The lengths; None if the directions are not those of the model."""
    cosine = difference.record.get("cosine")
    if cosine is None or 1 - cosine["lowest"] > EQUAL:
        return None
    ratios = difference.record["norm_ratio"]  # of the model by A
    lowest = 1 / ratios["highest"]
    highest = 1 / ratios["lowest"]
    if is_same_length(lowest) and is_same_length(highest):
        largest_distance = max(0.0, 1 - cosine["lowest"])
        return Lengths(is_explained=True, largest_distance=largest_distance)
    factor = common_factor(lowest, highest)
    if factor is not None and difference.rows > 1:
        return Lengths(is_explained=True, factor=factor)
    return Lengths()


def factor_of_aligned(aligned: Matches) -> float | None:
    """The factor of the lengths of rows in another order, A by the model; None if they differ."""
    lengths_of_a = np.linalg.norm(aligned.a, axis=1)
    lengths_of_b = np.maximum(np.linalg.norm(aligned.b, axis=1), 1e-12)
    ratios = lengths_of_a / lengths_of_b
    return common_factor(float(ratios.min()), float(ratios.max()))


def with_changes(verdict: Verdict, examples: Matches, explanation: Explanation) -> Verdict:
    """Add the changes of the model that explain the difference of the examples."""
    count = len(examples)
    result_as_declared = None
    if explanation.results and not explanation.results[0].variants:
        result_as_declared = explanation.results[0]
    trials = Trials(count, explanation.results, result_as_declared)
    verdict = replace(verdict, trials=trials)
    if explanation.order is not None:
        row_numbers = np.array([label["row"] for label in examples.labels])
        order = order_of_rows(row_numbers[explanation.order], row_numbers)
        verdict = verdict.with_cause(Cause(order.name, count, count), order.example)

    best = explanation.best
    if explanation.equal:
        return replace(
            verdict,
            equal_but_for_causes=True,
            factor=None if best is None else best.factor,
            largest_distance=explanation.largest_distance,
            rounding=explanation.rounding,
        )
    if explanation.explained_texts and best is not None:
        return replace(
            verdict,
            causes=(*verdict.causes, *causes_of(explanation, best)),
            factor=best.factor,
            trials=replace(trials, best=best),
        )
    return verdict


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
                explanation.explained_texts,
                explanation.differing_texts,
                share=explanation.share,
                same=same if variant is best.variants[-1] else (),
            )
        )
    return causes


def count_vectors_of_model(difference: Difference, explanation: Explanation | None) -> int:
    """The number of vectors of A that are those of the model, except for rounding; 0 if these
    differ more than by rounding.
    """
    if difference.cosines is None or difference.ratios is None:  # the widths differ
        return 0
    ratios = difference.ratios
    distances = (ratios + 1 / ratios) / 2 - difference.cosines  # as `compare` has them
    equal = int((distances <= EQUAL).sum())
    if 2 * equal >= len(distances):  # so the others do not differ by rounding
        return equal
    # The distances that rounding in bf16 causes, if they were measured.
    largest_noise = 0.0
    mean_noise = 0.0
    if explanation is not None:
        largest_noise = explanation.rounding or 0.0
        mean_noise = explanation.mean_rounding
    is_close = distances <= max(EQUAL, 3 * largest_noise)
    if not is_close.any() or distances[is_close].mean() > max(EQUAL, 2 * mean_noise):
        return 0
    return int(is_close.sum())


def most_different_row(examples: Matches) -> int:
    distances = compare((), examples.a, examples.b).distances
    row: int = examples.labels[distances.argmax()]["row"]
    return row


def with_other_weights(verdict: Verdict, examples: Matches) -> Verdict:
    """Add other weights or another model, if the vectors look like that."""
    if examples.a.shape != examples.b.shape:
        return verdict
    count = len(examples)
    if other_weights(examples.a, examples.b):
        return verdict.with_cause(Cause(OTHER_WEIGHTS, count, count, share=0.0))
    if not verdict.repeats.are_most and another_model(examples.a, examples.b):
        return verdict.with_cause(Cause(ANOTHER_MODEL, count, count, share=0.0))
    return verdict
