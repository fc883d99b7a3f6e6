"""The commands of examples/systems.jsonl are valid, and one of each kind runs on a few rows.

The printed commands have no rows, no output and sometimes no model; these follow here. The two commands
of a script are in tests/test_examples.py.
"""

import itertools
import json
import shlex

import numpy as np
import pytest

from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.reports.suites import published
from sentkit.training.base import open_base
from sentkit.training.catalogue import METHODS
from sentkit.training.settings import build
from support import ROOT, SMALL, TEXTS, in_jsonl, normal_rows, write_small_tokenizer

SYSTEMS = [json.loads(line) for line in (ROOT / "examples/systems.jsonl").open()]
COMMANDS = sorted({command for system in SYSTEMS for command in system["commands"]})
SCRIPTS = ["sh examples/consert.sh joint-unsup", "sh examples/consert.sh sup-unsup"]
TRAINED = ("SBERT", "SG-OPT", "SIMCSE", "SNCSE", "MBERT")  # checkpoints of other runs, or other bases
LONGEST = {  # of each command and method
    tuple(command.split()[1:3]): command for command in sorted(COMMANDS, key=len) if command not in SCRIPTS
}
LISTED = ("bert", "bert-base", "sbert-base", "mbert", None)  # the page says that it leaves out other bases
LABELS = ("entailment", "contradiction", "neutral")
WORDS = ("cat", "dog", "rain", "sea")  # each one token
QUICK = ("--epochs", 1, "--batch", 8, "--set", "max_length=64", "--set", "warmup=0", "--threads", 1, "-q")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An encoder of eight layers with a language model head, and rows of every kind."""
    import torch
    import transformers

    folder = tmp_path_factory.mktemp("systems")
    sizes = SMALL | {"num_hidden_layers": 8, "vocab_size": write_small_tokenizer(folder / "base")}
    torch.manual_seed(0)
    transformers.BertForMaskedLM(transformers.BertConfig(**sizes)).save_pretrained(folder / "base")
    triples = list(zip(TEXTS, TEXTS[1:], TEXTS[2:], strict=False))
    rows = {
        "sentence": [{"text": text, "label": LABELS[n % 2]} for n, text in enumerate(TEXTS)],
        "pair": [
            {"text_a": a, "text_b": b, "label": LABELS[n % 3], "score": n}
            for n, (a, b, _) in enumerate(triples)
        ],
        "triplet": [{"anchor": a, "positive": b, "negative": c} for a, b, c in triples],
        "entry": [{"entry": WORDS[n % 4], "definition": text} for n, text in enumerate(TEXTS)],
        "entries": [
            {"entry": word, "embedding": [*vector]} for word, vector in zip(WORDS, VECTORS, strict=True)
        ],
        "vectors": [
            {"text": text, "embedding": [*vector]} for text, vector in zip(TEXTS, MORE, strict=False)
        ],
    }
    for name, each in rows.items():
        (folder / f"{name}.jsonl").write_text(in_jsonl(*each))
    np.save(folder / "glove.6B.50d.npy", normal_rows(4, 5))
    (folder / "glove.6B.50d.txt").write_text("".join(word + "\n" for word in WORDS))
    return folder


VECTORS, MORE = normal_rows(4, 16).tolist(), normal_rows(9, 16, seed=1).tolist()


def rows_of(words, base):
    """The kind of rows that a training command reads."""
    kind = METHODS[words[0]].load()
    values = dict(itertools.pairwise(words))
    assignments = [after for before, after in itertools.pairwise(words) if before == "--set"]
    settings = build(kind.Settings, kind.presets, values.get("--preset"), [*assignments, "max_length=64"])
    return kind.reads(open_base(read_checkpoint(str(base)), 64), settings).kinds[0].name


def completed(words, folder, marian):
    """The arguments that follow a printed command."""
    model = () if "-m" in words else ("-m", marian if words[0] == "translate" else folder / "base")
    match words[0]:
        case "train" if "defsent-plus" in words:
            rows, more = "entry", ("-o", "out", *QUICK, *model)
            if "roberta" in words[-1]:  # the preset names a checkpoint of RoBERTa
                more += ("--set", f"projection_from={folder / 'base'}")
        case "train":
            rows, more = rows_of(words[1:], folder / "base"), ("-o", "out", *QUICK, *model)
        case "whiten":
            rows, more = "vectors", ("-o", "transform.safetensors", "-q")
        case "augment":
            rows, more = "pair" if "--field" in words else "sentence", ("-q",)
        case "build-entries":
            rows, more = "entry", (*model, "-q")
        case _:
            rows, more = "sentence", (*model, "-q")
    return folder / f"{rows}.jsonl", *more


def test_the_settings_of_all_printed_runs_are_valid(folder):
    runs = [shlex.split(command)[2:] for command in COMMANDS if command.startswith("sentkit train ")]

    assert {rows_of(words, folder / "base") for words in runs} == {"sentence", "pair", "triplet", "entry"}


@pytest.mark.parametrize("command", LONGEST.values())
def test_the_command_of_a_system_runs(sentkit, folder, marian, monkeypatch, tmp_path, command):
    words = shlex.split(command)[1:]
    more = completed(words, folder, marian)
    known = dict.fromkeys(TRAINED, folder / "base")
    known |= {"ENTRIES": folder / "entries.jsonl", "DEV": folder / "pair.jsonl"}
    if "glove.6B.50d.npy" in words:
        monkeypatch.chdir(folder)
    done = sentkit(*(known.get(word, word) for word in words), *more)

    assert (done.code, done.err) == (0, "")
    assert done.out or (tmp_path / "transform.safetensors").exists()


def test_every_system_is_supported_with_a_command_or_not_at_all():
    assert set(SCRIPTS) <= set(COMMANDS)
    assert all(command.startswith("sentkit ") for command in COMMANDS if command not in SCRIPTS)
    assert [row["system"] for row in SYSTEMS if (row["status"] == "yes") != bool(row["commands"])] == []
    assert {row["status"] for row in SYSTEMS} == {"yes", "no"}


def test_the_list_has_every_published_row_of_its_bases():
    listed = [reference.split("/") for row in SYSTEMS for reference in row["published"]]
    rows = {
        tuple(row[key] or "-" for key in ("paper", "table", "base", "system", "readout"))
        for row in published()
        if row["base"] in LISTED
    }

    assert len(rows) > 100
    assert [row for row in rows if not any(list(row[: len(each)]) == each for each in listed)] == []


@pytest.mark.parametrize(
    ("system", "values"),
    [  # from the papers: readout and learning rates; the second step exists only for RoBERTa-large
        ("SG-OPT", [("cls", 5e-5)]),
        ("SBERT, then back-translation, SG or SG-OPT", [("cls", 5e-5)] * 3),
        ("SimCSE, then DefSent+, one or two steps", [("mean,cls,prompt", 3e-5), ("mean,cls,prompt", 2e-5)]),
        ("SNCSE, then DefSent+, one or two steps", [("mean,cls,prompt", 2e-5), ("mean,cls,prompt", 1e-6)]),
        ("DefSent+, steps 1, 2 and 3", [("mean,cls,prompt", rate) for rate in (5e-5, 4e-5, 3e-5)]),
    ],
)
def test_the_commands_have_the_values_of_the_papers(system, values):
    """They must not depend on the readout that the base declares."""
    [commands] = [row["commands"] for row in SYSTEMS if row["system"] == system]
    found = []
    for words in map(shlex.split, commands):
        if words[1] == "train":
            kind, flags = METHODS[words[2]].load(), dict(itertools.pairwise(words))
            own = [after for before, after in itertools.pairwise(words) if before == "--set"]
            settings = build(kind.Settings, kind.presets, flags["--preset"], own)
            found.append((settings.readout, settings.lr))

    assert found == values
