"""Random command lines with inputs that fit: no crash, no changed input, no output of a command
that failed.

A number of a seed is one command line: python tests/random_commands.py --seed 0 --only 17
"""

import os

import pytest

from random_commands import COMMANDS, Bench, CommandLine, command_line, outcomes

LINES = int(os.environ.get("SENTKIT_RANDOM_LINES", "200"))
SEED = int(os.environ.get("SENTKIT_RANDOM_SEED", "0"))


def test_a_seed_and_a_number_give_a_command_line():
    lines = [str(command_line(3, number)[1]) for number in range(60)]

    assert lines == [str(command_line(3, number)[1]) for number in range(60)]
    assert len({*lines}) > 50
    assert lines != [str(command_line(4, number)[1]) for number in range(60)]
    assert [command_line(3, number)[0] for number in range(len(COMMANDS))] == [*COMMANDS]


@pytest.mark.slow
def test_random_commands_do_not_crash_and_most_succeed(tmp_path):
    """At least half of all lines succeed, and a third of those of each command."""
    codes = {name: [] for name in COMMANDS}
    faults = []
    for outcome in outcomes(Bench(tmp_path), SEED, range(LINES)):
        codes[outcome.command].append(outcome.code)
        faults += [f"{outcome.number}: {outcome.line}: {fault}" for fault in outcome.faults]

    assert faults == []
    assert sum(map(len, codes.values())) == LINES
    assert sum(of_command.count(0) for of_command in codes.values()) >= LINES / 2
    assert {
        name: of_command
        for name, of_command in codes.items()
        if 3 * of_command.count(0) < len(of_command)
    } == {}


@pytest.mark.slow
def test_a_fault_of_a_command_is_found(tmp_path):
    """Of a command that ends with 70, changes an input, or leaves a file behind."""
    bench = Bench(tmp_path)
    line = CommandLine(["cat", "pairs.jsonl"])
    bench.out.mkdir()
    (bench.out / "other").write_text("x")
    (bench.inputs / "pairs.jsonl").write_text("")
    all_faults = [
        *bench.faults(line, 70, b"", "Traceback (most recent call last):\nValueError: x\n")
    ]
    restored = [
        *bench.faults(
            CommandLine(["cat", "pairs.jsonl"], outputs=["other"]), 65, b"", "sentkit: bad\n"
        )
    ]

    assert all_faults == [
        "exit code 70",
        "traceback: ValueError: x",
        "changed inputs",
        "left behind: ['other']",
        "exit code 70, but wrote ['other']",
    ]
    assert restored == ["exit code 65, but wrote ['other']"]
    assert (bench.inputs / "pairs.jsonl").stat().st_size > 0
