"""The log of a run, also of a resumed one."""

import json

from sentkit.training.loop.step_log import StepLog, run_of


def test_a_resumed_run_begins_a_new_log_with_its_name(tmp_path):
    """Another --log, or a removed log. Without the first line, the next --resume refuses the log."""
    path = tmp_path / "run.jsonl"
    with StepLog(str(path), "one", length=500, replace=False) as log:
        log.write({"step": 4})
        length = log.length
    with StepLog(str(path), "one", length=length, replace=False) as log:
        log.write({"step": 5})

    assert run_of(path) == "one"
    assert list(map(json.loads, path.read_text().splitlines())) == [{"run": "one"}, {"step": 4}, {"step": 5}]


def test_a_resumed_run_removes_later_lines(tmp_path):
    path = tmp_path / "run.jsonl"
    with StepLog(str(path), "one") as log:
        log.write({"step": 1})
        length = log.length
        log.write({"step": 2})
    with StepLog(str(path), "one", length=length, replace=False) as log:
        log.write({"step": 3})

    assert list(map(json.loads, path.read_text().splitlines())) == [{"run": "one"}, {"step": 1}, {"step": 3}]
