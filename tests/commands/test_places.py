"""Every command compares every path that it writes with every path that it reads, before it does
either.
"""

import shutil
from contextlib import chdir
from pathlib import Path

import pytest

from sentkit.cli import every_command, program, run_command_line
from sentkit.commands import distill_static, export, report, whiten
from sentkit.flags import rows
from sentkit.model import find_encoder
from sentkit.model.reading import ReadingOptions
from support import NANO

PATHS = {
    *("A", "B", "PATH", "FILE", "DIR", "NAME=FILE", "CONFIG", "MODEL", "OLD", "ROWS", "SEQ2SEQ"),
    *("TRANSFORM...", "[FILE]", "[FILE]...", "[TRAIN]..."),
}
BAD = ["--rejects", "bad"]
OUT = ["-o", "out.jsonl", *BAD]
WRITES = {"-o": "out.jsonl", "--rejects": "bad"}
TRAIN = ["train", "simcse", "in.jsonl", "-o", "out", *BAD]

# A call, its inputs and its outputs: by flag, or by "FILE" for an argument.
CALLS = [
    (
        ["encode", "in.jsonl", "-m", "model", "--reuse", "b.safetensors", *OUT],
        {"FILE": ["in.jsonl"], "-m": "model", "--reuse": ["b.safetensors"]},
        WRITES | {"-o": ["out.jsonl"]},
    ),
    (
        ["search", "--queries", "in.jsonl", "--corpus", "b.jsonl", *OUT],
        {"FILE": ["in.jsonl"], "--corpus": "b.jsonl"},
        WRITES,
    ),
    (
        [
            "search",
            "--queries",
            "in.jsonl",
            "--corpus",
            "b.safetensors",
            "--rescore",
            "c.jsonl",
            *OUT,
        ],
        {"FILE": ["in.jsonl"], "--corpus": "b.safetensors", "--rescore": "c.jsonl"},
        WRITES,
    ),
    (
        ["search", "a", "--corpus", "b.jsonl", "-m", "model", "-o", "out.jsonl"],
        {"--corpus": "b.jsonl", "-m": "model"},
        {"-o": "out.jsonl"},
    ),
    (
        ["search", "a", "b.jsonl", "c.jsonl", "-m", "model", "-o", "out.jsonl"],
        {"FILE": ["b.jsonl", "c.jsonl"], "-m": "model"},
        {"-o": "out.jsonl"},
    ),
    (
        ["duplicates", "in.jsonl", "--threshold", "1", "--against", "b.jsonl", *OUT],
        {"FILE": ["in.jsonl"], "--against": ["b.jsonl"]},
        WRITES,
    ),
    (
        ["mine", "in.jsonl", "--corpus", "b.jsonl", *OUT],
        {"FILE": ["in.jsonl"], "--corpus": "b.jsonl"},
        WRITES,
    ),
    (
        ["cluster", "in.jsonl", "--from-centroids", "k.jsonl", "--centroids", "new.jsonl", *OUT],
        {"FILE": ["in.jsonl"], "--from-centroids": "k.jsonl"},
        WRITES | {"--centroids": "new.jsonl"},
    ),
    (
        ["probe", "in.jsonl", "--label", "g", "--test", "b.jsonl", "--dev", "c.jsonl", *OUT],
        {"FILE": ["in.jsonl"], "--test": "b.jsonl", "--dev": "c.jsonl"},
        WRITES,
    ),
    (
        [*TRAIN, "-m", "model", "--dev", "b.jsonl", "--entries", "c.jsonl"],
        {"FILE": ["in.jsonl"], "-m": "model", "--dev": "b.jsonl", "--entries": "c.jsonl"},
        {"-o": ["out", "out.part"], "--rejects": "bad", "stdout": "-"},
    ),
    (
        ["train", "classify", *TRAIN[2:], "-m", "model", "--test", "b.jsonl"],
        {"FILE": ["in.jsonl"], "-m": "model", "--test": "b.jsonl"},
        {"-o": ["out", "out.part"], "--rejects": "bad", "stdout": "-"},
    ),
    (
        [*TRAIN, "--seed", "3,5", "-m", "nano"],
        {"FILE": ["in.jsonl"]},
        {
            "-o": [
                "out/seed-3",
                "out/seed-3.part",
                "out/rows.part",
                "out/seed-5",
                "out/seed-5.part",
            ],
            "--rejects": "bad",
            "stdout": "-",
        },
    ),
    (["predict", "in.jsonl", "-m", "model", *OUT], {"FILE": ["in.jsonl"], "-m": "model"}, WRITES),
    (["translate", "in.jsonl", "-m", "model", *OUT], {"FILE": ["in.jsonl"], "-m": "model"}, WRITES),
    (
        ["build-entries", "in.jsonl", "-m", "model", *OUT],
        {"FILE": ["in.jsonl"], "-m": "model"},
        WRITES,
    ),
    (
        [
            "augment",
            "in.jsonl",
            "--op",
            "synonym",
            "--synonyms",
            "b.jsonl",
            "--synonyms",
            "c.jsonl",
            *OUT,
        ],
        {"FILE": ["in.jsonl"], "--synonyms": ["b.jsonl", "c.jsonl"]},
        WRITES,
    ),
    (
        ["augment", "in.jsonl", "--op", "paraphrase", "--paraphrases", "b.jsonl", *OUT],
        {"FILE": ["in.jsonl"], "--paraphrases": "b.jsonl"},
        WRITES,
    ),
    (["cat", "in.jsonl", "b.jsonl", *OUT], {"FILE": ["in.jsonl", "b.jsonl"]}, WRITES),
    (["cat"], {"FILE": ["-"]}, {"-o": "-"}),
    (
        ["score", "in.jsonl", "--gold", "g", "--baseline", "b.jsonl", *OUT],
        {"FILE": ["in.jsonl"], "--baseline": "b.jsonl"},
        WRITES,
    ),
    (
        ["score", "in.jsonl", "--gold", "g", "--seen", "b.jsonl", *OUT],
        {"FILE": ["in.jsonl"], "--seen": ["b.jsonl"]},
        WRITES,
    ),
    (
        [
            "score",
            "in.jsonl",
            "--qrels",
            "c.jsonl",
            "--baseline",
            "b.jsonl",
            "--per-query",
            "new.jsonl",
            *OUT,
        ],
        {"FILE": ["in.jsonl"], "--baseline": "b.jsonl", "--qrels": "c.jsonl"},
        WRITES | {"--per-query": "new.jsonl"},
    ),
    (
        [
            "report",
            "nano",
            "own=model",
            "--data",
            "data",
            "--pairs",
            "x=b.jsonl",
            "--results",
            "kept",
            "--train",
            "in.jsonl",
            "-o",
            "out.md",
        ],
        {
            "ROW": ["model"],
            "--data": ["data/sts/stsb.jsonl"],
            "--pairs": ["b.jsonl"],
            "--train": ["in.jsonl"],
        },
        {"-o": "out.md", "--results": "kept"},
    ),
    (
        ["export", "-m", "model", "--transform", "t.safetensors", "-o", "out"],
        {"-m": "model", "--transform": "t.safetensors"},
        {"-o": "out"},
    ),
    (
        ["distill-static", "in.jsonl", "--weights", "sif", "-m", "model", "-o", "out", *BAD],
        {"FILE": ["in.jsonl"], "-m": "model"},
        {"-o": "out", "--rejects": "bad"},
    ),
    (["distill-static", "-m", "model", "-o", "out"], {"-m": "model"}, {"-o": "out"}),
    (
        ["whiten", "fit", "in.jsonl", "-o", "out.safetensors", *BAD],
        {"FILE": ["in.jsonl"]},
        {"-o": "out.safetensors", "--rejects": "bad"},
    ),
    (
        ["whiten", "apply", "in.jsonl", "-t", "t.safetensors", *OUT],
        {"FILE": ["in.jsonl"], "--transform": "t.safetensors"},
        WRITES,
    ),
    (["plot", "space", "in.jsonl", *OUT], {"FILE": ["in.jsonl"]}, WRITES),
    (["plot", "pairs", "in.jsonl", "--gold", "g", *OUT], {"FILE": ["in.jsonl"]}, WRITES),
    (["plot", "heat", "in.jsonl", *OUT], {"FILE": ["in.jsonl"]}, WRITES),
    (["plot", "curve", "in.jsonl", *OUT], {"FILE": ["in.jsonl"]}, WRITES),
    (["plot", "sweep", "in.jsonl", *OUT], {"FILE": ["in.jsonl"]}, WRITES),
    (
        [
            "whiten",
            "fit",
            "--kind",
            "merge",
            "t.safetensors",
            "u.safetensors",
            "-o",
            "out.safetensors",
        ],
        {"FILE": ["t.safetensors", "u.safetensors"]},
        {"-o": "out.safetensors"},
    ),
]
WRITE_NOTHING = {"diff", "inspect", "check"}


