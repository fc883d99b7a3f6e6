"""`report`: the tables of the papers, with the values of checkpoints."""

import gzip
import json
import re
import shutil
import statistics
from pathlib import Path

import numpy as np
import pytest

from sentkit.metrics.statistics import resample
from sentkit.papers.published import published
from sentkit.reports import tables
from sentkit.reports.evaluate import rows_of
from sentkit.reports.suites import STS, SUITES
from sentkit.reports.tables import Line, Table
from support import in_jsonl, write_rows

PAIRS = [
    {"text_a": one, "text_b": other, "score": score}
    for one, other, score in (
        ("a cat sat", "the cat sat", 4.0),
        ("a dog sat", "the cat plays", 0.5),
        ("the dog plays", "a dog plays", 3.5),
        ("a cat", "the dog sat", 1.0),
        ("the cat plays", "a dog plays here", 2.0),
        ("a dog", "a dog", 5.0),
        ("cat and dog", "dogs play", 1.5),
        ("the cat", "a cat", 4.5),
        ("rain", "the sea", 0.0),
        ("a dog sat here", "a dog sat there", 3.0),
        ("the sea", "the sea and the rain", 2.5),
    )
]
FLAGS = ("--precision", "fp32")


@pytest.fixture
def data(tmp_path):
    """A folder of test sets: a few rows for each of the five suites."""
    words = [("good", "bad")[n % 2] for n in range(44)]
    texts = [{"text": f"{word} {n}", "label": word} for n, word in enumerate(words)]
    files = {
        **dict.fromkeys(("sts/stsb.test", "sts/sts17_track5_enen.test"), PAIRS),
        "sts/sickr": PAIRS[:5],
        **dict.fromkeys(("clustering/own", "senteval/cr", "senteval/sst2.train"), texts),
        **dict.fromkeys(("senteval/sst2.dev", "senteval/sst2.test"), texts[:6]),
    }
    write_rows(tmp_path / "data", files)
    return tmp_path / "data"


@pytest.fixture
def runs(tiny, other, tmp_path):
    """Two seeds of one method."""
    for seed, checkpoint in ((0, tiny), (1, other)):
        shutil.copytree(checkpoint, tmp_path / f"runs/seed-{seed}")
    return "runs"


@pytest.fixture
def spearman(sentkit, data):
    """The Spearman correlation of a checkpoint on a test set, through `encode` and `score`."""

    def score(model, name="stsb.test"):
        encoded = sentkit(
            "encode", data / f"sts/{name}.jsonl", "-m", model, "--precision", "fp32", "-q"
        )
        [record] = sentkit("score", "--gold", "score", stdin=encoded.out).rows
        return record["spearman"]

    return score


def by_row(rows, task):
    return {row["row"]: row for row in rows if row["task"] == task}


def test_a_row_has_the_mean_and_deviation_of_its_seeds(sentkit, data, runs, spearman):
    done = sentkit(
        "report", runs, "words=words:binary", "--data", data, "--suites", "sts", "-q", *FLAGS
    )
    found = by_row(done.rows, "STS-B")
    scores = [spearman(f"runs/seed-{seed}") for seed in (0, 1)]

    assert done.code == 0
    assert found["runs"]["values"] == pytest.approx(scores, rel=1e-6)
    assert found["runs"]["value"] == pytest.approx(sum(scores) / 2, rel=1e-6)
    assert found["runs"]["sd"] == pytest.approx(abs(scores[0] - scores[1]) / 2**0.5, rel=1e-6)
    assert found["runs"]["checkpoints"] == ["runs/seed-0", "runs/seed-1"]
    assert found["words"]["value"] == pytest.approx(spearman("words:binary"), rel=1e-6)
    assert found["words"]["sd"] is None


