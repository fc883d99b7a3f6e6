"""`score --gold`: the report, its aggregates, intervals, comparison, --fail-under, and refusals."""

import numpy as np
import pytest
from scipy import stats


def pair(similarity, gold, **rest):
    """A pair of unit vectors with this cosine."""
    other = [similarity, (1 - similarity**2) ** 0.5]
    return {**rest, "embedding_a": [1, 0], "embedding_b": other, "score": gold}


def test_correlations_equal_those_of_scipy(sentkit, jsonl):
    """The report has them x 100, with the number of pairs and the file; there are ties in the gold scores."""
    random = np.random.default_rng(11)
    gold = random.integers(0, 6, 30)
    similarities = (0.1 * gold + 0.3 * random.random(30)).round(3)
    rows = map(pair, similarities.tolist(), gold.tolist())
    done = sentkit("score", "--gold", "score", stdin=jsonl(*rows))
    (found,) = done.rows

    assert done.code == 0
    assert found["n"] == 30
    assert found["file"] == "-"
    assert found["spearman"] == pytest.approx(100 * stats.spearmanr(similarities, gold).statistic, rel=5e-7)
    assert found["pearson"] == pytest.approx(100 * stats.pearsonr(similarities, gold).statistic, abs=1e-4)
    assert found["spearman_ci95"][0] < found["spearman"] < found["spearman_ci95"][1]


@pytest.fixture
def files(tmp_path, jsonl):
    """Three files of the same pairs: two by one encoder, one by another."""
    random = np.random.default_rng(7)
    gold = random.random(40)

    def write(name, emb, noise):
        similarities = np.clip(gold + noise * random.standard_normal(40), -1, 1).round(3).tolist()
        rows = (
            pair(s, g, text_a=f"a{n}", text_b=f"b{n}", _emb=emb)
            for n, (s, g) in enumerate(zip(similarities, gold.tolist(), strict=True))
        )
        (tmp_path / name).write_bytes(jsonl(*rows))

    write("one.jsonl", "old/mean:111111111111", 0.2)
    write("two.jsonl", "old/mean:111111111111", 0.2)
    write("new.jsonl", "new/mean:222222222222", 0.1)


@pytest.mark.usefixtures("files")
def test_comparison_with_a_baseline(sentkit):
    """The difference is that of the two reports, and its interval contains it."""
    done = sentkit("score", "new.jsonl", "--baseline", "one.jsonl", "--gold", "score")
    alone = [sentkit("score", f"{name}.jsonl", "--gold", "score").rows[0] for name in ("new", "one")]
    against = done.rows[0]["against"]

    assert against["file"] == "one.jsonl"
    for kind in ("spearman", "pearson"):
        low, high = against[kind]["ci95"]
        assert against[kind]["difference"] == pytest.approx(alone[0][kind] - alone[1][kind], abs=2e-5)
        assert low < against[kind]["difference"] < high
        assert 0 <= against[kind]["p"] <= 1
