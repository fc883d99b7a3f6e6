"""Methods of users: the example of the manual with all of the trainer, and errors in a file."""

import hashlib
import json
from pathlib import Path

import pytest

from commands.train.records import record_of
from sentkit.training.recipe import Recipe
from sentkit.training.settings import OF_RUN, notes
from support import method_of_the_manual

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
    (
        "return Reads((SENTENCE,))",
        "return (SENTENCE,)",
        4,
        "reads() returns a value of the type tuple",
    ),
    ("    @classmethod\n", "", None, "TypeError"),
    (TERMS, "pass", 11, "loss() returns nothing (None)"),
    (TERMS, "return mean_of(outputs['one'])", 11, "loss() returns a value of the type Term"),
    (TERMS, "return outputs['one'].sum()", 11, "loss() returns a tensor of the shape ()"),
    (TERMS, "return {}", 11, "loss() returns an empty dictionary"),
    (
        TERMS,
        "return {'size': outputs['one'].sum()}",
        11,
        'the term "size" of loss() is a tensor of the shape ()',
    ),
    (
        TERMS,
        "return {'size': Term(outputs['one'].sum(1), 4)}",
        11,
        'the sum of the term "size" of loss() is a tensor of the shape (4,)',
    ),
    (
        TERMS,
        "return {'size': Term(4.0, 4)}",
        11,
        'the sum of the term "size" of loss() is a value of the type float',
    ),
    (
        TERMS,
        TERMS + "\n    def draw(self, batch, random): pass",
        13,
        "draw() returns nothing (None)",
    ),
    (
        TERMS,
        TERMS + "\n    def draw(self, batch, random): return {'a': 1}",
        13,
        '"a" of draw() is a value of the type int',
    ),
    (
        TERMS,
        TERMS + "\n    def draw(self, batch, random): return {'a': [1, 2]}",
        13,
        '"a" of draw() has 2 values, expected 4',
    ),
    (
        TERMS,
        TERMS + "\n    def finished(self): return {}",
        13,
        "finished() returns an empty dictionary",
    ),
    (
        TERMS,
        "a, b = mean_of(outputs['one'].sum(1)), Term(outputs['one'].sum(), 64.0)\n"
        "        return {'a': a, 'b': b}\n    needs = Needs(row_wise=True)",
        11,
        "the terms of loss() have different numbers of values: [4.0, 64.0]",
    ),
    (
        TERMS,
        TERMS + "\n    def penalty(self): return 1",
        13,
        "penalty() returns a value of the type int",
    ),
    (
        TERMS,
        TERMS + "\n    def penalty(self): return {'decay': 1}",
        13,
        'the penalty "decay" is a value of the type int',
    ),
    (
        ENCODED,
        "return self.vectors(self.pack(batch.texts[0]))",
        8,
        "encode() returns a tensor of the shape (4, 16)",
    ),
    (ENCODED, "pass", 8, "encode() returns nothing (None)"),
    (ENCODED, "return {'one': [1]}", 8, 'the output "one" of encode() is a value of the type list'),
    (TERMS, "return {'size': mean_of(outputs['one'].detach())}", None, "does not require grad"),
    (ENCODED, "return {'one': torch.ones(3, requires_grad=True)}", 8, "has 3 rows, expected 4"),
    (
        TERMS,
        "one = outputs['one'].exp(); total = one.sum(); r = one.square().sum(); one.add_(1)\n"
        "        return {'size': mean_of(r)}",
        None,
        "modified by an inplace operation",
    ),
    (
        TERMS,
        f"{TERMS}\n{SETTINGS.format('weight: float = 1.0')}",
        None,
        "the setting weight has no source",
    ),
    (
        TERMS,
        TERMS + "\n" + SETTINGS.format("data: str = ours('x', 'meaning')"),
        None,
        "the setting data has the name of a field in the record of every run",
    ),
    (
        "    @classmethod\n",
        "    presets = {'low': {'batch': 0}}\n    @classmethod\n",
        None,
        "low: batch=0: expected 1 or more",
    ),
]


@pytest.fixture
def mine(tmp_path):
    """The example of sentkit-method(7) as a file."""
    path = tmp_path / "mine.py"
    path.write_text(method_of_the_manual())
    return path


@pytest.fixture
def run(sentkit, tiny, texts, mine):
    def run(*flags, kind="Uniform"):
        command = ("train", f"{mine}:{kind}", texts, "-m", tiny, "-o", "out", "--threads", 1)
        return sentkit(*command, "--set", "batch=4", *flags)

    return run


def test_the_example_of_the_manual_is_short_and_trains_until_it_changes(run, mine, sentkit, texts):
    result = run("--epochs", "2")
    listed = sentkit("train", f"{mine}:Uniform", "--list").out.decode()

    assert len(mine.read_text().splitlines()) <= 42
    assert result.code == 0, result.err
    assert json.loads(result.out)["method"] == "mine.py:Uniform"
    assert "declares none; it is the default of mine.py:Uniform\n" in result.err
    assert "weight of the uniformity" in listed
    assert "--preset small" in listed
    assert record_of()["command"].startswith(f"sentkit train {mine}:Uniform {texts} ")
    assert record_of()["run"].keys() - notes(Recipe) - {"weight", "scale", "readout"} <= {*OF_RUN}
    same = run("--epochs", "2", "--resume")
    mine.write_text(mine.read_text() + "# changed\n")
    changed = run("--epochs", "2", "--resume")
    assert (same.code, changed.code) == (0, 65)
    assert "belongs to a different run: method_file (" in changed.err


