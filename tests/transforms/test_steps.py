"""Steps against their formulas in float64, their hashes, and affine files: (x + bias) @ kernel."""

import json

import numpy as np
import pytest
import safetensors.numpy

from sentkit.errors import DataError, UsageError
from sentkit.formats.vectors.fingerprint import digest
from sentkit.transforms.steps import Linear, Normalize, Truncate, read_transform

VECTORS = np.array([[3, 4, 0], [0, 0, 0], [-1, 2, -2], [1e-3, 0, 0]], dtype=np.float32)
WIDE = VECTORS.astype(np.float64)


WEIGHT = np.array([[1, 2, 3], [0.5, -1, 0.25]], np.float32)
BIAS = np.array([0.1, -0.2], np.float32)
LINEAR = WIDE @ WEIGHT.T.astype(np.float64) + BIAS


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (Normalize(), WIDE / np.array([[5], [1], [3], [1e-3]])),
        (Truncate(2), VECTORS[:, :2]),
        (Linear(WEIGHT, BIAS), LINEAR),
        (Linear(WEIGHT, BIAS, activation="tanh"), np.tanh(LINEAR)),
    ],
)
def test_steps_are_their_formulas(step, expected):
    """The lengths are by hand; a zero vector stays zero."""
    assert step(VECTORS) == pytest.approx(expected, rel=1e-6, abs=1e-7)
    assert step(VECTORS).dtype == np.float32


@pytest.mark.parametrize(
    ("step", "before", "after"),
    [
        (Normalize(), 7, 7),
        (Truncate(3), 7, 3),
        (Truncate(7), 7, 7),
        (Linear(np.ones((4, 7), np.float32), np.ones(4, np.float32)), 7, 4),
    ],
)
def test_the_width_behind_a_step_is_known_before_it(step, before, after):
    """For one vector and for none."""
    assert step.output_width(before) == after
    assert [step(np.ones((count, before), np.float32)).shape for count in (0, 1)] == [
        (0, after),
        (1, after),
    ]


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
def test_a_step_that_does_not_fit_is_refused(step, problem):
    with pytest.raises(UsageError) as caught:
        step.output_width(7)

    assert str(caught.value) == problem


def test_suffix_and_hash_of_each_step():
    eye = np.eye(2, dtype=np.float32)
    none = np.zeros(2, np.float32)
    layers = [(eye, none), (eye, none, "tanh"), (eye, none + 1), (eye * 2, none)]
    steps = [Normalize(), Truncate(2), Truncate(3), *(Linear(*arguments) for arguments in layers)]

    assert [step.suffix for step in steps] == [
        "/n",
        "/2",
        "/3",
        "+dense",
        "+dense",
        "+dense",
        "+dense",
    ]
    assert len({step.hash for step in steps}) == len(steps)
    assert steps[0].hash == digest("normalise")
    assert steps[1].hash == digest(["truncate", 2])


def test_the_hash_of_a_layer_is_of_its_numbers_and_not_of_its_name_or_memory():
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


def save(path, kernel, bias, note=None):
    metadata = (
        None if note is None else {"sentkit": note if isinstance(note, str) else json.dumps(note)}
    )
    safetensors.numpy.save_file(
        {"kernel": np.asarray(kernel), "bias": np.asarray(bias)}, path, metadata
    )
    return str(path)


def test_a_transform_adds_its_bias_and_then_multiplies(tmp_path):
    """Its hash is that of the equal dense layer: .5 * (1, 2, 4) + .25 * (8, 16, 32) is (2.5, 5,
    10).
    """
    kernel = np.array([[1, 2, 4], [8, 16, 32]], np.float32)
    bias = np.array([[0.5, 0.25]], np.float32)
    vectors = np.array([[1, 1], [0, -3]], np.float32)
    layer = read_transform(save(tmp_path / "a.safetensors", kernel, bias, {"kind": "whitening"}))

    assert layer(vectors).tolist() == ((vectors + bias) @ kernel).tolist()
    assert layer.suffix == "+whitening"
    assert layer.hash == Linear(kernel.T.copy(), np.array([2.5, 5, 10], np.float32)).hash


