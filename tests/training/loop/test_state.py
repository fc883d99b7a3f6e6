"""A saved state is read as it was saved, or refused, after any change of its bytes."""

import errno
import io
import json
import math
import random
import resource

import numpy as np
import pytest
import torch

from sentkit.errors import DataError
from sentkit.training.base import open_named
from sentkit.training.catalogue import METHODS
from sentkit.training.data.dev import Dev
from sentkit.training.loop.state import Checkpointer, Position, read_sealed, write_sealed
from sentkit.training.method import changing_tensors
from training.small import equal, make_base, stop_after


@pytest.fixture(scope="module")
def one_layer(tmp_path_factory):
    folder = make_base(tmp_path_factory.mktemp("bases") / "one-layer", num_hidden_layers=1)
    return open_named(str(folder), 32)


@pytest.fixture
def saved(trainer_of, texts, monkeypatch, one_layer):
    """A trainer stopped after step 3 of 6, with the states of steps 2 and 3, each with its best
    weights.
    """
    scores = iter([10.0, 20.0, 30.0, 40.0])
    monkeypatch.setattr(Dev, "best_score", lambda *_: next(scores))
    more = {"dev": Dev(tokens=(), gold=np.empty(0)), "save_every": 1}
    trainer = trainer_of(
        METHODS["simcse"].load(), texts, base=one_layer, batch=4, epochs=2, eval_every=1, **more
    )

    stop_after(trainer, 3)
    assert {path.name for path in trainer.checkpointer.folder.iterdir()} == {
        f"{name}-{step}.pt" for name in ("state", "best") for step in (2, 3)
    }
    return trainer


def load(trainer):
    """With a new checkpointer, as a new process does; and the warnings."""
    warnings = []
    trainer.checkpointer = Checkpointer(trainer.checkpointer.folder)
    return trainer.checkpointer.load(
        trainer.run.identity, warnings.append, keeps_best=True
    ), warnings


def test_flipped_and_lost_bytes_never_give_another_state(saved):
    """Anywhere in a state or in best weights: the older state is read as it was written, and one
    warning.
    """
    folder = saved.checkpointer.folder
    chance = random.Random(5)
    older = read_sealed(folder / "state-2.pt")
    assert equal(load(saved)[0]["method"], changing_tensors(saved.method))
    for name in ("state-3.pt", "best-3.pt"):
        whole = (folder / name).read_bytes()
        offsets = [
            *range(0, 90, 9),
            *(chance.randrange(len(whole)) for _ in range(30)),
            len(whole) - 1,
        ]
        damages = [bytearray(whole) for _ in offsets]
        for offset, damaged in zip(offsets, damages, strict=True):
            damaged[offset] ^= 1 << chance.randrange(8)
        damages += [whole[: chance.randrange(len(whole))] for _ in range(10)]
        damages += [b"", whole[1:], whole + b"x", whole[:200] + whole[400:], b"\0" * len(whole)]
        for damaged in damages:
            (folder / name).write_bytes(damaged)
            state, warnings = load(saved)

            [warning] = warnings
            assert state["position"].step == 2
            assert equal(
                (state["method"], state["optimizer"]), (older["method"], older["optimizer"])
            )
            assert warning.startswith(f"{folder}/state-3.pt: ")
            assert warning.endswith("; the run continues from state-2.pt")
            assert name in warning
        (folder / name).write_bytes(whole)


def test_all_invalid_states_are_named(saved):
    folder = saved.checkpointer.folder
    (folder / "state-2.pt").write_bytes(b"PK\3\4 a state without a digest")
    (folder / "state-3.pt").unlink()
    (folder / "best-2.pt").unlink()
    (folder / "best-3.pt").unlink()
    torch.save({"position": {"step": 4}}, folder / "state-4.pt")
    with pytest.raises(DataError) as caught:
        load(saved)

    reason = "no digest: it is damaged, or another version of sentkit wrote it"
    reasons = f"state-4.pt: {reason}; state-2.pt: {reason}"
    assert str(caught.value) == f"{folder}: all states are invalid: {reasons}"
    assert (caught.value.exit_code, caught.value.advice) == (
        65,
        "start over with -f and without --resume",
    )


def test_damaged_best_weights_end_the_run_and_a_lost_file_of_them_is_named(saved):
    path = saved.checkpointer.folder / "best-3.pt"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"best-3\.pt: its digest does not match"):
        saved.checkpointer.load_best(3)
    path.unlink()

    assert "its best weights, best-3.pt: cannot be read: no such file" in load(saved)[1][0]


@pytest.mark.parametrize("room", [200, 3000, 9000])
def test_a_full_disk_is_the_error_of_a_save(room):
    """Not the error that torch raises after it, which looks like a defect of sentkit."""

    class FullDisk(io.BytesIO):
        def write(self, data):
            if self.tell() + len(data) > room:
                raise OSError(errno.ENOSPC, "No space left on device", "state-3.pt")
            return super().write(data)

    with pytest.raises(OSError, match="No space left on device"):
        write_sealed(FullDisk(), {"a": torch.zeros(3000)})


def test_a_full_disk_at_a_line_of_the_log_names_the_log(tmp_path):
    """A limit of the file size has the same effect as a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    checkpointer = Checkpointer(tmp_path)

    def write_lines():
        with checkpointer.logging():
            checkpointer.write({"step": 1, "loss": 0.5})

    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            write_lines()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert caught.value.filename == str(tmp_path / "steps.jsonl")


@pytest.mark.parametrize("removed", [False, True])
def test_a_resumed_run_removes_later_lines(tmp_path, removed):
    (tmp_path / "state-1.pt").touch()  # without a state, the log of a run that ends is removed
    checkpointer = Checkpointer(tmp_path)
    with checkpointer.logging():
        checkpointer.write({"step": 1})
        length = checkpointer.log_length()
        checkpointer.write({"step": 2})
    if removed:
        (tmp_path / "steps.jsonl").unlink()
    with checkpointer.logging(length):
        checkpointer.write({"step": 3})

    steps = [
        json.loads(line)["step"] for line in (tmp_path / "steps.jsonl").read_text().splitlines()
    ]
    assert steps == ([3] if removed else [1, 3])


def test_the_saved_length_of_the_log_is_that_of_its_lines_after_each_resume(tmp_path):
    """Two runs that are killed between the same two saves leave lines that the next ones
    replace.
    """
    (tmp_path / "state-1.pt").touch()  # without a state, the log of a run that ends is removed
    checkpointer = Checkpointer(tmp_path)
    length = 0
    for killed_after in (4, 3, 5):
        with checkpointer.logging(length):
            assert checkpointer.log_length() == length
            checkpointer.write({"step": 2})
            saved = checkpointer.log_length()
            for step in range(3, killed_after):
                checkpointer.write({"step": step})
        lines = (tmp_path / "steps.jsonl").read_bytes()
        steps = [json.loads(line)["step"] for line in lines.splitlines()]

        assert steps == list(range(2, killed_after))
        assert saved == len(b'{"step":2}\n')


def test_a_score_that_is_no_number_is_never_the_best():
    position = Position(step=1)
    results = []
    for step, score in enumerate([math.nan, 0.5, math.nan, 0.4, 0.6], start=1):
        position.step = step
        results.append(position.add_score(score, cumulative=False))

    assert results == [False, True, False, False, True]
    assert (position.best_score, position.best_step, position.waited) == (0.6, 5, 0)
