"""`score --dim`: correlations of the first numbers of vectors, with paired tests against all numbers."""

import numpy as np
import pytest
from scipy import stats

from support import BY_HAND, in_jsonl

N, D = 40, 12


@pytest.fixture(scope="module")
def rows():
    """Pairs of unit vectors whose later numbers matter most to the score."""
    random = np.random.default_rng(0)
    vectors = random.standard_normal((N, 2, D))
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    scores = (vectors[:, 0, 5:] * vectors[:, 1, 5:]).sum(-1) + 0.02 * random.standard_normal(N)
    return [
        {"text_a": f"a{n}", "text_b": f"b{n}", "score": round(float(score), 4), "topic": "xy"[n % 2]}
        | {"embedding_a": one.tolist(), "embedding_b": other.tolist()}
        for n, (score, (one, other)) in enumerate(zip(scores, vectors, strict=True))
    ]


def cut(rows, dim):
    """The rows with shorter vectors, again of unit length."""
    short = []
    for row in rows:
        both = {name: np.array(row[name])[:dim] for name in ("embedding_a", "embedding_b")}
        short.append(row | {name: (each / np.linalg.norm(each)).tolist() for name, each in both.items()})
    return short


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean"])
def test_each_width_is_scored_as_vectors_of_this_width(sentkit, rows, metric, tmp_path):
    """With the paired test of a separate file against the whole vectors as its baseline."""
    (tmp_path / "whole.jsonl").write_text(in_jsonl(*rows))
    flags = ("--gold", "score", "--metric", metric)
    done = sentkit("score", "-", *flags, "--dim", "5,2", stdin=in_jsonl(*rows))
    gold = [row["score"] for row in rows]

    assert (done.code, [row["dim"] for row in done.rows]) == (0, [D, 5, 2])
    assert "against" not in done.rows[0]
    for record in done.rows[1:]:
        short = cut(rows, record["dim"])
        found = [BY_HAND[metric](row["embedding_a"], row["embedding_b"]) for row in short]
        assert record["spearman"] == pytest.approx(100 * stats.spearmanr(found, gold).statistic, abs=1e-3)
        (tmp_path / "cut.jsonl").write_text(in_jsonl(*short))
        [alone] = sentkit("score", "cut.jsonl", *flags, "--baseline", "whole.jsonl").rows
        for kind in ("spearman", "pearson"):
            ours, theirs = (each["against"][kind] for each in (record, alone))
            assert ours["difference"] == pytest.approx(theirs["difference"], abs=1e-3)
            assert ours["ci95"] == pytest.approx(theirs["ci95"], abs=1e-3)
            assert ours["p"] == theirs["p"]
        assert record["spearman_ci95"] == pytest.approx(alone["spearman_ci95"], abs=1e-3)


def test_vectors_of_other_lengths_stay_cut(sentkit, rows):
    """Their lengths matter to the dot product, as for encode --dim."""
    doubled = [row | {"embedding_a": [2 * x for x in row["embedding_a"]]} for row in rows]
    done = sentkit("score", "--gold", "score", "--metric", "dot", "--dim", 5, stdin=in_jsonl(*doubled))
    found = [
        BY_HAND["dot"](row["embedding_a"][:5], (np.array(row["embedding_b"])[:5]).tolist())
        / np.linalg.norm(row["embedding_b"][:5])
        for row in doubled
    ]
    expected = 100 * stats.spearmanr(found, [row["score"] for row in rows]).statistic

    assert done.rows[1]["spearman"] == pytest.approx(expected, abs=1e-3)


def test_a_limit_is_for_all_widths(sentkit, rows):
    found = sentkit("score", "--gold", "score", "--dim", "2", stdin=in_jsonl(*rows)).rows
    middle = (found[0]["spearman"] + found[1]["spearman"]) / 2
    limit = ("--fail-under", middle)
    done = sentkit("score", "--gold", "score", "--dim", "2", *limit, stdin=in_jsonl(*rows))

    assert found[1]["spearman"] < middle < found[0]["spearman"]
    assert done.code == 1
