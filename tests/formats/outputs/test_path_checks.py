"""Outputs compared with inputs and with each other, under different names."""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from sentkit.errors import UsageError
from sentkit.formats.outputs.outputs import check_places


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("model", "runs/seed-1", "other"):
        Path(name).mkdir(parents=True)
    for name in ("in", "model/weights", "runs/seed-1/weights", "runs/rows", "other/in"):
        Path(name).write_text("content")
    Path("link").symlink_to("in")
    Path("links").symlink_to("model")
    Path("nowhere").symlink_to("new")
    os.link("in", "hard")
    os.mkfifo("pipe")


@pytest.mark.parametrize(
    ("output", "source"),
    [
        *(("in", "in"), ("./in", "in"), ("link", "in"), ("hard", "in")),
        *(("model", "model"), ("links", "model"), ("model/weights", "model")),
        *(("runs", "runs/rows"), ("runs", "runs/seed-1/weights")),
    ],
)
def test_an_output_that_would_overwrite_an_input_is_refused(output, source):
    problem = rf"^--rejects {output}: would overwrite the input {source}$"
    with pytest.raises(UsageError, match=problem) as caught:
        check_places({"-o": "new", "--rejects": ["fresh", output]}, {"FILE": [], "-m": None, "--dev": source})

    assert caught.value.advice == "choose another output"


@pytest.mark.parametrize(
    ("output", "source"),
    [
        *(("new", "in"), ("nowhere", "in"), ("model/new", "model"), ("runs/seed-2", "runs/rows")),
        *(("other/in", "in"), ("pipe", "pipe"), ("/dev/null", "/dev/null"), ("-", "-")),
        *(("a\0b", "in"), ("x" * 300, "x" * 300)),
    ],
)
def test_other_outputs_are_not_refused(output, source):
    """An input that does not exist is reported by what reads it."""
    check_places({"-o": output, "--rejects": None}, {"FILE": [source]})
    for first, second in pairwise(["new", "newer", "-", "/dev/stderr", "runs/a", "runs/b"]):
        check_places({"-o": first, "--log": second}, {})
    check_places({"-o": "/dev/null", "--log": "/dev/null"}, {})


SAME, INSIDE = "is also the path of -o", "contains, or is inside, the path of -o"


@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [
        ("new", "new", SAME),
        ("new", "./new", SAME),
        ("nowhere", "new", SAME),
        ("in", "hard", SAME),
        ("link", "in", SAME),
        ("-", "-", SAME),
        ("-", "/dev/stdout", SAME),
        ("/dev/fd/1", "/dev/stdout", SAME),
        ("runs", "runs/log", INSIDE),
        ("runs/rows", "runs", INSIDE),
    ],
)
def test_two_outputs_with_one_path_are_refused(first, second, problem):
    """Also if one is inside the other."""
    with pytest.raises(UsageError, match=rf"^--log {second}: {problem}$"):
        check_places({"-o": first, "--log": second}, {})


CHECK = """
import sys
from sentkit.errors import UsageError
from sentkit.formats.outputs.outputs import check_places
try:
    check_places({sys.argv[1]: sys.argv[2]}, {"FILE": sys.argv[3]})
except UsageError as error:
    sys.stderr.write(str(error))
"""


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("--rejects in - < in", "--rejects in: would overwrite the input standard input"),
        ("--rejects hard /dev/stdin < in", "--rejects hard: would overwrite the input /dev/stdin"),
        ("-o link /dev/fd/0 < in", "-o link: would overwrite the input /dev/fd/0"),
        ("-o - in >> in", "standard output: would overwrite the input in"),
        ("-o /dev/stdout link >> in", "-o /dev/stdout: would overwrite the input link"),
        ("-o - - < in >> in", "standard output: would overwrite the input standard input"),
        ("-o new - < in > out", ""),
        ("-o - - < /dev/null > /dev/null", ""),
        ("-o - - < <(cat in) > >(cat)", ""),
        ("-o in - <&-", ""),
        ("-o - in >&-", ""),
    ],
)
def test_redirected_standard_streams_are_compared_as_files(command, problem):
    shell = ["bash", "-c", f'"$0" -c "$1" {command}', sys.executable, CHECK]
    done = subprocess.run(shell, capture_output=True, text=True, check=False)

    assert done.stderr == problem
    assert Path("in").read_text() == "content"
