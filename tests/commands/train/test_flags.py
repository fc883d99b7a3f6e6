"""The flags of `sentkit train`: settings, precedence, and refusals before the first step."""

import os
import signal
import subprocess
from itertools import chain
from pathlib import Path
from threading import Timer

import pytest

from sentkit.process import UNWINDING, handle_signals, is_stopped_within, unwind_on_signals
from sentkit.training.catalogue import METHODS
from support import TEXTS, in_jsonl, python_of
from training.together import free_ports

STOPPED_BY_THE_LAUNCHER = """\
from sentkit import cli

cli.is_stopped_within = lambda seconds: True
cli.main()
"""
TOO_FEW_ROWS_ON_RANK_1 = """\
import os
from sentkit.method import SENTENCE, Method, Reads, mean_of

class Short(Method):
    @classmethod
    def reads(cls, base, settings):
        return Reads((SENTENCE,))

    def encode(self, batch):
        rows = self.vectors(self.pack(batch.texts[0]))
        return {"one": rows[:-1] if os.environ["RANK"] == "1" else rows}

    def loss(self, outputs):
        return {"size": mean_of(outputs["one"].square().sum(1))}
"""


def test_every_method_is_listed_with_its_settings(sentkit):
    listed = sentkit("train", "--list").out.decode()
    for name in METHODS:
        settings = sentkit("train", name, "--list").out.decode()
        words = " ".join(settings.split())
        origins = ("[paper]", "[released code]", "[our choice]")
        assert name in listed
        assert "epochs=" in words
        assert sum(words.count(origin) for origin in origins) >= 20


def test_the_methods_are_in_three_groups(on_terminal):
    """Each method is in one of them; the columns have equal places."""
    lines = on_terminal("train", "--list")
    names = {}
    for group in "\n".join(lines).split("\n\n"):
        heading, *methods = group.split("\n")
        names[heading.partition("  ")[0]] = [line.split()[0] for line in methods]

    assert list(names) == ["for products", "without labels", "of papers"]
    assert names["for products"] == ["contrast", "distill", "classify", "sbert", "cosent", "angle"]
    assert names["without labels"][:3] == ["simcse", "tsdae", "mlm"]
    assert {"sg-bert", "consert", "pairsupcon", "defsent", "defsent-plus"} < {*names["of papers"]}
    assert sorted(chain(*names.values())) == sorted(METHODS)
    assert {line.find("description") for line in lines} == {-1, 16}


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["missing.txt"], "rank 1: missing.txt: no such file"),
        (["texts.txt", "--device", "cuda:7"], 'rank 1: device "cuda:7": there is no CUDA device'),
        (["texts.txt", "--set", "lr=x"], None),  # all processes have the same flags
    ],
)
@pytest.mark.usefixtures("texts")
def test_a_later_process_tells_the_errors_of_its_machine(
    sentkit, tiny, monkeypatch, flags, problem
):
    """If torchrun does not stop it, as it does after the end of the first process."""
    monkeypatch.setattr("sentkit.cli.TIME_OF_FIRST_PROCESS", 0.0)
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    result = sentkit("train", "simcse", *flags, "-m", tiny, "-o", "out")

    assert result.code in (2, 66, 69)
    if problem is None:
        assert result.err == ""
    else:
        assert result.told[0].startswith(f"sentkit train: {problem}")


def test_a_process_alone_reports_and_writes_with_any_rank(sentkit, tiny, tmp_path, monkeypatch):
    """Some launchers number tasks that do not train together."""
    (tmp_path / "rows.jsonl").write_text(in_jsonl(*({"text": text} for text in TEXTS), {"text": 3}))
    monkeypatch.setenv("RANK", "3")
    flags = ("-m", tiny, "-o", "out", "--rejects", "bad.jsonl", "--threads", 1)
    result = sentkit("train", "simcse", "rows.jsonl", *flags)
    wrong = sentkit("train", "simcse", "rows.jsonl", *flags, "--set", "lr=x")

    assert result.code == 0
    assert "bad rows written to bad.jsonl: 1" in result.err
    assert len((tmp_path / "bad.jsonl").read_text().splitlines()) == 1
    assert wrong.told[0] == 'sentkit train: lr: "x" is not a number'


@pytest.mark.usefixtures("texts")
def test_a_later_process_is_silent_if_the_first_one_has_the_same_error(sentkit, tiny, monkeypatch):
    """After the end of the first process, torchrun sends SIGTERM to the others."""
    monkeypatch.setattr("sentkit.cli.is_stopped_within", lambda seconds: True)
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    result = sentkit("train", "simcse", "missing.txt", "-m", tiny, "-o", "out")

    assert (result.code, result.err) == (66, "")


@pytest.mark.usefixtures("texts")
def test_an_error_of_a_later_process_alone_is_printed(tiny, forked_program):
    """The first process ends, too, and torchrun sends SIGTERM to the later one."""
    Path("short.py").write_text(TOO_FEW_ROWS_ON_RANK_1)
    words = ["train", "short.py:Short", "texts.txt", "-m", str(tiny), "-o", "out", "--batch", "4"]
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(*free_ports(1))}
    children = [
        subprocess.Popen(
            [*python_of(forked_program), "-c", STOPPED_BY_THE_LAUNCHER, *words, "--threads", "1"],
            env={**os.environ, **world, "RANK": rank, "LOCAL_RANK": rank},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    messages = [child.communicate()[1] for child in children]

    assert "another process of the run ended; see its messages" in messages[0]
    assert messages[1].startswith("sentkit train: rank 1: ")
    assert 'the output "one" of encode() has 1 rows, expected 2' in messages[1]
    assert all(child.returncode for child in children)


def test_a_process_waits_for_a_signal():
    before = {number: signal.getsignal(number) for number in (*UNWINDING, signal.SIGALRM)}
    try:
        unwind_on_signals()
        assert not is_stopped_within(0.0)
        with handle_signals():
            signal.raise_signal(signal.SIGTERM)  # of a user, and not after the end of the first one
        assert not is_stopped_within(0.0)
        Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
        assert is_stopped_within(60.0)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
