"""The tables of command lines in commands/sessions/*.txt: how they are read and run.

A file has shared files, then cases. Each case runs in an empty folder with these files:

    file NAME: TEXT         a file of one line; without TEXT, the indented lines below are its lines
    == TITLE                a case
    each WORD: A | B        run the case with each of these in place of WORD
    $ ARGUMENTS             run sentkit; behind it > FILE for its output, < FILE or <<< TEXT
                            (\\n: a newline)
    $ ARGUMENTS !65 TEXT    exit code 65, and the message begins with TEXT, behind the name of the
                            command
    ! TEXT                  a further line of standard error
    = TEXT                  a line of standard output; [...] is any text
    = ...                   any output; ! ... any further messages
    ~ JSON                  a row of standard output has these values; floats are equal within 1e-6
    tty ARGUMENTS           run it on a terminal; blanks between words do not matter
    same A B                files with equal bytes
    ls NAMES                the names in the folder, without those of the files of the case
    rm NAME                 remove a file or folder
    set NAME=VALUE          a variable of the environment

Without a line of output or of standard error, there is none. A command that fails (but 1 and 75)
changes no file but that of --rejects, and its message has at most one line of advice. TINY, OTHER,
CLASSIFIER and MARIAN are the models of conftest.py.
"""

import json
import re
import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support import contents

FOLDER = Path(__file__).parent / "commands/sessions"
MODELS = ("TINY", "OTHER", "CLASSIFIER", "MARIAN")
ANSWERED = (0, 1, 75)  # codes of commands that have written their output
LINE = re.compile(r"(.*?)(?: !(\d+) ?(.*))?")
COMMAND = re.compile(r"(.*?)(?: > (\S+))?(?: <<< (.*)| < (\S+))?")


@dataclass
class Step:
    number: int  # of its line
    kind: str
    text: str
    out: list[str] = field(default_factory=list)
    err: list[str] = field(default_factory=list)


@dataclass
class Case:
    title: str
    files: dict[str, str]
    steps: list[Step] = field(default_factory=list)
    word: str = ""
    value: str = ""


def read_file(lines, number, text):
    """The name and the content of a file, and the number of the line behind it."""
    name, _, content = text.partition(": ")
    start = number
    while number < len(lines) and lines[number].startswith("  "):
        number += 1
    rows = [content] if content else [line[2:] for line in lines[start:number]]
    return name.removesuffix(":"), "".join(f"{row}\n" for row in rows), number


def add_line(case, number, kind, text):
    if kind == "each":
        case.word, _, case.value = text.partition(": ")
    elif kind == "!":
        case.steps[-1].err.append(text)
    elif kind in ("=", "~"):
        case.steps[-1].out.append(f"{kind}{text}")
    elif kind not in ("", "#"):
        case.steps.append(Step(number, kind, text))


def read_cases(text, stem=""):
    """The cases of a table."""
    lines = text.split("\n")
    shared = {}
    cases = []
    number = 0
    while number < len(lines):
        kind, _, text = lines[number].partition(" ")
        number += 1
        if kind == "file":
            name, content, number = read_file(lines, number, text)
            (cases[-1].files if cases else shared)[name] = content
        elif kind == "==":
            cases.append(Case(f"{stem}: {text}", dict(shared)))
        else:
            add_line(cases[-1] if cases else None, number, kind, text)
    for case in cases:
        for value in case.value.split(" | "):
            title = case.title + (f" [{value}]" if case.word else "")
            yield Case(title, case.files, case.steps, case.word, value)


def all_cases():
    paths = sorted(FOLDER.glob("*.txt"))
    return [case for path in paths for case in read_cases(path.read_text(), path.stem)]


def fits(expected, line, *, start=False):
    patterns = [re.escape(text) for text in expected.split("[...]")]
    return re.fullmatch(".*".join(patterns) + (".*" if start else ""), line, re.DOTALL)


def contains(actual, expected):
    """The values of a record are there, at any depth."""
    if isinstance(expected, dict):
        return isinstance(actual, dict) and all(
            name in actual and contains(actual[name], expected_value)
            for name, expected_value in expected.items()
        )
    if isinstance(expected, list):
        return len(actual) == len(expected) and all(map(contains, actual, expected))
    if isinstance(expected, float):
        return actual == pytest.approx(expected, rel=1e-6, abs=1e-6)
    return actual == expected and isinstance(actual, bool) == isinstance(expected, bool)


