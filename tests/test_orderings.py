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


def test_the_sign_flip_test_counts_all_choices_of_signs():
    """Of 1, 2 and 4, only 7 and -7 are as far from 0 as 7; 1 + 4 - 2 = 3 leaves 7, 5, 3 and -7,
    -5, -3.
    """
    assert orderings.sign_flip_p([1.0, 2.0, 4.0]) == 2 / 8
    assert orderings.sign_flip_p([1.0, -2.0, 4.0]) == 6 / 8
    assert orderings.sign_flip_p([0.0, 0.0]) == 1.0
    differences = [0.3, -0.1, 0.2, 0.5, 0.4]
    extreme = 0
    for signs in product((-1, 1), repeat=5):
        total = 0.0
        for sign, difference in zip(signs, differences, strict=True):
            total += sign * difference
        extreme += abs(total) >= abs(sum(differences)) - 1e-12
    assert orderings.sign_flip_p(differences) == extreme / 32


def test_a_seed_is_compared_with_the_same_seed_of_the_other_row():
    """Also if each row has finished other seeds; of a flow, the seed is that of its file."""

    def row(arguments, averages):
        return orderings.Finished(arguments, {"a": averages, "avg": averages}, "clustering")

    higher = row(["sg/seed-1#cls", "sg/seed-3#cls"], [10.0, 30.0])
    lower = row(["bt/seed-0#cls", "bt/seed-1#cls"], [5.0, 6.0])
    flow = row(["base#mean@flow/seed-10.safetensors", "base#mean@flow/seed-3.safetensors"], [1, 2])

    assert orderings.compare_test_sets(higher, lower)[0] == [10 - 6]
    assert orderings.compare_test_sets(higher, flow)[0] == [30 - 2]
    assert orderings.compare_test_sets(higher, row(["base#cls"], [4.0]))[0] == [10 - 4, 30 - 4]
    assert orderings.common_seeds(lower, flow) == []

    # The test of the sets has the seeds of the differences, here 1 alone.
    names = [*"abcdefgh", "avg"]
    two = {name: [90.0, 50.0] for name in names}
    one = {name: [50.0] for name in names}
    higher = orderings.Finished(["m/seed-0", "m/seed-1"], two, "clustering")
    lower = orderings.Finished(["n/seed-1"], one, "clustering")
    assert orderings.compare_test_sets(higher, lower) == ([0.0], [1.0])


@pytest.fixture
def finished(tmp_path, execute):
    """OUT with a table of clusters, written by hand, and one of pairs, from `sentkit report`."""
    write_rows(tmp_path / "data", {f"sts/{name}": PAIRS * 3 for name in SETS})
    make_bert(tmp_path / "base", num_hidden_layers=4)
    for seed in (0, 1):
        shutil.copytree(tmp_path / "base", tmp_path / f"consert/seed-{seed}")
    names = ["agnews", "searchsnippets", "stackoverflow", "biomedical", "tweet"]
    names += ["googlenews_ts", "googlenews_s", "googlenews_t"]
    values = {"pairsupcon": [60.0, 61.0], "no-tuning": [50.0], "sbert": [60.0, 60.0]}
    values["simcse-sup"] = [60.0, None]
    checkpoints = {row: [f"{row}/seed-0", f"{row}/seed-1"] for row in values}
    checkpoints["no-tuning"] = ["base"]
    records = [
        {
            "row": row,
            "suite": "clustering",
            "task": task,
            "readout": "mean",
            "checkpoints": checkpoints[row],
            "values": of_seeds,
        }
        for row, of_seeds in values.items()
        for task in (*names, "avg")
    ]
    write_rows(tmp_path / "out/pairsupcon/tables", {"table-1": records})
    (tmp_path / "texts.txt").write_text("a cat\na dog sat\nthe sea and rain\n")
    lines = "sentkit encode texts.txt -m base -o v.safetensors -q --readout cls"
    fit = "sentkit whiten fit v.safetensors --kind center -o t.safetensors -q"
    for words in (lines, fit):
        assert execute(words.split(), tmp_path).returncode == 0
    rows = ["consert=consert/seed-0#mean", "consert=consert/seed-1#mean", "no-tuning=base#cls"]
    rows.append("flow=base#cls@t.safetensors")
    line = ["sentkit", "report", *rows, "--data", "data", "--suites", "sts", "--format", "json"]
    report = execute(line, tmp_path)
    assert report.returncode == 0, report.stderr
    (tmp_path / "out/consert/tables").mkdir(parents=True)
    (tmp_path / "out/consert/tables/table-2.jsonl").write_text(report.stdout)
    return tmp_path


def test_an_error_of_a_command_is_not_a_traceback(finished, execute):
    command = ["python3", SCRIPT, "--data", "none", "--out", "out"]
    completed = execute(command, finished)

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

    # eight sets with the same difference: only all signs equal are as far from 0
    clusters = rows["pairsupcon, 1", "pairsupcon", "no-tuning"]
    assert clusters[0] == "63.70, 50.80"
    assert clusters[1:4] == ["60.50, 50.00", "+10.5", ".008"]
    # Holm: p times the number of orderings whose p is not smaller
    of_orderings = [max(map(float, cells[3].split(", "))) for cells in rows.values()]
    not_smaller = sum(p >= 0.008 for p in of_orderings)
    assert clusters[4] == f"{not_smaller * 2 / 256:.3f}".lstrip("0")
    assert clusters[5] == "reproduced"
    # an undefined value is no finished run
    assert "not finished: pairsupcon, table 1: simcse-sup" in completed.stderr
    # 0 for one seed: not all are positive
    assert rows["pairsupcon, 1", "pairsupcon", "sbert"][5] == "undecided"