def test_transforms_of_one_checkpoint_are_the_seeds_of_a_row(sentkit, data, tiny):
    """As from `whiten apply`. Kept results of other transforms are not used."""
    pairs, scores = data / "sts/stsb.test.jsonl", []
    vectors = sentkit("encode", pairs, "-m", tiny, "--readout", "max", *FLAGS, "-q").out
    for name, kind in (("a", "center"), ("b", "whitening")):
        path = f"{name}.safetensors"
        assert sentkit("whiten", "fit", "--kind", kind, "-o", path, "-q", stdin=vectors).code == 0
        encoded = sentkit("whiten", "apply", "-t", path, stdin=vectors).out
        scores.append(sentkit("score", "--gold", "score", stdin=encoded).rows[0]["spearman"])
    rows = [f"t={tiny}#max@{name}.safetensors" for name in ("a", "b")]
    for arguments in (rows[:1], rows):
        given = ("--data", data, "--suites", "sts", "--results", "kept", "-q")
        done = sentkit("report", *arguments, *given, *FLAGS)
    found = by_row(done.rows, "STS-B")["t#max"]

    assert done.code == 0
    assert scores[0] != pytest.approx(scores[1], rel=1e-3)
    assert found["values"] == pytest.approx(scores, rel=1e-6)
    assert found["transforms"] == ["a.safetensors", "b.safetensors"]


def test_the_other_suites_equal_cluster_and_probe(sentkit, data, monkeypatch):
    """Of several seeds of the classifier, the mean; the deviation of the folds has its own name.

    The network of SentEval has 5 folds, the regression 10.
    """
    monkeypatch.setattr("sentkit.labels.probes.probing.GRID", (0.25, 8.0))
    monkeypatch.setattr("sentkit.labels.probes.probing.GRID_OF_NETWORK", (1e-5, 1e-2))
    given = ("report", "w=words:binary", "--data", data, "-q", *FLAGS)
    done = sentkit(*given)
    seeds = sentkit(*given, "--suites", "senteval", "--head", "logreg", "--seed", "1,2")
    values = {
        (row["suite"], row["task"]): (row["value"], row["sd"], row["deviations"])
        for row in (*done.rows, *({**row, "suite": "seeds"} for row in seeds.rows))
    }
    for part in ("clustering/own", "senteval/cr"):
        path = f"{Path(part).name}.safetensors"
        assert (
            sentkit("encode", data / f"{part}.jsonl", "-m", "words:binary", "-o", path, "-q").code
            == 0
        )
    clusters = sentkit("cluster", "own.safetensors", "--truth", "label", "--seed", "0..9").rows[-1]
    probe = ("probe", "--label", "label", "-q")
    network = ("--head", "senteval", "--folds", 5)
    flags = (network, ("--few-shot", 16), ("--seed", 1), ("--seed", 2))
    [folds], [few], *each = (sentkit(*probe, "cr.safetensors", *own).rows for own in flags)
    accuracies = [row["accuracy"] for [row] in each]
    sd = statistics.stdev(accuracies)
    of_folds = statistics.fmean(row["sd"] for [row] in each)

    assert done.code == 0
    deviations = {"clusterings": clusters["acc_sd"]}
    assert values["clustering", "own"] == (clusters["acc_mean"], clusters["acc_sd"], deviations)
    assert values["senteval", "CR"] == (folds["accuracy"], None, {"folds": folds["sd"]})
    assert values["few-shot", "CR"] == (few["accuracy"], few["sd"], {"draws": few["sd"]})
    assert values["seeds", "CR"][:2] == pytest.approx((statistics.fmean(accuracies), sd))
    assert values["seeds", "CR"][2] == pytest.approx({"classifiers": sd, "folds": of_folds})
    assert {suite for suite, _ in values} == {*SUITES} - {"retrieval", "pairs"} | {"seeds"}


def test_one_table_has_all_rows_and_published_tables_need_a_paper(sentkit, data, runs):
    given = (
        "report",
        "nano",
        runs,
        "--data",
        data,
        "--suites",
        "sts,clustering",
        "--results",
        "kept",
    )
    paper, parts = ("--paper", "sg-bert"), {}
    table = (*paper, "--table", 1)
    for name, flags in (("own", ()), ("paper", paper), ("table", table)):
        done = sentkit(*given, *FLAGS, *flags, "--format", "text")
        assert done.code == 0
        parts[name] = done.out.decode()
    own = parts["own"].splitlines()[-4:]  # the title has one or two lines

    assert parts["own"].startswith("sts: Spearman x 100; ")
    assert [" ".join(line.split()[:2]) for line in own] == ["row seeds", "n 11", "nano 1", "runs 2"]
    assert own[0].split()[-3:] == ["STS-B", "SICK-R", "own"]
    assert parts["paper"].startswith(parts["own"])
    assert re.findall(r"^SG-BERT, table (\d+)", parts["paper"], re.MULTILINE) == ["1", "7", "11"]
    assert "here" not in parts["paper"]
    parts["all"] = sentkit("report", *table, "--format", "text").out.decode()
    bases = {
        name: [line.split()[0] for line in parts[name].splitlines()[2:] if line]
        for name in ("table", "all")
    }
    first, end = "SG-BERT, table 1: sts, Spearman x 100", "; (a): standard deviation"
    # nano has the size of none of the encoders of the papers: the first one of the table is shown.
    assert parts["table"].startswith(f"{first}; published rows of bert-base{end}")
    assert bases["table"] == ["n", "here", "here", "glove", "use", *["bert-base"] * 7]
    assert parts["all"].startswith(f"{first}{end}")
    assert bases["all"][:-28] == bases["table"][3:-7]
    assert len(bases["all"]) == 30
    assert "STS12" in parts["table"].splitlines()[1]  # one part with all columns
    assert "sts has no average: no test set of STS12, STS13, STS14, STS15, STS16" in done.err