class Player:
    """Runs the steps of a case in the current folder, and collects what is not as expected."""

    def __init__(self, fixture):
        """`fixture` returns the value of a fixture by its name."""
        self.fixture = fixture
        self.models = {}
        self.wrong = []

    def play(self, case):
        put = (lambda text: text.replace(case.word, case.value)) if case.word else str
        for name, text in case.files.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(put(text))
        for step in case.steps:
            text = put(step.text)
            out = [*map(put, step.out)]
            err = [*map(put, step.err)]
            problems = self.checked(step.kind, text, out, err, case)
            self.wrong += [
                f"line {step.number}: {step.kind} {text}\n    {problem}" for problem in problems
            ]
        assert not self.wrong, "\n".join(self.wrong)

    def checked(self, kind, text, out, err, case):
        match kind:
            case "$":
                return self.command(text, out, err)
            case "tty":
                shown = self.fixture("on_terminal")(*self.words(text))
                lines_shown = [" ".join(self.with_names(line).split()) for line in shown]
                return self.lines([f"={' '.join(line[1:].split())}" for line in out], lines_shown)
            case "same":
                content_a, content_b = map(contents_of, text.split())
                return [] if content_a == content_b else ["not the same"]
            case "ls":
                names = {path.name for path in Path().iterdir()} - {
                    Path(name).parts[0] for name in case.files
                }
                return [] if names == {*text.split()} else [f"found {sorted(names)}"]
            case "rm":
                shutil.rmtree(text) if Path(text).is_dir() else Path(text).unlink()
                return []
            case "set":
                self.fixture("monkeypatch").setenv(*text.split("=", 1))
                return []
        raise ValueError(f"unknown line: {kind} {text}")

    def words(self, text):
        words = shlex.split(text)
        for name in {*words} & {*MODELS}:
            self.models[name] = str(self.fixture(name.lower()))
        return [self.models.get(word, word) for word in words]

    def command(self, text, out, err):
        command_line, code, message = LINE.fullmatch(text).groups()
        words, output, typed, source = COMMAND.fullmatch(command_line).groups()
        stdin = Path(source).read_bytes() if source else unescaped(typed or "")
        arguments = self.words(words)
        before = contents(Path())
        result = self.fixture("sentkit")(*arguments, stdin=stdin)
        output_text = self.with_names(result.out.decode("utf-8", "replace"))
        error_lines = self.with_names(result.err).splitlines()
        if output:
            Path(output).write_bytes(result.out)
        expected_code = int(code or 0)
        problems = [] if result.code == expected_code else [f"code {result.code}"]
        problems += self.messages(arguments, error_lines, message, err, expected_code)
        if not output:
            lines = output_text.removesuffix("\n").split("\n") if output_text else []
            problems += self.lines(out, lines)
        if expected_code not in ANSWERED:
            rejects = {arguments[n + 1] for n, word in enumerate(arguments) if word == "--rejects"}
            after = contents(Path())
            changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
            if changed - rejects:
                problems.append(f"changed: {sorted(changed - rejects)}")
        return problems

    def with_names(self, text):
        for name, path in self.models.items():
            text = text.replace(path, name)
        return text

    def messages(self, arguments, lines, message, more, code):
        """The problems of these lines of stderr: `message` is in the first, `more` follow it."""
        words_of_name = 2 if arguments[:1] in (["whiten"], ["plot"]) else 1
        start = f"sentkit {' '.join(arguments[:words_of_name])}: "
        expected = [
            text if text.startswith("  ") else start + text for text in more if text != "..."
        ]
        if message is not None:
            hits = [n for n, line in enumerate(lines) if fits(start + message, line, start=True)]
            if not hits:
                return [f"told {lines}"]
            lines = lines[hits[0] + 1 :]
            if not expected:
                lines = [line for line in lines if not line.startswith("  ")]
        if code == 1 and not expected:  # an answer, behind which the command says why
            lines = []
        if more[-1:] == ["..."]:
            lines = lines[: len(expected)]
        agrees = len(lines) == len(expected) and all(map(fits, expected, lines))
        return [] if agrees else [f"told {lines}"]

    def lines(self, expected_lines, lines):
        if expected_lines == ["=..."]:
            return []
        if len(expected_lines) != len(lines):
            return [f"{len(lines)} lines of output: {lines[:9]}"]
        problems = []
        for expected, line in zip(expected_lines, lines, strict=True):
            if expected.startswith("="):
                agrees = fits(expected[1:], line)
            else:
                agrees = contains(json.loads(line), json.loads(expected[1:]))
            problems += [] if agrees else [f"found {line}"]
        return problems


def unescaped(text):
    return text.replace("\\n", "\n").replace("\\r", "\r").replace("\\t", "\t")


def contents_of(name):
    return contents(Path(name)) if Path(name).is_dir() else Path(name).read_bytes()