def test_a_mean_far_from_zero_costs_no_digits(tmp_path):
    """The bias of the dense layer is computed in float64, and rounded once."""
    kernel = np.array([[1.0], [1.0]], np.float64)
    bias = np.array([[1e8, -1e8 + 0.25]], np.float64)

    assert read_transform(save(tmp_path / "a.safetensors", kernel, bias)).bias.tolist() == [0.25]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(2,), (1, 2), (2, 1)])
def test_any_float_and_any_shape_of_the_bias_will_do(tmp_path, dtype, shape):
    path = save(
        tmp_path / "a.safetensors", np.eye(2, dtype=dtype), np.array([1, 2], dtype).reshape(shape)
    )

    layer = read_transform(path)

    assert (layer.weight.dtype, layer.weight.tolist()) == (np.float32, [[1, 0], [0, 1]])
    assert layer.bias.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("note", "kind"),
    [
        (None, "affine"),
        ({"kind": "no word"}, "affine"),
        ({"kind": "weiß"}, "affine"),
        ({"kind": ["pca"]}, "affine"),
        ({"kind": "pca", "_emb": None}, "pca"),
        ([], "affine"),
    ],
)
def test_unknown_metadata_is_ignored(tmp_path, note, kind):
    path = save(
        tmp_path / "a.safetensors", np.eye(2, dtype=np.float32), np.zeros(2, np.float32), note
    )

    assert read_transform(path).kind == kind


ONE = np.eye(2, dtype=np.float32)
ZERO = np.zeros(2, np.float32)


@pytest.mark.parametrize(
    ("kernel", "bias", "problem"),
    [
        (ONE, np.zeros(3, np.float32), "the shapes of kernel and bias do not match"),
        (np.zeros(2, np.float32), ZERO, "the shapes of kernel and bias do not match"),
        (
            np.zeros((0, 2), np.float32),
            np.zeros(0, np.float32),
            "the shapes of kernel and bias do not match",
        ),
        (ONE * np.nan, ZERO, "the kernel or the bias contains NaN or infinity"),
        (ONE, np.array([np.inf, 0], np.float32), "the kernel or the bias contains NaN or infinity"),
        (
            ONE * np.float32(1e30),
            ZERO + np.float32(1e30),
            "the kernel or the bias contains NaN or infinity",
        ),
        (ONE.astype(bool), ZERO, 'no tensor "kernel" of a supported type'),
    ],
)
def test_a_transform_that_cannot_be_applied_is_refused(tmp_path, kernel, bias, problem):
    path = save(tmp_path / "a.safetensors", kernel, bias)
    with pytest.raises(DataError) as caught:
        read_transform(path)

    assert str(caught.value) == f"{path}: {problem}"


@pytest.mark.parametrize("name", ["weight", "embedding"])
def test_a_classifier_and_a_vector_file_are_no_transforms(tmp_path, name):
    path = str(tmp_path / "a.safetensors")
    safetensors.numpy.save_file({name: ONE, "bias": ZERO}, path)
    with pytest.raises(DataError) as caught:
        read_transform(path)

    assert str(caught.value) == f"{path}: not a transform"
    assert caught.value.advice == "make one with sentkit whiten fit"


def test_metadata_without_json_is_refused(tmp_path):
    with pytest.raises(DataError, match='"sentkit" in the metadata is not JSON'):
        read_transform(save(tmp_path / "a.safetensors", ONE, ZERO, "{"))


def test_huge_and_tiny_vectors_get_unit_length():
    """Their squares are infinite or zero in float32."""
    directions = np.array([[3, 4], [-4, 3], [0, 1]]) / np.array([[5], [5], [1]])
    vectors = (directions * np.array([[1e25], [1e-25], [3e38]])).astype(np.float32)

    assert Normalize()(vectors) == pytest.approx(directions, rel=1e-6)
