"""The rules between flags: every one of every command, with the function that checks them."""

import inspect
import re

import pytest

from sentkit.cli import every_command
from sentkit.errors import UsageError
from sentkit.flags.rules import (
    MAY_BE_EMPTY,
    Excludes,
    Flags,
    Needs,
    expand_flags,
    name_of,
    notes_of,
    rules_of,
)

COMMANDS = {
    name: list(inspect.signature(expand_flags(command)).parameters.values())
    for name, command in every_command().items()
}
RULES = [
    pytest.param(parameters, name_of(each), rule, id=f"{name} {name_of(each)} {rule}")
    for name, parameters in COMMANDS.items()
    for each in parameters
    for rule in rules_of(each)
    if rule.other.split(" ")[0] in map(name_of, parameters)
]
TEXTS = [
    pytest.param(parameters, each, id=f"{name} {name_of(each)}")
    for name, parameters in COMMANDS.items()
    for each in parameters
    if each.default != "" and "str" in str(each.annotation) and "Literal" not in str(each.annotation)
]


class CommandLine:
    """Values of flags: the defaults, and those that a test sets."""

    def __init__(self, parameters):
        self.parameters = parameters
        self.by_name = {name_of(each): each for each in parameters}
        self.values = {each.name: each.default for each in parameters}

    def give(self, condition):
        """Give a flag, or a flag with one of its values, and what it needs."""
        name, _, values = condition.partition(" ")
        self.values[self.by_name[name].name] = values.split("|")[0] or "given"
        for rule in rules_of(self.by_name[name]):
            if isinstance(rule, Needs) and self.holds(rule.other) not in (True, None):
                self.give(rule.other)

    def holds(self, condition):
        return Flags(self.parameters, self.values).holds(condition)

    def check(self):
        Flags(self.parameters, self.values).check()


def words(condition):
    return condition.replace("|", " or ")


@pytest.mark.parametrize(("parameters", "flag", "rule"), RULES)
def test_a_rule_is_enforced(parameters, flag, rule):
    """The message names both flags. With what it needs, the flag is accepted."""
    line = CommandLine(parameters)
    line.give(flag)
    line.check()
    expected = [f"{flag} needs {words(rule.other)}"]
    if isinstance(rule, Needs):
        other = line.by_name[rule.other.split(" ")[0]]
        line.values[other.name] = "another" if re.search(r" (?!or |--)", rule.other) else None
    else:
        line.give(rule.other)  # it can need flags that are excluded too
        excluded = [each for each in rules_of(line.by_name[flag]) if isinstance(each, Excludes)]
        expected = [f"{flag} cannot be used with {words(each.other)}{each.because}" for each in excluded]
    with pytest.raises(UsageError) as caught:
        line.check()

    assert str(caught.value) in expected


@pytest.mark.parametrize(("parameters", "parameter"), TEXTS)
def test_an_empty_value_is_wrong_usage(parameters, parameter):
    """As of an unset variable of the shell; only a prompt can be empty."""
    line = CommandLine(parameters)
    line.give(name_of(parameter))
    line.values[parameter.name] = [""] if "list" in str(parameter.annotation) else ""
    if MAY_BE_EMPTY in notes_of(parameter):
        line.check()
        return
    with pytest.raises(UsageError, match="the value is empty"):
        line.check()


@pytest.mark.parametrize("name", COMMANDS)
def test_defaults_break_no_rule(name):
    CommandLine(COMMANDS[name]).check()


WITH = [
    pytest.param(each, found[1], id=f"{name} {name_of(each)}")
    for name, parameters in COMMANDS.items()
    for each in parameters
    if name_of(each) and (found := re.match(r"(?:With|For) (--[a-z-]+):", notes_of(each)[0].help or ""))
]


@pytest.mark.parametrize(("parameter", "other"), WITH)
def test_a_help_that_names_a_needed_flag_has_its_rule(parameter, other):
    assert other in " or ".join(rule.other for rule in rules_of(parameter)).split(" or ")


def test_the_rules_of_a_command():
    """As its man page says: a literal table of one command."""
    found = {name_of(each): [rule.other for rule in rules_of(each)] for each in COMMANDS["score"]}

    assert {name: others for name, others in found.items() if others} == {
        **{key: ["--gold"] for key in ("--group", "--seen", "--label")},
        **{key: ["--gold or --label or --qrels"] for key in ("--baseline", "--fail-under")},
        "--precision-at": ["--label"],
        **{key: ["--qrels"] for key in ("--missing", "--per-query", "--metric")},
        **{key: ["--gold", "--label", "--qrels"] for key in ("--top", "--threshold", "--replace")},
        "--qrels": ["--gold", "--label"],
        "--aggregate": ["--group"],
        "--matrix": ["--gold", "--label", "--qrels", "--top", "--threshold", "--keep-vectors"],
        "--keep-vectors": ["--gold", "--label", "--qrels", "--top", "--threshold"],
        "--field": ["--kind merge"],
        "--rejects": ["TEXT", "--kind merge"],
    }
