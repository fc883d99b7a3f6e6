"""examples/papers: each script makes its tables and figures with --quick, from a base of four layers."""

import json
import shutil
import subprocess

import pytest

from support import PAIRS, ROOT, SMALL, TEXTS, WORDS, copy_tokenizer, in_jsonl, with_program

FIGURES = {
    "sg-bert": {"layers", "domains", "space"},
    "consert": {"pairs", "batch", "temperature", "texts", "words", "masking", "views"},
    "pairsupcon": {"scores", "space"},
    "defsent-plus": {"entries-1", "entries-2", "entries-3", "correlation-3", "correlation-3-ica"},
}
ENTRIES = sorted(WORDS)[:24]


@pytest.fixture(scope="module")
def furnished(tmp_path_factory):
    """A base and a folder of data with a few rows of each kind."""
    import torch
    import transformers

    folder = tmp_path_factory.mktemp("papers")
    several = [f"{text} {end}" for end in ("", "today", "again", "here") for text in TEXTS]
    labels = ("entailment", "contradiction", "neutral")
    nli = [
        {"text_a": a, "text_b": b, "label": labels[n % 3]}
        for n, (a, b) in enumerate(zip(several, several[1:] + several[:1], strict=True))
    ]
    files = {
        **dict.fromkeys(("sts/stsb.train", "sts/stsb.dev", "sts/stsb.test", "sts/sickr.test"), PAIRS * 4),
        "nli/train": nli,
        "dictionary/own": [
            {"entry": ENTRIES[n % len(ENTRIES)], "definition": text} for n, text in enumerate(several)
        ],
        "clustering/stackoverflow": [{"text": text, "label": n % 2} for n, text in enumerate(several)],
        "corpora/own": [{"text": text} for text in several],
    }
    for name, rows in files.items():
        path = folder / "data" / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(in_jsonl(*rows))
    torch.manual_seed(0)
    config = transformers.BertConfig(**SMALL | {"num_hidden_layers": 4})
    transformers.BertForMaskedLM(config).save_pretrained(folder / "base")
    copy_tokenizer(folder / "base")
    return folder


@pytest.fixture(scope="module")
def environment(tmp_path_factory, forked_program):
    """`sentkit` and `python3` are forked programs."""
    return with_program(tmp_path_factory.mktemp("program"), forked_program)


@pytest.fixture
def script(furnished, environment, tmp_path):
    """`script("consert", "base", "data")`: the finished script, with OUT=tmp_path/out."""

    def run(paper, *arguments, **variables):
        command = ["sh", ROOT / f"examples/papers/{paper}.sh", *arguments]
        given = environment | {"OUT": str(tmp_path / "out")} | variables
        return subprocess.run(command, cwd=furnished, env=given, capture_output=True, text=True, check=False)

    return run


@pytest.mark.parametrize(
    "paper",
    [
        "pairsupcon",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("sg-bert", "consert", "defsent-plus")),
    ],
)
def test_a_script_makes_its_tables_and_figures(script, paper, tmp_path):
    """A message names each table that it cannot make."""
    given = {"FIGURES": "json", "FORMAT": "markdown", "SETTINGS": "--threads 1"}
    done = script(paper, "--quick", "base", "data", **given)
    tables = [path.read_text() for path in (tmp_path / "out/tables").glob("table-*.markdown")]
    here = [table.count("| here |") for table in tables]
    figures = {path.stem: path.read_text().splitlines() for path in (tmp_path / "out/figures").glob("*.json")}

    assert done.returncode == 0, done.stderr
    assert tables
    assert min(here) > 0
    assert figures.keys() == FIGURES[paper]
    assert all(json.loads(line) for lines in figures.values() for line in lines)
    assert done.stderr.count(f"{paper}.sh: not made: averages of STS") == 1


def test_missing_data_is_named(script, furnished, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(furnished / "data", data)
    (data / "sts/stsb.dev.jsonl").unlink()
    done, usage = script("pairsupcon", "base", str(data)), script("pairsupcon", "base")

    assert (done.returncode, done.stdout) == (66, "")
    assert done.stderr == f"pairsupcon.sh: {data}/sts/stsb.dev.jsonl: no such file\n"
    assert (usage.returncode, usage.stderr) == (2, "usage: pairsupcon.sh [--quick] BASE DATA\n")
