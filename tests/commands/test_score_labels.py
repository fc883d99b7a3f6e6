"""`score --label`: the scores and thresholds against scikit-learn, the report, comparison, and refusals."""

import json

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, precision_recall_curve, roc_auc_score

from sentkit.metrics.gold_pairs import GoldPairs
from sentkit.metrics.reports import Ranking
from support import in_jsonl


def labelled(seed, n=120, skill=0.3, values=32):
    """Similarities with ties, and labels 0 and 1 that they partly predict."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, n)
    return np.round(random.random(n) + skill * labels, 2) * values // 1 / values, labels


def rows_of(similarities, labels, **rest):
    """Rows whose dot product is the similarity."""
    return in_jsonl(
        *(
            {"text_a": f"a{n}", "text_b": "b", "embedding_a": [s], "embedding_b": [1], "same": y, **rest}
            for n, (s, y) in enumerate(zip(similarities.tolist(), labels.tolist(), strict=True))
        )
    )


def by_sklearn(similarities, labels, precision):
    """Average precision, AUC, best F1 and recall at a precision, both with their threshold."""
    precisions, recalls, thresholds = precision_recall_curve(labels, similarities)
    precisions, recalls = precisions[:-1], recalls[:-1]  # the last point has no threshold
    f1 = 2 * precisions * recalls / np.maximum(precisions + recalls, 1e-300)
    best = thresholds[f1 >= f1.max() - 1e-12].max()
    areas = average_precision_score(labels, similarities), roc_auc_score(labels, similarities)
    found = [*areas, f1.max(), best]
    reached = precisions >= precision
    if not reached.any():
        return [*found, np.nan, np.nan]
    recall = recalls[reached].max()
    return [*found, recall, thresholds[reached & (recalls == recall)].max()]


@pytest.mark.parametrize("precision", [0.5, 0.75, 0.95, 1])
def test_resamples_equal_sklearn(precision):
    """A resample counts each row several times; without rows of one class it is undefined."""
    similarities, labels = labelled(0, n=30, values=8)
    times = np.random.default_rng(1).multinomial(30, np.full(30, 1 / 30), 40).astype(float)
    times[0] = 1
    times[1] = labels
    found = Ranking(GoldPairs(similarities, labels.astype(float))).scores(times, precision)

    assert np.isnan(found[1]).all()
    for row, counts in zip(found[[0, *range(2, 40)]], times[[0, *range(2, 40)]].astype(int), strict=True):
        drawn = np.repeat(similarities, counts), np.repeat(labels, counts)
        np.testing.assert_allclose(row, by_sklearn(*drawn, precision), rtol=1e-12)


def test_the_report_has_the_scores_of_sklearn(sentkit, tmp_path):
    similarities, labels = labelled(2)
    (tmp_path / "p.jsonl").write_text(rows_of(similarities, labels))
    (record,) = sentkit("score", "p.jsonl", "--label", "same", "--metric", "dot", "--precision-at", 0.8).rows
    names = ("average_precision", "auc", "f1", "f1_threshold", "recall", "recall_threshold")
    factors = np.array([100, 100, 100, 1, 100, 1])
    expected = by_sklearn(similarities, labels, 0.8) * factors

    assert [record[name] for name in names] == pytest.approx(expected, rel=1e-6)
    assert (record["n"], record["positives"], record["precision_at"]) == (120, labels.sum(), 0.8)
    draws = np.random.default_rng(3).integers(0, 120, (300, 120))
    others = np.array([by_sklearn(similarities[draw], labels[draw], 0.8) for draw in draws]) * factors
    for name, column in zip(names, others.T, strict=True):
        low, high = np.nanpercentile(column, [2.5, 97.5])
        assert record[f"{name}_ci95"] == pytest.approx([low, high], abs=0.3 * (high - low) + 0.032)
    assert record["resamples"] == 1000


def test_a_worked_example():
    """Similarities .9 .8 .8 .3 with labels 1 1 0 1: the tied pairs are predicted together."""
    pairs = GoldPairs(np.array([0.8, 0.3, 0.9, 0.8]), np.array([1.0, 1.0, 1.0, 0.0]))
    (found,) = Ranking(pairs).scores(np.ones((1, 4)), 0.6)
    average = 1 / 3 * 1 + 1 / 3 * 2 / 3 + 1 / 3 * 3 / 4

    assert found == pytest.approx([average, (1 + 0.5 + 0) / 3, 2 * 0.75 / 1.75, 0.3, 1, 0.3])


def test_labels_of_all_forms_and_pairs_without_one(sentkit, tmp_path):
    """A table has strings. A null or blank label is skipped; other values are bad rows."""
    forms = [(1, 0.9), (True, 0.8), ("1", 0.7), ("True", 0.6), (1.0, 0.5), (0, 0.4), (False, 0.3), ("0", 0.2)]
    bad = [(2, "is 2, expected"), ("yes", "is yes, expected"), ([1], "is a list, expected 0 or 1")]
    rows = [{"embedding_a": [s], "embedding_b": [1], "same": label} for label, s in forms]
    rows += [{**rows[0], "same": None}, {**rows[0], "same": " "}]
    rows += [{**rows[0], "same": value} for value, _ in bad] + [{"embedding_a": [1], "embedding_b": [1]}]
    (tmp_path / "p.jsonl").write_text(in_jsonl(*rows))
    flags = ("score", "p.jsonl", "--label", "same", "--metric", "dot", "--precision-at", 1)
    done = sentkit(*flags, "--rejects", "bad.jsonl")
    (record,) = done.rows

    assert (record["n"], record["positives"], record["skipped"]) == (8, 5, 2)
    assert [record[name] for name in ("average_precision", "auc", "f1", "recall")] == [100] * 4
    assert (record["f1_threshold"], record["recall_threshold"]) == (0.5, 0.5)
    assert "p.jsonl: 2 rows without a label skipped" in done.err
    reasons = [json.loads(line)["reason"] for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    for reason, (_, problem) in zip(reasons, [*bad, (None, '"same" is missing')], strict=True):
        assert problem in reason
    assert 'p.jsonl:11: "same" is 2, expected 0, 1, true or false' in sentkit(*flags).err


def test_a_baseline_is_compared_on_the_same_resamples(sentkit, tmp_path):
    """A planted difference is certain, the same file has none, and other labels are refused."""
    similarities, labels = labelled(4, n=400)
    for name, skill in {"same": 0, "better": 0.4}.items():
        (tmp_path / f"{name}.jsonl").write_text(rows_of(similarities + skill * labels, labels))
    (tmp_path / "other.jsonl").write_text(rows_of(similarities, 1 - labels))
    flags = ("--label", "same", "--metric", "dot", "--precision-at", 0.75, "--baseline", "same.jsonl")
    same, better = sentkit("score", "same.jsonl", "better.jsonl", *flags).rows
    changes = {name: each for name, each in better["against"].items() if isinstance(each, dict)}

    assert changes.keys() == {"average_precision", "auc", "f1", "recall"}
    for name, change in changes.items():
        assert same["against"][name] == {"difference": 0, "ci95": [0, 0], "p": 1}
        assert change["difference"] == pytest.approx(better[name] - same[name], rel=1e-4)
        assert change["p"] == 0.001
    assert "scored pair 1 is not the same pair" in sentkit("score", "other.jsonl", *flags).err


def test_a_table_and_the_exit_code(sentkit, tmp_path, on_terminal):
    similarities, labels = labelled(5)
    (tmp_path / "p.jsonl").write_text(rows_of(similarities, labels))
    flags = ("p.jsonl", "--label", "same", "--metric", "dot")
    (record,) = sentkit("score", *flags).rows
    least = record["average_precision"]

    lines = on_terminal("score", *flags, "--precision-at", 0.75)
    assert lines[2].startswith(f"  n {record['n']} ")
    assert f"best F1  {record['f1']:.2f} [" in lines[3]
    assert f"{record['f1_threshold']:.4f}  [" in lines[3]
    assert "recall at P 75" in lines[4]
    assert lines[5:] == ["[a, b]: 95 % interval"]
    assert sentkit("score", *flags, "--fail-under", least - 0.01).code == 0
    done = sentkit("score", *flags, "--fail-under", least + 0.01)
    assert (done.code, len(done.rows)) == (1, 1)
    assert f"p.jsonl: average precision is {least:.2f}, below" in done.err


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        ("p.jsonl --label one", 65, '"one" is 1 in all 4 rows: the scores need pairs with 0 and pairs'),
        ("p.jsonl --label same --precision-at 1.5", 2, "1.5 is not in the range"),
        ("s.jsonl --label same", 65, "s.jsonl:1: expected 2 vectors"),
    ],
)
def test_refusals(sentkit, tmp_path, words, code, problem):
    (tmp_path / "p.jsonl").write_text(rows_of(np.array([0.1, 0.2, 0.3, 0.4]), np.array([0, 1, 0, 1]), one=1))
    (tmp_path / "s.jsonl").write_text(in_jsonl({"text": "a", "embedding": [1], "same": 1}))
    done = sentkit("score", *words.split())

    assert done.code == code
    assert problem in done.err


def test_a_precision_that_no_threshold_reaches_is_a_warning(sentkit, tmp_path):
    (tmp_path / "p.jsonl").write_text(rows_of(np.array([0.1, 0.2, 0.3]), np.array([0, 1, 0])))
    done = sentkit("score", "p.jsonl", "--label", "same", "--metric", "dot", "--precision-at", 0.9)
    (record,) = done.rows

    assert done.code == 0
    assert (record["recall"], record["recall_threshold"]) == (None, None)
    assert "p.jsonl: no threshold has a precision of 0.9 or more" in done.err
