"""`report`: the tables of the papers, with the values of checkpoints."""

import gzip
import json
import math
import re
import shutil
import statistics
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sentkit.errors import CannotCreateError, UsageError
from sentkit.formats.vectors.fingerprint import INT8_LOSS, Space
from sentkit.metrics.statistics import resample
from sentkit.papers.published import published
from sentkit.reports import suites, tables
from sentkit.reports.evaluate import Evaluator, rows_of
from sentkit.reports.measure import Measured, interval_of
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


@pytest.mark.parametrize(
    ("head", "name", "seeds_of_folds"),
    [("senteval", "cr", {1111}), ("senteval", "trec", {3, 4}), ("logreg", "cr", {3, 4})],
)
def test_the_folds_of_senteval_are_those_of_its_code(
    tmp_path, monkeypatch, head, name, seeds_of_folds
):
    """They have the seed 1111 for tasks without test rows, and else the seed of the network."""
    rows = [{"embedding": [n % 2, n % 7], "label": n // 7 % 2} for n in range(40)]
    write_rows(tmp_path, {"rows": rows})
    path = str(tmp_path / "rows.jsonl")
    seeds = set()

    def divide(bench, rows, count):
        seeds.add(bench.seed)
        return [(rows[::2], rows[1::2])] * count

    monkeypatch.setattr("sentkit.labels.probes.probing.Bench.folds", divide)
    files = {"rows": path}
    if name == "trec":
        files["test"] = path
    settings = suites.Settings(head, 0, 3, seeds=[3, 4], jobs=1, warn=lambda text: None)
    suites.senteval(files, suites.TestSet("senteval", name, path), settings)

    assert seeds == seeds_of_folds


def by_row(rows, task):
    return {row["row"]: row for row in rows if row["task"] == task}


def test_a_row_has_the_mean_and_deviation_of_its_seeds(sentkit, data, runs, spearman):
    result = sentkit(
        "report", runs, "words=words:binary", "--data", data, "--suites", "sts", "-q", *FLAGS
    )
    of_row = by_row(result.rows, "STS-B")
    scores = [spearman(f"runs/seed-{seed}") for seed in (0, 1)]

    assert result.code == 0
    assert of_row["runs"]["values"] == pytest.approx(scores, rel=1e-6)
    assert of_row["runs"]["value"] == pytest.approx(sum(scores) / 2, rel=1e-6)
    assert of_row["runs"]["sd"] == pytest.approx(abs(scores[0] - scores[1]) / 2**0.5, rel=1e-6)
    assert of_row["runs"]["checkpoints"] == ["runs/seed-0", "runs/seed-1"]
    assert of_row["words"]["value"] == pytest.approx(spearman("words:binary"), rel=1e-6)
    assert of_row["words"]["sd"] is None


def test_a_row_with_damaged_weights_is_named_and_the_others_are_printed(sentkit, data, tiny):
    shutil.copytree(tiny, "damaged")
    weights = Path("damaged/model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-8])
    rows = ("damaged", f"whole={tiny}")
    result = sentkit("report", *rows, "--data", data, "--suites", "sts", "-q", *FLAGS)

    assert result.code == 1
    assert 'row "damaged": damaged/model.safetensors: not a safetensors file' in result.err
    assert "2 of 4 evaluations failed" in result.err
    assert {row["row"] for row in result.rows} == {"whole"}


@pytest.mark.parametrize("form", ["text", "markdown", "latex", "json"])
def test_a_row_needs_all_of_its_checkpoints(sentkit, data, runs, form):
    Path(runs, "seed-1/model.safetensors").write_bytes(b"damaged")
    flags = ("--data", data, "--suites", "clustering", "--format", form, "-q")
    result = sentkit("report", runs, *flags)

    assert (result.code, result.out) == (1, b"")
    assert result.told[-1] == (
        "sentkit report: 1 of 2 evaluations failed, and no row has the values of all its "
        "checkpoints"
    )


def test_warnings_about_texts_occur_once(sentkit, data):
    """Also with --train, for which a part of the texts is encoded again."""
    long = {"text_a": "sea " * 700, "text_b": "the sea", "score": 1}
    Path("pairs.jsonl").write_text(in_jsonl(*PAIRS, long))
    Path("train.jsonl").write_text(in_jsonl(*PAIRS[:2]))
    result = sentkit("report", "nano", "--pairs", "p=pairs.jsonl", "--train", "train.jsonl")

    assert result.rows[0]["train"]["seen"] == 2
    truncated = [line for line in result.told if "truncated" in line]
    assert len(truncated) == 1
    assert "1 of 12 rows were truncated to 512 tokens" in truncated[0]


def test_transforms_of_one_checkpoint_are_the_seeds_of_a_row(sentkit, data, tiny):
    """As from `whiten apply`. Kept results of other transforms are not used."""
    pairs = data / "sts/stsb.test.jsonl"
    scores = []
    vectors = sentkit("encode", pairs, "-m", tiny, "--readout", "max", *FLAGS, "-q").out
    for name, kind in (("a", "center"), ("b", "whitening")):
        path = f"{name}.safetensors"
        assert sentkit("whiten", "fit", "--kind", kind, "-o", path, "-q", stdin=vectors).code == 0
        encoded = sentkit("whiten", "apply", "-t", path, stdin=vectors).out
        scores.append(sentkit("score", "--gold", "score", stdin=encoded).rows[0]["spearman"])
    rows = [f"t={tiny}#max@{name}.safetensors" for name in ("a", "b")]
    flags = ("--data", data, "--suites", "sts", "--results", "kept", "-q", *FLAGS)
    assert sentkit("report", rows[0], *flags).code == 0
    result = sentkit("report", *rows, *flags)
    of_row = by_row(result.rows, "STS-B")["t#max"]

    assert result.code == 0
    assert scores[0] != pytest.approx(scores[1], rel=1e-3)
    assert of_row["values"] == pytest.approx(scores, rel=1e-6)
    assert of_row["transforms"] == ["a.safetensors", "b.safetensors"]


def test_the_other_suites_equal_cluster_and_probe(sentkit, data, monkeypatch):
    """Of several seeds of the classifier, the mean; the deviation of the folds has its own name.

    The network of SentEval has 5 folds, the regression 10.
    """
    monkeypatch.setattr("sentkit.labels.probes.probing.GRID", (0.25, 8.0))
    monkeypatch.setattr("sentkit.labels.probes.probing.GRID_OF_NETWORK", (1e-5, 1e-2))
    report = ("report", "w=words:binary", "--data", data, "-q", *FLAGS)
    result = sentkit(*report)
    of_seeds = sentkit(*report, "--suites", "senteval", "--head", "logreg", "--seed", "1111,2")
    values = {}
    for row in result.rows:
        values[row["suite"], row["task"]] = (row["value"], row["sd"], row["deviations"])
    [seeds] = [row for row in of_seeds.rows if row["task"] == "CR"]
    encode = ("encode", "-m", "words:binary", "-q")
    for name in ("clustering/own", "senteval/cr"):
        path = f"{Path(name).name}.safetensors"
        assert sentkit(*encode, data / f"{name}.jsonl", "-o", path).code == 0
    clusters = sentkit("cluster", "own.safetensors", "--truth", "label", "--seed", "0..9").rows[-1]
    probe = ("probe", "--label", "label", "-q", "cr.safetensors")
    [folds] = sentkit(*probe, "--head", "senteval", "--folds", 5).rows
    [few_shot] = sentkit(*probe, "--few-shot", 16).rows
    [seed_1111] = sentkit(*probe).rows  # with the seed 1111
    [seed_2] = sentkit(*probe, "--seed", 2).rows
    accuracies = [seed_1111["accuracy"], seed_2["accuracy"]]
    sd = statistics.stdev(accuracies)
    of_folds = statistics.fmean([seed_1111["sd"], seed_2["sd"]])

    assert result.code == 0
    deviations = {"clusterings": clusters["acc_sd"]}
    assert values["clustering", "own"] == (clusters["acc_mean"], clusters["acc_sd"], deviations)
    assert values["senteval", "CR"] == (folds["accuracy"], None, {"folds": folds["sd"]})
    draws = {"draws": few_shot["sd"]}
    assert values["few-shot", "CR"] == (few_shot["accuracy"], few_shot["sd"], draws)
    assert seeds["value"] == pytest.approx(statistics.fmean(accuracies))
    assert seeds["sd"] == pytest.approx(sd)
    assert seeds["deviations"] == pytest.approx({"classifiers": sd, "folds": of_folds})
    assert {suite for suite, _ in values} == {*SUITES} - {"retrieval", "pairs"}


def test_n_of_few_shot_is_the_number_of_predicted_rows(sentkit, data):
    """16 rows of each of two classes are drawn from 44; SST2 has a test part of 6."""
    suites = ("--suites", "few-shot,senteval", "--head", "logreg", "-q")
    result = sentkit("report", "w=words:binary", "--data", data, *suites, *FLAGS)

    assert {(row["suite"], row["task"]): row["n"] for row in result.rows} == {
        ("few-shot", "CR"): 44 - 2 * 16,
        ("few-shot", "SST2"): 6,
        ("senteval", "CR"): 44,
        ("senteval", "SST2"): 6,
    }


def test_results_of_few_shot_with_another_n_are_not_used(sentkit, data, monkeypatch):
    """As an earlier version kept them: n is the number of all rows."""
    command = (
        "report",
        "static",
        "--data",
        data,
        "--suites",
        "few-shot",
        "--results",
        "kept",
        "-q",
    )
    few_shot = SUITES["few-shot"]
    with monkeypatch.context() as patch:
        earlier = replace(few_shot, settings=lambda settings: {"shots": 16, "draws": 5})
        patch.setitem(SUITES, "few-shot", earlier)
        sentkit(*command)
    for path in Path("kept").iterdir():
        path.write_text(json.dumps(json.loads(path.read_text()) | {"n": 44}))

    assert {row["task"]: row["n"] for row in sentkit(*command).rows} == {"CR": 12, "SST2": 6}


def test_one_table_has_all_rows_and_published_tables_need_a_paper(sentkit, data, runs):
    suites = ("--data", data, "--suites", "sts,clustering", "--results", "kept")
    paper = ("--paper", "sg-bert")
    table = (*paper, "--table", 1)
    texts = {}
    for name, flags in (("own", ()), ("paper", paper), ("table", table)):
        result = sentkit("report", "nano", runs, *suites, *FLAGS, *flags, "--format", "text")
        assert result.code == 0
        warning = "the published values are of other test sets: STS-B (11 rows instead of 1,379), "
        assert (warning in result.err) == bool(flags)
        texts[name] = result.out.decode()
    lines = texts["own"].splitlines()[-4:]  # the title has one or two lines
    first_words = [" ".join(line.split()[:2]) for line in lines]

    assert texts["own"].startswith("sts: Spearman x 100; ")
    assert first_words == ["row seeds", "n 11", "nano 1", "runs 2"]
    assert lines[0].split()[-3:] == ["STS-B", "SICK-R", "own"]
    assert texts["paper"].startswith(texts["own"])
    assert re.findall(r"^SG-BERT, table (\d+)", texts["paper"], re.MULTILINE) == ["1", "7", "11"]
    assert "here" not in texts["paper"]
    texts["all"] = sentkit("report", *table, "--format", "text").out.decode()
    bases = {
        name: [line.split()[0] for line in texts[name].splitlines()[2:] if line]
        for name in ("table", "all")
    }
    title = "SG-BERT, table 1: sts, Spearman x 100"
    end = "; (a): standard deviation"
    # nano has the size of none of the encoders of the papers: the first one of the table is shown.
    assert texts["table"].startswith(f"{title}; published rows of bert-base{end}")
    assert bases["table"] == ["n", "here", "here", "glove", "use", *["bert-base"] * 7]
    assert texts["all"].startswith(f"{title}{end}")
    assert bases["all"][:-28] == bases["table"][3:-7]
    assert len(bases["all"]) == 30
    assert "STS12" in texts["table"].splitlines()[1]  # one table with all columns
    assert "sts has no average: no test set of STS12, STS13, STS14, STS15, STS16" in result.err


def test_json_has_the_published_figures_after_the_values(sentkit, data):
    """As the command without ROW prints them."""
    command = ("report", "nano", "--data", data, "--suites", "sts", "--results", "kept")
    paper = ("--paper", "sg-bert", "--table", 1)
    values = sentkit(*command).rows
    figures = sentkit("report", *paper).rows

    assert len(figures) > 100
    assert sentkit(*command, *paper).rows == [*values, *figures]


def test_pairs_of_any_file_have_their_correlation(sentkit, data, spearman):
    """A table with other names of the fields, and the rows of a vector file."""
    lines = [f"{pair['text_a']},{pair['text_b']},{pair['score']}\n" for pair in PAIRS]
    Path("own.csv").write_text("one,two,rating\n" + "".join(lines))
    rows = ("report", "w=nano", "b=words:binary")
    names = ("--field", "text_a=one", "--field", "text_b=two", "--field", "score=rating")
    result = sentkit(*rows, "--pairs", "a=own.csv", *names, "--baseline", "b", *FLAGS)
    pairs = data / "sts/stsb.test.jsonl"
    assert sentkit("encode", pairs, "-m", "nano", *FLAGS, "-o", "v.safetensors", "-q").code == 0
    stored = sentkit(*rows, "--pairs", "a=v.safetensors", "--baseline", "b", *FLAGS)
    both = ("--data", data, "--suites", "sts", "--pairs", "a=v.safetensors", *FLAGS, "-q")
    [with_folder] = sentkit(*rows[:2], *both).rows[2:]

    assert (result.code, stored.code) == (0, 0)
    assert by_row(result.rows, "a")["w"]["value"] == pytest.approx(spearman("nano"), rel=1e-6)
    assert (result.rows[0]["suite"], result.rows[0]["metric"]) == ("pairs", "spearman")
    assert result.rows == stored.rows
    assert with_folder["value"] == result.rows[0]["value"]


def test_an_average_needs_all_seven_tasks(sentkit, data, tmp_path):
    for name in STS[:5]:
        (data / f"sts/{name}.jsonl").write_text(in_jsonl(*PAIRS[: 4 + len(name)]))
    flags = ("--data", data, "--suites", "sts", "--baseline", "a", "--intervals", *FLAGS)
    result = sentkit("report", "a=words:binary", "b=nano", *flags)
    rows = {(row["row"], row["task"]): row for row in result.rows}
    tasks = [task for row, task in rows if row == "b" and task != "avg"]

    assert (result.code, result.err, len(tasks)) == (0, "", 7)
    for row in ("a", "b"):
        mean = statistics.fmean(rows[row, task]["value"] for task in tasks)
        assert rows[row, "avg"]["value"] == pytest.approx(mean, rel=1e-6)
    against = rows["b", "avg"]["against"]
    difference = rows["b", "avg"]["value"] - rows["a", "avg"]["value"]
    assert against["difference"] == pytest.approx(difference, rel=1e-5)
    assert against["ci95"][0] <= against["difference"] <= against["ci95"][1]


def test_the_difference_to_a_baseline_is_that_of_means_over_seeds(sentkit, data, runs):
    """Resamples of single columns, which other tests compare with plain loops, are averaged here by
    hand.
    """
    flags = ("--data", data, "--suites", "sts", "--baseline", "w", "--intervals", "-q", *FLAGS)
    result = sentkit("report", runs, "w=nano", *flags, "--results", "kept")
    row = by_row(result.rows, "STS-B")["runs"]
    base = by_row(result.rows, "STS-B")["w"]
    similarities = {}
    for path in Path("kept").glob("sts-stsb-*"):
        stored = json.loads(path.read_text())
        similarities[round(stored["value"], 4)] = stored["similarities"]
    gold = [pair["score"] for pair in PAIRS]

    def resampled(value):
        return 100 * resample(similarities[round(value, 4)], gold, seed=0)[0]

    mean = sum(map(resampled, row["values"])) / 2
    difference = mean - resampled(base["value"])
    assert result.code == 0
    for record, values in ((row, mean), (row["against"], difference)):
        interval = np.nanpercentile(values, [2.5, 97.5]).tolist()
        assert record["ci95"] == pytest.approx(interval, rel=1e-5)
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
        flags = ("--data", "data", "--baseline", "w", "--intervals", *FLAGS)
        result = sentkit("report", "nano", "w=words:binary", *flags)
        of_nano = [row for row in result.rows if row["row"] == "nano"]
        for row, name in zip(of_nano, ("stsb.test", "sickr"), strict=True):
            baseline = f"{name}.words:binary.safetensors"
            score = ("score", f"{name}.nano.safetensors", "--gold", "score")
            [scored] = sentkit(*score, "--baseline", baseline).rows
            kind = row["metric"]
            assert row["n"] == scored["n"]
            assert (row["value"], row["ci95"]) == (scored[kind], scored[f"{kind}_ci95"])
            against = {key: row["against"][key] for key in ("difference", "ci95", "p")}
            assert against == scored["against"][kind]
        assert (scored["interval"] == "fisher") == (limit == 5)


def test_the_interval_of_many_pairs_without_correlation_is_fishers(monkeypatch):
    """z = 0, so the limits are those of tanh(1.96 / sqrt(n - 3)), n = 103."""
    monkeypatch.setattr("sentkit.reports.measure.BOOTSTRAP_LIMIT", 100)
    [row] = rows_of(["nano"])
    measured = Measured(
        row, ("sts", "stsb"), "stsb", (0.0,), {}, "mean", 103, np.zeros(3), is_correlation=True
    )

    limit = 100 * math.tanh(1.959964 / 10)
    assert interval_of(measured) == pytest.approx([-limit, limit], abs=0.01)
    assert interval_of(replace(measured, values_of_checkpoints=(None,))) == [None, None]


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
    flags = ["--data", data, "--suites", "sts,clustering,senteval", *FLAGS]
    if mapped:
        named = [{"first": p["text_a"], "text_b": p["text_b"], "score": p["score"]} for p in PAIRS]
        (tmp_path / "p.jsonl").write_text(in_jsonl(*named))
        flags = ["--pairs", "own=p.jsonl", "--field", "text_a=first", *FLAGS]
    train = ("--train", "one.jsonl", "--train", "two.txt")
    whole = sentkit("report", "static", *flags).rows
    with_train = sentkit("report", "static", *flags, *train).rows
    for path in [*data.glob("*/*.jsonl"), *tmp_path.glob("p.jsonl")]:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        if path.name in ("stsb.test.jsonl", "sickr.jsonl", "p.jsonl"):
            # (a cat sat, the cat sat); only one text of (the dog plays, a dog plays) occurs.
            rows = rows[1:]
        elif path.name not in ("sst2.train.jsonl", "sst2.dev.jsonl"):
            rows = rows[3:]
        path.write_text(in_jsonl(*rows))
    without = sentkit("report", "static", *flags).rows

    assert [row | {"train": None} for row in with_train] == [row | {"train": None} for row in whole]
    seen = {"STS-B": 1, "SICK-R": 1, "own": 1 if mapped else 3, "SST2": 3}
    for row, row_without in zip(with_train, without, strict=True):
        assert row["train"] == {"seen": seen[row["task"]], "value": row_without["value"]}
        assert row["n"] - row["train"]["seen"] == row_without["n"]


def test_vector_files_name_the_fields_of_their_texts(sentkit, tmp_path):
    """Those of pairs and those of training rows, as `score --seen` reads them."""
    rows = [{"q": row["text_a"], "a": row["text_b"], "score": row["score"]} for row in PAIRS]
    (tmp_path / "p.jsonl").write_text(in_jsonl(*rows))
    fields = ("--field", "text_a=q", "--field", "text_b=a")
    encode = ("encode", "-m", "static", "-q", *fields)
    sentkit(*encode, "p.jsonl", "-o", "p.safetensors")
    sentkit(*encode, "-o", "train.safetensors", stdin=in_jsonl(*rows[:3]))
    [expected] = sentkit("report", "static", "--pairs", "own=p.jsonl", *fields).rows
    flags = ("--pairs", "own=p.safetensors", "--train", "train.safetensors")
    result = sentkit("report", "static", *flags)

    assert result.code == 0, result.err
    assert [row["value"] for row in result.rows] == [expected["value"]]
    assert result.rows[0]["train"]["seen"] == 3


def test_rows_without_a_score_do_not_occur_in_training_files(sentkit, tmp_path):
    """They do not count as rows of the test set either."""
    rows = [row | {"score": None} if n < 2 else row for n, row in enumerate(PAIRS)]
    (tmp_path / "p.jsonl").write_text(in_jsonl(*rows))
    (tmp_path / "train.jsonl").write_text(in_jsonl(*PAIRS[:3]))
    (tmp_path / "rest.jsonl").write_text(in_jsonl(*PAIRS[3:]))
    flags = ("report", "static", "--pairs", "own=p.jsonl", "--train", "train.jsonl")
    [row] = sentkit(*flags).rows
    [without] = sentkit("report", "static", "--pairs", "own=rest.jsonl").rows

    assert row["n"] == len(PAIRS) - 2
    assert row["train"] == {"seen": 1, "value": without["value"]}


def test_rows_that_are_near_texts_of_training_files(sentkit, data, tmp_path, on_terminal):
    """Each text is compared with the training texts by its cosine under static; equal texts always
    occur.
    """
    training = ["A CAT SAT.", "the cats  sat", "dogs play"]
    (tmp_path / "train.txt").write_text("".join(f"{text}\n" for text in training))
    train_vectors = sentkit("encode", "train.txt", "-m", "static").vectors()
    texts = [text for pair in PAIRS for text in (pair["text_a"], pair["text_b"])]
    lines = in_jsonl(*({"text": text} for text in texts))
    vectors = sentkit("encode", "-m", "static", stdin=lines).vectors()
    highest = {
        text: float(max(train_vectors @ vector))
        for text, vector in zip(texts, vectors, strict=True)
    }
    highest["a cat sat"] = 1.0
    # A pair is as near as the text of it that is less near.
    nearness = [min(highest[pair["text_a"]], highest[pair["text_b"]]) for pair in PAIRS]
    fourth, third = sorted(nearness)[-4:-2]
    limit = round((fourth + third) / 2, 3)
    assert fourth < limit < third
    rest = [pair for pair, near in zip(PAIRS, nearness, strict=True) if near < limit]
    (tmp_path / "p.jsonl").write_text(in_jsonl(*PAIRS))
    (tmp_path / "rest.jsonl").write_text(in_jsonl(*rest))
    near = ("--pairs", "own=p.jsonl", "--train", f"train.txt:{limit}")
    [row] = sentkit("report", "nano", *FLAGS, *near).rows
    [row_of_rest] = sentkit("report", "nano", *FLAGS, "--pairs", "own=rest.jsonl").rows
    lines = on_terminal("report", "nano", *FLAGS, *near)

    assert row["train"] == {"seen": 0, "near": 3, "value": row_of_rest["value"]}
    assert row_of_rest["n"] == row["n"] - 3
    assert ["n", "near", "--train", "3"] in [line.split() for line in lines]


def test_test_sets_that_occur_as_a_whole_in_training_files_have_no_other_value(
    sentkit, data, tmp_path
):
    """The message names the test set, not a temporary file."""
    (tmp_path / "train.jsonl").write_text(in_jsonl(*PAIRS))
    (tmp_path / "p.jsonl").write_text(in_jsonl(*PAIRS))
    flags = ("--pairs", "own=p.jsonl", "--train", "train.jsonl")
    result = sentkit("report", "static", "first=nano", *flags)

    assert result.code == 0
    assert [row["train"] for row in result.rows] == [{"seen": len(PAIRS), "value": None}] * 2
    assert result.told == ["sentkit report: warning: own: all rows occur in --train"]


@pytest.mark.parametrize("threshold", ["1.5", "0", "0.0", ".0", "-0.5", "90"])
def test_thresholds_of_training_files_that_are_no_cosines_are_refused(sentkit, tmp_path, threshold):
    for name in ("p.jsonl", "train.jsonl"):
        (tmp_path / name).write_text(in_jsonl(*PAIRS))
    flags = ("--pairs", "own=p.jsonl", "--train")
    result = sentkit("report", "static", *flags, f"train.jsonl:{threshold}")
    (tmp_path / f"train.jsonl:{threshold}").write_text(in_jsonl(*PAIRS))
    of_file = sentkit("report", "static", *flags, f"train.jsonl:{threshold}")

    assert result.code == 2
    assert f"--train train.jsonl:{threshold}: expected a threshold over 0 and up to 1" in result.err
    assert of_file.rows[0]["train"]["seen"] == len(PAIRS)


@pytest.mark.parametrize(
    ("folder", "problem"),
    [
        ("file", "file exists"),
        ("file/kept", "not a directory"),
        ("/proc/kept/sentkit", "no such file or directory"),
    ],
)
def test_a_folder_of_results_that_cannot_be_created_is_refused_before_the_evaluations(
    sentkit, data, tmp_path, monkeypatch, folder, problem
):
    (tmp_path / "file").touch()
    monkeypatch.setattr(Evaluator, "compute", lambda *_: pytest.fail("an evaluation"))
    result = sentkit("report", "static", "--data", data, "--suites", "sts", "--results", folder)

    assert (result.code, result.out) == (73, b"")
    assert f"{folder}: cannot be created: {problem}" in result.err


def test_a_folder_of_results_without_permission_to_write_is_refused_before_an_evaluation(
    sentkit, data, tmp_path, monkeypatch
):
    """Results that it has are used."""
    report = ("report", "static", "--data", data, "--suites", "sts", "--results", "kept", "-q")
    first = sentkit(*report)

    def refuse(path, force):
        raise CannotCreateError(f"{path}: cannot be written: permission denied")

    monkeypatch.setattr("sentkit.reports.evaluate.check_creatable", refuse)
    again = sentkit(*report)
    result = next(Path("kept").iterdir())
    result.unlink()
    monkeypatch.setattr(Evaluator, "compute", lambda *_: pytest.fail("an evaluation"))
    refused = sentkit(*report)

    assert (first.code, again.code) == (0, 0)
    assert again.out == first.out
    assert (refused.code, refused.out) == (73, b"")
    assert refused.told == [f"sentkit report: {result}: cannot be written: permission denied"]


def test_training_rows_of_a_pipe_are_read_once(sentkit, data, tmp_path):
    """The exact ones and the near ones are found in one pass."""
    (tmp_path / "train.jsonl").write_text(in_jsonl(*PAIRS))
    report = ("report", "nano", "--data", data, "--suites", "sts", "-q", "--train")
    of_file = sentkit(*report, "train.jsonl:0.9")
    of_pipe = sentkit(*report, "-:0.9", stdin=in_jsonl(*PAIRS))

    assert of_pipe.rows == of_file.rows
    assert of_pipe.rows[0]["train"]["seen"] == len(PAIRS)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("bad.jsonl", b'{"text": "a"}\n{"other": 1}\n', "bad.jsonl:2: no text in this row"),
        ("cut.jsonl", b'{"text": "a"}\n{"text": ', "cut.jsonl:2: "),
        ("empty.jsonl", b"", "no rows in empty.jsonl"),
        ("damaged.jsonl.gz", b"\x1f\x8b\x08", "damaged.jsonl.gz: incomplete or damaged gzip"),
    ],
)
def test_damaged_training_files_end_a_report_before_its_evaluations(
    sentkit, data, tmp_path, name, content, problem
):
    (tmp_path / name).write_bytes(content)
    report = ("report", "nano", "--data", data, "--suites", "sts", "--results", "kept")
    result = sentkit(*report, "--train", name)

    assert (result.code, result.out) == (65, b"")
    assert problem in result.err
    assert "for example --field" not in result.err  # it names only fields of --pairs
    assert not Path("kept").exists()


def test_kept_results_are_used_again(sentkit, data, monkeypatch):
    command = ("report", "w=nano", "--data", data, "--suites", "sts", "--results", "kept", "-q")
    first = sentkit(*command)
    times = {path: path.stat().st_mtime_ns for path in Path("kept").iterdir()}
    repeated = sentkit(*command, "--format", "latex", "-o", "table.tex")
    (data / "sts/sickr.jsonl").write_text(in_jsonl(*PAIRS[:6]))
    changed = sentkit(*command)
    monkeypatch.setenv("SENTKIT_THREADS", "2")
    with_threads = by_row(sentkit(*command).rows, "STS-B")["w"]["value"]
    times_after = {path: path.stat().st_mtime_ns for path in Path("kept").iterdir()}

    assert (first.code, repeated.code, changed.code) == (0, 0, 0)
    assert with_threads == by_row(first.rows, "STS-B")["w"]["value"]
    assert (len(times), len(times_after)) == (2, 3)
    assert times.items() < times_after.items()
    assert by_row(first.rows, "STS-B") == by_row(changed.rows, "STS-B")
    assert by_row(first.rows, "SICK-R") != by_row(changed.rows, "SICK-R")
    for record in ('{"value":1}', '{"value":"1","deviations":{},"encoder":"m"}'):
        for path in Path("kept").iterdir():
            path.write_text(record)
        broken = sentkit(*command[:-1])
        assert broken.code == 1
        assert "json: not a result of sentkit report\n" in broken.err


def test_the_measured_loss_of_int8_is_no_part_of_the_key():
    """Its last digits differ between machines."""
    test = suites.TestSet("pairs", "p", "p.jsonl")
    evaluator = Evaluator(
        settings=None, result_folder=None, warn=print, report=print, digests={"p.jsonl": "0"}
    )

    def key(loss, weights="w"):
        metadata = {"model": "m", "weights": weights, INT8_LOSS: loss, "threads": 2}
        spaces = [Space("m/mean", "0123456789ab", metadata)]
        return evaluator.key(SimpleNamespace(spaces=spaces, precision="int8"), test, {})

    assert key({"mean": 0.999}) == key({"mean": 0.9990001}) != key({"mean": 0.999}, weights="x")


@pytest.mark.parametrize(
    "changes",
    [
        {"similarities": ["x"]},
        {"similarities": 1},
        {"similarities": [[1.0]]},
        {"gold": [1.0]},
        {"n": "11"},
        {"value": 1.0},
        {"value": None},
        {"deviations": {"folds": "x"}},
        {"deviations": None},
        *({"skipped": value} for value in (-1, 2.0, True, "1", None, [])),
    ],
)
def test_damaged_results_are_an_error(sentkit, data, changes):
    command = ("report", "nano", "--data", data, "--suites", "sts", "--results", "kept", "-q")
    sentkit(*command)
    for path in Path("kept").iterdir():
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    damaged = sentkit(*command, "--intervals", "--format", "text")

    assert damaged.code == 1
    assert "json: not a result of sentkit report\n" in damaged.err


MODULES = [
    {"type": "sentence_transformers.models.Transformer", "path": ""},
    {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
]


@pytest.mark.parametrize(
    ("name", "declared", "changes"),
    [
        ("sentence_bert_config.json", {"max_seq_length": 64}, {"do_lower_case": True}),
        ("tokenizer_config.json", {"model_max_length": 6}, {"truncation_side": "left"}),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": True}, {"include_prompt": False}),
    ],
)
def test_results_of_a_checkpoint_that_declared_something_else_are_not_used(
    sentkit, tiny, copy_of, name, declared, changes
):
    """The other files are equal. The texts have capitals, and more than two tokens."""
    folder = copy_of(tiny, "model")
    (folder / "1_Pooling").mkdir()
    prompts = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    files = {
        "modules.json": MODULES,
        "config_sentence_transformers.json": prompts,
        "tokenizer_config.json": {"do_lower_case": False},
        "1_Pooling/config.json": {},
    }
    files[name] = files.get(name, {}) | declared
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content))
    pairs = [row | {"text_a": row["text_a"].title()} for row in PAIRS]
    Path("pairs.jsonl").write_text(in_jsonl(*pairs))
    command = ("report", "model", "--pairs", "pairs=pairs.jsonl", "-q", *FLAGS)
    before = sentkit(*command, "--results", "kept")
    (folder / name).write_text(json.dumps(files[name] | changes))
    after = sentkit(*command, "--results", "kept")
    computed = sentkit(*command)

    assert (before.code, after.code, computed.code) == (0, 0, 0)
    assert after.rows == computed.rows
    assert before.rows != computed.rows


