"""Runs that stop early, and the same command with --resume."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from commands.train.records import log_of, record_of
from sentkit.training.loop.trainer import Trainer
from sentkit.training.methods.rank_encoder import RankEncoder
from sentkit.training.methods.simcse import SimCSE
from support import ROOT, TEXTS, contents, in_jsonl, without_command


def test_a_resumed_run_uses_its_number_of_threads_for_the_rank_corpus(train, monkeypatch):
    """The vectors of the corpus are not in the state. Their last bits depend on the threads."""
    thread_counts = []
    encode = RankEncoder.guide_vectors
    step = Trainer._step

    def recording(self, batch):
        thread_counts.append(torch.get_num_threads())
        return encode(self, batch)

    def stopping(self):
        step(self)
        self.stop.requested = True

    monkeypatch.setattr(RankEncoder, "guide_vectors", recording)
    flags = {"method": "rank-encoder", "threads": None}
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", stopping)
        stopped = train("--set", "rank_corpus=4", "--threads", 3, **flags)
    calls_before_the_stop = len(thread_counts)
    result = train("--set", "rank_corpus=4", "--resume", **flags)

    assert (stopped.code, result.code) == (75, 0)
    assert set(thread_counts) == {3}
    assert len(thread_counts) > calls_before_the_stop > 1


def test_a_finished_run_with_rejects_ends_quietly_with_resume(train, tmp_path):
    """The same rows are bad again, and the file has them once."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text(in_jsonl(*({"text": text} for text in TEXTS), {"text": 3}))
    flags = ("--rejects", "bad.jsonl", "--resume")
    first = train(*flags, rows=rows)
    rejects = (tmp_path / "bad.jsonl").read_bytes()
    before = contents(tmp_path / "out")
    again = train(*flags, rows=rows)
    (tmp_path / "notes.txt").write_text("of the user")
    kept = train("--rejects", "notes.txt", "--resume", rows=rows)
    other = train(*flags, rows=rows, output="other")

    assert (first.code, again.code, again.err) == (0, 0, "")
    assert (tmp_path / "bad.jsonl").read_bytes() == rejects
    assert (kept.code, (tmp_path / "notes.txt").read_text()) == (0, "of the user")
    assert contents(tmp_path / "out") == before
    assert (other.code, "bad.jsonl: already exists" in other.err) == (73, True)


def test_another_run_that_replaces_a_checkpoint_writes_its_rejects(train, tmp_path):
    """With -f and --resume there was a checkpoint, but not of these rows."""
    rows = tmp_path / "rows.jsonl"
    good = [{"text": text} for text in TEXTS]
    for name in (3, 4):
        rows.write_text(in_jsonl(*good, {"text": name}))
        result = train("--rejects", "bad.jsonl", "--resume", "-f", "--seed", name, rows=rows)
        [reject] = (tmp_path / "bad.jsonl").read_text().splitlines()

        assert result.code == 0
        assert json.loads(reject)["row"] == in_jsonl({"text": name}).strip()


def test_a_stopped_run_that_replaces_a_checkpoint_can_be_resumed(train, tmp_path, stop_at):
    """With -f and --resume. Without -f, the old checkpoint is kept, and the state with another
    setting.
    """
    train()
    old = contents(tmp_path / "out")
    flags = ("--lr", 0.01, "--save-every", 1)
    train("--lr", 0.01, output="whole")
    with stop_at(2):
        train(*flags, "-f")
    refused = train(*flags, "--resume")
    other = train("--lr", 0.02, "-f", "--resume")
    after_refusals = contents(tmp_path / "out")
    resumed = train(*flags, "-f", "--resume")
    finished = train(*flags, "-f", "--resume")

    assert (refused.code, other.code) == (65, 65)
    assert "out: belongs to a different run: lr (0.01, was 3e-05)" in refused.err
    assert "out.part: belongs to a different run: lr (0.02, was 0.01)" in other.err
    assert "start over with -f and without --resume" in other.err
    assert after_refusals == old
    assert (resumed.code, finished.code, finished.err) == (0, 0, "")
    assert without_command(tmp_path / "out") == without_command(tmp_path / "whole")
    assert len(log_of()) == 3


