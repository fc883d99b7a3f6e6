"""The program as the shell sees it: pipes, signals, terminals, full disks, closed streams."""

import os
import pty
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from support import ROOT, heed_signals

PAIR = b'{"embedding_a":[1,0],"embedding_b":[0.6,0.8]}\n'
ROW = b'{"text":"a cat"}\n'
ENTRY = b'{"entry":"cat","definition":"an animal"}\n'
COMMANDS = (
    pytest.param(("encode", "-m", "TINY"), ROW, id="encode"),
    pytest.param(("build-entries", "-m", "TINY"), ENTRY, id="build-entries"),
    pytest.param(("score",), PAIR, id="score"),
    pytest.param(("cat",), ROW, id="cat"),
)
every = pytest.mark.parametrize(("command", "row"), COMMANDS)


def named(command, model):
    """The words of a command, with this model."""
    return [str(model) if word == "TINY" else word for word in command]


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """Word vectors: a new process need not import torch."""
    path = tmp_path_factory.mktemp("words") / "words.txt"
    path.write_text("a 1 0\ncat 0 1\nan 1 1\nanimal 1 2\n")
    return path


@pytest.fixture
def started(tmp_path, words):
    """A process of the program, its streams as pipes; ended with the test at the latest."""
    running = []

    def start(*arguments, **streams):
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE) | streams
        program = [sys.executable, "-m", "sentkit", *named(arguments, words)]
        running.append(subprocess.Popen(program, cwd=tmp_path, preexec_fn=heed_signals, **pipes))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("command", "row", "reader"),
    [(*each.values, reader) for each, reader in zip(COMMANDS, ["head -1", "true"] * 2, strict=True)],
)
def test_a_reader_that_closes_the_pipe_is_no_error(forked_shell, tiny, tmp_path, command, row, reader):
    """`| head -1` is quiet and 0, also where the whole pipe must succeed."""
    (tmp_path / "rows.jsonl").write_bytes(row * 20_000)
    done = forked_shell(f"sentkit {' '.join(named(command, tiny))} -q rows.jsonl | {reader}")

    assert (done.code, done.err) == (0, "")
    assert done.out.count(b"\n") == (reader == "head -1")


def test_a_reader_that_leaves_at_once_does_not_wait_for_a_slow_writer(shell):
    """A small result is written at the end, into a pipe without a reader."""
    done = shell("sentkit inspect nano | true; sentkit --version | true; sentkit encode --help | true")

    assert (done.code, done.err) == (0, "")


def test_a_terminal_on_standard_input_is_wrong_usage(started):
    """A terminal as input is an error, because nobody types rows."""
    _, terminal = pty.openpty()
    process = started("encode", "-m", "TINY", stdin=terminal)
    _, told = process.communicate()

    assert process.returncode == 2
    problem = "sentkit encode: standard input is a terminal"
    assert told.decode().splitlines()[-2:] == [problem, "  name a FILE, or pipe rows into the command"]


NUMBERED = (
    b'{"embedding_a":[1,0],"embedding_b":[0,1],"g":1}\n{"embedding_a":[1,0],"embedding_b":[1,0],"g":2}\n'
)
DATA = (
    *COMMANDS,
    pytest.param(("score", "--gold", "g"), NUMBERED, id="gold"),
    pytest.param(("encode", "-n", "-m", "TINY"), ROW, id="dry-run"),
    pytest.param(("inspect", "TINY"), b"", id="inspect"),
)
WORDS = (pytest.param(("--version",), b"", id="version"), pytest.param(("cat", "--help"), b"", id="help"))


@pytest.mark.parametrize(("command", "row"), [*DATA[::2], *WORDS])
def test_a_full_disk_behind_standard_output_is_74(program, forked_program, tiny, command, row):
    """One line, for every kind of output."""
    with Path("/dev/full").open("wb") as full:
        streams = {"capture_output": False, "stdout": full, "stderr": subprocess.PIPE}
        done = program(*named(command, tiny), stdin=row, program=forked_program, **streams)
    [told] = [line for line in done.told if "warning: " not in line]

    assert (done.code, told.endswith(": no space left on device")) == (74, True)


@pytest.mark.parametrize(("command", "row"), DATA[2::2])
def test_a_closed_standard_output_is_73(shell, tiny, tmp_path, command, row):
    """Otherwise the result would be lost silently."""
    (tmp_path / "rows.jsonl").write_bytes(row)
    done = shell(f"sentkit {' '.join(named(command, tiny))} < rows.jsonl >&-")
    [told] = [line for line in done.told if "warning: " not in line]

    assert (done.code, told.endswith(": standard output is closed")) == (73, True)


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz", "out.safetensors"])
def test_a_file_that_cannot_grow_leaves_nothing(program, name, tmp_path):
    """As on a full disk: 74, one line, and neither the output nor a part of it."""
    random = b"".join(b'{"embedding":[%d]}\n' % (k * k) for k in range(20_000))

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    done = program("cat", "-o", name, stdin=random, preexec_fn=limit)

    assert (done.code, done.told) == (74, [f"sentkit cat: {name}: file too large"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_output_in_a_folder_of_others_is_73(sentkit, tmp_path):
    (tmp_path / "theirs").mkdir(mode=0o500)
    done = sentkit("cat", "-o", "theirs/out.jsonl", stdin=ROW)

    assert done.code == 73
    assert "cannot be written: permission denied" in done.err


def test_rows_come_out_before_the_input_ends(started):
    """The first group is small: the first rows of a slow writer are answered while it still writes."""
    process = started("encode", "-m", "TINY")
    process.stdin.write(ROW * 32)
    process.stdin.flush()

    assert process.stdout.readline().startswith(b'{"text":"a cat","_emb":"words.txt/mean:')


def test_a_search_answers_before_the_queries_end(started, tmp_path):
    (tmp_path / "c.jsonl").write_bytes(b'{"embedding":[1,0]}\n')
    process = started("search", "--corpus", "c.jsonl")
    process.stdin.write(b'{"embedding":[2,0]}\n' * 16)
    process.stdin.flush()

    assert process.stdout.readline() == b'{"hits":[{"row":1,"similarity":1.0}]}\n'


@pytest.mark.parametrize(
    ("line", "out"),
    [
        ("sentkit cat <(echo '{\"a\":1}') <(echo '{\"a\":2}')", b'{"a":1}\n{"a":2}\n'),
        ("mkfifo pipe; (sentkit cat -o pipe <<< '{\"a\":1}' &) ; cat pipe", b'{"a":1}\n'),
    ],
    ids=["in", "out"],
)
def test_a_named_pipe_is_read_once_and_written_in_place(shell, line, out):
    """Looking whether `<(command)` is there does not use it up; nothing is renamed over `-o >(command)`."""
    done = shell(line)

    assert (done.code, done.out) == (0, out)


def test_a_signal_within_an_import_waits_for_its_end(tmp_path):
    """An import that breaks off may half succeed, and an exit from within it would leave a half file."""
    (tmp_path / "slow.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n")
    program = """
import time
from sentkit.process import unwind_on_signals
from sentkit.formats.outputs.outputs import open_output
unwind_on_signals()
with open_output("out.jsonl", force=False):
    import slow
    time.sleep(60)
"""
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, check=False)

    assert done.returncode == 143
    assert [path.name for path in tmp_path.iterdir()] == ["slow.py"]
