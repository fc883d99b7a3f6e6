"""examples/papers/orderings.py: pairs of systems, as the papers order them."""

import json
import shutil
import sys
from itertools import product

import pytest

from sentkit.papers.published import published, same_base
from support import PAIRS, ROOT, load_script, make_bert, write_rows

SCRIPT = ROOT / "examples/papers/orderings.py"
SETS = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb.test", "sickr.test")
sys.path.insert(0, str(SCRIPT.parent))
orderings = load_script(SCRIPT)
LISTED = [json.loads(line) for line in orderings.LISTED.open()]


@pytest.mark.parametrize("ordering", LISTED, ids=lambda row: f"{row['higher']}>{row['lower']}")
def test_the_published_averages_have_the_listed_order(ordering):
    options = orderings.parse(["--data", "data", "--out", "out"])
    averages = [
        float(orderings.published_average(options, ordering, side)) for side in ("higher", "lower")
    ]
    assert averages[0] > averages[1]
    names = {
        value["system"]
        for value in published()
        if (value["paper"], value["table"]) == (ordering["paper"], ordering["table"])
        and same_base(value["base"], "bert-base")
    }
    assert {ordering[side].partition("#")[0] for side in ("higher", "lower")} <= names


def test_a_seed_is_compared_with_the_same_seed_of_the_other_row():
    """Also if each row has finished other seeds; of a flow, the seed is that of its file."""

    def row(arguments, averages):
        return orderings.Finished(arguments, {"a": averages, "avg": averages}, "clustering")

    higher = row(["sg/seed-1#cls", "sg/seed-3#cls"], [10.0, 30.0])
    lower = row(["bt/seed-0#cls", "bt/seed-1#cls"], [5.0, 6.0])
    flow = row(["base#mean@flow/seed-10.safetensors", "base#mean@flow/seed-3.safetensors"], [1, 2])

    assert orderings.common_seeds(higher, lower) == [1]
    assert orderings.common_seeds(higher, flow) == [3]
    assert orderings.common_seeds(higher, row(["base#cls"], [4.0])) == [1, 3]
    assert orderings.common_seeds(lower, flow) == []
    assert higher.average([1]) == 10.0  # of the common seeds
    assert row(["base#cls"], [4.0]).average([1, 3]) == 4.0
    assert higher.of_seed(higher.arguments, 3) == "sg/seed-3#cls"
    assert flow.of_seed(flow.arguments, 3) == "base#mean@flow/seed-3.safetensors"


def test_classifiers_have_the_settings_of_the_table():
    flags = ["--head", "senteval:50:10", "--seed", "0,2"]

    assert orderings.flags_of_classifiers("sg-bert", "4", [0, 2]) == flags
    assert orderings.flags_of_classifiers("sg-bert", "1", [0, 2]) == []  # has a --baseline
    assert orderings.flags_of_classifiers("pairsupcon", "1", [0, 2]) == []


@pytest.fixture
def finished(tmp_path, execute):
    """OUT with a table of clusters and one of pairs, from `sentkit report`."""
    write_rows(tmp_path / "data", {f"sts/{name}": PAIRS * 3 for name in SETS})
    make_bert(tmp_path / "base", num_hidden_layers=4)
    for system, seed in product(("consert", "pairsupcon", "sbert"), (0, 1)):
        shutil.copytree(tmp_path / "base", tmp_path / f"{system}/seed-{seed}")
    names = ["agnews", "searchsnippets", "stackoverflow", "biomedical", "tweet"]
    names += ["googlenews_ts", "googlenews_s", "googlenews_t"]
    rows = [
        {"text": f"{word} {number}", "label": word}
        for word in ("cat", "dog", "sea")
        for number in range(8)
    ]
    write_rows(tmp_path / "data", {f"clustering/{name}": rows for name in names})
    (tmp_path / "texts.txt").write_text("a cat\na dog sat\nthe sea and rain\n")
    lines = "sentkit encode texts.txt -m base -o v.safetensors -q --readout cls"
    fit = "sentkit whiten fit v.safetensors --kind center -o t.safetensors -q"
    for words in (lines, fit):
        assert execute(words.split(), tmp_path).returncode == 0
    rows = ["consert=consert/seed-0#mean", "consert=consert/seed-1#mean", "no-tuning=base#cls"]
    rows.append("flow=base#cls@t.safetensors")
    write_table(tmp_path, execute, "consert/tables/table-2", "sts", rows)
    rows = ["pairsupcon=pairsupcon/seed-0#mean", "pairsupcon=pairsupcon/seed-1#mean"]
    rows += ["sbert=sbert/seed-0#mean", "sbert=sbert/seed-1#mean", "no-tuning=base#cls"]
    write_table(tmp_path, execute, "pairsupcon/tables/table-1", "clustering", rows)
    return tmp_path