def test_pairs_of_any_file_have_their_correlation(sentkit, data, spearman):
    """A table with other names of the fields, and the rows of a vector file."""
    lines = [f"{pair['text_a']},{pair['text_b']},{pair['score']}\n" for pair in PAIRS]
    Path("own.csv").write_text("one,two,rating\n" + "".join(lines))
    rows = ("report", "w=nano", "b=words:binary")
    names = ("--field", "text_a=one", "--field", "text_b=two", "--field", "score=rating")
    done = sentkit(*rows, "--pairs", "a=own.csv", *names, "--baseline", "b", *FLAGS)
    pairs = data / "sts/stsb.test.jsonl"
    assert sentkit("encode", pairs, "-m", "nano", *FLAGS, "-o", "v.safetensors", "-q").code == 0
    stored = sentkit(*rows, "--pairs", "a=v.safetensors", "--baseline", "b", *FLAGS)
    both = ("--data", data, "--suites", "sts", "--pairs", "a=v.safetensors", *FLAGS, "-q")
    [with_folder] = sentkit(*rows[:2], *both).rows[2:]

    assert (done.code, stored.code) == (0, 0)
    assert by_row(done.rows, "a")["w"]["value"] == pytest.approx(spearman("nano"), rel=1e-6)
    assert (done.rows[0]["suite"], done.rows[0]["metric"]) == ("pairs", "spearman")
    assert done.rows == stored.rows
    assert with_folder["value"] == done.rows[0]["value"]


def test_an_average_needs_all_seven_tasks(sentkit, data, tmp_path):
    for name in STS[:5]:
        (data / f"sts/{name}.jsonl").write_text(in_jsonl(*PAIRS[: 4 + len(name)]))
    done = sentkit(
        "report",
        "a=words:binary",
        "b=nano",
        "--data",
        data,
        "--baseline",
        "a",
        "--intervals",
        "--suites",
        "sts",
        *FLAGS,
    )
    found = {(row["row"], row["task"]): row for row in done.rows}
    tasks = [task for row, task in found if row == "b" and task != "avg"]

    assert (done.code, done.err, len(tasks)) == (0, "", 7)
    for row in ("a", "b"):
        mean = statistics.fmean(found[row, task]["value"] for task in tasks)
        assert found[row, "avg"]["value"] == pytest.approx(mean, rel=1e-6)
    against = found["b", "avg"]["against"]
    difference = found["b", "avg"]["value"] - found["a", "avg"]["value"]
    assert against["difference"] == pytest.approx(difference, rel=1e-5)
    assert against["ci95"][0] <= against["difference"] <= against["ci95"][1]


def test_the_difference_to_a_baseline_is_that_of_means_over_seeds(sentkit, data, runs):
    """Resamples of single columns, which other tests compare with plain loops, are averaged here by
    hand.
    """
    given = ("report", runs, "w=nano", "--data", data, "--suites", "sts", "--baseline", "w", *FLAGS)
    done = sentkit(*given, "--intervals", "--results", "kept", "-q")
    row = by_row(done.rows, "STS-B")["runs"]
    kept = [json.loads(path.read_text()) for path in Path("kept").glob("sts-stsb-*")]
    columns = {each["value"]: each["similarities"] for each in kept}
    values = {round(value, 4): column for value, column in columns.items()}
    base = by_row(done.rows, "STS-B")["w"]
    gold = [pair["score"] for pair in PAIRS]

    def drawn(value):
        return 100 * resample(values[round(value, 4)], gold, seed=0)[0]

    mean = sum(map(drawn, row["values"])) / 2
    difference = mean - drawn(base["value"])
    assert done.code == 0
    for found, values in ((row, mean), (row["against"], difference)):
        assert found["ci95"] == pytest.approx(
            np.nanpercentile(values, [2.5, 97.5]).tolist(), rel=1e-5
        )
    assert row["against"]["difference"] == pytest.approx(row["value"] - base["value"], rel=1e-5)
    assert row["against"]["row"] == "w"
    assert "against" not in base


