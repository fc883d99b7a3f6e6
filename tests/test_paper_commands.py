"""The commands of examples/papers have the settings that the papers state. A stub of sentkit records them."""

import json
import subprocess
import sys
from itertools import pairwise

import pytest

from sentkit.training.catalogue import METHODS
from sentkit.training.settings import build, chosen_readout
from support import ROOT, in_jsonl, with_program

STUB = """
import json, pathlib, sys
words = sys.argv[1:]
with open(LOG, "a") as log:
    print(json.dumps(words), file=log)
values = dict(zip(words, words[1:]))
out = values.get("-o")
if words[0] == "train":
    (folder := pathlib.Path(out)).mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "sentkit.json"):
        (folder / name).touch()
    test = {"accuracy": 50, "f1": 50, "matthews": 50}
    print(json.dumps({"checkpoint": out, "seed": 0, "step": 1, "dev": 50, "test": test}))
elif words[0] == "cat":
    print(pathlib.Path(words[1]).read_text(), end="")
elif words[0] == "score":
    print('{"encoder":"a/b","spearman":50}')
elif out:
    pathlib.Path(out).touch()
"""
PYTHON = """#!/bin/sh
case "$*" in *sentkit.papers*)
    while [ $# -gt 1 ]; do [ "$1" != -o ] || touch "$2"; shift; done
    exit ;;
esac
exec {} "$@"
"""
PAIR = {"text_a": "a cat", "text_b": "a dog", "score": 1, "label": "entailment"}
SETS = ("stsb.train", "stsb.dev", "sickr.test", *(f"sts1{n}" for n in range(2, 7)), "stsb.test")
FILES = {
    **dict.fromkeys((f"sts/{name}" for name in SETS), PAIR),
    **dict.fromkeys((f"glue/rte.{part}" for part in ("train", "dev", "test")), PAIR),
    "nli/train": PAIR,
    "senteval/CR": {"text": "a cat", "label": 1},
    "corpora/own": {"text": "a cat"},
    "dictionary/a": {"entry": "cat", "definition": "an animal"},
    "dictionary/b": {"entry": "dog", "definition": "an animal"},
}


@pytest.fixture
def commands(tmp_path):
    """`commands("consert")`: the words of all commands of sentkit that the script runs."""

    def run(paper, *flags, **variables):
        log, data, stub = tmp_path / "log", tmp_path / "data", tmp_path / "stub.py"
        for name, row in FILES.items():
            (data / name).parent.mkdir(parents=True, exist_ok=True)
            (data / f"{name}.jsonl").write_text(in_jsonl(row))
        stub.write_text(f"LOG = {str(log)!r}\n{STUB}")
        made = tmp_path / "out/tables"
        made.mkdir(parents=True)
        for name in ("efficiency.md", "dictionary-all.tsv", "dictionary-single.tsv", "dictionary-b.tsv"):
            (made / name).touch()  # from other programs
        given = with_program(tmp_path, (sys.executable, "-S", stub)) | {"OUT": str(tmp_path / "out")}
        python = tmp_path / "bin/python3"  # the figures of the papers need the files of sentkit
        python.write_text(PYTHON.format(sys.executable))
        python.chmod(0o755)
        script = ["sh", ROOT / f"examples/papers/{paper}.sh", *flags, "raw", data]
        done = subprocess.run(script, env=given | variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return [
            [word.replace(f"{tmp_path}/out/", "") for word in json.loads(line)]
            for line in log.read_text().splitlines()
        ]

    return run


def trained(commands):
    """The settings and the base of each run, by its folder."""
    runs = {}
    for words in commands:
        if words[0] == "train":
            values = dict(pairwise(words))
            own = [after for word, after in pairwise(words) if word == "--set"]
            flags = [f"{n}={values[f'--{n}']}" for n in ("epochs", "batch", "lr") if f"--{n}" in values]
            method = METHODS[words[1]].load()
            settings = build(method.Settings, method.presets, values.get("--preset"), [*flags, *own])
            runs[values["-o"].removeprefix("runs/")] = settings, values["-m"]
    return runs


def test_consert_fits_the_flow_of_table_3_to_an_encoder_trained_on_nli(commands):
    lines = commands("consert", "--quick")
    fits = {words[-1]: words for words in lines if words[:2] == ["whiten", "fit"]}
    vectors = next(words for words in lines if "rows/flow-nli-rows.safetensors" in words)
    table = next(words for words in lines if words[0] == "report" and "3" in words)

    assert "rows/flow-nli-rows.safetensors" in str(fits)
    assert vectors[vectors.index("-m") + 1] == "runs/sbert"
    assert "flow-nli=runs/sbert#mean-last2@rows/flow-nli.safetensors" in table
    assert trained(lines)["sbert"][1] == "raw"


def test_sg_bert_reads_cls_and_glue_starts_from_the_encoder_of_table_1(commands):
    runs = trained(commands("sg-bert", "--quick"))

    assert {chosen_readout(runs[name][0]) for name in ("sg", "sg-opt", "opt1", "senteval")} == {"cls"}
    assert runs["no-tuning-rte"][1] == "raw"
    assert runs["sg-opt-rte"][1] == "runs/sg-opt"
    settings = runs["sg-opt"][0]
    assert (settings.guide_pool, settings.guide_layers, settings.temperature) == ("max", "all", 0.01)


@pytest.mark.parametrize(
    ("preset", "rates", "more"),
    [  # the table of learning rates: steps 1 to 3, from SimCSE, from SNCSE; DefSent with [CLS]
        ({}, (5e-5, 4e-5, 3e-5, 3e-5, 2e-5), {"defsent": 5.657e-6, "simcse": 3e-5}),
        ({"PRESET": "roberta-large"}, (3e-5, 2e-5, 1e-5, 3e-5, 1e-6), {"defsent": 4e-6, "simcse": 3e-5}),
    ],
)
def test_defsent_plus_has_the_rates_and_batches_of_the_paper(commands, preset, rates, more):
    runs = trained(commands("defsent-plus", **preset))
    names = [f"steps/step-{n}" for n in (1, 2, 3)] + ["simcse+1/step-1", "sncse+1/step-1"]

    assert tuple(runs[name][0].lr for name in names) == rates
    assert {name: runs[name][0].lr for name in more} == more
    # 331,472 definitions in 10,359 steps, 122,209 in 7,639 and 67,553 in 4,223
    batches = {name: runs[f"{name}/step-1"][0].batch for name in ("steps", "b", "single", "simcse+1")}
    assert batches == {"steps": 32, "b": 16, "single": 16, "simcse+1": 32}
    assert (runs["simcse+1/step-1"][1], runs["sncse+1/step-1"][1]) == ("runs/simcse", "runs/sncse")


def test_pairsupcon_has_its_batch_and_keeps_the_last_weights(commands):
    runs = trained(commands("pairsupcon"))

    assert {settings.batch for name, (settings, _) in runs.items() if name != "sbert"} == {1024}
    assert (runs["pairsupcon"][0].final, runs["stsb-dev"][0].final) == ("last", "best")
    assert runs["id-plain"][0].hard_negatives is False