def test_the_checkpoint_has_the_file_and_its_digest(run, mine, sentkit):
    """The record runs no code, and a checkpoint is described without the file."""
    assert run().code == 0
    content = mine.read_bytes()
    [recorded] = [file for file in record_of()["inputs"] if file["flag"] == "METHOD"]
    mine.write_text("1 / 0\n")
    described = sentkit("inspect", "out")

    assert Path("out/mine.py").read_bytes() == content
    assert recorded["sha256"] == hashlib.sha256(content).hexdigest()
    assert described.code == 0
    assert described.rows[0]["lineage"]["command"] == record_of()["command"]


def test_the_shortest_method_of_the_manual_trains(run, mine, sentkit):
    """Without Settings, it has those of the trainer and a readout. Annotations can be strings."""
    settings = "weight: float = ours(1.0, 'meaning')\n        readout: str = readout('mean')"
    for text in (
        SHORT,
        f"from __future__ import annotations; {HEAD}{SHORT}{SETTINGS.format(settings)}",
    ):
        mine.write_text(text)
        result = run("--set", "readout=cls", "--set", "chunk=2", "-f", kind="Short")
        listed = sentkit("train", f"{mine}:Short", "--list").out.decode()

        assert result.code == 0, result.err
        assert json.loads(result.out)["readout"] == "cls"
        assert "base: as the base declares, else mean [" in " ".join(listed.split())


def test_a_setting_without_a_meaning_is_listed(mine, sentkit):
    """The meaning can be omitted; it is none of a base class that has one."""
    mine.write_text(f"{HEAD}{SHORT}{SETTINGS.format('weight: float = ours(1.0)')}")
    listed = sentkit("train", f"{mine}:Short", "--list")

    assert listed.code == 0, listed.err
    assert "weight=1 [our choice]" in " ".join(listed.out.decode().split())


@pytest.mark.parametrize(("old", "new", "line", "problem"), FAULTS)
def test_a_faulty_file_or_hook_has_its_line(run, mine, old, new, line, problem):
    """Never 0 without a checkpoint, and never the report of a bug."""
    mine.write_text(HEAD[:-1] + ";" + SHORT.replace(old, new, 1))
    result = run(kind="Short")

    assert (result.code, result.out) == (65, b""), result.err
    assert f"sentkit train: {mine}:{'' if line is None else f'{line}:'} " in result.err
    assert problem in result.err
    assert not mine.with_name("out").exists()


def test_numbers_of_values_can_be_tensors(run, mine):
    """As the sum of a mask is. The weights are those of equal numbers."""
    weights = []
    for number in ("len(one)", "torch.tensor(float(len(one)))"):
        terms = f"{{'size': Term(one.square().sum(), {number}), 'sum': Term(one.sum(), {number})}}"
        hook = f"one = outputs['one']; return {terms}\n    needs = Needs(row_wise=True)"
        mine.write_text(HEAD[:-1] + ";" + SHORT.replace(TERMS, hook))
        result = run("-f", kind="Short")
        weights.append(Path("out/model.safetensors").read_bytes())

        assert result.code == 0, result.err
    assert weights[0] == weights[1]


def test_the_message_about_a_wrong_term_says_what_to_return(run, mine):
    """The values alone, without mean_of, are the most common mistake."""
    mine.write_text(
        HEAD[:-1] + ";" + SHORT.replace(TERMS, 'return {"size": outputs["one"].square().sum(1)}')
    )

    assert run(kind="Short").told[-2:] == [
        f'sentkit train: {mine}:11: the term "size" of loss() is a tensor of the shape (4,)',
        "  return mean_of(values) of a value for each row, or Term(sum, number, factor); "
        "see: man 7 sentkit-method",
    ]


NO_CLASS = "a method of your own is FILE.py:CLASS, but mine.py has no class that can be one; "
SEVERAL = """\
from dataclasses import dataclass
raise SystemExit("a message must not run the file")
class Helper: pass
class First(Method): pass
class Second(First): pass
class Third(sentkit.method.PackedMethod): pass
"""


@pytest.mark.parametrize(
    ("name", "content", "advice"),
    [
        ("mine.py", SHORT, "add the class: mine.py:Short"),
        ("my loss.py", SHORT, "add the class: 'my loss.py:Short'"),
        ("mine.py", SEVERAL, "add the class: mine.py:First or mine.py:Second or mine.py:Third"),
        ("mine.py", "class Vic(Base): pass", "add the class: mine.py:Vic"),
        ("mine.py", "x = 1", NO_CLASS),
        ("mine.py", "class (", NO_CLASS),
        ("mine.txt", SHORT, "the method is the first word: sentkit train METHOD mine.txt; "),
    ],
)
def test_a_file_without_its_class_is_refused_with_the_classes_of_the_file(
    sentkit, name, content, advice
):
    Path(name).write_text(content)
    result = sentkit("train", name, "texts.txt", "-o", "out")

    assert result.code == 2
    assert result.told[0] == f'sentkit train: unknown method "{name}"'
    assert result.told[1].startswith(f"  {advice}")


def test_a_wrong_class_is_refused_with_the_classes_of_the_file(run, mine):
    mine.write_text(SHORT)
    result = run(kind="Shrot")

    assert result.code == 2
    assert result.told[1] == f"  {mine} has {mine}:Short"


def test_a_file_that_does_not_exist_is_named(sentkit):
    result = sentkit("train", "absent.py", "texts.txt", "-o", "out")

    assert (result.code, result.told) == (66, ["sentkit train: absent.py: no such file"])


def test_a_method_imports_the_files_beside_it(run, mine, tmp_path):
    (tmp_path / "beside_mine.py").write_text("FACTOR = 1.0\n")
    mine.write_text("from beside_mine import FACTOR\n" + SHORT)

    assert run(kind="Short").code == 0