def test_report_and_score_have_the_same_intervals(sentkit, tmp_path, monkeypatch):
    """And differences, of both kinds of pairs; above a limit, Fisher's z replaces the resamples."""
    folder = tmp_path / "data/sts"
    folder.mkdir(parents=True)
    for name in ("stsb.test", "sickr"):
        (folder / f"{name}.jsonl").write_text(in_jsonl(*PAIRS[len(name) - 5 :]))
        for model in ("nano", "words:binary"):
            rows = folder / f"{name}.jsonl"
            sentkit("encode", rows, "-m", model, "-o", f"{name}.{model}.safetensors", *FLAGS)
    for limit in (50_000, 5):
        monkeypatch.setattr("sentkit.metrics.statistics.BOOTSTRAP_LIMIT", limit)
        monkeypatch.setattr("sentkit.reports.measure.BOOTSTRAP_LIMIT", limit)
        given = (
            "report",
            "nano",
            "w=words:binary",
            "--data",
            "data",
            "--baseline",
            "w",
            "--intervals",
        )
        found = [row for row in sentkit(*given, *FLAGS).rows if row["row"] == "nano"]
        for row, name in zip(found, ("stsb.test", "sickr"), strict=True):
            baseline = ("--baseline", f"{name}.words:binary.safetensors")
            [scored] = sentkit(
                "score", f"{name}.nano.safetensors", "--gold", "score", *baseline
            ).rows
            kind = row["metric"]
            assert row["n"] == scored["n"]
            assert (row["value"], row["ci95"]) == (scored[kind], scored[f"{kind}_ci95"])
            against = {key: row["against"][key] for key in ("difference", "ci95", "p")}
            assert against == scored["against"][kind]
        assert (scored["interval"] == "fisher") == (limit == 5)


@pytest.mark.parametrize("mapped", [False, True])
def test_values_without_rows_that_occur_in_training_files(sentkit, data, tmp_path, mapped):
    """Pairs of which both texts occur, rows of one text, and the test part of a set with parts.

    The values are those of copies of the files without these rows. Case and final full stops do not
    matter.
    """
    texts = [
        "A cat sat.",
        "the cat  sat",
        "the dog plays",
        "good 0",
        "bad 1",
        "good 2",
        "rain",
        " ",
    ]
    (tmp_path / "one.jsonl").write_text(in_jsonl(*({"text": text} for text in texts[:3])))
    (tmp_path / "two.txt").write_text("".join(f"{text}\n" for text in texts[3:]))
    (data / "senteval/cr.jsonl").unlink()  # nested folds take long
    given = ["report", "static", "--data", data, "--suites", "sts,clustering,senteval", *FLAGS]
    if mapped:
        named = [{"left": p["text_a"], "text_b": p["text_b"], "score": p["score"]} for p in PAIRS]
        (tmp_path / "p.jsonl").write_text(in_jsonl(*named))
        given = ["report", "static", "--pairs", "own=p.jsonl", "--field", "text_a=left", *FLAGS]
    whole, found = (
        sentkit(*given).rows,
        sentkit(*given, "--train", "one.jsonl", "--train", "two.txt").rows,
    )
    for path in [*data.glob("*/*.jsonl"), *tmp_path.glob("p.jsonl")]:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        if path.name in ("stsb.test.jsonl", "sickr.jsonl", "p.jsonl"):
            rows = rows[
                1:
            ]  # (a cat sat, the cat sat); only one text of (the dog plays, a dog plays) occurs
        elif path.name not in ("sst2.train.jsonl", "sst2.dev.jsonl"):
            rows = rows[3:]
        path.write_text(in_jsonl(*rows))
    without = sentkit(*given).rows

    assert [{**row, "train": None} for row in found] == [{**row, "train": None} for row in whole]
    seen = {"STS-B": 1, "SICK-R": 1, "own": 1 if mapped else 3, "SST2": 3}
    for row, other in zip(found, without, strict=True):
        assert row["train"] == {"seen": seen[row["task"]], "value": other["value"]}
        assert row["n"] - row["train"]["seen"] == other["n"]


