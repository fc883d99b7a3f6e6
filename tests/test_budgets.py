"""The budgets of the command line and of the code, so that a person can remember them."""

import ast
import re

import pytest

from sentkit.cli import program
from sentkit.flags import help
from support import ROOT


def leaves(command, path="sentkit"):
    """Every command and group by its words on the command line."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from leaves(inner, f"{path} {name}")


COMMANDS = dict(leaves(program))
LEAVES = {path: each for path, each in COMMANDS.items() if not hasattr(each, "commands")}
MOST = {"encode": 28, "train": 28, "score": 24, "search": 24, "cluster": 24}  # slots; others have 20
LINES = {"sentkit": 37_606, "papers": 5_000, "tests": 44_609}  # budgets: 28,000 without papers, 5,000, 42,000
FILES = 260  # of sentkit/; this is the budget


@pytest.mark.parametrize("path", COMMANDS)
def test_the_short_help_fits_on_a_screen(path):
    lines = help.short_help(path, COMMANDS[path]).splitlines()

    assert len(lines) <= 30
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("path", COMMANDS)
def test_the_long_help_has_little_prose(path):
    text, command = help.parse_help(COMMANDS[path].help), COMMANDS[path]
    lines = help.long_help(path, command, command.params).splitlines()
    start = len(text.examples) + len([*help.usage(path, command, text)]) + 1
    prose = lines[start : next(n for n, line in enumerate(lines) if n > start and line.endswith(":"))]

    assert len(lines) + 2 <= 75  # 2: the path of the man page
    assert len(text.examples) <= 4
    assert sum(map(bool, prose)) <= 12
    assert max(map(len, lines)) <= 80


def test_every_flag_of_the_headings_exists():
    known = {name for each in LEAVES.values() for parameter in each.params for name in parameter.opts}

    assert help.HEADING_OF.keys() <= known


OTHERS = {  # of other programs and of the figures of the papers
    *("--help", "--version", "--install-completion", "--show-completion"),
    *("--array", "--nproc-per-node", "--revision", "--x", "--log", "--domain"),
}


def test_every_flag_in_a_message_exists():
    """The advice of translate once named a flag that had become a setting."""
    known = {name for each in LEAVES.values() for parameter in each.params for name in parameter.opts}
    named = {
        word
        for path in (ROOT / "sentkit").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for word in re.findall(r"(?<![\w-])--[a-z][a-z-]*", node.value)
    }

    assert named - known - OTHERS == set()


def test_the_number_of_commands_and_slots():
    assert len(LEAVES) <= 26
    assert sum(len(each.params) for each in LEAVES.values()) <= 400


@pytest.mark.parametrize("path", LEAVES)
def test_a_command_has_few_slots(path):
    name = path.removeprefix("sentkit ")

    assert len(LEAVES[path].params) <= MOST.get(name, 20)


def test_the_code_is_small():
    """The numbers that are above their budgets only sink."""
    paths = {part: sorted((ROOT / part).rglob("*.py")) for part in ("sentkit", "sentkit/papers", "tests")}
    counts = {part: sum(len(path.read_text().splitlines()) for path in own) for part, own in paths.items()}
    papers = counts["sentkit/papers"]

    assert counts["sentkit"] - papers <= LINES["sentkit"]
    assert papers <= LINES["papers"]
    assert counts["tests"] <= LINES["tests"]
    assert len(paths["sentkit"]) <= FILES


def test_only_the_catalogues_import_papers():
    found = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "sentkit").rglob("*.py"))
        if "papers" not in path.relative_to(ROOT).parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("sentkit.papers")
    ]

    assert sorted({*found}) == ["sentkit/reports/suites.py", "sentkit/training/catalogue.py"]
