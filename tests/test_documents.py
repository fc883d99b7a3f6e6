"""Documents, man pages, help texts and examples agree with the program."""

import importlib.util
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import typer

from sentkit.cli import GROUPS, app, every_command, word
from sentkit.manual import SECTIONS, pages, parts_of
from sentkit.training.catalogue import find
from sentkit.training.settings import build
from sentkit.transforms.affine import write_affine

ROOT = Path(__file__).parent.parent
DOCUMENTS = {
    name: (ROOT / name).read_text()
    for name in ("README.md", "examples/README.md", "tests/benchmarks/README.md")
}
README = DOCUMENTS["README.md"]
SYSTEMS = [json.loads(line) for line in (ROOT / "examples/systems.jsonl").open()]
HELP = {name: command.__doc__ for name, command in every_command().items()}
HELP |= {word(group): group.__doc__ for group in GROUPS}
PAIRS = [
    ("a man plays a guitar", "someone makes music", 3.5, "music"),
    ("a cat sleeps", "a kitten is asleep", 4.5, "animals"),
    ("a dog runs", "the stock market fell", 0.0, "animals"),
    ("a woman sings a song", "a lady is singing", 4.8, "music"),
    ("two people walk", "a car drives by", 1.0, "music"),
    ("birds fly south", "the birds are flying", 3.9, "animals"),
]


@pytest.fixture(scope="session")
def furnished(tmp_path_factory, marian):
    """A folder with the files that the documents speak of."""
    folder = tmp_path_factory.mktemp("documents")
    for name in ("EN-DE", "DE-EN"):
        shutil.copytree(marian, folder / name)
    names = ("text_a", "text_b", "score", "topic")
    rows = [json.dumps(dict(zip(names, pair, strict=True))) + "\n" for pair in PAIRS]
    (folder / "pairs.jsonl").write_text("".join(rows))
    (folder / "titles.csv").write_text('id,title\n1,A cat\n2,"A dog, running"\n3,The sea\n')
    (folder / "titles.txt").write_text("A cat\nA dog\nThe sea\n")
    (folder / "table.csv").write_text("id,text\n1,A cat\n")
    (folder / "words.tsv").write_text("entry\tdefinition\ncat\ta small animal\ncat\ta pet that purrs\n")
    reviews = [{"text": f"{word} {n}", "label": word} for n in range(12) for word in ("good", "bad")]
    (folder / "reviews.jsonl").write_text("".join(json.dumps(review) + "\n" for review in reviews))
    (folder / "dict.jsonl").write_text('{"word":"dog","definition":"an animal that barks"}\n')
    synonyms = {"cat": ["kitten"], "dog": ["hound"], "sea": ["ocean"]}
    thesaurus = [{"word": word, "synonyms": others} for word, others in synonyms.items()]
    (folder / "thesaurus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in thesaurus))
    run(["sentkit", "encode", "pairs.jsonl", "-o", "new.jsonl"], folder)
    run(["sentkit", "encode", "pairs.jsonl", "-o", "a.safetensors"], folder)
    run(["sentkit", "encode", "titles.txt", "-o", "titles.safetensors"], folder)
    run(["sentkit", "encode", "titles.txt", "-o", "q.jsonl"], folder)
    news = [{"text": text, "label": topic} for *texts, _, topic in PAIRS for text in texts]
    (folder / "news.jsonl").write_text("".join(json.dumps(row) + "\n" for row in news))
    run(["sentkit", "encode", "news.jsonl", "-o", "news.safetensors"], folder)
    run(["sentkit", "encode", "reviews.jsonl", "-o", "reviews.safetensors"], folder)
    for made, copy in (
        ("new.jsonl", "old.jsonl"),
        ("new.jsonl", "part1.jsonl"),
        ("a.safetensors", "b.safetensors"),
        ("a.safetensors", "part2.safetensors"),
        ("reviews.safetensors", "more.safetensors"),
    ):
        shutil.copy(folder / made, folder / copy)
    for name, rows in (("shard1", "new.jsonl"), ("shard2", "titles.safetensors")):
        run(["sentkit", "whiten", "fit", rows, "--kind", "center", "-o", f"{name}.safetensors"], folder)
    affine = {"kind": "whitening"}
    write_affine(
        folder / "whitening.safetensors", np.eye(256, 8, dtype=np.float32), np.zeros(256, np.float32), affine
    )
    return folder


@pytest.fixture
def workplace(furnished, tmp_path):
    """A copy of that folder for one test."""
    return Path(shutil.copytree(furnished, tmp_path / "workplace"))


def run(command, folder, **more):
    bin_folder = folder / "bin"
    if not bin_folder.exists():
        bin_folder.mkdir()
        script = bin_folder / "sentkit"
        script.write_text(f'#!/bin/sh\nexec {sys.executable} -m sentkit "$@"\n')
        script.chmod(0o755)
    environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, **more
    )