def test_rows_that_are_near_texts_of_training_files(sentkit, data, tmp_path, on_terminal):
    """Each text is compared with the training texts by its cosine under static; equal texts always
    occur.
    """
    training = ["A CAT SAT.", "the cats  sat", "dogs play"]
    (tmp_path / "train.txt").write_text("".join(f"{text}\n" for text in training))
    encoded = {
        row["text"]: np.array(row["embedding"])
        for row in sentkit(
            "encode",
            "-m",
            "static",
            stdin=in_jsonl(*({"text": each} for p in PAIRS for each in (p["text_a"], p["text_b"]))),
        ).rows
    }
    known = [
        np.array(row["embedding"]) for row in sentkit("encode", "train.txt", "-m", "static").rows
    ]
    best = {
        text: 1.0 if text == "a cat sat" else max(float(vector @ other) for other in known)
        for text, vector in encoded.items()
    }
    rows = [min(best[p["text_a"]], best[p["text_b"]]) for p in PAIRS]
    limit = round(sum(sorted(rows)[-4:-2]) / 2, 3)  # between the second and the third row
    assert sorted(rows)[-4] < limit < sorted(rows)[-3]
    (tmp_path / "p.jsonl").write_text(in_jsonl(*PAIRS))
    (tmp_path / "rest.jsonl").write_text(
        in_jsonl(*(p for p, own in zip(PAIRS, rows, strict=True) if own < limit))
    )
    given = ("report", "nano", *FLAGS, "--pairs")
    [found] = sentkit(*given, "own=p.jsonl", "--train", f"train.txt:{limit}").rows
    [rest] = sentkit(*given, "own=rest.jsonl").rows
    lines = on_terminal(*given, "own=p.jsonl", "--train", f"train.txt:{limit}")

    assert found["train"] == {"seen": 0, "near": 3, "value": rest["value"]}
    assert rest["n"] == found["n"] - 3
    assert ["n", "near", "--train", "3"] in [line.split() for line in lines]


def test_kept_results_are_used_again(sentkit, data, monkeypatch):
    given = ("report", "w=nano", "--data", data, "--suites", "sts", "--results", "kept", "-q")
    first = sentkit(*given)
    times = {path: path.stat().st_mtime_ns for path in Path("kept").iterdir()}
    again = sentkit(*given, "--format", "latex", "-o", "table.tex")
    (data / "sts/sickr.jsonl").write_text(in_jsonl(*PAIRS[:6]))
    changed = sentkit(*given)
    monkeypatch.setenv("SENTKIT_THREADS", "2")
    threads = by_row(sentkit(*given).rows, "STS-B")["w"]["value"]

    assert (first.code, again.code, changed.code) == (0, 0, 0)
    assert (threads, len(list(Path("kept").iterdir()))) == (
        by_row(first.rows, "STS-B")["w"]["value"],
        3,
    )
    assert len(times) == 2
    assert (
        times.items() < {path: path.stat().st_mtime_ns for path in Path("kept").iterdir()}.items()
    )
    assert by_row(first.rows, "STS-B") == by_row(changed.rows, "STS-B")
    assert by_row(first.rows, "SICK-R") != by_row(changed.rows, "SICK-R")
    for record in ('{"value":1}', '{"value":"1","deviations":{},"encoder":"m"}'):
        for path in Path("kept").iterdir():
            path.write_text(record)
        broken = sentkit(*given[:-1])
        assert broken.code == 1
        assert "json: not a result of sentkit report\n" in broken.err


