"""`--threads`: every pool of threads has this size, even if the environment asks for another."""

import os
import subprocess
import sys

import numpy as np
import pytest

from sentkit import cli
from sentkit.cli import every_command
from sentkit.flags.expand import expand_flags
from sentkit.formats.vectors.store import Store
from sentkit.process import THREAD_VARIABLES

# At its end the program reports the largest pool of a BLAS or of OpenMP, and the threads of torch.
PROGRAM = """
import os, sys
from sentkit import cli
def leave(code):
    from threadpoolctl import threadpool_info
    sizes = [pool["num_threads"] for pool in threadpool_info()]
    torch = sys.modules.get("torch")
    sizes += [torch.get_num_threads()] if torch else []
    sys.stderr.write(f"\\nTHREADS {max(sizes)} {len(os.listdir('/proc/self/task'))}\\n")
    sys.stderr.flush()
    os._exit(code)
cli.leave = leave
cli.main()
"""
COMMANDS = (
    ("encode",),
    ("score", "v.jsonl", "--top", "2"),
    ("search", "--corpus", "v.jsonl", "--queries", "v.jsonl"),
    ("search", "a cat", "--corpus", "v.jsonl"),
    ("duplicates", "v.jsonl", "--threshold", "0.9"),
    ("mine", "p.jsonl", "--corpus", "v.jsonl"),
    ("cluster", "v.jsonl", "-k", "2"),
    ("whiten", "fit", "v.jsonl", "--kind", "ica", "--dim", "2", "-o", "t.safetensors"),
    ("whiten", "apply", "v.jsonl", "-t", "w.safetensors"),
    ("build-entries", "e.jsonl"),
)
several_cores = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="one core: no pool has two threads"
)


LINES = "".join(f"{word} {n}\n" for n in range(40) for word in ("cat", "sea"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the inputs of these commands."""
    folder = tmp_path_factory.mktemp("threads")
    (folder / "lines.txt").write_text(LINES)
    (folder / "e.jsonl").write_text('{"entry":"cat","definition":"an animal"}\n')
    lines, vectors, transform = (str(folder / name) for name in ("lines.txt", "v.jsonl", "w.safetensors"))
    assert cli.status(["encode", "-q", lines, "-o", vectors]) == 0
    (folder / "pairs.jsonl").write_text('{"text_a":"a cat","text_b":"cats"}\n' * 3)
    assert cli.status(["encode", "-q", str(folder / "pairs.jsonl"), "-o", str(folder / "p.jsonl")]) == 0
    assert cli.status(["whiten", "fit", vectors, "--kind", "center", "-o", transform]) == 0
    return folder


@pytest.fixture
def threads(folder):
    """The largest pool that a command leaves, run as a process with these variables; and all its threads."""

    def run(*arguments, **variables):
        bare = {name: value for name, value in os.environ.items() if name not in THREAD_VARIABLES}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments],
            input=LINES.encode(),
            capture_output=True,
            check=False,
            cwd=folder,
            env=bare | variables,
        )
        assert done.returncode == 0, done.stderr
        found = done.stderr.decode().rpartition("THREADS ")[2].split()
        return int(found[0]), int(found[1])

    return run


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_one_thread_is_one_everywhere(threads, command):
    """Also where the environment allows more, so that many processes share a machine."""
    assert threads(*command, "--threads", "1", OMP_NUM_THREADS="8")[0] == 1


def test_the_tokenizer_starts_no_further_threads(threads):
    """One that computes, one that reads ahead, and what Python itself starts."""
    assert threads("encode", "--threads", "1")[1] <= 3


@several_cores
@pytest.mark.parametrize("command", [COMMANDS[0], COMMANDS[1]], ids=" ".join)
def test_a_flag_wins_over_the_environment(threads, command):
    assert threads(*command, "--threads", "2", OMP_NUM_THREADS="1")[0] == 2


@several_cores
@pytest.mark.parametrize("command", [COMMANDS[0], COMMANDS[1]], ids=" ".join)
def test_without_the_flag_the_environment_decides(threads, command):
    assert threads(*command, OMP_NUM_THREADS="1")[0] == 1
    assert threads(*command, OMP_NUM_THREADS="2")[0] == 2


@pytest.mark.parametrize(
    ("value", "count"), [("3,1", 3), (" 2 ", 2), ("0", None), ("many", None), ("", None)]
)
def test_the_recorded_threads_follow_openmp(program, monkeypatch, value, count):
    """Of a list for nested regions, the first number counts; OpenMP ignores words and zero."""
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    done = program("encode", "-q", "-o", "v.safetensors", stdin=b"a cat\n")

    assert (done.code, done.err) == (0, "")
    assert Store("v.safetensors").spec["threads"] == (count or len(os.sched_getaffinity(0)))


def test_without_either_only_the_cores_of_the_process_count(threads):
    """A process that may use one core has one thread."""
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert threads("encode")[0] == 1
        assert threads("score", "v.jsonl", "--top", "2")[0] == 1
    finally:
        os.sched_setaffinity(0, before)


def test_a_vector_file_records_its_threads(program):
    """Beside the precision: both may change the last bits."""
    for count in ("1", "2"):
        done = program("encode", "-q", "--threads", count, "-o", f"{count}.safetensors", stdin=b"a cat\n")
        assert done.code == 0
    one, two = Store("1.safetensors"), Store("2.safetensors")

    assert one.spec["threads"] == 1
    assert two.spec["threads"] == min(2, len(os.sched_getaffinity(0)))
    assert one.emb == two.emb
    assert np.allclose(one.mapped(), two.mapped(), atol=1e-5)


@pytest.mark.parametrize("count", ["0", "-1", "two"])
def test_a_wrong_number_is_wrong_usage(sentkit, count):
    done = sentkit("encode", "--threads", count, stdin="a\n")

    assert done.code == 2
    assert "'--threads'" in done.err


def test_every_command_that_computes_has_the_flag():
    """probe has --jobs: each of its fits runs on one thread."""
    having = {
        name
        for name, command in every_command().items()
        if "threads" in expand_flags(command).__annotations__
    }

    assert having == {
        *("encode", "train", "translate", "build-entries", "distill-static", "report"),
        *("score", "search", "mine", "duplicates", "cluster"),
        *("plot space", "plot pairs", "plot heat", "plot axes", "plot words"),
        *("whiten fit", "whiten apply"),
    }
