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

DEATHS = [
    *(["judge", 1, moment] for moment in ("before", "after")),
    ["weights", 1, "after"],
    ["optimizer", 1, "before"],
    ["optimizer", 7, "after"],
    ["gradient", 5, "after"],
    *(["write", call, "midst"] for call in (1, 2, 4)),
    *(["fsync", call, "before"] for call in (1, 5)),
    *(["rename", call, "before"] for call in (1, 2)),
    ["rename", 3, "after"],
    ["judge", 4, "after"],
    *(["json", call, "before"] for call in (1, 3)),
    *(["publish", 1, moment] for moment in ("before", "after")),
    ["clean", 2, "before"],
]
TWICE = [[["optimizer", 5, "before"], ["optimizer", 3, "after"]]]
STOPS = [[["gradient", 5, name]] for name in ("TERM", "INT")]
LOST = ["optimizer", 7, "before"]  # of one process of two
CASES = [
    (1, []),
    *((1, [death]) for death in DEATHS),
    *((1, deaths) for deaths in TWICE + STOPS),
    (2, []),
    (2, [LOST]),
    (2, [["gradient", 5, "TERM"]]),
]
SETTINGS = ["--batch=4", "--epochs=3", "--lr=0.003", "--save-every=2", "--set=eval_every=3", "-q"]
SETTINGS += ["--threads=1"]
KILLED = -signal.SIGKILL
UNAVAILABLE = 69
STOPPED = 75


@pytest.fixture(scope="module")
def folder(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("killed")
    (folder / "texts.txt").write_text("".join(text + "\n" for text in texts))
    (folder / "dev.jsonl").write_text(in_jsonl(*PAIRS))
    return folder


@pytest.fixture(scope="module")
def driven(folder, base_folder):
    """What killing.py says about each case, and the messages of all runs."""
    driver = [sys.executable, "-m", "training.killing", str(folder), json.dumps(CASES), "--"]
    files = [str(folder / "texts.txt"), "-m", str(base_folder), "--dev", str(folder / "dev.jsonl")]
    done = subprocess.run(
        [*driver, "train", "simcse", *files, *SETTINGS],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"codes"')]
    assert len(lines) == len(CASES), done.stderr
    ends = [(*case, json.loads(line)) for case, line in zip(CASES, lines, strict=True)]
    return ends, done.stderr


def test_a_run_stopped_at_any_place_resumes_to_the_same_bytes(driven, folder):
    """Before, within and after each write, rename, evaluation and step. No run imports
    torch._dynamo.
    """
    ends, said = driven
    one = [(deaths, end) for world, deaths, end in ends if world == 1]

    for deaths, end in one:
        expected = [STOPPED if death[2] in ("TERM", "INT") else KILLED for death in deaths]
        assert (deaths, end["codes"]) == (deaths, [[code] for code in [*expected, 0]])
    assert {end["digest"] for _, end in one} == {one[0][1]["digest"]}
    assert all(end["left"] == ["out"] for _, end in one)
    assert len((folder / "case0/out/steps.jsonl").read_text().splitlines()) > 9
    stops = [line for line in said.splitlines() if "stopped and saved" in line]
    assert (
        stops == ["sentkit train: stopped and saved at step 5 of 9"] * 3
    )  # one process of two reports it
    assert said.splitlines().count("  the same command with --resume continues") == 3


def test_the_death_of_one_process_ends_the_others_and_its_stop_stops_them(driven, folder):
    """No process hangs. The resumed run writes one checkpoint, that of two processes without a
    death.
    """
    ends, said = driven
    (*_, whole), (*_, resumed), (*_, stopped) = ends[-3:]

    assert whole["codes"] == [[0, 0]]
    assert resumed["codes"] == [[UNAVAILABLE, KILLED], [0, 0]]
    assert "another process of the run ended" in said
    assert resumed["left"] == ["out"]
    assert resumed["digest"] == whole["digest"]
    assert stopped["codes"] == [[STOPPED, STOPPED], [0, 0]]
    assert stopped["digest"] == whole["digest"]
    made = json.loads((folder / f"case{len(CASES) - 1}/out/sentkit.json").read_text())
    assert made["made_with"]["ranks"] == 2
