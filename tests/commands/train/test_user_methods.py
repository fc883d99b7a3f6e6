"""Methods of users: the example of the manual with all of the trainer, and errors in a file."""

import hashlib
import json
import re
from pathlib import Path

import pytest

from commands.train.records import record_of
from support import ROOT

SHORT = """\
from sentkit.method import SENTENCE, Method, Reads, mean_of

class Short(Method):
    @classmethod
    def reads(cls, base, settings):
        return Reads((SENTENCE,))

    def encode(self, batch):
        return {"one": self.vectors(self.pack(batch.texts[0]))}

    def loss(self, outputs):
        return {"size": mean_of(outputs["one"].square().sum(1))}
"""
SETTINGS = """\
    @dataclass(frozen=True, kw_only=True)
    class Settings(Recipe):
        {}
"""
HEAD = "from dataclasses import dataclass; from sentkit.method import *; import sys, torch, typer\n"
EXIT = "the method ends the program (SystemExit)"
ENCODED = 'return {"one": self.vectors(self.pack(batch.texts[0]))}'
TERMS = 'return {"size": mean_of(outputs["one"].square().sum(1))}'


FAULTS = [  # a part of SHORT, its replacement, the line of the error or None, a part of the message
    (SHORT, "x = (", 1, "SyntaxError"),
    (SHORT, "import sentkit\n\nunknown.name", 3, "NameError"),
    (SHORT, "from sentkit.method import missing", 1, "ImportError"),
    (SHORT, "x = 1\n\0", " SyntaxError", "source code string cannot contain null bytes"),
    (ENCODED, "unknown.name", 9, "NameError"),
    ("class Short", "sys.exit(0)\nclass Short", 3, EXIT),
    (ENCODED, "sys.exit(0)", 9, EXIT),
    (TERMS, TERMS + "\n    def __init__(self, body, settings): sys.exit(0)", 13, EXIT),
    ("return Reads((SENTENCE,))", "return (SENTENCE,)", None, "AttributeError"),
    ("    @classmethod\n", "", None, "TypeError"),
    (TERMS, "pass", None, "NoneType"),
    (TERMS, "return {'size': mean_of(outputs['one'].detach())}", None, "does not require grad"),
    (ENCODED, "return {'one': torch.ones(3, requires_grad=True)}", None, "has 3 rows, expected 4"),
    (TERMS, "one = outputs['one'].exp(); total = one.sum(); r = one.square().sum(); one.add_(1)\n"
     "        return {'size': mean_of(r)}", None, "modified by an inplace operation"),
    (TERMS, f"{TERMS}\n{SETTINGS.format('weight: float = 1.0')}", None, "the setting weight has no source"),
    ("    @classmethod\n", "    presets = {'low': {'batch': 0}}\n    @classmethod\n", None,
     "low: batch=0: expected 1 or more"),
]  # fmt: skip


@pytest.fixture
def mine(tmp_path):
    """The example of sentkit-method(7) as a file."""
    page = (ROOT / "man/man7/sentkit-method.7").read_text()
    [example] = re.findall(r"\.SH EXAMPLE\n.*?\.nf\n(.*?)\.fi\n", page, re.DOTALL)
    path = tmp_path / "mine.py"
    path.write_text(example.replace(r"\&", "").replace(r"\-", "-"))
    return path


@pytest.fixture
def run(sentkit, tiny, texts, mine):
    def run(*flags, kind="Uniform"):
        command = ("train", f"{mine}:{kind}", texts, "-m", tiny, "-o", "out", "--threads", 1)
        return sentkit(*command, "--set", "batch=4", *flags)

    return run


def test_the_example_of_the_manual_is_short_and_trains_until_it_changes(run, mine, sentkit, texts):
    done = run("--epochs", "2")
    listed = sentkit("train", f"{mine}:Uniform", "--list").out.decode()

    assert len(mine.read_text().splitlines()) <= 42
    assert done.code == 0, done.err
    assert json.loads(done.out)["method"] == "mine.py:Uniform"
    assert "declares none; it is the default of mine.py:Uniform\n" in done.err
    assert "weight of the uniformity" in listed
    assert "--preset small" in listed
    assert record_of()["command"].startswith(f"sentkit train {mine}:Uniform {texts} ")
    same = run("--epochs", "2", "--resume")
    mine.write_text(mine.read_text() + "# changed\n")
    changed = run("--epochs", "2", "--resume")
    assert (same.code, changed.code) == (0, 65)
    assert "belongs to a different run: method_file (" in changed.err


def test_the_checkpoint_has_the_file_and_its_digest(run, mine, sentkit):
    """The record runs no code, and a checkpoint is described without the file."""
    assert run().code == 0
    content = mine.read_bytes()
    [given] = [given for given in record_of()["inputs"] if given["flag"] == "METHOD"]
    mine.write_text("1 / 0\n")
    described = sentkit("inspect", "out")

    assert Path("out/mine.py").read_bytes() == content
    assert given["sha256"] == hashlib.sha256(content).hexdigest()
    assert described.code == 0
    assert described.rows[0]["lineage"]["command"] == record_of()["command"]


def test_the_shortest_method_of_the_manual_trains(run, mine, sentkit):
    """Without Settings, it has those of the trainer and a readout. Annotations can be strings."""
    settings = "weight: float = ours(1.0, 'meaning')\n        readout: str = readout('mean')"
    for text in (SHORT, f"from __future__ import annotations; {HEAD}{SHORT}{SETTINGS.format(settings)}"):
        mine.write_text(text)
        done = run("--set", "readout=cls", "--set", "chunk=2", "-f", kind="Short")
        listed = " ".join(sentkit("train", f"{mine}:Short", "--list").out.decode().split())

        assert done.code == 0, done.err
        assert json.loads(done.out)["readout"] == "cls"
        assert "base: as the base declares, else mean [" in listed


@pytest.mark.parametrize(("old", "new", "line", "problem"), FAULTS)
def test_a_faulty_file_or_hook_has_its_line(run, mine, old, new, line, problem):
    """Never 0 without a checkpoint, and never the report of a bug."""
    mine.write_text(HEAD[:-1] + ";" + SHORT.replace(old, new, 1))
    done = run(kind="Short")

    assert (done.code, done.out) == (65, b""), done.err
    assert f"sentkit train: {mine}:{'' if line is None else f'{line}:'} " in done.err
    assert problem in done.err
    assert not mine.with_name("out").exists()
