"""Steps against their formulas written as loops, and the hashes that name where they lead."""

import math
from typing import Any

import numpy as np
import pytest

from sentkit.errors import UsageError
from sentkit.formats.vectors.fingerprint import digest
from sentkit.transforms.steps import Linear, Normalize, Truncate
from support import dot

VECTORS = np.array([[3, 4, 0], [0, 0, 0], [-1, 2, -2], [1e-3, 0, 0]], dtype=np.float32)


def test_unit_length_is_the_vector_over_its_length() -> None:
    found = Normalize()(VECTORS)

    for vector, result in zip(VECTORS.tolist(), found.tolist(), strict=True):
        length = math.sqrt(sum(x * x for x in vector)) or 1.0
        assert result == pytest.approx([x / length for x in vector], rel=1e-6)
    assert found.dtype == np.float32


def test_truncation_keeps_the_first_numbers() -> None:
    assert Truncate(2)(VECTORS).tolist() == [vector[:2] for vector in VECTORS.tolist()]


@pytest.mark.parametrize("tanh", [False, True])
def test_a_dense_layer_is_a_sum_of_products(tanh: bool) -> None:
    weight = np.array([[1, 2, 3], [0.5, -1, 0.25]], dtype=np.float32)
    bias = np.array([0.1, -0.2], dtype=np.float32)

    found = Linear(weight, bias, activation="tanh" if tanh else "identity")(VECTORS)

    for vector, result in zip(VECTORS.tolist(), found.tolist(), strict=True):
        expected = [dot(row, vector) + b for row, b in zip(weight, bias, strict=True)]
        assert result == pytest.approx([math.tanh(e) if tanh else e for e in expected], rel=1e-6, abs=1e-7)


@pytest.mark.parametrize(
    ("step", "before", "after"),
    [
        (Normalize(), 7, 7),
        (Truncate(3), 7, 3),
        (Truncate(7), 7, 7),
        (Linear(np.ones((4, 7), np.float32), np.ones(4, np.float32)), 7, 4),
    ],
)
def test_the_width_behind_a_step_is_known_before_it(step: Any, before: int, after: int) -> None:
    """For one vector and for none."""
    assert step.width(before) == after
    assert [step(np.ones((count, before), np.float32)).shape for count in (0, 1)] == [(0, after), (1, after)]


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        (Truncate(8), "--dim 8: the vectors have only 7 numbers"),
        (Truncate(0), "--dim 0: the vectors have only 7 numbers"),
        (
            Linear(np.ones((4, 6), np.float32), np.ones(4, np.float32), kind="whitening"),
            "whitening takes vectors of 6 numbers, these have 7",
        ),
    ],
)
def test_a_step_that_does_not_fit_is_refused(step: Any, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        step.width(7)

    assert str(caught.value) == problem


def test_suffix_and_hash_of_each_step() -> None:
    eye, none = np.eye(2, dtype=np.float32), np.zeros(2, np.float32)
    layers = [(eye, none), (eye, none, "tanh"), (eye, none + 1), (eye * 2, none)]
    steps: list[Any] = [Normalize(), Truncate(2), Truncate(3), *(Linear(*each) for each in layers)]

    assert [step.suffix for step in steps] == ["/n", "/2", "/3", "+dense", "+dense", "+dense", "+dense"]
    assert len({step.hash for step in steps}) == len(steps)
    assert steps[0].hash == digest("normalise")
    assert steps[1].hash == digest(["truncate", 2])


def test_the_hash_of_a_layer_is_of_its_numbers_and_not_of_its_name_or_memory() -> None:
    weight = np.array([[1, 2], [3, 4]], dtype=np.float32)
    bias = np.array([5, 6], dtype=np.float32)
    same = [
        Linear(weight, bias),
        Linear(weight, bias, kind="whitening"),
        Linear(np.asfortranarray(weight), bias),
        Linear(weight.astype(">f4"), bias.astype(">f4")),
    ]

    assert len({layer.hash for layer in same}) == 1
    assert Linear(weight.T, bias).hash != same[0].hash
