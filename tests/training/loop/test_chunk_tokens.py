"""Chunks by tokens, and memory that is short. Errors of memory are injected: no GPU is here."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from sentkit.errors import DataError, UnavailableError, UsageError
from sentkit.training.data.corpus import chunks_of_tokens
from sentkit.training.loop.gradient import Gradient, tokens_that_fit
from sentkit.training.method import changing_tensors, trained_parameters
from sentkit.training.methods.simcse import SimCSE
from sentkit.training.methods.tsdae import TSDAE
from sentkit.training.recipe import limits_of
from training.small import equal, gradient_of, run_with_log, stop_after


@pytest.mark.parametrize("limit", [1, 4, 7, 11, 100])
@pytest.mark.parametrize("row_tokens", [[3, 4, 1, 9, 2, 2, 2], [5], [9, 9], [1] * 12])
def test_chunks_are_all_rows_in_order_and_the_longest_within_the_limit(row_tokens, limit):
    chunks = chunks_of_tokens(row_tokens, limit)

    assert [row for chunk in chunks for row in range(chunk.start, chunk.stop)] == [
        *range(len(row_tokens))
    ]
    for chunk in chunks:
        tokens_of_chunk = row_tokens[chunk]
        assert sum(tokens_of_chunk) <= limit or len(tokens_of_chunk) == 1
        assert (
            chunk.stop == len(row_tokens) or sum(tokens_of_chunk) + row_tokens[chunk.stop] > limit
        )


@pytest.mark.parametrize("kind", [SimCSE, TSDAE])
@pytest.mark.parametrize(
    "chunks", [*({"tokens": n} for n in (1, 9, 20, 1000)), {"chunk": 3}, {"chunk": 12}]
)
def test_they_have_the_gradient_of_the_batch(trainer_of, texts, kind, chunks):
    """Exactly, up to rounding in float64, without dropout."""
    trainer = trainer_of(kind, texts, double=True, batch=13, dropout=0)

    torch.testing.assert_close(
        gradient_of(trainer, **chunks), gradient_of(trainer), rtol=1e-9, atol=1e-10
    )


def limited(trainer, room_from_step, alone=1):
    """The memory has room for an encoding of so many tokens, and of fewer later: most is step ->
    tokens.

    So many rows alone always fit.
    """
    encode = trainer.method.encode

    def short(batch):
        step = trainer.position.step
        *_, room = [tokens for first, tokens in room_from_step.items() if first <= step]
        if batch.tokens > room and len(batch) > alone:
            raise torch.cuda.OutOfMemoryError
        return encode(batch)

    trainer.method.encode = short
    return trainer


@pytest.mark.parametrize("settings", [{}, {"chunk_tokens": "auto"}], ids=str)
def test_short_memory_first_ends_the_graphs(trainer_of, texts, settings):
    """The step is repeated with the same random numbers and the same chunks."""
    plain, trainer = (trainer_of(SimCSE, texts, batch=13, epochs=1, **settings) for _ in range(2))
    encode = trainer.method.encode
    chains = {"a pass": "its graphs"}
    trainer.method.body.graphs = SimpleNamespace(chains=chains, stop=chains.clear)

    def short(batch):
        outputs = encode(batch)  # draws random numbers
        if chains:
            raise torch.cuda.OutOfMemoryError
        return outputs

    trainer.method.encode = short

    assert run_with_log(trainer)[0] == run_with_log(plain)[0]
    assert not trainer.position.limits


SETTINGS = {"batch": 6, "epochs": 3, "lr": 3e-3, "dropout": 0.1}
SHORT = {0: 60, 1: 20, 4: 11}


@pytest.mark.parametrize(("kind", "behind"), [(SimCSE, 0), (TSDAE, 2)])
def test_short_memory_halves_the_chunks_and_the_numbers_of_a_state_repeat_them(
    trainer_of, texts, kind, behind
):
    auto = limited(trainer_of(kind, texts, chunk_tokens="auto", **SETTINGS), SHORT)
    lines, tensors, warnings = run_with_log(auto, behind)
    repeated = trainer_of(kind, texts, chunk_tokens="auto", **SETTINGS)
    repeated.position.limits = [*auto.position.limits]
    repeated_lines, repeated_tensors, none = run_with_log(repeated)

    steps = [step for step, _ in auto.position.limits]
    assert steps[0] == 0
    assert {1, 4} <= {*steps}
    assert repeated.position.limits == auto.position.limits
    assert len(warnings) >= 2
    assert warnings[0].startswith("the memory of the device is short in step ")
    assert none == []
    assert lines == repeated_lines
    assert equal(tensors, repeated_tensors)


def test_a_resumed_run_has_the_chunks_of_the_state(trainer_of, texts):
    """They are not halved again: the memory is large when it resumes."""
    whole = limited(trainer_of(SimCSE, texts, chunk_tokens="auto", **SETTINGS), SHORT)
    _, (weights, _), _ = run_with_log(whole)
    cut = limited(trainer_of(SimCSE, texts, chunk_tokens="auto", save_every=3, **SETTINGS), SHORT)
    torch.manual_seed(4)
    stop_after(cut, 3)
    resumed = trainer_of(SimCSE, texts, chunk_tokens="auto", **SETTINGS)
    resumed.checkpointer = cut.checkpointer
    resumed.resume_from(cut.checkpointer.load(resumed.run.identity))
    limited(resumed, {0: 1000, 4: 11})
    resumed.train()

    assert resumed.position.limits == whole.position.limits
    assert equal(changing_tensors(resumed.method), weights)


@pytest.mark.parametrize(
    ("settings", "limits", "room", "step", "advice"),
    [
        # A row does not fit.
        ({"chunk_tokens": "auto"}, [], ({0: 0}, 0), 1, "a smaller max_length"),
        ({}, [], ({0: 5},), 1, "chunk_tokens=auto"),
        ({"chunk_tokens": 70}, [[0, 70]], ({0: 5},), 1, "smaller chunk_tokens than 70"),
        (
            {"chunk_tokens": "auto"},
            [[0, 500]],
            ({0: 1000, 1: 20},),
            2,
            "smaller chunk_tokens than 500",
        ),
    ],
)
def test_memory_that_stays_short_ends_the_run_with_advice(
    trainer_of, texts, settings, limits, room, step, advice
):
    """In the last case --deterministic keeps the limit that was chosen at the start."""
    trainer = limited(trainer_of(SimCSE, texts, **settings, **SETTINGS), *room)
    trainer.run = replace(trainer.run, deterministic=step == 2)
    trainer.position.limits = [*limits]
    with pytest.raises(
        UnavailableError, match=f"^step {step} does not fit into the memory"
    ) as caught:
        trainer.train()

    assert advice in caught.value.advice
    assert step == 1 or trainer.position.limits == limits


def test_the_limit_is_measured(trainer_of, texts, monkeypatch):
    """Of a GPU where a token needs 1,000 bytes besides 5,000 for the gradients of all weights."""
    trainer = trainer_of(SimCSE, texts, batch=13)
    state = torch.get_rng_state()
    weights = sum(weight.numel() for _, weight in trained_parameters(trainer.method))
    tokens = []
    compute = Gradient.compute
    monkeypatch.setattr(
        Gradient,
        "compute",
        lambda *arguments: tokens.append(arguments[1].tokens) or compute(*arguments),
    )

    free = 10**6 + 10 * weights
    memory_of_gpu = {
        "mem_get_info": lambda device: (free - 30, free + 10**6),
        "memory_allocated": lambda device: 10,
        "memory_reserved": lambda device: 40,  # 30 of them are free
        "reset_peak_memory_stats": lambda device: None,
        "max_memory_allocated": lambda device: 5010 + 1000 * tokens[-1],
    }
    for name, function in memory_of_gpu.items():
        monkeypatch.setattr(torch.cuda, name, function)
    batch = trainer.batch(0)

    room = 0.8 * (10**6 + 10 * weights) - 8 * weights  # free, without two moments for each weight
    assert int((room - 5000) / 1000) == 795
    assert tokens_that_fit(trainer.gradient, batch, of_whole_memory=False) == 768  # 0b1100 << 6
    room = 0.8 * (2 * 10**6 + 10 * weights) - 8 * weights - 10
    assert int((room - 5000) / 1000) == 1594
    assert tokens_that_fit(trainer.gradient, batch, of_whole_memory=True) == 1536
    assert [*dict.fromkeys(tokens)] == [batch.take(slice(0, 4)).tokens, batch.tokens]
    assert torch.equal(torch.get_rng_state(), state)


def test_a_broken_step_forgets_the_halving_after_it(trainer_of, texts, monkeypatch):
    trainer = trainer_of(SimCSE, texts, chunk_tokens="auto", **SETTINGS)
    trainer.max_unread = 2
    trainer.position.limits = [[0, 50], [2, 40]]
    step = type(trainer)._gradient

    def broken(self, batch, before):
        terms = step(self, batch, before)
        if self.position.step == 1:
            terms["contrast"] = terms["contrast"] * float("nan")
        return terms

    monkeypatch.setattr(type(trainer), "_gradient", broken)
    with pytest.raises(DataError, match="at step 2"):
        trainer.train()
    assert trainer.position.limits == [[0, 50]]


def test_the_setting_is_a_number_or_auto():
    assert limits_of("8") == [[0, 8]]
    assert limits_of(None) == limits_of("auto") == []
    for text in ("0", "-1", "x", "8,3:4", "1e3"):
        with pytest.raises(
            UsageError, match=f"^chunk_tokens={text}: expected a number of tokens, or auto$"
        ):
            limits_of(text)
