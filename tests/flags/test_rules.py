"""The rules between flags: every one of every command, with the function that checks them."""

import inspect
import re
from contextlib import nullcontext

import pytest

from sentkit.cli import every_command
from sentkit.errors import UsageError
from sentkit.flags import MAY_BE_EMPTY, Excludes, Flags, Needs, expand_flags, name_of, notes_of, rules_of

COMMANDS = {
    name: list(inspect.signature(expand_flags(command)).parameters.values())
    for name, command in every_command().items()
}
RULES = [
    (parameters, name_of(each), rule)
    for name, parameters in COMMANDS.items()
    for each in parameters
    for rule in rules_of(each)
    if rule.other.split(" ")[0] in map(name_of, parameters)
]
TEXTS = [
    (parameters, each)
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


def check_rule(parameters, flag, rule):
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


def test_every_rule_is_enforced():
    assert len(RULES) > 100
    for parameters, flag, rule in RULES:
        check_rule(parameters, flag, rule)


def test_an_empty_value_is_wrong_usage():
    """As of an unset variable of the shell; only a prompt can be empty."""
    for parameters, parameter in TEXTS:
        line = CommandLine(parameters)
        line.give(name_of(parameter))
        line.values[parameter.name] = [""] if "list" in str(parameter.annotation) else ""
        refused = pytest.raises(UsageError, match="the value is empty")
        with nullcontext() if MAY_BE_EMPTY in notes_of(parameter) else refused:
            line.check()


def test_defaults_break_no_rule():
    for parameters in COMMANDS.values():
        CommandLine(parameters).check()


def help_of(parameter):
    return next((note.help for note in notes_of(parameter) if hasattr(note, "help")), "")


WITH = [
    (name, each, found[1])
    for name, parameters in COMMANDS.items()
    for each in parameters
    if name_of(each) and (found := re.match(r"(?:With|For) (--[a-z-]+):", help_of(each)))
]


def test_a_help_that_names_a_needed_flag_has_its_rule():
    ruled = [(each, " or ".join(rule.other for rule in rules_of(each)).split(" or ")) for _, each, _ in WITH]

    assert WITH
    assert [row for row, (_, others) in zip(WITH, ruled, strict=True) if row[2] not in others] == []


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
        "--dim": ["--gold", "--baseline"],
        "--matrix": ["--gold", "--label", "--qrels", "--top", "--threshold", "--keep-vectors"],
        "--keep-vectors": ["--gold", "--label", "--qrels", "--top", "--threshold"],
        "--field": ["--kind merge"],
        "--rejects": ["TEXT", "--kind merge"],
    }
