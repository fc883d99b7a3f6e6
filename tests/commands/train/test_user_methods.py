"""Methods of users: the example of the manual with all of the trainer, and errors in a file."""

import json
import re

import pytest

from support import ROOT, contents

BROKEN = [  # text of the file, the place of the error, a part of the message
    ("x = (", 1, "SyntaxError"),
    ("import sentkit\n\nunknown.name", 3, "NameError"),
    ("from sentkit.method import missing", 1, "ImportError"),
]


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
    def run(*flags, name="out", kind="Uniform"):
        command = ["train", f"{mine}:{kind}", texts, "-m", tiny, "-o", mine.with_name(name), "--threads", 1]
        return sentkit(*map(str, command), "--set", "batch=4", *flags)

    return run


def test_the_example_of_the_manual_is_short_and_trains(run, mine, sentkit):
    done = run("--epochs", "2")
    listed = sentkit("train", f"{mine}:Uniform", "--list").out.decode()
    replayed = sentkit("inspect", str(mine.with_name("out")), "--replay").out.decode()

    assert len(mine.read_text().splitlines()) <= 42
    assert done.code == 0, done.err
    assert json.loads(done.out)["method"] == "mine.py:Uniform"
    assert "weight of the uniformity" in listed
    assert "--preset small" in listed
    assert f"sentkit train {mine}:Uniform" in replayed


def test_chunks_seeds_and_equal_runs(run, mine):
    for name, flags in (("one", ()), ("again", ()), ("seeds", ("--seed", "0,1"))):
        assert run("--set", "dropout=0", *flags, name=name).code == 0
    run("--set", "dropout=0", "--set", "chunk=2", name="chunks")

    folder = mine.parent
    assert contents(folder / "one") == contents(folder / "again")
    assert (folder / "seeds/seed-1/model.safetensors").is_file()
    assert (folder / "chunks/model.safetensors").is_file()


def test_a_changed_file_is_refused_at_resume_and_reported_by_replay(run, mine, sentkit):
    run()
    same = run("--resume")
    mine.write_text(mine.read_text() + "# changed\n")
    changed = run("--resume")
    replayed = sentkit("inspect", str(mine.with_name("out")), "--replay")

    assert same.code == 0
    assert changed.code == 65
    assert "method_file" in changed.err
    assert "mine.py: has changed since then" in replayed.err


@pytest.mark.parametrize(("text", "line", "problem"), BROKEN)
def test_an_error_in_the_file_has_its_line(run, mine, text, line, problem):
    mine.write_text(text)
    done = run()

    assert done.code == 65
    assert f"mine.py:{line}: {problem}" in done.err
    assert "Traceback" not in done.err


def test_an_error_during_training_has_the_line_of_the_file(run, mine):
    mine.write_text(mine.read_text().replace("(one - other)", "(one - others)"))
    line = next(n for n, each in enumerate(mine.read_text().splitlines(), 1) if "others" in each)
    done = run()

    assert done.code == 65
    assert f"mine.py:{line}: NameError" in done.err


@pytest.mark.parametrize(
    ("place", "code", "problem"),
    [
        ("./missing.py:X", 66, "missing.py: no such file"),
        ("no.such.module:X", 2, "no module no"),
        ("json:JSONDecoder", 2, "is not a subclass of Method"),
        ("sentkit.method:Method", 2, "does not define encode"),
    ],
)
def test_wrong_places_are_refused(sentkit, texts, tmp_path, place, code, problem):
    done = sentkit("train", place, str(texts), "-o", str(tmp_path / "out"))

    assert done.code == code
    assert problem in done.err


def test_a_method_of_a_module_is_found_by_its_name(sentkit, tiny, texts, tmp_path):
    place = "sentkit.training.methods.simcse:SimCSE"
    done = sentkit("train", place, str(texts), "-m", str(tiny), "-o", str(tmp_path / "out"), "--batch", "4")

    assert done.code == 0, done.err