def test_a_resumed_run_reports_the_lines_that_its_log_has_lost(
    sentkit, tiny, texts, tmp_path, stop_at
):
    command = ("train", "simcse", texts, "-m", tiny, "-o", "out", "--batch", 3, "--threads", 1)
    with stop_at(2):
        sentkit(*command)
    (tmp_path / "out.part/steps.jsonl").unlink()
    result = sentkit(*command, "--resume")

    assert (result.code, [record["step"] for record in log_of()]) == (0, [3])
    assert [line for line in result.told if "steps.jsonl" in line] == [
        "sentkit train: warning: out.part/steps.jsonl is shorter than in the saved state: "
        "lines of its steps are missing"
    ]


def test_a_full_disk_at_the_end_keeps_the_state(train, monkeypatch, tmp_path):
    """The error names the folder, the state is kept, and --resume finishes the run."""

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("sentkit.training.runs.checkpoint.write_folder", full)
        result = train()

    assert (result.code, result.told) == (74, ["sentkit train: out: no space left on device"])
    assert [path.name for path in (tmp_path / "out.part").glob("*.pt")] == ["state-3.pt"]
    assert train("--resume").code == 0
    assert len(log_of()) == 3


SIGNALLED = """
import os, runpy, signal, sys

class Finder:
    def find_spec(name, path, target=None):
        if name == os.environ["SIGNAL_AT"]:
            sys.meta_path.remove(Finder)
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Finder)
runpy.run_module("sentkit", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(("module", "codes"), [("typer", (143, -signal.SIGTERM)), ("torch", (75,))])
def test_a_signal_during_an_import_is_not_lost(tmp_path, tiny, texts, module, codes):
    """75 once the handlers are set, 143 before; never a whole run or a traceback."""
    train = ["train", "simcse", texts, "-m", tiny, "-o", "out", "--epochs", "100000"]
    command = [sys.executable, "-c", SIGNALLED, *train]
    environment = {**os.environ, "SIGNAL_AT": module, "PYTHONPATH": str(ROOT)}
    completed = subprocess.run(
        command, cwd=tmp_path, env=environment, check=False, capture_output=True
    )

    assert completed.returncode in codes, completed.stderr
    assert b"bug" not in completed.stderr
    assert b"Traceback" not in completed.stderr


def test_the_chunks_that_auto_has_chosen_are_recorded(train, monkeypatch):
    """Each number of tokens with the step from which it is the limit."""
    encode = SimCSE.encode

    def short(method, batch):
        if batch.tokens > 12 and len(batch) > 1:
            raise torch.cuda.OutOfMemoryError
        return encode(method, batch)

    monkeypatch.setattr(SimCSE, "encode", short)
    train("--set", "chunk_tokens=auto")
    limits = record_of()["made_with"]["chunk_tokens"]

    assert [step for step, _ in limits] == sorted({step for step, _ in limits})
    assert limits[-1][1] <= 12
    assert f"chunk_tokens {limits}" in Path("out/README.md").read_text()


def test_the_precision_that_auto_chooses_is_recorded_and_needed_by_resume(
    train, stop_at, monkeypatch
):
    """A GPU with bf16 chooses it. Here a CPU claims to be one. The environment has no influence."""
    monkeypatch.setenv("SENTKIT_PRECISION", "bf16")
    flags = ("--save-every", 1, "--resume")
    with stop_at(2):
        train()
    has_bf16 = "sentkit.training.loop.processes.has_fast_bf16"
    with monkeypatch.context() as patch:
        patch.setattr(has_bf16, lambda device: True)
        refused = train(*flags)
        train(output="half")
    resumed = train(*flags)
    monkeypatch.setattr(has_bf16, lambda device: True)
    finished = train(*flags, "--set", "precision=fp32")

    assert refused.told[0].endswith(
        "out.part: belongs to a different run: precision (bf16, was fp32)"
    )
    assert (resumed.code, finished.code) == (0, 0)
    records = [record_of(name) for name in ("out", "half")]
    assert [record["run"]["precision"] for record in records] == ["fp32", "bf16"]
    assert [record["made_with"]["precision"] for record in records] == ["fp32", "bf16"]
