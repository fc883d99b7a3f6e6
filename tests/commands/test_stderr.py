"""Standard error: its state changes no result, and no text on it can control a terminal."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sentkit.console import Console
from sentkit.escaping import escape

ROW = b'{"text":"a cat"}\n'
SCORED = (
    b'{"embedding_a":[1,0],"embedding_b":[0,1],"g":1}\n{"embedding_a":[1,0],"embedding_b":[1,0],"g":1.5}\n'
)

ENDS = {
    0: (["cat", "-"], ROW),
    1: (["score", "--gold", "g", "--fail-under", "101"], SCORED),
    2: (["cat", "--no-such-flag"], ROW),
    65: (["cat", "--from", "jsonl"], ROW + b"{\n"),
    66: (["cat", "absent.jsonl"], b""),
    69: (["encode", "--device", "cuda:99"], ROW),
    73: (["cat", "-o", "kept.jsonl"], ROW),
    74: (["cat", "-o", "/dev/full"], ROW * 5000),
}


def close_it() -> None:
    os.close(2)


def broken_pipe() -> int:
    ours, theirs = os.pipe()
    os.close(ours)
    return theirs


def states(kind: str) -> dict:
    if kind == "closed":
        return {"stderr": None, "preexec_fn": close_it}
    if kind == "full":
        return {"stderr": os.open("/dev/full", os.O_WRONLY)}
    return {"stderr": broken_pipe()}


STATES = ("closed", "full", "broken pipe")


@pytest.mark.parametrize("code", ENDS)
def test_stderr_changes_neither_output_nor_exit_code(program, sentkit, tmp_path, code):
    """The same code and the same bytes as with a working standard error, and no file besides.

    A good result meets all three states, the other codes one of them.
    """
    (tmp_path / "kept.jsonl").write_text("kept")
    (tmp_path / "tmp").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    arguments, stdin = ENDS[code]
    states_of_code = STATES if code == 0 else STATES[code % 3 :][:1]
    usual = sentkit(*arguments, stdin=stdin)
    given = {"stdin": stdin, "env": environment, "capture_output": False, "stdout": subprocess.PIPE}

    assert usual.code == code
    for state in states_of_code:
        done = program(*arguments, **given, **states(state))
        assert (state, done.code, done.out) == (state, code, usual.out)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["kept.jsonl", "tmp"]


@pytest.mark.parametrize("state", STATES[:1])
def test_a_stop_is_75_with_any_stderr(tmp_path, state):
    command = [sys.executable, "-m", "sentkit", "train", "simcse", "-o", "ckpt"]
    process = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, **states(state))
    process.stdin.write(ROW * 3)
    process.stdin.flush()
    while not list(tmp_path.glob("ckpt*")):  # it waits for rows, its folder made
        time.sleep(0.05)
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)

    assert process.wait() == 75


@pytest.mark.parametrize("state", STATES[1:])
def test_a_bug_is_70_with_any_stderr(tmp_path, state):
    program = (
        "from sentkit.process import prepare; prepare()\n"
        "from sentkit import cli\n"
        "cli.check_working_folder = lambda: 1 / 0\n"
        "cli.main()\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program, "cat"], input=ROW, env=environment, check=False, **states(state)
    )

    assert done.returncode == 70


def test_messages_never_reach_a_file_of_data(program, tmp_path):
    """With standard error closed, the first file that is opened would get its number."""
    rows = ROW + b"{\n" + ROW
    done = program(
        *("cat", "--from", "jsonl", "--rejects", "/dev/null", "-o", "out.jsonl"),
        stdin=rows,
        capture_output=False,
        preexec_fn=close_it,
    )

    assert done.code == 0
    assert (tmp_path / "out.jsonl").read_bytes() == ROW * 2


@pytest.mark.parametrize("closed", [(0,), (0, 1), (0, 1, 2)])
def test_a_file_never_takes_the_place_of_a_closed_stream(program, tmp_path, closed):
    def close_them() -> None:
        for number in closed:
            os.close(number)

    (tmp_path / "in.jsonl").write_bytes(ROW)
    done = program("cat", "in.jsonl", "-o", "out.jsonl", capture_output=False, preexec_fn=close_them)
    again = program("cat", "in.jsonl", capture_output=False, preexec_fn=close_them)

    assert done.code == 0
    assert (tmp_path / "out.jsonl").read_bytes() == ROW
    assert again.code == (73 if 1 in closed else 0)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, naïve, 北京、　👩‍🚀 \u200fعربي", "plain, naïve, 北京、　👩‍🚀 \u200fعربي"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x9b31m\x7f", r"\x9b31m\x7f"),
        ("\u202egpj.exe\u2066\u2029", r"\u202egpj.exe\u2066\u2029"),
        (os.fsdecode(b"\xff.txt"), r"\xff.txt"),
        ("\ud800", r"\ud800"),
    ],
)
def test_control_characters_are_escaped(text, shown):
    assert escape(text) == shown


HOSTILE = "x\x1b[31m\u202e\x9b\ny\u2028" + os.fsdecode(b"\xfe")
HOSTILE_NAME = "x\x1b[31m\u202e\x9b\ny\u2028"

# Places of a command line that a message repeats: an input, values, an output, a flag and a command.
NAMED = {
    "encode": ["encode", HOSTILE],
    "encode a field": ["encode", "--field", f"{HOSTILE}=x"],
    "cluster a number": ["cluster", "-k", HOSTILE],
    "train a setting": ["train", "simcse", "-o", "ckpt", "--set", f"{HOSTILE}=1"],
    "plot into": ["plot", "heat", "-o", HOSTILE],
    "a flag": ["cat", f"--{HOSTILE}"],
    "a choice": ["cat", "--from", HOSTILE],
    "a command": [HOSTILE],
}


def check_escaped(done, what: str) -> None:
    """Each line begins as a message of sentkit, and one of them contains the escaped name."""
    lines = done.err.split("\n")
    assert lines.pop() == ""
    assert all(line.startswith(("sentkit", "  ")) for line in lines)
    assert all(escape(line) == line for line in lines)
    assert what in done.err


@pytest.mark.parametrize("case", NAMED)
def test_a_hostile_name_is_escaped_in_every_error(sentkit, case):
    done = sentkit(*NAMED[case], stdin='{"text":"a","embedding_a":[1,0],"embedding_b":[1,0],"g":1}\n')

    assert done.code in (2, 66, 73)
    check_escaped(done, r"x\x1b[31m")


PAIR = {"embedding_a": [1, 0], "embedding_b": [0, 1]}
DATA = {
    "score --gold": (["score", "--gold", HOSTILE_NAME], [PAIR]),
    "score --group": (
        ["score", "--gold", "g", "--group", "t"],
        [{**PAIR, "g": n, "t": HOSTILE_NAME} for n in range(2)],
    ),
    "cat, two spaces": (
        ["cat", "-o", "all.safetensors"],
        [{"embedding": [1], "_emb": "a:0123456789ab"}, {"embedding": [1], "_emb": f"{HOSTILE_NAME}:2"}],
    ),
    "cluster --truth": (
        ["cluster", "--truth", HOSTILE_NAME],
        [{"embedding": [1, 0], "g": 1}, {"embedding": [1, 2], "g": 1}],
    ),
    "probe --label": (["probe", "--label", HOSTILE_NAME], [{"embedding": [1, 0]}]),
}


@pytest.mark.parametrize("case", DATA)
def test_hostile_data_is_escaped_in_messages(sentkit, jsonl, case):
    arguments, rows = DATA[case]
    done = sentkit(*arguments, stdin=jsonl(*rows))

    check_escaped(done, r"x\x1b[31m\u202e\x9b\ny\u2028")


def test_warnings_of_libraries_are_hidden(program, jsonl):
    """1e-320 is too small for L-BFGS: no fit converges, neither those of three folds nor that of all rows."""
    rows = [{"embedding": [n, -n], "label": n % 2} for n in range(12)]
    flags = ("--label", "label", "--folds", 3, "--penalties", 1e-320, "-o", "c.safetensors")
    done = program("probe", *flags, stdin=jsonl(*rows))

    assert (done.code, done.told) == (0, ["sentkit probe: warning: -: 4 fits did not converge"])


def test_a_stream_that_fails_is_ignored(monkeypatch):
    """Also where the process has not been prepared: sentkit as a library."""

    class Broken:
        def write(self, text):
            raise OSError(28, "No space left on device")

    for stream in (Broken(), None):
        monkeypatch.setattr(sys, "stderr", stream)
        Console("cat").warn("lost")


def test_a_file_of_stderr_gets_the_messages(tmp_path, program):
    with Path(tmp_path / "log").open("wb") as log:
        done = program("cat", "absent", capture_output=False, stderr=log)

    assert done.code == 66
    assert (tmp_path / "log").read_text() == "sentkit cat: absent: no such file\n"
