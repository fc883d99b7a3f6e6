"""Runs of several methods that are killed, some of them twice between two saves, end with the same
bytes.
"""

import json
import random
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from support import PAIRS, in_jsonl, method_of_the_manual
from training.small import ENTRIES, TEXTS, entries_in, every_field

SETTINGS = ["--batch=4", "--epochs=4", "--lr=0.003", "--save-every=4", "--threads=1", "-q"]
SETTINGS += ["--set=max_length=24"]
STEPS = 12  # of twelve rows
KILLED = -signal.SIGKILL
ENDED = -signal.SIGPROF
# Before step 7, then before it again: both times, steps 5 and 6 are in the log and in no state.
TWICE = [["gradient", 7, "before"], ["gradient", 3, "before"]]
IN_A_LINE = [["log", 7, "midst"], ["log", 2, "midst"], ["gradient", 6, "after"]]
CALLS = {  # of functions of killing.py in a run
    "gradient": STEPS,
    "optimizer": STEPS,
    "log": STEPS,
    "fsync": 8,
    "write": 4,
    "rename": 4,
    "json": 3,
    "judge": 2,
    "clean": 2,
    "weights": 1,
    "publish": 1,
}
METHODS = {
    "simcse": ["simcse", "texts.jsonl", "--dev", "pairs.jsonl", "--set", "eval_every=3"],
    "sg-bert": ["sg-bert", "texts.jsonl", "--set", "head_width=8"],
    "contrast": ["contrast", "pairs.jsonl", "--set", "chunk=3"],
    "defsent-plus": ["defsent-plus", "entries.jsonl", "--entries", "entries.safetensors"],
    "classify": ["classify", "labels.jsonl", "--dev", "labels.jsonl", "--set", "dropout=0.2"],
    "lora": [
        "simcse",
        "texts.jsonl",
        "--dev",
        "pairs.jsonl",
        "--set",
        "lora=2",
        "--set",
        "lora_layers=all",
    ],
    "own": ["./mine.py:Uniform", "texts.jsonl", "--dev", "pairs.jsonl", "--set", "eval_every=1"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    rows = every_field(12)
    pairs = [{"text_a": a, "text_b": b, "score": n % 5} for n, (a, b) in enumerate(pairwise(TEXTS))]
    written = {
        "texts": [{"text": text} for text in TEXTS[:12]],
        "pairs": [*pairs, *PAIRS][:12],
        "labels": [{"text": row["text"], "label": row["label"]} for row in rows],
        "entries": [{name: row[name] for name in ("entry", "definition")} for row in rows],
    }
    for name, values in written.items():
        (folder / f"{name}.jsonl").write_text(in_jsonl(*values))
    entries_in(folder / "entries.safetensors", ENTRIES)
    (folder / "mine.py").write_text(method_of_the_manual())
    return folder


@pytest.fixture
def ends_of(folder, base_folder, tmp_path):
    """What killing.py says about these cases of a command, a list of deaths each."""

    def run(command, cases):
        words = [str(folder / word) if (folder / word).is_file() else word for word in command]
        words[0] = words[0].replace("./mine.py", str(folder / "mine.py"))
        driver = [sys.executable, "-m", "training.killing"]
        runs = [str(tmp_path), json.dumps([[1, deaths] for deaths in cases])]
        completed = subprocess.run(
            [*driver, *runs, "--", "train", *words, "-m", str(base_folder), *SETTINGS],
            cwd=Path(__file__).parent.parent,
            capture_output=True,
            text=True,
            check=False,
            timeout=1800,
        )
        lines = [line for line in completed.stdout.splitlines() if line.startswith('{"codes"')]
        assert len(lines) == len(cases), completed.stderr
        ends = [json.loads(line) for line in lines]
        assert ends[0]["codes"] == [[0]], completed.stderr  # the first case has no death
        return ends

    return run


def check_log(path):
    """Each step has one line, in order."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [record["step"] for record in records if "loss" in record] == list(range(1, STEPS + 1))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "classify" else pytest.mark.slow) for name in METHODS],
)
def test_a_run_killed_twice_between_two_saves_has_the_bytes_of_a_whole_run(name, ends_of, tmp_path):
    """All files of the checkpoint, the log included, also if a kill leaves half a line of it."""
    whole, *killed = ends_of(METHODS[name], [[], TWICE, IN_A_LINE])

    assert [end["codes"] for end in (whole, *killed)] == [
        [[code] for code in codes] for codes in ([0], [KILLED] * 2 + [0], [KILLED] * 3 + [0])
    ]
    assert [end["digest"] for end in killed] == [whole["digest"]] * 2
    assert all(end["left"] == ["out"] for end in (whole, *killed))
    for number in range(3):
        check_log(tmp_path / f"case{number}/out/steps.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_random_kills_give_the_bytes_of_a_whole_run(name, ends_of, tmp_path):
    """Ten series of one to three kills: at any call of the functions of killing.py, and at any
    time.
    """
    chance = random.Random(name)
    cases = [[]]
    for _ in range(10):
        deaths = []
        for _ in range(chance.randint(1, 3)):
            if chance.random() < 0.4:
                deaths.append(["clock", chance.uniform(0.02, 0.4), ""])
                continue
            function = chance.choice(list(CALLS))
            moments = ["before", "after"]
            if function in ("log", "write"):
                moments.append("midst")
            deaths.append([function, chance.randint(1, CALLS[function]), chance.choice(moments)])
        cases.append(deaths)
    whole, *killed = ends_of(METHODS[name], cases)

    codes = [code for end in killed for [code] in end["codes"]]
    assert {*codes} <= {0, KILLED, ENDED}
    # Some calls never happen, but most of them do. A fast machine can finish before a time.
    by_calls = sum(function != "clock" for deaths in cases for function, _, _ in deaths)
    assert sum(code != 0 for code in codes) >= by_calls // 2
    assert [end["codes"][-1] for end in killed] == [[0]] * 10
    for deaths, end in zip(cases[1:], killed, strict=True):
        assert (deaths, end["digest"], end["left"]) == (deaths, whole["digest"], ["out"])
    for number in range(11):
        check_log(tmp_path / f"case{number}/out/steps.jsonl")
