"""The flags of all commands: the rules between them, their values and choices."""

import re
from pathlib import Path

import pytest

from sentkit.cli import every_command, program, run_command_line
from sentkit.formats.checkpoints.readout import FULL_STOPS
from sentkit.formats.vectors.vectors import ENCODINGS
from sentkit.labels.clusters.clustering import ALGORITHMS
from sentkit.metrics.similarity import SIMILARITIES
from sentkit.transforms.kinds import KINDS

RULES = re.findall(
    r"^sentkit (.+)\n  (.+)$", (Path(__file__).parent / "rules.txt").read_text(), re.MULTILINE
)


def parameters_of(name):
    command = program()
    for word in name.split():
        command = command.commands[word]
    return command.params


PARAMETERS = {name: parameters_of(name) for name in every_command()}


def words_of(parameter, value):
    """The words of a command line that give a value to a flag or an argument."""
    if parameter.param_type_name == "argument":
        return [value]
    return [parameter.opts[-1], value]


def arguments_of(name):
    return [parameter for parameter in PARAMETERS[name] if parameter.param_type_name == "argument"]


def is_float(parameter):
    return parameter.type.name.startswith("float")


def line_with(name, parameter, value):
    """A command line with all that the command requires, and this value of a flag or an
    argument.
    """
    arguments = arguments_of(name)
    if parameter in arguments:
        arguments = arguments[: arguments.index(parameter)]
    required = [
        other for other in PARAMETERS[name] if other.required and other not in arguments_of(name)
    ]
    required = [other for other in [*required, *arguments] if other is not parameter]
    words = [
        word for other in required for word in words_of(other, "0.5" if is_float(other) else "x")
    ]
    return [*name.split(), *words, *words_of(parameter, value)]


def name_of(parameter):
    if parameter.param_type_name == "argument":
        return parameter.metavar.strip("[].")
    return parameter.opts[-1]


@pytest.fixture
def refusal(tmp_path, monkeypatch, capsys):
    """The message of a command line, which is refused before any file is read."""
    monkeypatch.chdir(tmp_path)

    def run(words):
        code = run_command_line(list(words))
        message = capsys.readouterr().err.splitlines()[0]
        return code, message.partition(": ")[2]

    return run


def test_every_rule_is_enforced(refusal):
    assert len(RULES) > 120
    messages = {line: refusal(line.split()) for line, _ in RULES}

    assert messages == {line: (2, message) for line, message in RULES}


def test_a_help_that_names_a_needed_flag_has_its_rule():
    named = set()
    for name, parameters in PARAMETERS.items():
        for parameter in parameters:
            match = re.match(r"(?:With|For) (--[a-z-]+):", parameter.help)
            if match:
                named.add((name, name_of(parameter), match[1]))
    ruled = set()
    for line, message in RULES:
        match = re.match(r"(--[a-z-]+) (?:needs|cannot be used with) (.+)", message)
        if match:
            [name] = [name for name in PARAMETERS if f"{line} ".startswith(f"{name} ")]
            ruled |= {(name, match[1], other) for other in match[2].split(" or ")}

    assert named
    assert named - ruled == set()


def test_an_empty_value_is_wrong_usage(refusal):
    """As of an unset variable of the shell; only a prompt can be empty."""
    texts = [
        (name, parameter)
        for name, parameters in PARAMETERS.items()
        for parameter in parameters
        if parameter.type.name == "str" and parameter.default != ""
        if name_of(parameter) != "--prompt"
    ]
    messages = {
        (name, name_of(parameter)): refusal(line_with(name, parameter, ""))
        for name, parameter in texts
    }

    assert len(messages) > 150
    assert messages == {
        (name, flag): (2, f'{flag} "": the value is empty') for name, flag in messages
    }


def test_a_number_that_is_not_finite_is_wrong_usage(refusal):
    floats = [
        (name, parameter)
        for name, parameters in PARAMETERS.items()
        for parameter in parameters
        if is_float(parameter)
    ]
    assert len(floats) > 12
    for name, parameter in floats:
        values = ["nan"]
        if "range" not in parameter.type.name:  # infinity is outside of a range
            values += ["inf", "-inf"]
        for value in values:
            expected = f"{name_of(parameter)} {value}: expected a finite number"

            assert refusal(line_with(name, parameter, value)) == (2, expected)


CHOICES = {  # flag -> the catalogue that has the same names
    "--metric": SIMILARITIES,
    "--kind": [*KINDS, "ica", "flow", "map", "merge"],
    "--algorithm": ALGORITHMS,
    "--full-stop": FULL_STOPS,
    "--vectors": ENCODINGS,
}


def test_choices_of_flags_are_those_of_the_catalogues():
    """The flags repeat the names because the catalogues import numpy."""
    checked = set()
    for name, parameters in PARAMETERS.items():
        for parameter in parameters:
            for flag in CHOICES.keys() & {*parameter.opts}:
                checked.add(flag)
                assert sorted(parameter.type.choices) == sorted(CHOICES[flag]), f"{name} {flag}"

    assert checked == CHOICES.keys()
    shells = [
        set(parameter.type.choices)
        for parameter in program().params
        if hasattr(parameter.type, "choices")
    ]
    assert shells == [{"bash", "zsh", "fish"}] * 2