def test_every_format_has_the_same_cells(sentkit, monkeypatch):
    """Text, Markdown and LaTeX of one published table, compressed, each by its suffix and parsed.

    A file has the full width of the table, whatever the terminal has. Markdown and LaTeX emphasize
    the same cells.
    """
    monkeypatch.setenv("COLUMNS", "40")
    outputs = {}
    for form, name in (("text", "t.txt"), ("markdown", "t.md"), ("latex", "t.tex")):
        assert (
            sentkit("report", "--paper", "defsent-plus", "--table", 3, "-o", f"{name}.gz").code == 0
        )
        outputs[form] = gzip.decompress(Path(f"{name}.gz").read_bytes()).decode().splitlines()
    in_markdown = [
        [cell.strip().replace("\\", "") for cell in line.strip("|").split(" | ")]
        for line in outputs["markdown"]
        if line.startswith("| ")
    ]
    in_latex = []
    for line in outputs["latex"]:
        if line.endswith(r"\\"):
            line = re.sub(r"\\textbf{(.*?)}", r"**\1**", line.removesuffix(r" \\"))
            line = re.sub(r"\\underline{(.*?)}", r"<ins>\1</ins>", line)
            cells = line.split(" & ")
            in_latex.append([re.sub(r"\\(.)", r"\1", cell.strip()) for cell in cells])
    plain = []
    for cells in in_markdown:
        text = " ".join(cells)
        plain.append(re.sub(r"\*\*|</?ins>", "", text).split())

    assert len(in_markdown) > 15
    assert in_markdown == in_latex
    assert sum(cell.startswith("**") for cells in in_markdown for cell in cells) > 8
    assert [line.split() for line in outputs["text"][1:]] == plain


def test_without_rows_the_tables_of_a_paper_are_printed(sentkit):
    papers = ("sg-bert", "consert", "pairsupcon", "defsent-plus")
    records = [record for paper in papers for record in sentkit("report", "--paper", paper).rows]
    texts = "".join(
        sentkit("report", "--paper", paper, "--format", "text").out.decode() for paper in papers
    )
    titles = re.findall(
        r"^\S+, (?:table \d+|figure \d+|space of ICA): [a-z-]+, ", texts, re.MULTILINE
    )

    assert len(records) == len(published())
    assert len(titles) == len({(row["paper"], row["table"], row["suite"]) for row in records})
    assert "here" not in texts
    assert "nan" not in texts


def test_a_narrow_terminal_gets_a_table_in_parts(on_terminal):
    lines = on_terminal("report", "--paper", "sg-bert", "--table", "1")
    heads = [line for line in lines if line.startswith("base ")]

    assert max(map(len, lines)) <= 80
    assert len(heads) > 1
    assert [name for head in heads for name in head.split()[3:]] == [
        "STS12",
        "STS13",
        "STS14",
        "STS15",
        "STS16",
        "STS-B",
        "SICK-R",
        "avg",
    ]


def test_wide_characters_move_no_column():
    """北京 takes four columns of a terminal. A long name loses its middle, a number nothing."""
    lines = tuple(
        Line((name, "cls"), ("1.0", "22.00 (3.00)")) for name in ("北京", "abcde", "x" * 50)
    )

    assert list(tables.text_lines(Table("t", ("row", "readout"), ("sts", "avg"), lines), 40)) == [
        "t; (a): standard deviation",
        "row                readout  sts",
        "北京               cls      1.0",
        "abcde              cls      1.0",
        "xxxxxx…xxxxxxxxxx  cls      1.0",
        "",
        "row                readout           avg",
        "北京               cls      22.00 (3.00)",
        "abcde              cls      22.00 (3.00)",
        "xxxxxx…xxxxxxxxxx  cls      22.00 (3.00)",
    ]


def test_arguments_become_rows(tmp_path, monkeypatch):
    for name in ("runs/seed-10", "runs/seed-9", "runs/seed-11.part", "a=b"):
        (tmp_path / name).mkdir(parents=True)
    [runs] = rows_of(["runs"])
    [named] = rows_of(["x=runs/seed-*#cls"])
    [listed] = rows_of(["runs/seed-9", "runs/seed-10"])
    [path] = rows_of(["a=b"])

    assert runs.models == named.models == listed.models == ("runs/seed-9", "runs/seed-10")
    assert (runs.name, named.label, listed.name) == ("runs", "x#cls", "runs")
    assert (path.name, path.models) == ("a=b", ("a=b",))