@pytest.mark.parametrize("name", sorted(pages()))
def test_a_committed_man_page_is_the_one_that_the_command_makes(name):
    """After a change of a flag: python -m sentkit.manual man"""
    assert (ROOT / "man/man1" / name).read_text() == pages()[name]


def test_every_man_page_is_installed():
    """The build copies the folder man/ as it is, so each page must be in the folder of its section."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    files = [path.relative_to(ROOT / "man") for path in (ROOT / "man").rglob("*") if path.is_file()]

    assert build["shared-data"] == {"man": "share/man"}
    assert {path.name for path in files if path.suffix == ".1"} == set(pages())
    assert all(path.parent.name == f"man{path.suffix[1:]}" for path in files)


@pytest.fixture
def checkout(tmp_path):
    """Only the tracked files, and a virtual environment for first.sh, where pip installs nothing."""
    listed = run(["git", "-C", str(ROOT), "ls-files", "-z"], tmp_path)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in listed.stdout.split("\0")[:-1]:
        target = tmp_path / "checkout" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    programs = tmp_path / "checkout/.venv/bin"
    programs.mkdir(parents=True)
    for name, line in {
        "python": f'[ "$2" = pip ] || exec {sys.executable} "$@"',
        "sentkit": f'exec {sys.executable} -m sentkit "$@"',
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{line}\n")
        (programs / name).chmod(0o755)
    (programs / "activate").write_text(f'PATH="{programs}:$PATH"\n')
    return tmp_path / "checkout"


def blocks_of(document):
    """The shell and Python blocks of a document, as shell scripts."""
    blocks = re.findall(r"```(sh|python)\n(.*?)```", document, re.DOTALL)
    return [text if kind == "sh" else f"python - <<'END'\n{text}END\n" for kind, text in blocks]


def test_the_documents_run_as_copied_from_a_bare_checkout(checkout):
    """Run every block of all documents, in order, in one shell that starts without sentkit on its PATH."""
    blocks = [block for document in DOCUMENTS.values() for block in blocks_of(document)]
    script = "".join(f"echo BLOCK {n}; echo BLOCK {n} >&2\n{block}" for n, block in enumerate(blocks))
    folders = os.environ["PATH"].split(":")
    path = ":".join(folder for folder in folders if not Path(folder, "sentkit").exists())
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(checkout), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        ["sh", "-ec", script], cwd=checkout, env=environment, capture_output=True, text=True, check=False
    )
    outputs = re.split(r"BLOCK \d+\n", done.stdout)[1:]
    errors = re.split(r"BLOCK \d+\n", done.stderr)[1:]

    assert done.returncode == 0, errors[-1]
    for block, output, error in zip(blocks, outputs, errors, strict=True):
        assert output or " -o " in block
        assert not [line for line in error.splitlines() if not expected(line)] or "first.sh" in block, error
    assert f". '{checkout}/.venv/bin/activate'" in errors[0]
    shown = re.search(r"```\n\n```\n(.*?)```", README, re.DOTALL)[1]
    assert [cut(line) for line in outputs[0].splitlines()] == [cut(line) for line in shown.splitlines()]
    assert outputs[1] == outputs[0]


def expected(line):
    """At layer 0 [CLS] is the same for every text. A run reports its readout and its scores on --dev."""
    return "L00-cls" in line or line.startswith(("sentkit train: step ", "sentkit train: readout "))


def cut(line):
    """Similarities differ in their last digits from machine to machine."""
    return re.sub(r"(\d\.\d{4})\d+", r"\1", line)


@pytest.mark.parametrize(
    ("name", "line"), [(name, line) for name, text in HELP.items() for line in parts_of(text)[1]]
)
def test_an_example_of_the_help_runs(name, line, workplace):
    line = line.replace("CHECKPOINT", "nano").replace("-m BASE", "-m nano").replace("--fail-under 80", "")
    if "titles.safetensors" in line and " -o titles" in line:
        (workplace / "titles.safetensors").unlink()
    done = run(["sh", "-ec", line], workplace)
    # `train` tells each look at the dev pairs, and that two steps on three titles do not help; `cat` counts.
    said = [
        line
        for line in done.stderr.splitlines()
        if not line.startswith(
            ("sentkit train: step", "sentkit train: warning: --dev", "sentkit cat: joined")
        )
    ]

    assert (done.returncode, said) == (0, [])


def test_every_command_has_examples_first():
    assert all(parts_of(text)[1] for text in HELP.values())


def test_the_layers_example_runs(workplace):
    done = run(["sh", str(ROOT / "examples/layers.sh"), "pairs.jsonl"], workplace)

    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 15  # five layers, three readouts


def test_the_whitening_example_runs(workplace, monkeypatch):
    """A line for the vectors as they were, and one for each of five transforms."""
    monkeypatch.setenv("DIM", "3")
    monkeypatch.setenv("OUT", "kept")
    done = run(["sh", str(ROOT / "examples/whiten.sh"), "nano", "pairs.jsonl", "pairs.jsonl"], workplace)
    rows = [json.loads(line) for line in done.stdout.splitlines()]

    assert done.returncode == 0, done.stderr
    assert [Path(row["file"]).stem for row in rows] == [
        "none", "center", "standardize", "abtt", "whitening", "whiteningdim3",
    ]  # fmt: skip
    assert len({row["spearman"] for row in rows}) > 3
    assert all(row["against"]["encoder"] == rows[0]["encoder"] for row in rows)


def test_the_gate_example_passes_and_fails(workplace):
    gate = ["sh", str(ROOT / "examples/gate.sh"), "pairs.jsonl", "nano", "nano"]

    assert run([*gate, "10"], workplace).returncode == 0
    assert run([*gate, "100.1"], workplace).returncode == 1


@pytest.fixture
def collection(tmp_path):
    """A folder as evaluate.sh looks for one: a few rows under the names of five suites."""
    words = [("good", "bad")[n % 2] for n in range(44)]
    texts = [{"text": f"{word} {n}", "label": word} for n, word in enumerate(words)]
    pairs = [dict(zip(("text_a", "text_b", "score"), pair[:3], strict=True)) for pair in PAIRS]
    files = {
        **dict.fromkeys(("sts/stsb.test", "sts/sickr", "sts/sts17_track5_enen.test"), pairs),
        **dict.fromkeys(("clustering/stackoverflow", "senteval/cr", "senteval/sst2.train"), texts),
        **dict.fromkeys(("senteval/sst2.dev", "senteval/sst2.test"), texts[:6]),
    }
    for name, rows in files.items():
        path = tmp_path / "collection" / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path.parent.parent


def evaluated(collection, folder, *checkpoints, **variables):
    command = ["sh", str(ROOT / "examples/evaluate.sh"), *(checkpoints or ["nano"]), str(collection)]
    return run(["env", *(f"{name}={value}" for name, value in variables.items()), *command], folder)


def test_the_evaluation_prints_the_tables_of_the_papers(collection, workplace):
    """And as the last line of each what was found here, as `score` tells it."""
    done = evaluated(collection, workplace, OUT="kept", SEEDS="0..1")
    tables = [table.splitlines() for table in done.stdout.split("\n\n")]
    titles = [table[0] for table in tables]
    first = tables[titles.index("SG-BERT, table 1: sts, Spearman x 100")]
    told = run(
        ["sentkit", "score", "kept/nano/vectors/sts-stsb.test.safetensors", "--gold", "score"], workplace
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert {title.split(": ")[1].split(",")[0] for title in titles} == {
        "sts", "sts-multilingual", "clustering", "senteval", "few-shot",
    }  # fmt: skip
    assert re.search(
        r"bert-base +sg-opt +cls .* 77.23 \(0.43\) +68.16 \(0.50\) +74.62 \(0.25\)", "\n".join(first)
    )
    assert all(table[-1].split()[:3] == ["here:", "nano", "mean"] for table in tables)
    assert first[-1].split()[3] == f"{json.loads(told.stdout)['spearman']:.2f}"
    assert (
        first[-1].split()[3:] == [first[-1].split()[3]] * 2
    )  # the same rows twice, and no average of two in seven


def test_the_evaluation_takes_the_suites_and_the_probe_that_are_asked_for(collection, workplace):
    kept = dict(SUITES="senteval", PROBE="--head senteval --nhid 3", OUT="kept")
    done = evaluated(collection, workplace, **kept)
    reports = {
        path.stem: json.loads(path.read_text())
        for path in (workplace / "kept/nano/reports/senteval").iterdir()
    }

    assert (done.returncode, done.stderr) == (0, "")
    assert {title for title in done.stdout.splitlines() if ", table " in title} == {
        f"{paper}: senteval, accuracy x 100"
        for paper in ("SG-BERT, table 4", "PairSupCon, table 7", "DefSent+, table 4")
    }
    assert {name: report["head"] for name, report in reports.items()} == dict.fromkeys(
        ("cr", "sst2"), "senteval, nhid 3"
    )
    assert [path.name for path in (workplace / "kept/nano/reports").iterdir()] == ["senteval"]
    assert "DEV" in reports["sst2"]["protocol"]


def test_the_evaluation_of_one_seed_and_of_pairs_all_alike(collection, workplace):
    alike = (
        json.dumps({"text_a": "a", "text_b": "a", "score": 1.0}),
        json.dumps({"text_a": "b", "text_b": "b", "score": 2}),
    )
    (collection / "sts/stsb.test.jsonl").write_text("\n".join(alike * 2))
    (workplace / "kept").mkdir()
    done = evaluated(collection, workplace, SUITES="sts clustering", SEEDS="3")
    kept = evaluated(collection, workplace, SUITES="sts", OUT="kept")
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("here:")]

    assert done.returncode == 0
    assert "no correlation: all pairs are equally alike" in done.stderr
    assert lines[0][3] == "-"
    assert float(lines[-1][3]) > 0
    assert kept.returncode != 0


@pytest.mark.parametrize(
    ("arguments", "variables"), [(("nano",), {}), (("nano", "."), {"SUITES": "clusterin"})]
)
def test_the_evaluation_refuses_what_it_does_not_know(arguments, variables, workplace):
    command = ["sh", str(ROOT / "examples/evaluate.sh"), *arguments]
    done = run(["env", *(f"{name}={value}" for name, value in variables.items()), *command], workplace)

    assert done.returncode == 2
    assert "usage: evaluate.sh" in done.stderr or "clusterin: not one of" in done.stderr


def test_the_evaluation_refuses_a_wrong_checkpoint_before_it_begins(collection, workplace):
    done = evaluated(collection, workplace, "nowhere", OUT="kept")

    assert (done.returncode, done.stdout) == (66, "")
    assert not (workplace / "kept").exists()


def test_the_evaluation_goes_on_after_a_failure_and_names_it(collection, workplace):
    (collection / "sts/sickr.jsonl").write_text("{\n")
    few = (json.dumps({"text": f"{n}", "label": f"{n % 2}"}) + "\n" for n in range(10))
    (collection / "senteval/cr.jsonl").write_text("".join(few))
    done = evaluated(collection, workplace, SUITES="sts senteval", OUT="kept")
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("here:")]

    assert done.returncode == 1
    assert done.stderr.splitlines()[-3:] == [
        "evaluate.sh: these failed, for the reasons above:", "  nano: sts/sickr", "  nano: senteval/cr",
    ]  # fmt: skip
    assert "has 5 rows, fewer than --folds 10" in done.stderr
    assert lines[0][1:3] == ["nano", "mean"]  # STS-B
    assert len(lines[0]) == 4
    assert (workplace / "kept/nano/reports/senteval/sst2.json").exists()


def test_the_evaluation_names_the_files_that_it_does_not_use(collection, workplace):
    for name in (
        "sts/stsb.tset.jsonl",
        "clustering/agnews.csv",
        "senteval/sst2.jsonl",
        "senteval/mine.jsonl",
    ):
        (collection / name).write_text("")
    shutil.copy(collection / "clustering/stackoverflow.jsonl", collection / "clustering/mine.jsonl")
    done = evaluated(collection, workplace, SUITES="clustering", SEEDS="0")
    names = {line.removeprefix(f"evaluate.sh: not used: {collection}/") for line in done.stderr.splitlines()}

    assert done.returncode == 0
    assert names == {
        "sts/stsb.tset.jsonl", "clustering/agnews.csv", "senteval/sst2.jsonl", "senteval/mine.jsonl",
    }  # fmt: skip
    assert re.search(r"in no table of a paper:\nclustering  mine  \d+\.\d\d\n", done.stdout)


def test_the_evaluation_of_several_seeds_and_flags_of_encode(collection, workplace):
    """The same checkpoint twice, so the deviation is 0; encoded with the flags, and probed with two seeds."""
    for name in ("nano", "twins/nano"):
        shutil.copytree(ROOT / "sentkit/nano", workplace / name)
    (collection / "senteval/sst2.train.jsonl").unlink()
    given = {"SUITES": "sts few-shot", "PROBE_SEEDS": "3,4", "ENCODE": "--max-length 3 -q", "OUT": "kept"}
    done = evaluated(collection, workplace, "./nano", "./twins/nano", **given)
    scores = {
        json.loads((workplace / f"kept/{name}/reports/sts/stsb.json").read_text())["spearman"]
        for name in ("nano", "nano_")
    }
    probes = (workplace / "kept/nano/reports/few-shot/cr.json").read_text().splitlines()
    spec = run(["sentkit", "inspect", "kept/nano/vectors/sts-sickr.safetensors", "--json"], workplace)

    assert done.returncode == 0, done.stderr
    assert f"here:        nano        mean  {scores.pop():.2f} (0.00)".split() in [
        line.split()[:5] for line in done.stdout.splitlines()
    ]
    assert not scores
    assert [json.loads(line)["seed"] for line in probes] == [3, 4]
    assert '"max_length":3' in spec.stdout.replace(" ", "")


def test_the_evaluation_of_nothing_says_so(workplace):
    done = evaluated(workplace, workplace)

    assert done.returncode == 1
    assert "no report" in done.stderr


def published(folder, *reports):
    return run([sys.executable, str(ROOT / "examples/published.py"), *reports], folder)


def in_reports(folder, **reports):
    """The reports of a run, as evaluate.sh writes them: sts_stsb="..." is sts/stsb.json."""
    for name, text in reports.items():
        path = folder.joinpath(*name.split("_")).with_suffix(".json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(folder)


STS = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr")


def test_without_reports_every_published_table_is_printed(tmp_path):
    done = published(tmp_path)
    rows = [json.loads(line) for line in (ROOT / "examples/published.jsonl").open()]
    titles = {re.match(r"(.*), table (\d+): ([a-z-]+), ", line) for line in done.stdout.splitlines()} - {None}
    papers = {
        "SG-BERT": "sg-bert",
        "ConSERT": "consert",
        "PairSupCon": "pairsupcon",
        "DefSent+": "defsent-plus",
    }

    assert (done.returncode, done.stderr) == (0, "")
    assert {(papers[title[1]], title[2], title[3]) for title in titles} == {
        (row["paper"], row["table"], row["suite"]) for row in rows
    }
    assert "here:" not in done.stdout
    assert "nan" not in done.stdout.lower()


def test_the_ablations_are_printed_beside_an_average(tmp_path):
    """Two runs whose seven scores are 70 and 80: their average is 75, and its deviation 10 / sqrt 2."""
    runs = [
        in_reports(
            tmp_path / f"run{score}",
            **{f"sts_{task}": f'{{"encoder":"m/cls:0","spearman":{score}.0}}' for task in STS},
        )
        for score in (70, 80)
    ]
    done = published(tmp_path, *runs)
    tables = {table.splitlines()[0]: table.splitlines()[-1].split() for table in done.stdout.split("\n\n")}

    assert (done.returncode, done.stderr) == (0, "")
    assert tables["SG-BERT, table 5: ablation, averages x 100"] == ["here:", "m", "cls", "75.00", "(7.07)"]
    assert tables["PairSupCon, table 4: ablation, averages x 100"][3:] == ["75.00", "(7.07)"]
    assert tables["SG-BERT, table 1: sts, Spearman x 100"][3:] == ["75.00", "(7.07)"] * 8


def test_a_bad_report_is_named_and_the_others_are_printed(tmp_path):
    good = '{"encoder":"m/cls:0","spearman":70.5}'
    reports = in_reports(
        tmp_path / "r",
        sts_stsb=good,
        sts_sickr="",
        sts_sts12="{",
        sts_sts13='{"encoder":"m"}',
        sts_sts14='{"encoder":1,"spearman":"x"}',
        own_x="",
    )
    (tmp_path / "r/sts/notes.txt").write_text("")
    done = published(tmp_path, reports)

    assert done.returncode == 1
    assert "70.50" in done.stdout
    for name in ("sickr", "sts12", "sts13", "sts14"):
        assert f"{reports}/sts/{name}.json: not a report of sts" in done.stderr
    assert f"not used: {reports}/own/x.json" in done.stderr
    assert f"not used: {reports}/sts/notes.txt" in done.stderr


def test_a_task_of_no_paper_keeps_the_name_of_its_file(tmp_path):
    reports = in_reports(
        tmp_path / "r", clustering_myOwn='{"encoder":"m/cls:0","acc_mean":50.0,"acc_sd":1.5}'
    )
    done = published(tmp_path, reports)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "Reports in no table of a paper:\nclustering  myOwn  50.00 (1.50)\n"


def test_a_task_that_one_of_two_runs_lacks_is_left_out_and_named(tmp_path):
    good = '{"encoder":"m/cls:0","spearman":70.0}'
    runs = [
        in_reports(tmp_path / "a", sts_stsb=good, sts_sickr=good),
        in_reports(tmp_path / "b", sts_stsb=good),
    ]
    done = published(tmp_path, *runs)

    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].split()[3:] == ["70.00", "(0.00)"]
    assert "sts/sickr: left out, because only 1 of 2 folders have it" in done.stderr


def test_the_measured_figures_of_the_systems_are_those_of_the_tables():
    """A deviation of one split beside the figure of another was printed once."""
    measured = [system["measured"] for system in SYSTEMS if "measured" in system]
    figures = re.findall(r"\d+\.\d ± \d\.\d", " ".join(measured))

    assert figures
    assert set(figures) <= set(re.findall(r"\d+\.\d ± \d\.\d", DOCUMENTS["examples/README.md"]))


def test_the_figures_of_the_readme_are_those_of_the_other_documents():
    tables = README.partition("## Results")[2].partition("## Guarantees")[0]
    others = " ".join(text for name, text in DOCUMENTS.items() if name != "README.md")
    figures = re.findall(r"\d[\d.,]*\d", tables)

    assert len(figures) > 15
    assert set(figures) <= set(re.findall(r"\d[\d.,]*\d", others))


def test_the_readme_is_short_and_lists_every_command():
    table = README.partition("## Commands")[2].partition("## ")[0]
    names = {name.partition(" ")[0] for name in every_command()}

    assert len(README.splitlines()) <= 150
    assert set(re.findall(r"^\| `([a-z-]+)`", table, re.MULTILINE)) == names


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_links_of_a_document_lead_to_files(name):
    links = re.findall(r"\]\(([^)]+)\)", DOCUMENTS[name])

    assert [link for link in links if not (ROOT / name).parent.joinpath(link).is_file()] == []


def inline_commands():
    """The commands in the running text of the documents, and those of the systems."""
    for document in DOCUMENTS.values():
        text = re.sub(r"```.*?```", "", document, flags=re.DOTALL)
        yield from (re.sub(r"\s+", " ", span) for span in re.findall(r"`([^`]+)`", text))
    for system in SYSTEMS:
        yield from system["commands"]


@pytest.mark.parametrize(
    "command",
    sorted({part.strip() for line in inline_commands() if " " in line for part in line.split("|")}),
)
def test_a_command_in_the_text_exists_with_its_flags(command):
    """Scripts exist; commands, flags, methods, presets and settings are known."""
    words = shlex.split(command)
    for path in words:
        if path.startswith(("examples/", "tests/")):
            assert (ROOT / path).is_file(), path
    if words[0] == "sentkit" and words[1] != "COMMAND":
        check_flags(words[1:])


def check_flags(words):
    found = typer.main.get_command(app)
    while words and words[0] in getattr(found, "commands", {}):
        found, words = found.commands[words[0]], words[1:]
    assert not hasattr(found, "commands"), f"{words}: not a command"
    flags = [word for word in words if re.match("-+[a-z]", word)]
    assert set(flags) <= {flag for parameter in found.params for flag in parameter.opts}
    if found.name == "train" and words[0] != "METHOD":
        method = find(words[0])
        values = dict(itertools.pairwise(words))
        settings = [after for before, after in itertools.pairwise(words) if before == "--set"]
        build(method.Settings, method.presets, values.get("--preset"), settings)


def loaded(script):
    spec = importlib.util.spec_from_file_location(script, ROOT / "examples" / f"{script}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_page_of_methods_is_the_generated_one():
    """After a change of a setting: python examples/methods_page.py man/man7/sentkit-methods.7"""
    assert (ROOT / "man/man7/sentkit-methods.7").read_text() == loaded("methods_page").page()


def test_a_system_without_published_figures_is_refused():
    page = loaded("methods_page")
    published = [json.loads(line) for line in (ROOT / "examples/published.jsonl").open()]

    assert page.of_reference("sg-bert/1/bert-base/sg-opt", published) == ["74.62"]
    assert page.of_reference("pairsupcon/3/bert-base/pairsupcon", published) == ["80.8"]
    for wrong in ("sg-bert/1/bert-base/sg-op", "sg-bert/1/bert-base/no-tuning"):
        with pytest.raises(ValueError, match=wrong):
            page.of_reference(wrong, published)


def test_the_pictures_show_the_output_of_their_commands(tmp_path):
    """After a change of a table: python examples/picture.py"""
    loaded("picture").main(tmp_path)
    for name in ("session.svg", "result.svg"):
        assert text_of(tmp_path / name) == text_of(ROOT / "examples" / name)
        assert "https://" not in re.sub("<!--.*?-->", "", (tmp_path / name).read_text())


def text_of(picture):
    """The words of a picture, with one decimal of each number."""
    words = [element.text for element in ElementTree.parse(picture).iter() if element.tag.endswith("}text")]
    return [re.sub(r"(\d\.\d)\d+", r"\1", word) for word in words]


@pytest.mark.parametrize(("code", "requeued"), [(0, False), (65, False), (75, True)])
def test_the_job_script_of_train_requeues_a_saved_run(code, requeued, tmp_path):
    """`srun` is a stand-in that exits with the code of train; `scontrol` is one that reports its use."""
    script = next(text for text in SECTIONS["sentkit train"]["CLUSTERS"] if text.startswith("#!"))
    for name, body in {"srun": f"exit {code}", "scontrol": 'echo "$@"'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "12"}
    done = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (code, "requeue 12\n" if requeued else "")
