"""`score --rank-corpus`: cosines with rank similarities, by scipy's correlation."""

import json
import math

import numpy as np
import pytest
from scipy.stats import spearmanr

from sentkit.metrics.sts.report import table_rows
from support import in_jsonl, normal_rows

EMB = "m:100000000000"


def cosine(a, b):
    return float(np.dot(a, b) / math.sqrt(np.dot(a, a) * np.dot(b, b)))


def rank_similarity(a, b, corpus):
    return spearmanr([cosine(a, row) for row in corpus], [cosine(b, row) for row in corpus]).statistic


@pytest.fixture
def files(tmp_path):
    """Twenty pairs with gold scores, and a corpus of thirty vectors; the numbers."""
    left, right, corpus = (normal_rows(count, 6, seed) for seed, count in enumerate((20, 20, 30)))
    pairs = [
        {"embedding_a": a.tolist(), "embedding_b": b.tolist(), "_emb": EMB, "score": n % 7}
        for n, (a, b) in enumerate(zip(left, right, strict=True))
    ]
    (tmp_path / "pairs.jsonl").write_text(in_jsonl(*pairs))
    rows = [{"text": "a", "embedding": row.tolist(), "_emb": EMB} for row in corpus]
    (tmp_path / "corpus.jsonl").write_text(in_jsonl(*rows))
    return left, right, corpus


@pytest.mark.parametrize(
    ("flags", "weight"), [((), 0.1), (("--rank-weight", 1), 1.0), (("--rank-weight", 0), 0.0)]
)
def test_similarities_are_the_weighted_sums_of_loops(sentkit, files, flags, weight):
    done = sentkit("score", "pairs.jsonl", "--rank-corpus", "corpus.jsonl", *flags)
    expected = [
        (1 - weight) * cosine(a, b) + weight * rank_similarity(a, b, files[2])
        for a, b in zip(*files[:2], strict=True)
    ]

    assert done.code == 0
    assert [row["similarity"] for row in done.rows] == pytest.approx(expected, abs=1e-6)


def test_a_report_names_the_weights_and_compares_with_plain_cosines(sentkit, files):
    flags = ("--gold", "score", "--rank-corpus", "corpus.jsonl", "--rank-weight", "0.25")
    [row] = sentkit("score", "pairs.jsonl", *flags, "--baseline", "pairs.jsonl").rows
    left, right, corpus = files
    gold = [n % 7 for n in range(20)]
    plain = [cosine(a, b) for a, b in zip(left, right, strict=True)]
    ranks = [rank_similarity(a, b, corpus) for a, b in zip(left, right, strict=True)]
    both = [0.75 * one + 0.25 * other for one, other in zip(plain, ranks, strict=True)]

    assert row["metric"] == "0.75 cosine + 0.25 rank"
    assert row["spearman"] == pytest.approx(100 * spearmanr(both, gold).statistic, abs=1e-5)
    difference = 100 * (spearmanr(both, gold).statistic - spearmanr(plain, gold).statistic)
    assert row["against"]["spearman"]["difference"] == pytest.approx(difference, abs=1e-5)
    assert [cells[0] for cells in table_rows(row)] == ["pairs.jsonl", "  minus pairs.jsonl", "  p"]


def test_a_table_omits_the_difference_of_a_file_to_itself(sentkit, files):
    [row] = sentkit("score", "pairs.jsonl", "--gold", "score", "--baseline", "pairs.jsonl").rows

    assert row["against"]["spearman"]["difference"] == 0
    assert [cells[0] for cells in table_rows(row)] == ["pairs.jsonl"]


def test_a_corpus_in_a_vector_file_or_of_pairs_is_the_same(sentkit, files, tmp_path):
    sentkit("cat", "corpus.jsonl", "-o", "corpus.safetensors")
    pairs = [
        {"embedding_a": a.tolist(), "embedding_b": b.tolist(), "_emb": EMB}
        for a, b in zip(files[2][::2], files[2][1::2], strict=True)
    ]
    (tmp_path / "halves.jsonl").write_text(in_jsonl(*pairs))
    names = ("corpus.jsonl", "corpus.safetensors", "halves.jsonl")
    outputs = [sentkit("score", "pairs.jsonl", "--rank-corpus", name).rows for name in names]

    for other in outputs[1:]:
        found = [row["similarity"] for row in other]
        assert found == pytest.approx([row["similarity"] for row in outputs[0]], abs=1e-6)


def test_equal_cosines_have_no_ranking(sentkit, tmp_path):
    """A corpus of equal vectors ranks nothing, so the rank similarity is 0."""
    row = {"embedding_a": [1, 2], "embedding_b": [2, 1]}
    (tmp_path / "same.jsonl").write_text(in_jsonl(*[{"embedding": [0.3, 0.7]}] * 5))
    done = sentkit("score", "--rank-corpus", "same.jsonl", stdin=json.dumps(row))

    assert done.rows[0]["similarity"] == pytest.approx(0.9 * 0.8, abs=1e-6)


@pytest.mark.parametrize(
    ("flags", "code", "problem"),
    [
        (("--rank-corpus", "no.jsonl"), 66, "no.jsonl: no such"),
        (("--rank-corpus", "two.jsonl"), 65, "two.jsonl: 2 vectors, a ranking needs 3 or more"),
        (("--rank-corpus", "empty.jsonl"), 65, "no rows in empty.jsonl"),
        (
            ("--rank-corpus", "other.jsonl"),
            65,
            "the vectors of the pair are m (1000…), the vectors of other.jsonl are n",
        ),
        (("--rank-corpus", "wide.jsonl"), 65, "the pair has 6 numbers, the vectors of wide.jsonl have 7"),
    ],
)
@pytest.mark.parametrize("form", [(), ("--gold", "score")])
def test_a_wrong_corpus_is_refused(sentkit, files, tmp_path, flags, code, problem, form):
    row = {"embedding": [0.5] * 6, "_emb": EMB}
    (tmp_path / "two.jsonl").write_text(in_jsonl(row, row))
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "other.jsonl").write_text(in_jsonl(*[row | {"_emb": "n:200000000000"}] * 3))
    (tmp_path / "wide.jsonl").write_text(in_jsonl(*[row | {"embedding": [0.5] * 7}] * 3))
    done = sentkit("score", "pairs.jsonl", *form, *flags)

    assert done.code == code
    assert problem in done.told[0]


def test_sentences_are_refused(sentkit, files):
    done = sentkit("score", "corpus.jsonl", "--rank-corpus", "corpus.jsonl")

    assert done.code == 65
    assert done.told[0].endswith("corpus.jsonl:1: --rank-corpus needs pairs, but this row is one sentence")
