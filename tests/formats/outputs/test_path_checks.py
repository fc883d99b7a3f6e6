"""Outputs compared with inputs and with each other, under different names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sentkit.errors import UsageError
from sentkit.formats.outputs.outputs import check_places


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        ("in", "in"),
        ("./in", "in"),
        ("link", "in"),
        ("hard", "in"),
        ("model", "model"),
        ("links", "model"),
        ("model/weights", "model"),
        ("runs", "runs/rows"),
        ("runs", "runs/seed-1/weights"),
    ],
)
def test_an_output_that_would_overwrite_an_input_is_refused(output: str, source: str) -> None:
    with pytest.raises(
        UsageError, match=rf"^--rejects {output}: would overwrite the input {source}$"
    ) as caught:
        check_places({"-o": "new", "--rejects": ["fresh", output]}, {"FILE": [], "-m": None, "--dev": source})

    assert caught.value.advice == "choose another output"


@pytest.mark.parametrize(
    ("output", "source"),
    [
        ("new", "in"),
        ("nowhere", "in"),
        ("model/new", "model"),
        ("runs/seed-2", "runs/rows"),
        ("other/in", "in"),
        ("pipe", "pipe"),
        ("/dev/null", "/dev/null"),
        ("-", "-"),
        ("a\0b", "in"),
        ("x" * 300, "x" * 300),
    ],
)
def test_other_outputs_are_not_refused(output: str, source: str) -> None:
    """An input that does not exist is reported by what reads it."""
    check_places({"-o": output, "--rejects": None}, {"FILE": [source]})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("new", "new"),
        ("new", "./new"),
        ("nowhere", "new"),
        ("in", "hard"),
        ("link", "in"),
        ("-", "-"),
        ("-", "/dev/stdout"),
        ("/dev/fd/1", "/dev/stdout"),
    ],
)
def test_two_outputs_with_one_path_are_refused(first: str, second: str) -> None:
    with pytest.raises(UsageError, match=rf"^--log {second}: is also the path of -o$"):
        check_places({"-o": first, "--log": second}, {})


@pytest.mark.parametrize(("first", "second"), [("runs", "runs/log"), ("runs/rows", "runs")])
def test_an_output_inside_another_output_is_refused(first: str, second: str) -> None:
    with pytest.raises(UsageError, match=rf"^--log {second}: contains, or is inside, the path of -o$"):
        check_places({"-o": first, "--log": second}, {})


@pytest.mark.parametrize(
    ("first", "second"),
    [("new", "newer"), ("/dev/null", "/dev/null"), ("-", "new"), ("-", "/dev/stderr"), ("runs/a", "runs/b")],
)
def test_two_outputs_with_two_paths_are_accepted(first: str, second: str) -> None:
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
    ("shell", "problem"),
    [
        ('"$0" -c "$1" --rejects in - < in', "--rejects in: would overwrite the input standard input"),
        (
            '"$0" -c "$1" --rejects hard /dev/stdin < in',
            "--rejects hard: would overwrite the input /dev/stdin",
        ),
        ('"$0" -c "$1" -o link /dev/fd/0 < in', "-o link: would overwrite the input /dev/fd/0"),
        ('"$0" -c "$1" -o - in >> in', "standard output: would overwrite the input in"),
        ('"$0" -c "$1" -o /dev/stdout link >> in', "-o /dev/stdout: would overwrite the input link"),
        ('"$0" -c "$1" -o - - < in >> in', "standard output: would overwrite the input standard input"),
        ('"$0" -c "$1" -o new - < in > out', ""),
        ('"$0" -c "$1" -o - - < /dev/null > /dev/null', ""),
        ('cat in | "$0" -c "$1" -o - - | cat', ""),
        ('"$0" -c "$1" -o in - <&-', ""),
        ('"$0" -c "$1" -o - in >&-', ""),
    ],
)
def test_redirected_standard_streams_are_compared_as_files(shell: str, problem: str) -> None:
    done = subprocess.run(
        ["bash", "-c", shell, sys.executable, CHECK], capture_output=True, text=True, check=False
    )

    assert done.stderr == problem
    assert Path("in").read_text() == "content"