def test_every_format_has_the_same_cells(sentkit, monkeypatch):
    """Text, Markdown and LaTeX of one published table, compressed, each by its suffix and parsed.

    A file has the full width of the table, whatever the terminal has. Markdown and LaTeX emphasize
    the same cells.
    """
    monkeypatch.setenv("COLUMNS", "40")
    outputs = {}
    for form, name in (("text", "t.txt"), ("markdown", "t.md"), ("latex", "t.tex")):
        path = Path(f"{name}.gz")
        assert sentkit("report", "--paper", "defsent-plus", "--table", 3, "-o", path).code == 0
        text = gzip.decompress(path.read_bytes()).decode()
        outputs[form] = text.splitlines()
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


def test_the_caption_in_latex_has_a_multiplication_sign():
    table = Table("sts: Spearman x 100", ("row",), ("sts",), (Line(("a",), ("1.0",)),))
    assert r"\caption{sts: Spearman \(\times\) 100}" in tables.latex_lines(table)


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


def test_a_name_cannot_be_the_label_of_another_row():
    """The results are found by the label."""
    with pytest.raises(UsageError, match='two rows have the name "a#cls"'):
        rows_of(["a#cls=static", "a=nano#cls"])


def test_a_pattern_has_the_rows_of_the_paths_that_it_matches(tmp_path, monkeypatch):
    """A pattern in quotes, and one that the shell expands."""
    monkeypatch.chdir(tmp_path)
    for name in ("grid/a/seed-1", "grid/a/seed-2", "grid/b/seed-1", "models/x", "models/y"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("x", "y"):
        (tmp_path / "models" / name / "config.json").write_text("{}")

    def models_of(*arguments):
        return {row.name: row.models for row in rows_of(arguments)}

    assert models_of("grid/*/seed-1") == {"a": ("grid/a/seed-1",), "b": ("grid/b/seed-1",)}
    assert models_of("grid/*/seed-*") == models_of("grid/*") == models_of("grid/a", "grid/b")
    assert models_of("models/*") == {"x": ("models/x",), "y": ("models/y",)}
    assert models_of("all=grid/*/seed-1") == {"all": ("grid/a/seed-1", "grid/b/seed-1")}
    with pytest.raises(UsageError, match="grid/a/seed-1 is given twice"):
        rows_of(["grid/*/seed-1", "grid/a/seed-1"])


def test_runs_of_two_folders_of_the_same_name_are_not_one_row(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a/m/seed-1", "a/m/seed-2", "b/m/seed-1"):
        (tmp_path / name).mkdir(parents=True)
    for arguments in (["a/m/seed-1", "b/m/seed-1"], ["a/m", "b/m"], ["m=a/m/seed-1", "b/m"]):
        with pytest.raises(UsageError, match='two rows have the name "m"'):
            rows_of(arguments)
    [same_folder] = rows_of(["a/m/seed-1", str(tmp_path / "a/m/seed-2")])
    [named] = rows_of(["m=a/m/seed-1", "m=b/m/seed-1"])

    assert same_folder.models == ("a/m/seed-1", str(tmp_path / "a/m/seed-2"))
    assert named.models == ("a/m/seed-1", "b/m/seed-1")


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
    result = sentkit("report", model, *flags)
    from_kept = sentkit("report", model, *flags)
    [row] = [row for row in result.rows if row["task"] == "pairs"]

    assert (result.code, row["suite"], row["metric"]) == (0, "retrieval", "ndcg@10")
    assert row["value"] == pytest.approx(expected["ndcg@10"], rel=1e-6)
    assert from_kept.out == result.out
    assert f"sentkit report: warning: not used: {data}/retrieval/half" in result.told


@pytest.mark.parametrize("suite", ["senteval", "few-shot"])
def test_rows_of_dev_need_rows_of_a_test(sentkit, tmp_path, suite):
    """Without NAME.test, folds of NAME.train are the test, and NAME.dev has no use."""
    texts = [{"text": f"{('good', 'bad')[n % 2]} {n}", "label": n % 2} for n in range(40)]
    (tmp_path / "d").mkdir()
    write_rows(tmp_path / "d", {"senteval/sst2.train": texts, "senteval/sst2.dev": texts[:9]})
    report = ("report", "static", "--data", "d", "--suites", suite)
    with_dev = sentkit(*report)
    (tmp_path / "d/senteval/sst2.dev.jsonl").unlink()
    without = sentkit(*report)

    assert "sentkit report: warning: not used: d/senteval/sst2.dev.jsonl" in with_dev.told
    assert (with_dev.code, with_dev.out) == (0, without.out)


def test_kept_results_depend_on_the_part_of_each_file(sentkit, tmp_path):
    """Two parts with the same content are not the same evaluation."""
    texts = [{"text": f"{('good', 'bad')[n % 2]} {n}", "label": n % 2} for n in range(40)]
    (tmp_path / "d").mkdir()
    parts = {"train": texts, "dev": texts[:9], "test": texts[9:20]}
    write_rows(tmp_path / "d", {f"senteval/sst2.{part}": rows for part, rows in parts.items()})
    report = ("report", "static", "--data", "d", "--suites", "senteval")
    sentkit(*report, "--results", "kept")
    folder = tmp_path / "d/senteval"
    (folder / "sst2.dev.jsonl").rename(folder / "sst2.other.jsonl")
    (folder / "sst2.test.jsonl").rename(folder / "sst2.dev.jsonl")
    (folder / "sst2.other.jsonl").rename(folder / "sst2.test.jsonl")
    from_kept = sentkit(*report, "--results", "kept")
    computed = sentkit(*report)

    assert from_kept.out == computed.out
    assert computed.rows[0]["n"] == 9


def test_retrieval_has_the_prompts_of_a_static_model(sentkit, data, retrieval, static_with_prompts):
    """As with those of a transformer; they change the hits."""
    qrels = data / "retrieval/pairs/qrels.tsv"
    corpus = [{**row, "text": f"{row['title']} {row['text']}".strip()} for row in retrieval[0]]
    values = []
    for prompts in (("dog sat: ", "the sea: "), ("", "")):
        files = zip(("queries", "corpus"), (retrieval[1], corpus), prompts, strict=True)
        for name, rows, prompt in files:
            flags = ["-m", static_with_prompts, "--prompt", prompt, "-q", "-f"]
            sentkit("encode", "-o", f"{name}.safetensors", *flags, stdin=in_jsonl(*rows))
        search = ("--queries", "queries.safetensors", "--corpus", "corpus.safetensors")
        hits = sentkit("search", *search, "--top", 100).out
        values.append(sentkit("score", "--qrels", qrels, stdin=hits).rows[0]["ndcg@10"])
    result = sentkit("report", static_with_prompts, "--data", data, "--suites", "retrieval")

    assert abs(values[0] - values[1]) > 1
    assert [row["value"] for row in result.rows] == pytest.approx(values[:1], rel=1e-6)


def test_word_sets_are_those_of_all_files_of_a_test_set(sentkit, tmp_path):
    """Queries and test parts have words that the corpus or the training part does not have.

    The query "cat plays" has one word in common with "a cat sat". The cosines of "dog sat here" are
    1 / sqrt(2 x 3) with "a dog" and 1 / 3 with "a cat sat", which is relevant and has rank 2.
    """
    texts = [{"text": f"{('good', 'bad')[n % 2]} {n}", "label": n % 2} for n in range(30)]
    corpus = [{"_id": n, "text": text} for n, text in enumerate(("a cat sat", "the sea", "a dog"))]
    queries = [{"_id": n, "text": text} for n, text in enumerate(("cat plays", "dog sat here"))]
    files = {
        "senteval/trec.train": texts[:20],
        "senteval/trec.test": texts[20:],
        "retrieval/own/corpus": corpus,
        "retrieval/own/queries": queries,
    }
    write_rows(tmp_path / "data", files)
    judgements = "query-id\tcorpus-id\tscore\n0\t0\t1\n1\t0\t1\n"
    (tmp_path / "data/retrieval/own/qrels.tsv").write_text(judgements)
    suites = ("--suites", "senteval,retrieval", "--head", "logreg")
    result = sentkit("report", "words:binary", "--data", tmp_path / "data", *suites, "-q")
    values = {row["task"]: row["value"] for row in result.rows}

    assert result.code == 0, result.err
    assert values == {"TREC": 100.0, "own": pytest.approx(100 * (1 + 1 / np.log2(3)) / 2)}


@pytest.mark.usefixtures("retrieval")
def test_report_and_score_have_the_same_intervals_of_retrieval(sentkit, data, tmp_path):
    """The same resamples of queries: for a row of one checkpoint, and from kept results."""
    folder = data / "retrieval/pairs"
    rows = [json.loads(line) for line in (folder / "corpus.jsonl").read_text().splitlines()]
    texts = in_jsonl(*({**row, "text": f"{row['title']} {row['text']}".strip()} for row in rows))
    for model in ("nano", "static"):
        encode = ("encode", "-m", model, *FLAGS, "-qf")
        sentkit(*encode, "-o", "c.safetensors", stdin=texts)
        sentkit(*encode, folder / "queries.jsonl", "-o", "q.safetensors")
        files = ("--queries", "q.safetensors", "--corpus", "c.safetensors")
        hits = sentkit("search", *files, "--top", 100)
        (tmp_path / f"{model}.jsonl").write_bytes(hits.out)
    qrels = ("--qrels", folder / "qrels.tsv", "--baseline", "static.jsonl")
    scored = sentkit("score", "nano.jsonl", "static.jsonl", *qrels)
    flags = ("--data", data, "--suites", "retrieval", *FLAGS, "--results", "kept")
    report = ("report", "nano", "static", *flags, "--baseline", "static", "--intervals")
    for _ in range(2):
        result = sentkit(*report)
        rows = by_row(result.rows, "pairs")
        nano = rows["nano"]
        static = rows["static"]

        assert (result.code, "no effect" in result.err) == (0, False)
        for row, expected in zip((nano, static), scored.rows, strict=True):
            assert row["ci95"] == pytest.approx(expected["ndcg@10_ci95"], rel=1e-6)
        assert "against" not in static
        assert nano["against"].pop("row") == "static"
        expected = scored.rows[0]["against"]["ndcg@10"]
        assert nano["against"].pop("ci95") == pytest.approx(expected["ci95"], rel=1e-6)
        assert nano["against"] == pytest.approx(
            {name: expected[name] for name in ("difference", "p")}, rel=1e-6
        )
    table = sentkit(*report, "--format", "text").out.decode()
    assert re.findall(
        r"^(?:nano|static|  95 % interval|  minus static|  p) ", table, re.MULTILINE
    ) == ["nano ", "  95 % interval ", "  minus static ", "  p ", "static ", "  95 % interval "]


@pytest.mark.usefixtures("retrieval")
def test_intervals_of_retrieval_are_those_of_the_mean_over_seeds(sentkit, data, runs):
    """A row of two seeds: the values of each query are averaged, then resampled."""
    suites = ("--data", data, "--suites", "retrieval", *FLAGS)
    rows = sentkit("report", runs, *suites, "-q", "--intervals", "--results", "kept").rows
    [row] = [row for row in rows if row["task"] == "pairs"]
    by_query = [
        json.loads(path.read_text())["values"] for path in Path("kept").glob("retrieval-*.json")
    ]
    means = np.mean(by_query, axis=0)
    draws = np.random.default_rng(0).integers(0, len(means), (4000, len(means)))
    low, high = np.percentile(means[draws].mean(axis=1), [2.5, 97.5])

    assert len(by_query) == 2
    assert row["value"] == pytest.approx(means.mean(), rel=1e-6)
    assert row["ci95"] == pytest.approx([low, high], abs=0.12 * (high - low))


@pytest.mark.parametrize(
    ("suites", "flags", "message"),
    [
        ("sts", ("--seed", "3"), "--seed has no effect on sts"),
        ("few-shot", ("--head", "logreg"), "--head has no effect on few-shot"),
    ],
)
@pytest.mark.usefixtures("data")
def test_a_flag_that_no_suite_uses_is_refused(sentkit, suites, flags, message):
    result = sentkit("report", "nano", "--data", "data", "--suites", suites, *flags)

    assert (result.code, result.out) == (2, b"")
    assert result.told[0] == f"sentkit report: {message}"
    assert result.told[1].startswith(f"  {flags[0]} is for ")


def test_queries_that_occur_in_training_files(sentkit, data, retrieval, tmp_path):
    """Their judgements are left out; the corpus stays. A query without judgements does not
    count.
    """
    _, queries = retrieval
    texts = [queries[0]["text"].upper(), queries[4]["text"], "unjudged"]
    (tmp_path / "train.txt").write_text("".join(f"{text}\n" for text in texts))
    folder = data / "retrieval/pairs"
    with (folder / "queries.jsonl").open("a") as file:
        file.write(in_jsonl({"_id": "other", "text": "unjudged"}))
    flags = ("report", "static", "--data", data, "--suites", "retrieval", *FLAGS)
    row = by_row(sentkit(*flags, "--train", "train.txt").rows, "pairs")["static"]
    seen_texts = (queries[0]["text"], queries[4]["text"])
    seen = {query["_id"] for query in queries if query["text"] in seen_texts}
    lines = (folder / "qrels.tsv").read_text().splitlines(keepends=True)
    unseen = [line for line in lines if line.split("\t")[0] not in seen]
    (folder / "qrels.tsv").write_text("".join(unseen))
    row_without = by_row(sentkit(*flags).rows, "pairs")["static"]

    assert row["train"] == {"seen": len(seen), "value": row_without["value"]}
    assert row_without["n"] == row["n"] - len(seen)


@pytest.mark.usefixtures("retrieval")
def test_an_error_of_the_judgements_has_its_line_and_its_problem(sentkit, data):
    """As `score` has it."""
    qrels = data / "retrieval/pairs/qrels.tsv"
    row_count = len(qrels.read_text().splitlines())
    qrels.write_text(qrels.read_text() + "q0\td0\tmany\n")
    flags = ("report", "static", "--data", data, "--suites", "retrieval", *FLAGS)
    bad_score = sentkit(*flags)
    qrels.write_text("")
    empty = sentkit(*flags)

    assert (bad_score.code, empty.code) == (1, 1)
    assert f'row "static", retrieval: {qrels}:{row_count + 1}: "score"' in bad_score.err
    assert f'row "static", retrieval: no rows in {qrels}' in empty.err


def test_advice_names_only_flags_of_report(sentkit, data, retrieval):
    """Those of probe and of score are others."""
    nine = [{"text": f"a {n}", "label": n % 2} for n in range(9)]
    write_rows(data, {"senteval/cr": nine, "sts/sickr": [{"text_a": "a", "text_c": "b"}]})
    with (data / "retrieval/pairs/qrels.tsv").open("a") as file:
        file.write("q99\td0\t1\n")
    suites = "sts,senteval,few-shot,retrieval"
    result = sentkit("report", "nano", "--data", data, "--suites", suites, "-q")
    advice = [line.strip() for line in result.told if line.startswith("  ")]
    corrected = sentkit(
        *("report", "nano", "--data", data, "--suites", "senteval"), "--head", "senteval:0:3"
    )

    assert result.code == 1
    assert 'cr.jsonl: class "1" has 4 rows, fewer than --folds 5 needs' in result.err
    assert "queries.jsonl: no hits for 1 queries of" in result.err
    assert advice == ['this row has "text_a", "text_c"', "use --head senteval:0:3"]
    assert [row["task"] for row in corrected.rows] == ["CR", "SST2"]


def test_two_queries_with_one_id_are_an_error(sentkit, data, retrieval):
    """As in `score`: the hits of the second one would replace those of the first."""
    _, queries = retrieval
    path = data / "retrieval/pairs/queries.jsonl"
    with path.open("a") as file:
        file.write(in_jsonl({**queries[1], "_id": "q0"}))
    result = sentkit("report", "static", "--data", data, "--suites", "retrieval", *FLAGS)

    assert (result.code, result.out) == (1, b"")
    assert f'row "static", retrieval: {path}: query "q0" occurs a second time' in result.err


def test_a_warning_about_clusters_names_the_test_set(sentkit, data):
    """Its vectors are in a temporary file."""
    path = data / "clustering/blank.jsonl"
    path.parent.mkdir(exist_ok=True)
    texts = ["a cat", "", "a small dog", "the market fell", "the market rose"]
    path.write_text(in_jsonl(*({"text": text, "label": n % 2} for n, text in enumerate(texts))))
    result = sentkit("report", "static", "--data", data, "--suites", "clustering", *FLAGS)

    assert "sentkit-report-" not in result.err
    assert f"{path}: 1 of 5 rows have a zero vector" in result.err


def test_a_device_that_is_not_there_is_one_error(sentkit, data, tiny, other):
    result = sentkit("report", tiny, other, "--data", data, "--device", "cuda:99")

    assert (result.code, result.out) == (69, b"")
    assert 'device "cuda:99": there' in result.err
    assert 'row "' not in result.err


def test_a_static_model_refuses_a_gpu(sentkit, data):
    result = sentkit("report", "static", "--data", data, "--device", "cuda:99")

    assert (result.code, result.out) == (2, b"")
    assert "--device cuda:99: a static model runs on the CPU" in result.err
