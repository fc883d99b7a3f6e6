"""`search`: hits, reports, and refusals."""

import numpy as np
import pytest

from support import BY_HAND

metrics = pytest.mark.parametrize("metric", BY_HAND)


def ranked(query, corpus, metric="cosine"):
    """All rows of the corpus, counted from 1, most similar first."""
    alike = [(BY_HAND[metric](query, row), n) for n, row in enumerate(corpus, start=1)]
    return sorted(((n, round(x, 9)) for x, n in alike), key=lambda hit: (-hit[1], hit[0]))


@pytest.fixture
def corpus_vectors():
    """Thirty vectors of five numbers, exact in float32."""
    return (np.random.default_rng(5).integers(-40, 40, (30, 5)) / 8).tolist()


@pytest.fixture
def query_vectors():
    return (np.random.default_rng(6).integers(-40, 40, (7, 5)) / 8).tolist()


@pytest.fixture
def corpus(tmp_path, corpus_vectors, jsonl):
    """A file of texts with vectors."""
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(jsonl(*({"text": f"t{n}", "embedding": v} for n, v in enumerate(corpus_vectors, 1))))
    return "corpus.jsonl"


@pytest.fixture
def queries(query_vectors, jsonl):
    return jsonl(*({"id": n, "embedding": v} for n, v in enumerate(query_vectors)))


@metrics
@pytest.mark.parametrize("top", [1, 3, 30, 1000])
def test_hits_equal_those_of_loops(sentkit, corpus, queries, corpus_vectors, query_vectors, metric, top):
    """A query loses its vector and keeps its other fields."""
    done = sentkit("search", "--corpus", corpus, "--top", top, "--metric", metric, stdin=queries)

    assert done.code == 0
    assert [list(row) for row in done.rows] == [["id", "hits"]] * 7
    for n, row in enumerate(done.rows):
        expected = ranked(query_vectors[n], corpus_vectors, metric)[:top]
        assert row["id"] == n
        assert [list(hit) for hit in row["hits"]] == [["row", "similarity", "text"]] * len(expected)
        assert [hit["row"] for hit in row["hits"]] == [number for number, _ in expected]
        similarities = [similarity for _, similarity in expected]
        assert [hit["similarity"] for hit in row["hits"]] == pytest.approx(similarities, rel=1e-6)
        assert [hit["text"] for hit in row["hits"]] == [f"t{n}" for n, _ in expected]


@metrics
def test_hits_reach_the_threshold(sentkit, corpus, queries, corpus_vectors, query_vectors, metric):
    """All of them, also more than ten; with --top the best of these."""
    ranks = [ranked(query, corpus_vectors, metric) for query in query_vectors]
    values = sorted({value for hits in ranks for _, value in hits})
    below, above = values[len(values) // 2 :][:2]
    threshold = (below + above) / 2
    flags = ("--corpus", corpus, "--metric", metric, "--threshold", threshold)
    done, few = sentkit("search", *flags, stdin=queries), sentkit("search", *flags, "--top", 4, stdin=queries)
    expected = [[row for row, value in hits if value >= threshold] for hits in ranks]

    assert above - below > 1e-8
    assert max(map(len, expected)) > 10
    assert [[hit["row"] for hit in row["hits"]] for row in done.rows] == expected
    assert [[hit["row"] for hit in row["hits"]] for row in few.rows] == [rows[:4] for rows in expected]


A, B, LANDS = "a/cls:a1b2c3d4e5f6", "b/mean:0123456789ab", "c/pooler:mean>0123456789ab:99aabbccddee"
