"""`report`: intervals and differences of accuracies, from the correct predictions of each text."""

import json
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from sentkit.errors import DataError
from sentkit.labels.probes.classifiers import Fit
from sentkit.labels.probes.probing import result_of_fits, values_of_tested_rows
from sentkit.papers.published import task_names
from sentkit.reports import suites
from sentkit.reports.evaluate import Row, read_result
from sentkit.reports.measure import measure
from sentkit.reports.suites import TRANSFER, Result
from support import write_rows

# of five texts, one has a word of the other class
ANIMALS = ("cat", "dog", "horse", "cow", "stone")
CLASSES = ("animal", "thing")
THINGS = ("table", "stone", "lamp", "chair", "cat")
FLAGS = ("--precision", "fp32", "-q")


@pytest.fixture
def data(tmp_path):
    """37 texts of two classes, which no encoder separates completely."""
    texts = []
    for label, words, count in zip(CLASSES, (ANIMALS, THINGS), (20, 17), strict=True):
        for number in range(count):
            texts.append({"text": f"{words[number % 5]} number {number}", "label": label})
    write_rows(tmp_path / "data", dict.fromkeys(("clustering/own", "senteval/cr"), texts))
    return tmp_path / "data"


def kept_values(folder):
    """The values of the texts in the only result of a folder."""
    [path] = Path(folder).iterdir()
    return np.array(json.loads(path.read_text())["values"])


def test_values_of_tested_rows_have_the_mean_of_the_accuracies():
    """Folds of three and two rows: 2 of 3 are correct, and 2 of 2, so 66.7 % and 100 %."""
    train = np.array([], np.intp)
    fits = [Fit(train, np.array([4, 0, 2]), [1.0]), Fit(train, np.array([1, 3]), [2.0])]
    correct = [np.array([True, False, True]), np.array([True, True])]

    # a row of the first fold counts 5 / (2 x 3), one of the second 5 / (2 x 2)
    mean = 250 / 3
    of_first = mean + 5 / 6 * (100 - mean)
    of_second = mean + 5 / 4 * (100 - mean)
    expected = [mean - 5 / 6 * mean, of_second, of_first, of_second, of_first]
    result = result_of_fits(fits, correct, "")
    assert values_of_tested_rows(fits, correct) == pytest.approx(expected)
    assert result.values.mean() == pytest.approx((200 / 3 + 100) / 2)
    assert result.fields["accuracy"] == pytest.approx(result.values.mean())
    assert result.fields["chosen"] == [1.0, 2.0]


def test_a_row_that_few_draws_test_has_the_mean_accuracy_for_the_rest():
    """Row 7 is tested twice and correct once, rows 5 and 9 once each. The mean accuracy is 75 %."""
    train = np.array([], np.intp)
    fits = [Fit(train, np.array([5, 7]), [1.0]), Fit(train, np.array([7, 9]), [1.0])]
    correct = [np.array([True, True]), np.array([False, True])]

    # each test counts 3 / (2 x 2)
    once = 75 + 3 / 4 * 25
    twice = 75 + 3 / 4 * (25 - 75)
    assert values_of_tested_rows(fits, correct) == pytest.approx([once, twice, once])


def test_the_interval_of_accuracies_of_100_has_no_width(sentkit, tmp_path):
    """Of 19 rows of each class, 16 are drawn five times, so most rows are tested less than once."""
    texts = []
    for word, label in (("cat", "animal"), ("table", "thing")):
        texts += [{"text": f"{word} {number}", "label": label} for number in range(19)]
    write_rows(tmp_path / "data", {"senteval/cr": texts})
    flags = ("--data", tmp_path / "data", "--suites", "few-shot", *FLAGS)
    [row] = sentkit("report", "static", *flags, "--intervals").rows

    assert row["value"] == 100.0
    assert row["ci95"] == [100.0, 100.0]


@pytest.mark.parametrize("suite", ["clustering", "senteval", "few-shot"])
def test_intervals_and_differences_are_those_of_resampled_texts(sentkit, data, suite, monkeypatch):
    """The values of the texts are those in the results, which are resampled here in a loop."""
    monkeypatch.setattr("sentkit.labels.probes.probing.GRID", (1.0,))  # one penalty saves time
    flags = ("--data", data, "--suites", suite, *FLAGS)
    if suite == "senteval":
        flags = (*flags, "--head", "logreg")
    compared = ("static", "nano", "w=words:binary", "--intervals", "--baseline", "static")
    static, nano, words = sentkit("report", *compared, *flags).rows
    sentkit("report", "static", *flags, "--results", "of-static")
    sentkit("report", "nano", *flags, "--results", "of-nano")
    static_values = kept_values("of-static")
    nano_values = kept_values("of-nano")
    random = np.random.default_rng(0)
    n = len(nano_values)
    drawn = [random.integers(0, n, n) for _ in range(4000)]
    means = [nano_values[rows].mean() for rows in drawn]
    changes = [(nano_values - static_values)[rows].mean() for rows in drawn]

    assert nano_values.mean() == pytest.approx(nano["value"])
    low, high = np.percentile(means, [2.5, 97.5])
    assert nano["ci95"] == pytest.approx([low, high], abs=0.12 * (high - low))
    assert "against" not in static
    assert set(words["against"]) == {"row", "difference", "ci95", "p"}
    assert nano["against"]["difference"] == pytest.approx(nano["value"] - static["value"])
    low, high = np.percentile(changes, [2.5, 97.5])
    assert nano["against"]["ci95"] == pytest.approx([low, high], abs=0.12 * (high - low) + 0.1)