class Compared(BaseException):
    """Raised in place of the work."""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with all inputs, which no call changes."""
    folder = tmp_path_factory.mktemp("places")
    with chdir(folder):
        shutil.copytree(NANO, "model")
        width = find_encoder("nano", ReadingOptions()).encoder().width
        rows = "".join(
            f'{{"text":"a","embedding":{[float(n + k) for k in range(width)]}}}\n' for n in range(3)
        )
        for name in ("in.jsonl", "b.jsonl", "c.jsonl", "c.json"):
            Path(name).write_text(rows)
        Path("data/sts").mkdir(parents=True)
        shutil.copy("in.jsonl", "data/sts/stsb.jsonl")
        assert (
            run_command_line(
                ["whiten", "fit", "in.jsonl", "--kind", "center", "-o", "t.safetensors"]
            )
            == 0
        )
        assert (
            run_command_line(
                ["cluster", "in.jsonl", "-k", "1", "-q", "-o", "x", "--centroids", "k.jsonl"]
            )
            == 0
        )
        shutil.copy("t.safetensors", "u.safetensors")
        assert (
            run_command_line(["cat", "in.jsonl", "-o", "b.safetensors", "--store", "binary"]) == 0
        )
    return folder


@pytest.mark.parametrize(
    ("call", "reads", "writes"), CALLS, ids=[" ".join(call) for call, *_ in CALLS]
)
def test_a_command_compares_all_its_paths(files, sentkit, monkeypatch, call, reads, writes):
    monkeypatch.chdir(files)
    compared = []

    def compare(console, *paths):
        compared.extend(paths)
        raise Compared

    for module in (rows, distill_static, export, report, whiten):
        monkeypatch.setattr(module, "check_paths", compare)
    before = sorted(files.rglob("*"))
    with pytest.raises(Compared):
        sentkit(*call)

    named_paths = [{flag: value for flag, value in paths.items() if value} for paths in compared]
    assert named_paths == [writes, reads]
    assert sorted(files.rglob("*")) == before


def paths_of(name):
    """The names of each path flag or argument of a command."""
    command = program()
    for word in name.split():
        command = command.commands[word]
    for parameter in command.params:
        if parameter.metavar in PATHS:
            yield {*parameter.opts} if parameter.param_type_name == "option" else {"FILE"}


@pytest.mark.parametrize("name", every_command())
def test_the_table_above_has_every_path_of_every_command(name):
    words = name.split()
    in_table = set()
    for call, reads, writes in CALLS:
        if call[: len(words)] == words:
            in_table |= {*reads, *writes, *call}

    paths = list(paths_of(name))
    assert paths
    assert name in WRITE_NOTHING or [names for names in paths if not names & in_table] == []
