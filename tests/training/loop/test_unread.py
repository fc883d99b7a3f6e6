"""The host reads the values of a step some steps later, as it does for a GPU. Here on a CPU."""

import math

import pytest
import torch

from sentkit.errors import DataError
from sentkit.training.loop import trainer as loop
from sentkit.training.loop.state import StepLog, read_sealed
from sentkit.training.method import changing
from sentkit.training.methods.mlm import TSDAE
from sentkit.training.methods.simcse import SimCSE

BROKEN = 3  # the step, from 0, whose norm is not finite


def run(trainer, behind):
    """Train, and return the log, the weights and moments, and the exception."""
    trainer.behind, error = behind, None
    torch.manual_seed(3)
    with StepLog(trainer.keeper.folder) as log:
        trainer.step_log = log
        try:
            trainer.train()
        except DataError as caught:
            error = caught
        lines = (trainer.keeper.folder / "steps.jsonl").read_text()
    moments = [each for state in trainer.optimizer.state.values() for each in state.values()]
    return lines, [*changing(trainer.method).values(), *map(torch.as_tensor, moments)], error


def equal(ours, theirs):
    return len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))


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
    (lines, tensors, _), (others, other_tensors, _) = (
        run(trainer, behind) for trainer, behind in zip(trainers, (0, 3), strict=True)
    )

    assert lines == others
    assert lines.count("\n") == trainers[0].position.step >= 6
    assert equal(tensors, other_tensors)


@pytest.mark.parametrize("optimizer", ["adamw", "adamw-hf"])
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_step_that_is_not_finite_is_not_applied(trainer_of, texts, monkeypatch, optimizer, value):
    """Two steps follow before the host sees it. State, log and message are those of a host that waits."""
    clip, found = loop.clip_gradient, []
    for behind in (0, 2):
        calls = iter(range(100))

        def broken(parameters, limit, calls=calls):
            if next(calls) == BROKEN:
                for parameter in parameters:
                    parameter.grad.fill_(value)
            return clip(parameters, limit)

        monkeypatch.setattr(loop, "clip_gradient", broken)
        trainer = trainer_of(
            SimCSE, texts, batch=4, epochs=3, lr=3e-3, optimizer=optimizer, weight_decay=0.1, dropout=0.1
        )
        lines, tensors, error = run(trainer, behind)
        state = read_sealed(trainer.keeper.folder / f"state-{BROKEN}.pt")
        assert next(calls) == BROKEN + 1 + behind  # so many steps were computed
        assert lines.count("\n") == BROKEN
        assert state["position"]["log_bytes"] == len(lines.encode())
        found.append((lines, tensors, state, str(error)))
    (lines, tensors, state, message), (others, other_tensors, other_state, other_message) = found

    assert message == other_message
    assert f"is {value} at step {BROKEN + 1}: the run cannot continue" in message
    assert lines == others
    assert equal(tensors, other_tensors)
    assert state["position"] == other_state["position"]
    assert equal(state["random_states"], other_state["random_states"])
    assert equal([*state["method"].values()], [*other_state["method"].values()])
    for place, own in state["optimizer"]["state"].items():
        other = other_state["optimizer"]["state"][place]
        assert own["step"] == other["step"] == BROKEN
        assert torch.equal(own["exp_avg_sq"], other["exp_avg_sq"])


def test_a_term_that_is_not_finite_ends_the_run_too(trainer_of, texts, monkeypatch):
    """Its gradient is finite: it has none."""
    trainer = trainer_of(SimCSE, texts, batch=4, epochs=3)
    values = iter([0.0, 0.0, math.inf, 0.0, 0.0])
    monkeypatch.setattr(
        SimCSE, "penalty", lambda method: {"odd": torch.tensor(next(values), requires_grad=True)}
    )
    _, _, error = run(trainer, 2)

    assert "training: odd is inf at step 3: " in str(error)
    assert trainer.position.step == 2


def test_the_log_is_complete_before_each_state_and_evaluation(trainer_of, texts, monkeypatch):
    trainer, complete = trainer_of(SimCSE, texts, batch=4, epochs=2, save_every=2), []
    save = trainer.keeper.save

    def saved(position, *more):
        lines = (trainer.keeper.folder / "steps.jsonl").read_bytes()
        complete.append((position.step, lines.count(b"\n"), len(lines) == position.log_bytes))
        save(position, *more)

    monkeypatch.setattr(type(trainer.keeper), "save", lambda keeper, *arguments: saved(*arguments))
    run(trainer, 3)

    assert complete == [(2, 2, True), (4, 4, True), (6, 6, True)]


def test_the_next_step_is_prepared_before_the_values_of_the_last_one_are_read(trainer_of, texts, monkeypatch):
    trainer, log, to_host = trainer_of(SimCSE, texts, batch=4, epochs=1), [], loop.to_host
    batch = type(trainer).batch

    def logged(tensors):
        number, wait = trainer.position.step, to_host(tensors)
        return lambda: log.append(f"read {number}") or wait()

    monkeypatch.setattr(loop, "to_host", logged)
    monkeypatch.setattr(
        type(trainer), "batch", lambda own, step: log.append(f"draw {step}") or batch(own, step)
    )
    run(trainer, 1)

    assert log == ["draw 0", "draw 1", "read 0", "draw 2", "read 1", "read 2"]
