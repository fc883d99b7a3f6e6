"""`score --label`: the scores and thresholds against scikit-learn, the report, comparison, and refusals."""

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
    assert "not the same scored pairs" in sentkit("score", "other.jsonl", *flags).err