def test_a_text_in_a_cluster_is_correct_if_the_cluster_is_matched_to_its_class(sentkit, data):
    """Of two clusters, each is matched to the class that makes most texts correct."""
    path = data / "clustering/own.jsonl"
    sentkit("encode", path, "-m", "static", "-o", "own.safetensors", *FLAGS)
    labels = np.array([json.loads(line)["label"] for line in path.open()])
    correct = []
    for seed in range(10):
        rows = sentkit("cluster", "own.safetensors", "-k", 2, "--seed", seed, "-q").rows
        clusters = np.array([row["cluster"] for row in rows])
        matched = [np.array(classes)[clusters] == labels for classes in permutations(CLASSES)]
        correct.append(max(matched, key=sum))
    flags = ("--data", data, "--suites", "clustering", "--results", "kept")
    [row] = sentkit("report", "static", *flags, *FLAGS).rows

    shares = np.mean(correct, axis=0)
    assert row["value"] == pytest.approx(100 * shares.mean())
    assert kept_values("kept") == pytest.approx(100 * shares)


def test_the_test_sets_of_an_average_are_resampled_independently():
    """Seven sets of 400 texts of which half are correct. The deviation of one is 100 x 0.5 / 20 =
    2.5, so its interval has 9.8 points, and that of the average 9.8 / sqrt(7) = 3.7.
    """
    row = Row("m", None, ("m",), (None,))
    values = np.repeat([0.0, 100.0], 200)
    tests = [suites.TestSet("senteval", name, f"{name}.jsonl") for name in TRANSFER]
    results = {
        ("m", "senteval", name): [Result(50.0, n=400, encoder="m/mean", values=values)]
        for name in TRANSFER
    }
    *entries, average = measure([row], tests, results, intervals=True)

    widths = [entry.interval[1] - entry.interval[0] for entry in entries]
    assert widths == pytest.approx([9.8] * 7, abs=0.7)
    assert average.task == ("senteval", "avg")
    assert average.interval[1] - average.interval[0] == pytest.approx(9.8 / 7**0.5, abs=0.4)


def test_an_average_is_that_of_the_test_sets_of_the_papers_also_in_its_resamples():
    """A further test set, of which all texts are correct, has its own value only."""
    row = Row("m", None, ("m",), (None,))
    tests = []
    results = {}
    for number, name in enumerate([*list(task_names()["clustering"])[:-1], "own"]):
        values = np.repeat([0.0, 100.0], (200, 200 + 50 * number))
        if name == "own":
            values = np.full(400, 100.0)
        tests.append(suites.TestSet("clustering", name, f"{name}.jsonl"))
        result = Result(values.mean(), n=len(values), encoder="m/mean", values=values)
        results["m", "clustering", name] = [result]
    *_, average = measure([row], tests, results, intervals=True)
    *_, without_own = measure([row], tests[:-1], results, intervals=True)

    assert average.task == ("clustering", "avg")
    assert average.value == without_own.value
    assert average.interval == without_own.interval


def test_an_average_has_the_resamples_that_all_of_its_test_sets_have():
    """A test set of more than 50,000 texts has 200, the other ones 1,000."""
    row = Row("m", None, ("m",), (None,))
    tests = [suites.TestSet("senteval", name, f"{name}.jsonl") for name in TRANSFER]
    results = {}
    for name in TRANSFER:
        n = 50_001 if name == "sst2" else 400
        values = 100.0 * (np.arange(n) % 2)
        result = Result(values.mean(), n=n, encoder="m/mean", values=values)
        results["m", "senteval", name] = [result]
    *_, average = measure([row], tests, results, intervals=True)

    low, high = average.interval
    assert len(average.resamples) == 200
    assert low < average.value < high


def test_a_result_of_a_retrieval_of_an_older_version_is_read(tmp_path):
    """It has the values of queries under another name."""
    path = tmp_path / "result.json"
    old = {"encoder": "m/mean", "value": 50.0, "deviations": {}, "n": 2, "queries": [100.0, 0.0]}
    path.write_text(json.dumps(old))

    assert read_result(path).values.tolist() == [100.0, 0.0]


@pytest.mark.parametrize(
    "change",
    [
        {"values": None},
        {"values": []},
        {"values": "100"},
        {"values": [[100.0, 0.0]]},
        {"values": [100.0, None]},
        {"values": [100.0, "0"]},
        {"values": [100.0]},  # cut
        {"values": [1e9, 0.0]},
        {"value": None},
        {"value": 51.0},
        {"gold": [1.0, None], "similarities": [0.5, 0.25]},
    ],
)
def test_a_damaged_result_is_refused(tmp_path, change):
    """The mean of the values is the value, and all numbers are finite."""
    path = tmp_path / "result.json"
    whole = {"encoder": "m/mean", "value": 50.0, "deviations": {}, "n": 2, "values": [100.0, 0.0]}
    path.write_text(json.dumps(whole))
    assert read_result(path).values.tolist() == [100.0, 0.0]

    path.write_text(json.dumps(whole | change))
    with pytest.raises(DataError, match="not a result of sentkit report"):
        read_result(path)


@pytest.mark.parametrize("name", ["values", "similarities"])
def test_results_of_a_test_set_with_different_numbers_of_rows_are_refused(name):
    """A cut list of equal values has their mean."""
    row = Row("m", None, ("a", "b"), (None, None))
    test = suites.TestSet("pairs", "own", "own.jsonl")
    results = []
    for count in (6, 5):
        arrays = {name: np.ones(count)}
        if name == "similarities":
            arrays["gold"] = np.arange(count, dtype=float)
        results.append(Result(1.0, n=count, encoder="m/mean", **arrays))

    with pytest.raises(DataError, match="different numbers of rows"):
        measure([row], [test], {("m", "pairs", "own"): results}, intervals=True)
