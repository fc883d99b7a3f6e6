"""The time of bf16 beside fp32 is measured on a block of the model's sizes."""

from dataclasses import replace

import pytest
import torch

from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.model.transformer.architecture import architecture_of
from sentkit.model.transformer.kernels import precision_gain
from sentkit.model.transformer.kernels.precision_gain import (
    bf16_time_of_encoding,
    bf16_time_of_training,
    faster_to_encode,
    faster_to_train,
    last_states,
    packed_sentences,
    small_bert,
)


@pytest.fixture(scope="module")
def architecture():
    """That of nano."""
    return architecture_of(read_checkpoint("nano"))


def test_the_share_is_the_inverse_of_the_ratio_of_speeds(architecture, monkeypatch):
    monkeypatch.setattr(precision_gain, "speed_ratio", lambda new, old: 4.0)

    assert bf16_time_of_encoding(architecture) == 0.25
    assert bf16_time_of_training(architecture) == 0.25


@pytest.mark.parametrize(
    ("chosen", "speed_of_bf16", "faster"),
    [
        ("fp32", 4.0, "bf16 takes about 0.25 x the time on this CPU"),
        ("fp32", 1.25, "bf16 takes about 0.80 x the time on this CPU"),
        ("fp32", 1.2, None),
        ("fp32", 0.125, None),
        ("bf16", 0.125, "fp32 takes about 0.12 x the time on this CPU"),
        ("bf16", 0.8, "fp32 takes about 0.80 x the time on this CPU"),
        ("bf16", 0.9, None),
        ("bf16", 4.0, None),
    ],
)
def test_the_other_precision_is_named_if_it_is_much_faster(
    architecture, monkeypatch, chosen, speed_of_bf16, faster
):
    monkeypatch.setattr(precision_gain, "speed_ratio", lambda new, old: speed_of_bf16)
    expected = "None" if faster is None else faster

    assert str(faster_to_encode(architecture, chosen)) == expected
    assert str(faster_to_train(architecture, chosen)) == expected


def test_both_sides_compute_the_same_in_their_precision(architecture, monkeypatch):
    compared = {}

    def run_both(new, old):
        compared["new"] = new()
        compared["old"] = old()
        return 1.0

    monkeypatch.setattr(precision_gain, "speed_ratio", run_both)
    with torch.inference_mode():
        bf16_time_of_encoding(architecture)

    assert compared["new"].dtype == torch.bfloat16
    assert compared["old"].dtype == torch.float32
    assert compared["new"].shape == compared["old"].shape == (32 * 32, architecture.width)


def test_the_block_has_the_sizes_of_the_model_and_leaves_the_random_numbers(architecture):
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    bert = small_bert(replace(architecture, vocabulary=250_000))

    assert torch.equal(torch.rand(4), expected)
    assert (bert.depth, bert.width) == (1, architecture.width)
    assert len(bert.words.weight) == 64
    with torch.inference_mode():
        assert last_states(bert, packed_sentences()).isfinite().all()


def test_the_measurement_leaves_the_random_numbers_of_a_training(architecture, monkeypatch):
    """Its dropout takes numbers, as that of the training beside it."""

    def run_both(new, old):
        new()
        old()
        return 1.0

    monkeypatch.setattr(precision_gain, "speed_ratio", run_both)
    assert architecture.dropout > 0
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    bf16_time_of_training(architecture)

    assert torch.equal(torch.rand(4), expected)
