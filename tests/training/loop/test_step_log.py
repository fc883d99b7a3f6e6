"""The log of a run, also of a resumed one."""

import json

import pytest

from sentkit.training.loop.state import StepLog


@pytest.mark.parametrize("removed", [False, True])
def test_a_resumed_run_removes_later_lines(tmp_path, removed):
    (tmp_path / "state-1.pt").touch()  # without a state, the log of a run that ends is removed
    with StepLog(tmp_path) as log:
        log.write({"step": 1})
        length = log.length
        log.write({"step": 2})
    if removed:
        (tmp_path / "steps.jsonl").unlink()
    with StepLog(tmp_path, length) as log:
        log.write({"step": 3})

    steps = [json.loads(line)["step"] for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert steps == ([3] if removed else [1, 3])
