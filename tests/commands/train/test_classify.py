"""`sentkit train classify`: labelled rows for training, --dev and --test."""

import json

import pytest

from support import PAIRS, TEXTS

LABELS = ("bad", "good")
ROWS = [{"text": text, "label": LABELS[number % 2]} for number, text in enumerate(TEXTS)]


@pytest.fixture
def file_of(tmp_path, jsonl):
    def write(name, rows):
        path = tmp_path / name
        path.write_bytes(jsonl(*rows))
        return path

    return write


@pytest.fixture
def classify(train, file_of):
    def run(*flags, rows=ROWS, **given):
        return train(*flags, method="classify", rows=file_of("rows.jsonl", rows), **given)

    return run


def test_dev_and_test_are_labelled_rows(classify, file_of, tmp_path):
    held = file_of("held.jsonl", ROWS[:4])
    [record] = classify("--dev", held, "--test", held, "--epochs", 2, "--lr", 0.01).rows
    made = json.loads((tmp_path / "out/sentkit.json").read_text())
    config = json.loads((tmp_path / "out/config.json").read_text())

    assert record["dev"] in (0, 25, 50, 75, 100)
    assert record["test"]["rows"] == 4
    assert record["test"]["accuracy"] == record["dev"]
    assert record["test"].keys() == {"rows", "accuracy", "f1", "matthews"}
    assert (made["labels"], made["metric"]) == (["bad", "good"], "accuracy")
    assert config["id2label"] == {"0": "bad", "1": "good"}
    card, (low, high) = (tmp_path / "out/README.md").read_text(), made["dev_ci95"]
    assert made["test_ci95"]["accuracy"] == made["dev_ci95"]
    assert 0 <= low <= record["dev"] <= high <= 100
    for name in ("dev", "test"):
        assert f"| {name}, accuracy x 100 | {record['dev']:.2f} [{low:.2f}, {high:.2f}; 95 %]" in card


def test_rows_of_dev_and_test_in_the_training_rows_are_counted(sentkit, tiny, file_of):
    """By their texts: one row has another label. A pair counts if both texts are equal, in their order."""
    new = {"text": "zebra", "label": "bad"}
    dev = [ROWS[0], ROWS[0], {**ROWS[1], "label": "bad"}, new]
    flags = ("-m", tiny, "--batch", 3, "--threads", 1)
    done = sentkit(
        *("train", "classify", file_of("rows.jsonl", ROWS), *flags, "-o", "out"),
        *("--dev", file_of("dev.jsonl", dev), "--test", file_of("test.jsonl", [new])),
    )
    reverse = {"text_a": PAIRS[1]["text_b"], "text_b": PAIRS[1]["text_a"], "score": 2}
    rows, test = file_of("scored.jsonl", PAIRS), file_of("test.jsonl", [PAIRS[0], reverse])
    pairs = sentkit("train", "classify", rows, *flags, "-o", "pairs", "--preset", "stsb", "--test", test)

    assert [line.split("/")[-1] for line in done.told if "training rows" in line] == [
        "dev.jsonl: the training rows contain 3 of 4 rows"
    ]
    assert [line.split("/")[-1] for line in pairs.told if "training rows" in line] == [
        "test.jsonl: the training rows contain 1 of 2 rows"
    ]


def test_the_metric_of_dev(classify, file_of):
    assert "metric has no effect without --dev" in classify("--set", "metric=f1").err
    held = file_of("held.jsonl", ROWS[:5])
    [record] = classify("--dev", held, "--test", held, "--set", "metric=f1", "--lr", 0.01).rows

    assert record["test"]["f1"] == record["dev"]


def test_scores_are_predicted(classify, file_of, tmp_path):
    held = file_of("held.jsonl", PAIRS[:5])
    flags = ("--dev", held, "--test", held, "--preset", "stsb", "--lr", 0.01)
    [record] = classify(*flags, rows=PAIRS).rows
    config = json.loads((tmp_path / "out/config.json").read_text())

    assert record["test"]["pearson"] == record["dev"]
    assert (config["problem_type"], config["id2label"]) == ("regression", {"0": "score"})


@pytest.mark.parametrize("flag", ["--dev", "--test"])
@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([*ROWS[:2], {"text": "a", "label": "ugly"}], ':3: "label" is "ugly", which no training row has'),
        ([{"text": "a"}], ':1: "label" is missing'),
        (PAIRS, 'needs "text"; this row has'),
        ([], "no rows in "),
    ],
)
def test_bad_rows_of_dev_and_test(classify, file_of, tmp_path, flag, rows, problem):
    result = classify(flag, file_of("held.jsonl", rows))

    assert result.code == 65
    assert problem in result.err
    assert not (tmp_path / "out").exists()


def test_training_rows_with_scores_name_the_setting(classify):
    done = classify(rows=PAIRS)

    assert (done.code, done.told[1]) == (65, '  for the field "score": --set objective=regression')


def test_another_test_is_another_run(classify, file_of):
    one, other = file_of("one.jsonl", ROWS[:4]), file_of("other.jsonl", ROWS[4:])

    assert classify("--test", one).code == 0
    assert "belongs to a different run: test" in classify("--test", other, "--resume").err
