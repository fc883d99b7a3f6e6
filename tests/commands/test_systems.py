"""The commands of examples/systems.jsonl: all published rows of their bases, and the values of the
papers.

tests/test_documents.py checks the flags and settings of every command; tests/training runs every
method.
"""

import itertools
import json
import shlex

import pytest

from sentkit.papers.published import published
from sentkit.training.catalogue import METHODS
from sentkit.training.settings import build
from support import ROOT

SYSTEMS = [json.loads(line) for line in (ROOT / "examples/systems.jsonl").open()]
COMMANDS = sorted({command for system in SYSTEMS for command in system["commands"]})
SCRIPTS = ["sh examples/consert.sh joint-unsup", "sh examples/consert.sh sup-unsup"]
# the page says that it leaves out other bases
LISTED = ("bert", "bert-base", "sbert-base", "mbert", None)


def test_every_system_is_supported_with_a_command_or_not_at_all():
    assert [command for command in COMMANDS if not command.startswith("sentkit ")] == SCRIPTS
    assert [
        row["system"] for row in SYSTEMS if (row["status"] == "yes") != bool(row["commands"])
    ] == []
    assert {row["status"] for row in SYSTEMS} == {"yes", "no"}


def test_the_list_has_every_published_row_of_its_bases():
    listed = [reference.split("/") for row in SYSTEMS for reference in row["published"]]
    rows = {
        tuple(row[key] or "-" for key in ("paper", "table", "base", "system", "readout"))
        for row in published()
        if row["base"] in LISTED
    }

    assert len(rows) > 100
    unlisted = []
    for row in rows:
        if not any(list(row[: len(reference)]) == reference for reference in listed):
            unlisted.append(row)
    assert unlisted == []


@pytest.mark.parametrize(
    ("system", "values"),
    [  # from the papers: readout and learning rates; the second step exists only for RoBERTa-large
        ("SG-OPT", [("cls", 5e-5)]),
        ("SBERT, then back-translation, SG or SG-OPT", [("cls", 5e-5)] * 3),
        (
            "SimCSE, then DefSent+, one or two steps",
            [("mean,cls,prompt", 3e-5), ("mean,cls,prompt", 2e-5)],
        ),
        (
            "SNCSE, then DefSent+, one or two steps",
            [("mean,cls,prompt", 2e-5), ("mean,cls,prompt", 1e-6)],
        ),
        ("DefSent+, steps 1, 2 and 3", [("mean,cls,prompt", rate) for rate in (5e-5, 4e-5, 3e-5)]),
    ],
)
def test_the_commands_have_the_values_of_the_papers(system, values):
    """They must not depend on the readout that the base declares."""
    [commands] = [row["commands"] for row in SYSTEMS if row["system"] == system]
    in_commands = []
    for words in map(shlex.split, commands):
        if words[1] == "train":
            method = METHODS[words[2]].load()
            pairs = list(itertools.pairwise(words))
            preset = dict(pairs)["--preset"]
            assignments = [value for flag, value in pairs if flag == "--set"]
            settings = build(method.Settings, method.presets, preset, assignments)
            in_commands.append((settings.readout, settings.lr))

    assert in_commands == values
