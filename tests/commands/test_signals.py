"""Ctrl-C, a lost terminal, and a working folder that has been deleted."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROW = b'{"embedding":[1,0]}\n'

# A start-up file of Python that raises a signal while a module is imported.
INTERRUPTER = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000):
                pass
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize(
    ("module", "start"),
    [
        *((name, ["-m", "sentkit"]) for name in ("typer", "sentkit.cli", "sentkit.commands.cat")),
        ("sentkit.console", ["-c", "from sentkit.__main__ import main; main()"]),
    ],
)
def test_ctrl_c_while_the_program_is_imported(tmp_path, module, start):
    """One line and 130, with `python -m` and with the installed script, which imports the same `main`."""
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTER.format(module=module))
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *start, "cat"],
        input=ROW,
        env=environment,
        capture_output=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )

    assert (done.returncode, done.stdout) == (130, b"")
    assert done.stderr == b"sentkit: stopped by Ctrl-C\n"


def started(tmp_path, *arguments, ignored=()):
    def dispositions():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)

    command = [sys.executable, "-m", "sentkit", *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=tmp_path, preexec_fn=dispositions, **pipes)


def write_a_row(tmp_path, process):
    """And wait for the output."""
    process.stdin.write(ROW)
    process.stdin.flush()
    while not list(tmp_path.iterdir()):
        assert process.poll() is None
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_no_temporary_file(tmp_path, number):
    process = started(tmp_path, "cat", "-o", "out.jsonl")
    write_a_row(tmp_path, process)
    process.send_signal(number)
    _, told = process.communicate()

    assert process.returncode == 128 + number
    assert list(tmp_path.iterdir()) == []
    word = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    assert told.decode() == f"sentkit cat: stopped by {word}\n"


def test_a_stopped_encode_names_the_way_to_keep_its_work(tmp_path):
    (tmp_path / "words.txt").write_text("the 1 0\ncat 0 1\n")
    process = started(tmp_path, "encode", "-m", "words.txt", "-o", "out.safetensors", "-v")
    assert process.stderr.readline() == b"sentkit encode: loading words.txt\n"
    process.send_signal(signal.SIGTERM)
    process.wait(60)  # an end of the input would be another error
    _, told = process.communicate()

    assert process.returncode == 143
    assert told.decode().splitlines()[-2:] == [
        "sentkit encode: stopped by SIGTERM",
        "  with -o DIR/, complete blocks are kept, and --resume continues",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["words.txt"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_an_ignored_signal_stays_ignored(tmp_path, number):
    """As with `nohup`, or in the background of a script."""
    process = started(tmp_path, "cat", "-o", "out.jsonl", ignored=[number])
    write_a_row(tmp_path, process)
    process.send_signal(number)
    process.communicate(ROW)

    assert process.returncode == 0
    assert (tmp_path / "out.jsonl").read_bytes() == ROW * 2


@pytest.mark.parametrize("command", [("cat",), ("encode", "-o", "x.jsonl")])
def test_a_deleted_working_folder_is_66(tmp_path, command):
    """Where a model is loaded, a library would end the process itself."""
    folder = tmp_path / "gone"
    folder.mkdir()
    line = 'cd "$0" && rmdir "$0" && exec "$@"'
    done = subprocess.run(
        ["bash", "-c", line, str(folder), sys.executable, "-m", "sentkit", *command],
        input=b'{"text":"a cat"}\n',
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (66, b"")
    assert done.stderr.decode().splitlines() == [
        f"sentkit {command[0]}: the current folder does not exist",
        "  go to another folder with cd",
    ]
