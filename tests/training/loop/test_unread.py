"""The host reads the values of a step some steps later, as it does for a GPU. Here on a CPU."""

import math
from dataclasses import replace

import pytest
import torch

from sentkit.errors import DivergedError
from sentkit.training.loop import trainer as loop
from sentkit.training.loop.state import read_sealed
from sentkit.training.methods.simcse import SimCSE
from sentkit.training.methods.tsdae import TSDAE
from training.small import equal, run_with_log

BROKEN = 3  # the step, from 0, whose norm is not finite


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (SimCSE, {"optimizer": "adamw-hf", "weight_decay": 0.1, "chunk": 3}),
        (TSDAE, {"optimizer": "adamw-bert", "weight_decay": 0.1, "chunk": 2}),
        (SimCSE, {"clip": 0, "mlm_weight": 0.1}),
    ],
)
def test_losses_log_and_weights_are_the_same_bits(trainer_of, texts, kind, settings):
    trainers = [trainer_of(kind, texts, batch=4, epochs=2, lr=3e-3, **settings) for _ in range(2)]
    now, later = map(run_with_log, trainers, (0, 3))

    assert equal(now, later)
    assert now[0].count("\n") == trainers[0].position.step >= 6


@pytest.mark.parametrize("optimizer", ["adamw", "adamw-hf"])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_step_that_is_not_finite_is_not_applied(trainer_of, texts, monkeypatch, optimizer, value):
    """Two steps follow before the host sees it. State, log and message are those of a host that
    waits.
    """
    clip = loop.clip_gradient
    results = []
    for behind in (0, 2):
        calls = iter(range(100))

        def broken(parameters, limit, calls=calls):
            if next(calls) == BROKEN:
                for parameter in parameters:
                    parameter.grad.fill_(value)
            return clip(parameters, limit)

        monkeypatch.setattr(loop, "clip_gradient", broken)
        trainer = trainer_of(
            SimCSE,
            texts,
            batch=4,
            epochs=3,
            lr=3e-3,
            optimizer=optimizer,
            weight_decay=0.1,
            dropout=0.1,
        )
        lines, (weights, _), [message] = run_with_log(trainer, behind)
        state = read_sealed(trainer.checkpointer.folder / f"state-{BROKEN}.pt")
        assert next(calls) == BROKEN + 1 + behind  # so many steps were computed
        assert lines.count("\n") == BROKEN
        assert state["position"]["log_bytes"] == len(lines.encode())
        moments = state.pop("optimizer")["state"].values()
        assert {moment["step"] for moment in moments} == {BROKEN}
        results.append(
            (lines, weights, message, state, [moment["exp_avg_sq"] for moment in moments])
        )

    assert equal(*results)
    assert f"is {value} at step {BROKEN + 1}: the run cannot continue" in message


@pytest.mark.parametrize(
    ("broken", "flags", "advice"),
    [
        (0, {}, loop.OF_FIRST_STEP),
        (1, {}, "use a lower --lr; because this is a different run, add -f"),
        (1, {"force": True}, "use a lower --lr"),
        (
            1,
            {"resume": True},
            "use a lower --lr; because this is a different run, add -f and remove --resume",
        ),
    ],
)
def test_the_advice_names_only_flags_that_the_next_command_needs(
    trainer_of, texts, monkeypatch, broken, flags, advice
):
    """The first step leaves no state, and no rate has changed its weights."""
    trainer = trainer_of(SimCSE, texts, batch=4)
    trainer.run = replace(trainer.run, **flags)
    values = iter([0.0] * broken + [math.nan])
    monkeypatch.setattr(
        SimCSE, "penalty", lambda method: {"odd": torch.tensor(next(values), requires_grad=True)}
    )
    with pytest.raises(DivergedError) as error, trainer.checkpointer.logging():
        trainer.train()

    assert error.value.advice == advice


def test_a_term_that_is_not_finite_ends_the_run_too(trainer_of, texts, monkeypatch):
    """Its gradient is finite: it has none."""
    trainer = trainer_of(SimCSE, texts, batch=4, epochs=3)
    values = iter([0.0, 0.0, math.inf, 0.0, 0.0])
    monkeypatch.setattr(
        SimCSE, "penalty", lambda method: {"odd": torch.tensor(next(values), requires_grad=True)}
    )
    _, _, [error] = run_with_log(trainer, 2)

    assert "training: odd is inf at step 3: " in error
    assert trainer.position.step == 2


def test_the_log_is_complete_before_each_state_and_evaluation(trainer_of, texts, monkeypatch):
    trainer = trainer_of(SimCSE, texts, batch=4, epochs=2, save_every=2)
    complete = []
    save = trainer.checkpointer.save

    def saved(position, *more):
        lines = (trainer.checkpointer.folder / "steps.jsonl").read_bytes()
        complete.append((position.step, lines.count(b"\n"), len(lines) == position.log_bytes))
        save(position, *more)

    monkeypatch.setattr(
        type(trainer.checkpointer), "save", lambda self, *arguments: saved(*arguments)
    )
    run_with_log(trainer, 3)

    assert complete == [(2, 2, True), (4, 4, True), (6, 6, True)]


def test_the_next_step_is_prepared_before_the_values_of_the_last_one_are_read(
    trainer_of, texts, monkeypatch
):
    trainer = trainer_of(SimCSE, texts, batch=4, epochs=1)
    log = []
    to_host = loop.to_host
    batch = type(trainer).batch

    def logged(tensors):
        number = trainer.position.step
        wait = to_host(tensors)
        return lambda: log.append(f"read {number}") or wait()

    monkeypatch.setattr(loop, "to_host", logged)
    monkeypatch.setattr(
        type(trainer),
        "batch",
        lambda any_trainer, step: log.append(f"draw {step}") or batch(any_trainer, step),
    )
    run_with_log(trainer, 1)

    assert log == ["draw 0", "draw 1", "read 0", "draw 2", "read 1", "read 2"]
