"""The flags of all commands: records, numbers and choices."""

import functools
import inspect
import math

import pytest
import typer

from sentkit.cli import every_command, program
from sentkit.errors import UsageError
from sentkit.flags import expand_flags
from sentkit.flags.rows import FieldFlags
from sentkit.formats.checkpoints.readout import FULL_STOPS
from sentkit.formats.rows.rows import PARAGRAPHS, SUFFIXES
from sentkit.formats.vectors.vectors import ENCODINGS
from sentkit.labels.clusters.clustering import ALGORITHMS
from sentkit.metrics.similarity import SIMILARITIES
from sentkit.transforms.kinds import KINDS


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
