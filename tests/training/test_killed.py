"""A run that is killed at any place and resumed ends with the same bytes as an uninterrupted run."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support import heed_signals, in_jsonl

CASES = [
    None,  # not killed at all
    *([name, 1, moment] for name in ("judge", "state", "best", "weights") for moment in ("before", "after")),
    *(["optimizer", call, "before"] for call in (1, 4)),
    ["optimizer", 7, "after"],
    ["gradient", 5, "after"],
    *(["write", call, "midst"] for call in (1, 2, 4)),
    *(["fsync", call, moment] for call in (1, 2, 5, 6) for moment in ("before", "after")),
    *(["rename", call, moment] for call in (1, 2, 3) for moment in ("before", "after")),
    ["judge", 3, "before"],
    ["judge", 4, "after"],
    *(["json", call, "before"] for call in (1, 3)),
    ["modules", 1, "before"],
    *(["publish", 1, moment] for moment in ("before", "after")),
    ["clean", 2, "before"],
]
PAIRS = [("a man plays", "a man makes music", 4.0), ("a cat", "a dog", 2.0), ("rain", "the sea", 1.5)]
PAIRS += [("she reads", "the market fell", 0.0), ("birds fly", "the birds are flying", 4.5)]


@pytest.fixture(scope="module")
def files(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("killed")
    (folder / "texts.txt").write_text("".join(text + "\n" for text in texts))
    rows = [dict(zip(("text_a", "text_b", "score"), pair, strict=True)) for pair in PAIRS]
    (folder / "dev.jsonl").write_text(in_jsonl(*rows))
    return folder


@pytest.fixture(scope="module")
def whole(files, base_folder):
    """The result of a run of 200 steps that is not interrupted."""
    return finish(files, base_folder, files / "whole")


def arguments(files, base_folder, *more):
    settings = (
        "--batch",
        "4",
        "--epochs",
        "4",
        "--lr",
        "0.003",
        "--save-every",
        "2",
        "--set",
        "eval_every=3",
    )
    flags = ("-m", str(base_folder), "--dev", str(files / "dev.jsonl"), "--threads", "1", "-q")
    return ["train", "simcse", str(files / "texts.txt"), *settings, *flags, *more]


def test_a_run_killed_at_any_place_resumes_to_the_same_bytes(files, base_folder):
    """Before, within and after each write, rename, evaluation and step. No run imports torch._dynamo."""
    driver = [sys.executable, str(Path(__file__).parent / "killing.py"), str(files), json.dumps(CASES), "--"]
    done = subprocess.run(
        [*driver, *arguments(files, base_folder)], capture_output=True, text=True, check=False
    )
    ends = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"case"')]

    assert [end["case"] for end in ends] == CASES, done.stderr
    assert [end["killed"] for end in ends] == [0] + [-signal.SIGKILL] * (len(CASES) - 1)
    assert {end["resumed"] for end in ends} == {0}
    assert {end["digest"] for end in ends} == {ends[0]["digest"]}
    assert all(end["left"] == ["out"] for end in ends)
    assert len((files / "case0/out/steps.jsonl").read_text().splitlines()) > 16


def start(files, base_folder, folder, *more):
    command = [sys.executable, "-m", "sentkit", *arguments(files, base_folder, "--epochs", "50", *more)]
    command.remove("4")  # the earlier number of epochs
    del command[command.index("--epochs")]
    folder.mkdir(exist_ok=True)
    return subprocess.Popen(
        [*command, "-o", "out"],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_signals,
    )


def wait_for(path, process, lines):
    while process.poll() is None and (not path.exists() or path.read_bytes().count(b"\n") < lines):
        time.sleep(0.01)


def finish(files, base_folder, folder):
    process = start(files, base_folder, folder, "--resume")
    assert process.wait() == 0, process.stderr.read()
    return tuple((folder / "out" / name).read_bytes() for name in ("model.safetensors", "steps.jsonl"))


def test_a_run_killed_twice_at_random_resumes_to_the_same_bytes(files, base_folder, tmp_path, whole):
    """With kill -9, each time after a state was saved."""
    chance, seen = random.Random(7), 0
    for _ in range(2):
        seen += chance.randint(5, 60)
        process = start(files, base_folder, tmp_path, "--resume")
        wait_for(tmp_path / "out.part/steps.jsonl", process, seen)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        assert list((tmp_path / "out.part").glob("state-*.pt"))

    assert finish(files, base_folder, tmp_path) == whole


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_the_state_and_exits_with_75(files, base_folder, tmp_path, whole, number):
    """Within a step; the message says how to continue; the end is the same."""
    process = start(files, base_folder, tmp_path)
    wait_for(tmp_path / "out.part/steps.jsonl", process, 20)
    process.send_signal(number)
    code, said = process.wait(), process.stderr.read().splitlines()

    assert code == 75
    assert said[0].startswith("sentkit train: stopped and saved at step ")
    assert said[1] == "  the same command with --resume continues"
    assert finish(files, base_folder, tmp_path) == whole
