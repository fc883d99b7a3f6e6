"""Devices and precisions by name, and batches that are larger than the memory of a device."""

import weakref

import pytest
import torch

from sentkit.errors import UnavailableError, UsageError
from sentkit.model.text.tokens import TokenBlock, Tokens
from sentkit.model.transformer import device
from sentkit.model.transformer.device import (
    halve_to_fit_memory,
    padded_parts,
    pick_device,
    pick_precision,
)

CPU = torch.device("cpu")


def with_devices(monkeypatch, count):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.parametrize(
    ("count", "name", "expected"),
    [
        (0, "cpu", "cpu"),
        (0, "auto", "cpu"),
        *((1, n, "cuda") for n in ("auto", "cuda")),
        (2, "cuda:1", "cuda:1"),
    ],
)
def test_devices_by_name(monkeypatch, count, name, expected):
    with_devices(monkeypatch, count)

    assert pick_device(name) == torch.device(expected)


@pytest.mark.parametrize(
    ("count", "name", "error", "problem", "advice"),
    [
        *((0, name, UnavailableError, "no CUDA device", "") for name in ("cuda", "cuda:0")),
        (1, "cuda:1", UnavailableError, "one CUDA device", ""),
        *(
            (0, name, UsageError, "unknown device", "cuda:<n>")
            for name in ("", "gpu", "cuda:", "cuda:x", "cuda:-1", "CPU", "cpu:0 ")
        ),
    ],
)
def test_missing_and_unknown_devices_are_errors(monkeypatch, count, name, error, problem, advice):
    with_devices(monkeypatch, count)

    with pytest.raises(error, match=problem) as caught:
        pick_device(name)
    assert advice in (caught.value.advice or "")


def test_precisions_by_name():
    assert pick_precision("fp32", CPU) == torch.float32
    assert pick_precision("bf16", CPU) == torch.bfloat16
    with pytest.raises(UsageError, match='unknown precision "fp16"') as error:
        pick_precision("fp16", CPU)
    assert error.value.advice == "available: fp32, bf16, auto"


def test_auto_on_a_cpu_is_fp32_unless_the_variable_selects_bf16(monkeypatch):
    """Small inputs are encoded in fp32, and more rows must not change vectors."""
    monkeypatch.delenv("SENTKIT_PRECISION", raising=False)

    assert pick_precision("auto", CPU) == torch.float32
    for name, chosen in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        monkeypatch.setenv("SENTKIT_PRECISION", name)
        assert pick_precision("auto", CPU) == chosen
        assert (pick_precision("fp32", CPU), pick_precision("bf16", CPU)) == (
            torch.float32,
            torch.bfloat16,
        )


@pytest.mark.parametrize(
    ("old", "new", "rounds", "expected"),
    [
        ([9, 6, 4, 8], [9, 2, 3, 5], 3, 2.0),  # the first call of each is not counted
        ([1, 1, 1, 1], [9, 30, 1, 1], 3, 1 / 30),  # no further rounds of a call that is much slower
    ],
)
def test_a_ratio_of_speeds_is_that_of_the_least_times(monkeypatch, old, new, rounds, expected):
    clock = [0.0]
    times = {"old": iter(old), "new": iter(new)}
    monkeypatch.setattr(device.time, "thread_time", lambda: clock[0])

    def run(name):
        clock[0] += next(times[name])

    assert device.speed_ratio(lambda: run("new"), lambda: run("old"), rounds) == pytest.approx(
        expected
    )


def test_an_interrupted_measurement_restores_the_number_of_threads():
    """For example Ctrl-C in a notebook, which computes with torch afterwards."""

    def interrupted():
        raise KeyboardInterrupt

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyboardInterrupt):
            device.speed_ratio(interrupted, interrupted)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("real", [True, False])
def test_auto_on_cuda_ignores_emulated_bf16(monkeypatch, real):
    monkeypatch.delenv("SENTKIT_PRECISION", raising=False)
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation: real or including_emulation
    )

    assert pick_precision("auto", torch.device("cuda")) == (
        torch.bfloat16 if real else torch.float32
    )


def batch_of(count):
    return TokenBlock.of([Tokens([number], 1) for number in range(count)])


@pytest.mark.parametrize(
    ("room", "chunks"),
    [
        (9, [[0, 1, 2, 3, 4]]),
        (3, [[0, 1], [2, 3, 4]]),
        (2, [[0, 1], [2], [3, 4]]),
        (1, [[n] for n in range(5)]),
    ],
)
def test_a_batch_is_halved_until_each_part_fits(room, chunks):
    def run(batch):
        if len(batch) > room:
            raise torch.cuda.OutOfMemoryError
        return [tokens.ids[0] for tokens in batch]

    assert halve_to_fit_memory(run, batch_of(5), advice="") == chunks


def test_a_text_that_does_not_fit_is_an_error_with_advice():
    def run(batch):
        raise torch.cuda.OutOfMemoryError

    problem = "^a text of 3 tokens does not fit into the memory of the device$"
    with pytest.raises(UnavailableError, match=problem) as error:
        halve_to_fit_memory(run, TokenBlock.of([Tokens([5, 6, 7], 3)]), advice="use --device cpu")
    assert error.value.advice == "use --device cpu"


def test_tensors_of_a_failed_run_are_freed_before_the_halves_run():
    references = []

    def run(batch):
        assert not any(reference() is not None for reference in references)
        states = torch.zeros(4)
        references.append(weakref.ref(states))
        if len(batch) > 1:
            raise torch.cuda.OutOfMemoryError
        return len(batch)

    assert halve_to_fit_memory(run, batch_of(4), advice="") == [1, 1, 1, 1]


def test_parts_of_a_model_that_pads_count_the_padding(monkeypatch):
    """The first fills 3 x 10 of 32 tokens, and a text of more tokens than a part is alone."""
    monkeypatch.setitem(device.PADDED_TOKENS, "cpu", 32)
    batch = TokenBlock.of([Tokens([5] * length, length) for length in (40, 10, 9, 2, 2, 1, 1, 1)])

    chunks = padded_parts(batch, CPU)

    assert [chunk.lengths.tolist() for chunk in chunks] == [[40], [10, 9, 2], [2, 1, 1, 1]]
    chunks = padded_parts(batch, CPU, of_one_length=True)
    assert [chunk.lengths.tolist() for chunk in chunks] == [[40], [10], [9], [2, 2], [1, 1, 1]]