def write_table(folder, execute, name, suite, rows):
    line = ["sentkit", "report", *rows, "--data", "data", "--suites", suite, "--format", "json"]
    report = execute(line, folder)
    assert report.returncode == 0, report.stderr
    path = folder / f"out/{name}.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(report.stdout)


def test_an_error_of_a_command_is_not_a_traceback(tmp_path, execute):
    records = [
        {
            "row": row,
            "suite": "sts",
            "task": "avg",
            "readout": "mean",
            "checkpoints": ["nano"],
            "values": [50.0],
        }
        for row in ("consert", "no-tuning")
    ]
    write_rows(tmp_path / "out/consert/tables", {"table-2": records})
    completed = execute(["python3", SCRIPT, "--data", "none", "--out", "out"], tmp_path)

    assert completed.returncode == 66
    assert "sentkit report: none: not a folder of test sets" in completed.stderr
    assert "Traceback" not in completed.stderr


def test_a_table_of_the_finished_orderings(finished, execute):
    command = ["python3", SCRIPT, "--data", "data", "--out", "out"]
    completed = execute(command, finished)
    assert completed.returncode == 0, completed.stderr
    assert "not finished: sg-bert, table 1: sg-opt" in completed.stderr
    lines = [line.strip("| ").split(" | ") for line in completed.stdout.splitlines()[2:]]
    rows = {tuple(cells[:3]): cells[3:] for cells in lines}

    # the averages of the seven sets, and their difference for each seed
    table = (finished / "out/consert/tables/table-2.jsonl").read_text().splitlines()
    averages = {
        record["row"].partition("#")[0]: record["value"]
        for record in map(json.loads, table)
        if record["task"] == "avg"
    }
    difference = averages["consert"] - averages["no-tuning"]
    cells = rows["consert, 2", "consert", "no-tuning"]
    assert cells[0] == "72.74, 53.86"
    assert cells[1] == f"{averages['consert']:.2f}, {averages['no-tuning']:.2f}"
    assert cells[2] == f"{difference:+.1f}"
    assert len(cells[3].split(", ")) == 2  # one p for each seed

    assert rows["consert, 2", "consert", "flow"][1] == (
        f"{averages['consert']:.2f}, {averages['flow']:.2f}"
    )

    # the same for clusters
    clusters = rows["pairsupcon, 1", "pairsupcon", "no-tuning"]
    assert clusters[0] == "63.70, 50.80"
    assert len(clusters[3].split(", ")) == 2
    assert "not finished: pairsupcon, table 1: simcse-sup" in completed.stderr
    # two copies of a checkpoint
    equal = rows["pairsupcon, 1", "pairsupcon", "sbert"]
    assert equal[2:6] == ["+0.0", "1.000, 1.000", "1.000", "undecided"]


def test_an_undefined_value_is_no_finished_run(tmp_path):
    for name, value in (("complete", 60.0), ("undefined", None)):
        record = {"row": name, "suite": "clustering", "task": "avg", "readout": "mean"}
        write_rows(
            tmp_path / "pairsupcon/tables",
            {"table-1": [record | {"checkpoints": ["m"], "values": [value]}]},
        )
        options = orderings.parse(["--data", "data", "--out", str(tmp_path)])
        ordering = {"paper": "pairsupcon", "table": "1", "higher": name}
        finished = orderings.finished_row(options, ordering, "higher")
        assert (finished is None) == (value is None)


def test_the_orderings_are_corrected_for_their_number():
    """Holm: .005 * 4, .01 * 3, .03 * 2, .04 * 1, and none is smaller than that before it."""
    assert orderings.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert orderings.holm([0.4, 0.6]) == pytest.approx([0.8, 0.8])
    assert orderings.verdict([1.0, 2.0], [0.01, 0.002], 0.03) == [
        "+1.5",
        ".010, .002",
        ".030",
        "reproduced",
    ]
    assert orderings.verdict([-1.0, -2.0], [0.01, 0.002], 0.03)[-1] == "reversed"
    assert orderings.verdict([1.0, 2.0], [0.01, 0.002], 0.06)[-1] == "undecided"
    assert orderings.verdict([-1.0, 2.0], [0.01, 0.002], 0.03)[-1] == "undecided"
