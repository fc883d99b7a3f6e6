"""The budgets of the command line, so that a person can remember it."""

import pytest

from sentkit.cli import program
from sentkit.flags import help_texts
from support import ROOT


def leaves(command, path="sentkit"):
    """Every command and group by its words on the command line."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from leaves(inner, f"{path} {name}")


COMMANDS = dict(leaves(program()))
LEAVES = {path: command for path, command in COMMANDS.items() if not hasattr(command, "commands")}
# slots; others have 20
MOST = {"encode": 28, "train": 28, "score": 25, "search": 24, "cluster": 24}


@pytest.mark.parametrize("path", COMMANDS)
def test_the_short_help_fits_on_a_screen(path):
    lines = help_texts.short_help(path, COMMANDS[path]).splitlines()

    assert len(lines) <= 30
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("path", COMMANDS)
def test_the_long_help_has_little_prose(path):
    command = COMMANDS[path]
    text = help_texts.help_of(path, command.help)
    lines = help_texts.long_help(path, command, command.params).splitlines()
    start = len(help_texts.opening(path, command, text))
    prose = lines[
        start : next(n for n, line in enumerate(lines) if n > start and line.endswith(":"))
    ]

    assert len(lines) <= 75
    assert len(text.examples) <= 4
    assert sum(map(bool, prose)) <= 12
    assert max(map(len, lines)) <= 80


def test_every_flag_of_the_headings_exists():
    flags = {
        name
        for command in LEAVES.values()
        for parameter in help_texts.parameters_of(command)
        for name in parameter.opts
    }

    assert help_texts.HEADING_OF.keys() <= flags


def test_the_number_of_commands_and_slots():
    assert len(LEAVES) <= 26
    assert sum(len(command.params) for command in LEAVES.values()) <= 359


@pytest.mark.parametrize("path", LEAVES)
def test_a_command_has_few_slots(path):
    name = path.removeprefix("sentkit ")

    assert len(LEAVES[path].params) <= MOST.get(name, 20)


def test_names_of_tests_depend_only_on_the_code(request):
    """Not on time, hash seed or machine: workers that collect other tests, or in another order,
    stop.
    """
    hook = request.config.hook.pytest_make_parametrize_id
    markers = [
        (item, mark) for item in request.session.items for mark in item.iter_markers("parametrize")
    ]

    assert hook(config=request.config, val=b"PK", argname="content") == "content"
    assert [
        item.nodeid for item, mark in markers if isinstance(mark.args[1], set | frozenset)
    ] == []
    assert [item.nodeid for item in request.session.items if str(ROOT) in item.name] == []