@pytest.fixture
def retrieval(data):
    """The texts of the pairs: each left text is a query for its right text, with a title."""
    folder = data / "retrieval/pairs"
    folder.mkdir(parents=True)
    corpus = [
        {"_id": f"d{n}", "title": "a" if n % 3 else "", "text": row["text_b"]}
        for n, row in enumerate(PAIRS)
    ]
    (folder / "corpus.jsonl").write_text(in_jsonl(*corpus))
    queries = [{"_id": f"q{n}", "text": row["text_a"]} for n, row in enumerate(PAIRS)]
    (folder / "queries.jsonl").write_text(in_jsonl(*queries))
    judgements = "".join(f"q{n}\td{n}\t{1 + n % 3}\nq{n}\td{(n + 1) % 11}\t1\n" for n in range(11))
    (folder / "qrels.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judgements}")
    return corpus, queries


@pytest.mark.parametrize("prompts", [{}, {"query": "the: ", "passage": "rain: "}])
def test_retrieval_is_the_score_of_a_search(sentkit, data, retrieval, tiny, tmp_path, prompts):
    """As by encode, search and score, with the prompts of both sides, and titles before texts.

    An incomplete folder is reported.
    """
    (data / "retrieval/half").mkdir()
    corpus, queries = retrieval
    model = shutil.copytree(tiny, tmp_path / "model")
    (model / "sentkit.json").write_text(json.dumps({"readout": "cls", "prompts": prompts}))
    texts = {"corpus": [{**row, "text": f"{row['title']} {row['text']}".strip()} for row in corpus]}
    texts["queries"] = queries
    for name, prompt in (("corpus", prompts.get("passage")), ("queries", prompts.get("query"))):
        flags = ["-m", model, *FLAGS, "-q", *(["--prompt", prompt] if prompt else [])]
        sentkit("encode", "-o", f"{name}.safetensors", *flags, stdin=in_jsonl(*texts[name]))
    search = ("--queries", "queries.safetensors", "--corpus", "corpus.safetensors")
    hits = sentkit("search", *search, "--top", 100).out
    [expected] = sentkit("score", "--qrels", data / "retrieval/pairs/qrels.tsv", stdin=hits).rows
    flags = ("--data", data, "--suites", "retrieval", "--results", "kept", *FLAGS)
    done, again = (sentkit("report", model, *flags) for _ in range(2))
    [row] = [row for row in done.rows if row["task"] == "pairs"]

    assert (done.code, row["suite"], row["metric"]) == (0, "retrieval", "ndcg@10")
    assert row["value"] == pytest.approx(expected["ndcg@10"], rel=1e-6)
    assert again.out == done.out
    assert f"sentkit report: warning: not used: {data}/retrieval/half" in done.told


@pytest.mark.usefixtures("retrieval")
def test_report_and_score_have_the_same_intervals_of_retrieval(sentkit, data, tmp_path):
    """The same resamples of queries: for a row of one checkpoint, and from kept results."""
    folder, hits = data / "retrieval/pairs", {}
    rows = [json.loads(line) for line in (folder / "corpus.jsonl").read_text().splitlines()]
    texts = in_jsonl(*({**row, "text": f"{row['title']} {row['text']}".strip()} for row in rows))
    for model in ("nano", "static"):
        sentkit("encode", "-m", model, *FLAGS, "-qf", "-o", "c.safetensors", stdin=texts)
        sentkit(
            "encode", folder / "queries.jsonl", "-m", model, *FLAGS, "-qf", "-o", "q.safetensors"
        )
        found = sentkit(
            "search", "--queries", "q.safetensors", "--corpus", "c.safetensors", "--top", 100
        )
        (tmp_path / f"{model}.jsonl").write_bytes(found.out)
        hits[model] = f"{model}.jsonl"
    scored = sentkit(
        "score", *hits.values(), "--qrels", folder / "qrels.tsv", "--baseline", hits["static"]
    )
    given = ("report", *hits, "--data", data, "--suites", "retrieval", *FLAGS, "--results", "kept")
    for _ in range(2):
        done = sentkit(*given, "--baseline", "static", "--intervals")
        nano, static = by_row(done.rows, "pairs")["nano"], by_row(done.rows, "pairs")["static"]

        assert (done.code, "no effect" in done.err) == (0, False)
        for row, expected in zip((nano, static), scored.rows, strict=True):
            assert row["ci95"] == pytest.approx(expected["ndcg@10_ci95"], rel=1e-6)
        assert "against" not in static
        assert nano["against"].pop("row") == "static"
        expected = scored.rows[0]["against"]["ndcg@10"]
        assert nano["against"].pop("ci95") == pytest.approx(expected["ci95"], rel=1e-6)
        assert nano["against"] == pytest.approx(
            {name: expected[name] for name in ("difference", "p")}, rel=1e-6
        )
    table = sentkit(*given, "--baseline", "static", "--intervals", "--format", "text").out.decode()
    assert re.findall(
        r"^(?:nano|static|  95 % interval|  minus static|  p) ", table, re.MULTILINE
    ) == ["nano ", "  95 % interval ", "  minus static ", "  p ", "static ", "  95 % interval "]


