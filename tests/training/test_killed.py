"""A run that is stopped at any place and resumed ends with the same bytes as an
uninterrupted run.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support import PAIRS, in_jsonl
from training.small import TEXTS

# One death at each kind of place; the slow test has more calls of each. Those of one series come
# one after the other, each in a run that resumes the one before.
SERIES = [
    [["judge", 1, "after"], ["optimizer", 7, "after"], ["weights", 1, "after"]],
    [["write", 2, "midst"], ["json", 3, "before"]],
    [["fsync", 5, "before"], ["publish", 1, "before"]],
    [["rename", 2, "before"], ["rename", 3, "after"], ["publish", 1, "after"]],
    [["clean", 2, "before"]],
]
MORE_DEATHS = [
    ["judge", 1, "before"],
    ["judge", 4, "after"],
    ["optimizer", 1, "before"],
    ["gradient", 5, "after"],
    *(["write", call, "midst"] for call in (1, 4)),
    ["fsync", 1, "before"],
    ["rename", 1, "before"],
    ["json", 1, "before"],
]
TWICE = [[["optimizer", 5, "before"], ["optimizer", 3, "after"]]]
STOPS = [[["gradient", 5, name]] for name in ("TERM", "INT")]
LOST = ["optimizer", 7, "before"]  # of one process of two
CASES = [
    (1, []),
    *((1, deaths) for deaths in SERIES + TWICE + STOPS),
    (2, []),
    (2, [LOST]),
    (2, [["gradient", 5, "TERM"]]),
]
MORE_CASES = [(1, []), *((1, [death]) for death in MORE_DEATHS)]
SETTINGS = ["--batch=4", "--epochs=3", "--lr=0.003", "--save-every=2", "--set=eval_every=3", "-q"]
SETTINGS += ["--threads=1"]
KILLED = -signal.SIGKILL
UNAVAILABLE = 69
STOPPED = 75


def drive(folder, base_folder, cases):
    """What killing.py says about each case, and the messages of all runs; the runs are in this
    folder.
    """
    (folder / "texts.txt").write_text("".join(text + "\n" for text in TEXTS))
    (folder / "dev.jsonl").write_text(in_jsonl(*PAIRS))
    driver = [sys.executable, "-m", "training.killing", str(folder), json.dumps(cases), "--"]
    files = [str(folder / "texts.txt"), "-m", str(base_folder), "--dev", str(folder / "dev.jsonl")]
    completed = subprocess.run(
        [*driver, "train", "simcse", *files, *SETTINGS],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in completed.stdout.splitlines() if line.startswith('{"codes"')]
    assert len(lines) == len(cases), completed.stderr
    ends = [(*case, json.loads(line)) for case, line in zip(cases, lines, strict=True)]
    return ends, completed.stderr


def check_one_process(ends):
    """Each killed run ended as its death says, and the resumed one has the bytes of the first,
    which has no death.
    """
    of_one_process = [(deaths, end) for world, deaths, end in ends if world == 1]
    for deaths, end in of_one_process:
        expected = [STOPPED if death[2] in ("TERM", "INT") else KILLED for death in deaths]
        assert (deaths, end["codes"]) == (deaths, [[code] for code in [*expected, 0]])
    assert {end["digest"] for _, end in of_one_process} == {of_one_process[0][1]["digest"]}
    assert all(end["left"] == ["out"] for _, end in of_one_process)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("killed")


@pytest.fixture(scope="module")
def driven(folder, base_folder):
    return drive(folder, base_folder, CASES)


def test_a_run_stopped_at_any_place_resumes_to_the_same_bytes(driven, folder):
    """Before, within and after each write, rename, evaluation and step. No run imports
    torch._dynamo.
    """
    ends, messages = driven

    check_one_process(ends)
    assert len((folder / "case0/out/steps.jsonl").read_text().splitlines()) > 9
    stops = [line for line in messages.splitlines() if "stopped and saved" in line]
    # One process of two reports it.
    assert stops == ["sentkit train: stopped and saved at step 5 of 9"] * 3
    assert messages.splitlines().count("  the same command with --resume continues") == 3


@pytest.mark.slow
def test_a_run_stopped_at_more_places_resumes_to_the_same_bytes(base_folder, tmp_path):
    ends, _ = drive(tmp_path, base_folder, MORE_CASES)

    check_one_process(ends)


def test_the_death_of_one_process_ends_the_others_and_its_stop_stops_them(driven, folder):
    """No process hangs. The resumed run writes one checkpoint, that of two processes without a
    death.
    """
    ends, messages = driven
    (*_, whole), (*_, resumed), (*_, stopped) = ends[-3:]

    assert whole["codes"] == [[0, 0]]
    assert resumed["codes"] == [[UNAVAILABLE, KILLED], [0, 0]]
    assert "another process of the run ended" in messages
    assert resumed["left"] == ["out"]
    assert resumed["digest"] == whole["digest"]
    assert stopped["codes"] == [[STOPPED, STOPPED], [0, 0]]
    assert stopped["digest"] == whole["digest"]
    record = json.loads((folder / f"case{len(CASES) - 1}/out/sentkit.json").read_text())
    assert record["made_with"]["ranks"] == 2
