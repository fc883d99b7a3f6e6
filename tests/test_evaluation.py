"""examples/evaluate.sh and examples/published.py: the tables of the papers with measured figures."""

import json
import re
import shutil
import subprocess
import sys

import pytest

from support import ROOT, in_jsonl

PAIRS = [
    ("a man plays a guitar", "someone makes music", 3.5),
    ("a cat sleeps", "a kitten is asleep", 4.5),
    ("a dog runs", "the stock market fell", 0.0),
    ("a woman sings a song", "a lady is singing", 4.8),
    ("two people walk", "a car drives by", 1.0),
    ("birds fly south", "the birds are flying", 3.9),
]


@pytest.fixture
def workplace(tmp_path):
    """An empty folder to run in."""
    (tmp_path / "workplace").mkdir()
    return tmp_path / "workplace"


@pytest.fixture
def collection(tmp_path):
    """A data folder for evaluate.sh: a few rows for each of five suites."""
    words = [("good", "bad")[n % 2] for n in range(44)]
    texts = [{"text": f"{word} {n}", "label": word} for n, word in enumerate(words)]
    pairs = [dict(zip(("text_a", "text_b", "score"), pair, strict=True)) for pair in PAIRS]
    files = {
        **dict.fromkeys(("sts/stsb.test", "sts/sickr", "sts/sts17_track5_enen.test"), pairs),
        **dict.fromkeys(("clustering/stackoverflow", "senteval/cr", "senteval/sst2.train"), texts),
        **dict.fromkeys(("senteval/sst2.dev", "senteval/sst2.test"), texts[:6]),
    }
    for name, rows in files.items():
        path = tmp_path / "collection" / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(in_jsonl(*rows))
    return path.parent.parent


@pytest.fixture
def evaluated(execute):
    def run(collection, folder, *checkpoints, **variables):
        command = ["sh", str(ROOT / "examples/evaluate.sh"), *(checkpoints or ["nano"]), str(collection)]
        return execute(command, folder, **variables)

    return run


def test_the_tables_of_the_papers_end_with_the_measured_figures(collection, workplace, evaluated, execute):
    """The last line of each table equals the output of `score`."""
    done = evaluated(collection, workplace, OUT="kept", SEEDS="0..1")
    tables = [table.splitlines() for table in done.stdout.split("\n\n")]
    titles = [table[0] for table in tables]
    first = tables[titles.index("SG-BERT, table 1: sts, Spearman x 100")]
    scored = execute(
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
    assert first[-1].split()[3] == f"{json.loads(scored.stdout)['spearman']:.2f}"
    assert (
        first[-1].split()[3:] == [first[-1].split()[3]] * 2
    )  # the same rows twice, and no average of two in seven


def test_suites_and_probe_can_be_selected(collection, workplace, evaluated):
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


def test_one_seed_and_pairs_that_are_all_equal(collection, workplace, evaluated):
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
    assert "the correlation is undefined: all pairs have the same similarity" in done.stderr
    assert lines[0][3] == "-"
    assert float(lines[-1][3]) > 0
    assert kept.returncode != 0


@pytest.mark.parametrize(
    ("arguments", "variables"), [(("nano",), {}), (("nano", "."), {"SUITES": "clusterin"})]
)
def test_wrong_usage_and_unknown_suites_are_refused(arguments, variables, workplace, execute):
    command = ["sh", str(ROOT / "examples/evaluate.sh"), *arguments]
    done = execute(command, workplace, **variables)

    assert done.returncode == 2
    assert "usage: evaluate.sh" in done.stderr or "clusterin: not one of" in done.stderr


def test_a_missing_checkpoint_is_refused_at_the_start(collection, workplace, evaluated):
    done = evaluated(collection, workplace, "nowhere", OUT="kept")

    assert (done.returncode, done.stdout) == (66, "")
    assert not (workplace / "kept").exists()


def test_a_data_set_that_fails_is_named_and_the_others_are_evaluated(collection, workplace, evaluated):
    (collection / "sts/sickr.jsonl").write_text("{\n")
    few = ({"text": f"{n}", "label": f"{n % 2}"} for n in range(10))
    (collection / "senteval/cr.jsonl").write_text(in_jsonl(*few))
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


def test_unused_files_are_named(collection, workplace, evaluated):
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


def test_several_seeds_with_flags_of_encode(collection, workplace, evaluated, execute):
    """The same checkpoint twice has the deviation 0. ENCODE and PROBE_SEEDS are used."""
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
    spec = execute(["sentkit", "inspect", "kept/nano/vectors/sts-sickr.safetensors", "--json"], workplace)

    assert done.returncode == 0, done.stderr
    assert f"here:        nano        mean  {scores.pop():.2f} (0.00)".split() in [
        line.split()[:5] for line in done.stdout.splitlines()
    ]
    assert not scores
    assert [json.loads(line)["seed"] for line in probes] == [3, 4]
    assert '"max_length":3' in spec.stdout.replace(" ", "")


def test_a_folder_without_data_is_an_error(workplace, evaluated):
    done = evaluated(workplace, workplace)

    assert done.returncode == 1
    assert "no report" in done.stderr


def published(folder, *reports):
    command = [sys.executable, str(ROOT / "examples/published.py"), *reports]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


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


def test_ablation_tables_are_printed_for_an_average(tmp_path):
    """One run has 70 in all seven tasks, the other 80: the average is 75, its deviation 10 / sqrt 2."""
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


def test_a_task_without_a_published_table_keeps_its_file_name(tmp_path):
    reports = in_reports(
        tmp_path / "r", clustering_myOwn='{"encoder":"m/cls:0","acc_mean":50.0,"acc_sd":1.5}'
    )
    done = published(tmp_path, reports)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "Reports in no table of a paper:\nclustering  myOwn  50.00 (1.50)\n"


def test_a_task_that_is_missing_in_one_run_is_omitted_and_named(tmp_path):
    good = '{"encoder":"m/cls:0","spearman":70.0}'
    runs = [
        in_reports(tmp_path / "a", sts_stsb=good, sts_sickr=good),
        in_reports(tmp_path / "b", sts_stsb=good),
    ]
    done = published(tmp_path, *runs)

    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].split()[3:] == ["70.00", "(0.00)"]
    assert "sts/sickr: skipped, because only 1 of 2 folders have it" in done.stderr