@pytest.mark.usefixtures("retrieval")
def test_intervals_of_retrieval_are_those_of_the_mean_over_seeds(sentkit, data, runs):
    """A row of two seeds: the values of each query are averaged, then resampled."""
    given = (
        "--data",
        data,
        "--suites",
        "retrieval",
        *FLAGS,
        "-q",
        "--intervals",
        "--results",
        "kept",
    )
    [row] = [row for row in sentkit("report", runs, *given).rows if row["task"] == "pairs"]
    kept = [
        json.loads(path.read_text())["queries"] for path in Path("kept").glob("retrieval-*.json")
    ]
    means = np.mean(kept, axis=0)
    draws = np.random.default_rng(0).integers(0, len(means), (4000, len(means)))
    low, high = np.percentile(means[draws].mean(axis=1), [2.5, 97.5])

    assert len(kept) == 2
    assert row["value"] == pytest.approx(means.mean(), rel=1e-6)
    assert row["ci95"] == pytest.approx([low, high], abs=0.12 * (high - low))


@pytest.mark.parametrize(
    ("suites", "flags", "message"),
    [
        ("clustering", ("--intervals",), "--intervals has no effect on clustering"),
        (
            "senteval,few-shot",
            ("--baseline", "nano"),
            "--baseline has no effect on senteval, few-shot",
        ),
        ("sts", ("--seed", "3"), "--seed has no effect on sts"),
        ("few-shot", ("--head", "logreg"), "--head has no effect on few-shot"),
    ],
)
@pytest.mark.usefixtures("data")
def test_a_flag_that_no_suite_uses_is_refused(sentkit, suites, flags, message):
    done = sentkit("report", "nano", "--data", "data", "--suites", suites, *flags)

    assert (done.code, done.out) == (2, b"")
    assert done.told[0] == f"sentkit report: {message}"
    assert done.told[1].startswith(f"  {flags[0]} is for ")


@pytest.mark.usefixtures("data")
def test_a_flag_that_some_suites_use_names_the_others(sentkit):
    given = (
        "report",
        "w=words:binary",
        "--data",
        "data",
        "--suites",
        "sts,clustering",
        "--intervals",
    )
    done = sentkit(*given, "--seed", "1111")

    assert done.code == 0
    assert "sentkit report: warning: --intervals has no effect on clustering" in done.told
    assert {row["suite"] for row in done.rows if "ci95" in row} == {"sts"}


def test_queries_that_occur_in_training_files(sentkit, data, retrieval, tmp_path):
    """Their judgements are left out; the corpus stays. A query without judgements does not
    count.
    """
    texts = [retrieval[1][0]["text"].upper(), retrieval[1][4]["text"], "unjudged"]
    (tmp_path / "train.txt").write_text("".join(f"{text}\n" for text in texts))
    folder = data / "retrieval/pairs"
    with (folder / "queries.jsonl").open("a") as file:
        file.write(in_jsonl({"_id": "other", "text": "unjudged"}))
    flags = ("report", "static", "--data", data, "--suites", "retrieval", *FLAGS)
    [found] = [
        row for row in sentkit(*flags, "--train", "train.txt").rows if row["task"] == "pairs"
    ]
    gone = {
        row["_id"] for row in retrieval[1] if row["text"] in (texts[1], retrieval[1][0]["text"])
    }
    lines = (folder / "qrels.tsv").read_text().splitlines(keepends=True)
    (folder / "qrels.tsv").write_text(
        "".join(line for line in lines if line.split("\t")[0] not in gone)
    )
    [rest] = [row for row in sentkit(*flags).rows if row["task"] == "pairs"]

    assert found["train"] == {"seen": len(gone), "value": rest["value"]}
    assert rest["n"] == found["n"] - len(gone)
