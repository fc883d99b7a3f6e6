"""The flags of all commands: the rules between them, their values, records and choices."""

import inspect
import math
import re
from contextlib import nullcontext

import pytest

from sentkit.cli import every_command, program
from sentkit.errors import UsageError
from sentkit.flags import MAY_BE_EMPTY, Excludes, Flags, Needs, expand_flags, name_of, notes_of, rules_of
from sentkit.flags.rows import FieldFlags
from sentkit.formats.checkpoints.readout import FULL_STOPS
from sentkit.formats.rows.rows import PARAGRAPHS, SUFFIXES
from sentkit.formats.vectors.vectors import ENCODINGS
from sentkit.labels.clusters.clustering import ALGORITHMS
from sentkit.metrics.similarity import SIMILARITIES
from sentkit.transforms.kinds import KINDS

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


def test_a_number_that_is_not_finite_is_wrong_usage():
    floats = [
        (parameters, each, value)
        for parameters in COMMANDS.values()
        for each in parameters
        for value in (math.nan, math.inf, -math.inf)
        if re.search(r"\bfloat\b", str(each.annotation))
    ]
    assert len(floats) > 30
    for parameters, parameter, value in floats:
        line = CommandLine(parameters)
        line.values[parameter.name] = value
        with pytest.raises(UsageError, match=f"^{name_of(parameter)} {value}: expected a finite number$"):
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
        "--fail-if-worse": ["--baseline"],
        "--rejects": ["--kind merge"],
    }


def test_every_command_that_reads_rows_takes_them_by_one_record():
    """`--field` comes with the record, so none of its flags can be forgotten in one command."""
    with_field = {name for name, own in COMMANDS.items() if "--field" in map(name_of, own)}
    with_record = set()
    for name, command in every_command().items():
        kinds = [each for each in command.__annotations__.values() if isinstance(each, type)]
        if any(issubclass(each, FieldFlags) for each in kinds):
            with_record.add(name)

    assert with_field - {"report"} == with_record  # its --field is that of --pairs
    assert {"encode", "score", "search", "probe", "train", "cat", "inspect", "whiten fit"} <= with_record


CHOICES = {  # flag -> the catalogue that has the same names
    "--metric": SIMILARITIES,
    "--kind": [*KINDS, "ica", "flow", "merge"],
    "--algorithm": ALGORITHMS,
    "--full-stop": FULL_STOPS,
    "--vectors": ENCODINGS,
    "--from": {*SUFFIXES.values(), PARAGRAPHS},
}


def test_choices_of_flags_are_those_of_the_catalogues():
    """The flags repeat the names because the catalogues import numpy."""
    found = set()
    commands = [*program().commands.values()]
    for each in commands:
        commands += getattr(each, "commands", {}).values()
        for parameter in each.params:
            for flag in CHOICES.keys() & {*parameter.opts}:
                found.add(flag)
                assert sorted(parameter.type.choices) == sorted(CHOICES[flag]), f"{each.name} {flag}"

    assert found == CHOICES.keys()
    shells = [set(p.type.choices) for p in program().params if hasattr(p.type, "choices")]
    assert shells == [{"bash", "zsh", "fish"}] * 2
