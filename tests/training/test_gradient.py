"""The gradient is of the whole batch, in however many chunks and processes it is computed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sentkit.training.batches import chunks, shares
from sentkit.training.gradient import Gradient
from sentkit.training.methods.simcse import SimCSE
from sentkit.training.ranks import Ranks


def gradient_of(trainer, chunk, step=0):
    trainer.method.train()
    trainer.method.zero_grad()
    torch.manual_seed(5)
    terms = Gradient(trainer.method, Ranks(), chunk).of(trainer._batch(step))
    return terms, {n: p.grad.clone() for n, p in trainer.method.trained() if p.grad is not None}


def worst(one, other):
    assert one.keys() == other.keys()
    return max((one[name] - other[name]).abs().max().item() for name in one)


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 12])
def test_chunks_have_the_gradient_of_the_batch(trainer_of, texts, chunk):
    """Exactly, up to rounding in float64, without dropout."""
    trainer = trainer_of(SimCSE, texts, double=True, batch=13, dropout=0)
    whole, slopes = gradient_of(trainer, 0)
    chunked, again = gradient_of(trainer, chunk)

    assert abs(whole["contrast"] - chunked["contrast"]) < 1e-12
    assert worst(slopes, again) < 1e-9


def test_chunks_are_encoded_again_with_the_same_dropout(trainer_of, texts):
    """The gradient is that of the loss of the masks first drawn: a small step changes it as foretold."""
    trainer = trainer_of(SimCSE, texts, double=True, batch=12, dropout=0.2)
    before, slopes = gradient_of(trainer, 5)
    name, weight = next((n, p) for n, p in trainer.method.trained() if n.endswith("up.weight"))
    with torch.no_grad():
        weight -= 1e-6 * slopes[name]
    after, _ = gradient_of(trainer, 5)

    foretold = -1e-6 * slopes[name].square().sum().item()
    assert after["contrast"] - before["contrast"] == pytest.approx(foretold, rel=1e-3)


def test_a_chunked_run_keeps_the_dice_where_a_whole_one_leaves_them(trainer_of, texts):
    """After a step in one chunk or in several, the generator stands where the masks of one pass left it."""
    trainer = trainer_of(SimCSE, texts, batch=12)
    states = []
    for chunk in (12, 4):
        gradient_of(trainer, chunk)
        states.append(torch.get_rng_state())
    trainer.method.train()
    torch.manual_seed(5)
    for rows in chunks(12, 4):
        trainer.method.encode(trainer._batch(0).part(rows))

    assert torch.equal(torch.get_rng_state(), states[1])


@pytest.mark.parametrize(("rows", "parts"), [(12, 3), (13, 3), (2, 3), (1, 1), (64, 7)])
def test_shares_are_all_rows_in_order(rows, parts):
    found = [list(range(rows))[share] for share in shares(rows, parts)]

    assert [row for part in found for row in part] == list(range(rows))
    assert max(map(len, found)) - min(map(len, found)) <= 1


WORKER = Path(__file__).parent / "worker.py"


def together(folder, base_folder, method, processes, *more):
    """Losses and weights of a run in that many processes, over gloo, in float64."""
    out = folder / f"{method}{processes}.pt"
    command = [sys.executable, str(WORKER), str(base_folder), str(folder), method, str(out), *more]
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    if processes > 1:
        command[1:1] = launch
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return torch.load(out)


@pytest.mark.parametrize("method", ["simcse"])
def test_processes_are_as_one(tmp_path, base_folder, method):
    """Two and three processes have the losses of one with the whole batch, and end with its weights.

    The batch of 4 is uneven for three, and the last one, of 2, leaves one of them without a row.
    """
    one = together(tmp_path, base_folder, method, 1)
    for processes in (2, 3):
        many = together(tmp_path, base_folder, method, processes)

        assert max(abs(a - b) for a, b in zip(one["losses"], many["losses"], strict=True)) < 1e-9
        assert worst(one["weights"], many["weights"]) < 1e-9


def test_processes_with_chunks_are_as_one(tmp_path, base_folder):
    one = together(tmp_path, base_folder, "simcse", 1)
    many = together(tmp_path, base_folder, "simcse", 2, "chunk=1")

    assert max(abs(a - b) for a, b in zip(one["losses"], many["losses"], strict=True)) < 1e-9
    assert worst(one["weights"], many["weights"]) < 1e-9


def test_a_process_that_dies_ends_the_others(tmp_path, base_folder):
    """None hangs, and the one that is left says why."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    worker = [str(WORKER), str(base_folder), str(tmp_path), "simcse", str(tmp_path / "out.pt"), "die=2"]
    done = subprocess.run([*command, *worker], capture_output=True, text=True, check=False, timeout=120)

    assert done.returncode != 0
    assert not (tmp_path / "out.pt").exists()
