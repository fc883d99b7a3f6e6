"""Records of flags: a command takes one parameter, and typer sees the flags in it."""

import functools
import inspect
import math
from dataclasses import dataclass, field
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from sentkit.cli import every_command, program
from sentkit.errors import UsageError
from sentkit.flags import Named, Range, expand_flags
from sentkit.flags.rows import FieldFlags
from sentkit.formats.checkpoints.readout import FULL_STOPS
from sentkit.formats.rows.rows import PARAGRAPHS, SUFFIXES
from sentkit.formats.vectors.vectors import ENCODINGS
from sentkit.labels.clusters.clustering import ALGORITHMS
from sentkit.metrics.similarity import SIMILARITIES
from sentkit.transforms.kinds import KINDS


@dataclass(frozen=True)
class Colours:
    """A colour.

    --red N: How much red.
    [NAME]...: Names of the colour.
    """

    red: Annotated[int, Range(min=0)] = 1
    names: Annotated[list[str] | None, Named("[NAME]...")] = None


@dataclass(frozen=True)
class MoreColours(Colours):
    """Another colour.

    -b, --blue SHADE: How much blue,
        of all.
    """

    blue: str = "none"


def run(arguments):
    """Run a command with such a parameter; return its result and its calls."""
    app, calls = typer.Typer(rich_markup_mode=None, add_completion=False), []

    def paint(*, width: Annotated[int, Range(min=2)], colours: MoreColours, quiet: bool = False) -> None:
        """Paint.

        Flags:
          --width N: Columns.
          -q, --quiet: No noise.
        """
        calls.append((width, colours, quiet))

    app.command()(expand_flags(paint))
    return CliRunner().invoke(app, arguments), calls


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["a", "--red", "2", "b", "-b", "sky", "-q"], (3, MoreColours(2, ["a", "b"], "sky"), True)),
        ([], (3, MoreColours(), False)),
    ],
)
def test_a_record_is_built_from_its_flags_and_its_defaults(arguments, expected):
    done, calls = run(["--width", "3", *arguments])

    assert done.exit_code == 0
    assert calls == [expected]


def test_a_flag_of_a_record_without_default_is_required():
    @dataclass(frozen=True)
    class RequiredRed(Colours):
        red: int = field()

    def paint(*, colours: RequiredRed) -> None: ...

    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command()(expand_flags(paint))

    assert CliRunner().invoke(app, ["--red", "2"]).exit_code == 0
    done = CliRunner().invoke(app, [])
    assert (done.exit_code, "Missing option '--red'" in done.output) == (2, True)


@pytest.mark.parametrize(
    "arguments", [[], ["--width", "3", "--red", "-1"], ["--width", "3", "--green"], ["--width", "1"]]
)
def test_typer_checks_the_flags_of_a_record(arguments):
    done, calls = run(arguments)

    assert done.exit_code == 2
    assert not calls


def test_help_lists_inherited_flags_first_where_the_record_stands():
    done, _ = run(["--help"])
    order = [word for word in done.output.split() if word in ("--width", "--red", "--blue", "--quiet")]

    assert order == ["--width", "--red", "--blue", "--quiet"]
    assert "[NAME]..." in done.output
    assert "How much blue, of all." in " ".join(done.output.split())
    assert not {"colours", "Flags:"} & set(done.output.split())


def test_every_command_that_reads_rows_takes_them_by_one_record():
    """`--field` comes with the record, so none of its flags can be forgotten in one command."""
    expanded = {name: expand_flags(command) for name, command in every_command().items()}
    with_field = {name for name, command in expanded.items() if "field" in command.__annotations__}
    with_record = set()
    for name, command in every_command().items():
        kinds = [each for each in command.__annotations__.values() if isinstance(each, type)]
        if any(issubclass(each, FieldFlags) for each in kinds):
            with_record.add(name)

    assert with_field - {"report"} == with_record  # its --field is that of --pairs
    assert {"encode", "score", "search", "probe", "train", "cat", "inspect", "whiten fit"} <= with_record


def test_every_number_with_a_fraction_is_finite():
    seen = set()
    for name, command in every_command().items():
        run = expand_flags(command)
        defaults = {each.name: each.default for each in inspect.signature(run).parameters.values()}
        parsed = functools.reduce(lambda group, word: group.commands[word], name.split(), program())
        for flag in (each for each in parsed.params if each.type.name.startswith("float")):
            seen.add(f"{name} {flag.opts[0]}")
            for value in (math.nan, math.inf, -math.inf):
                with pytest.raises(UsageError, match=f"^{flag.opts[0]} {value}: expected a finite number$"):
                    run(**defaults | {flag.name: value})

    assert {"plot space --perplexity", "plot heat --width", "score --precision-at"} <= seen
    assert {"train --lr", "train --save-seconds", "whiten fit --lr", "search --threshold"} <= seen


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
    for name, command in every_command().items():
        single = typer.Typer()
        single.command()(expand_flags(command))
        for parameter in typer.main.get_command(single).params:
            for flag in CHOICES.keys() & {*parameter.opts}:
                found.add(flag)
                assert sorted(parameter.type.choices) == sorted(CHOICES[flag]), f"{name} {flag}"

    assert found == CHOICES.keys()
    shells = [set(p.type.choices) for p in program().params if hasattr(p.type, "choices")]
    assert shells == [{"bash", "zsh", "fish"}] * 2
