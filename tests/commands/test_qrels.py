"""`score --qrels`: the scores against a plain loop, formats, missing queries, comparisons."""

import json
import math

import numpy as np
import pytest

from support import in_jsonl

NAMES = ("ndcg@10", "recall@10", "recall@100", "map", "mrr@10")


def random_qrels(random, queries=40, documents=300):
    """Graded judgements 0 to 3, several relevant documents per query."""
    chosen = {
        f"q{n}": random.choice(documents, random.integers(3, 40), replace=False) for n in range(queries)
    }
    qrels = {q: {f"d{each}": int(random.integers(0, 4)) for each in some} for q, some in chosen.items()}
    for judged in qrels.values():
        judged[next(iter(judged))] = 2
    return qrels


def random_hits(random, qrels, depth=150, documents=300, skill=0.0):
    """Hits without ties; `skill` moves relevant documents up."""
    hits = {}
    for query, judged in qrels.items():
        scores = {f"d{n}": random.random() + skill * judged.get(f"d{n}", 0) for n in range(documents)}
        best = sorted(scores, key=scores.get, reverse=True)[: random.integers(1, depth)]
        hits[query] = [(each, 1 - rank / 1024) for rank, each in enumerate(best)]  # no ties in float32
    return hits


def rows_of(hits):
    return in_jsonl(
        *({"id": q, "hits": [{"id": d, "similarity": x} for d, x in some]} for q, some in hits.items())
    )


def trec(qrels):
    return "".join(f"{q} 0 {d} {x}\n" for q, some in qrels.items() for d, x in some.items())


def by_loop(judged, ranked):
    """The five measures of a query, x 100, from their definitions."""
    relevance = [max(0, judged.get(d, 0)) for d in ranked]
    ideal = sorted(judged.values(), reverse=True)
    dcg, best = (sum(x / math.log2(n + 2) for n, x in enumerate(each[:10])) for each in (relevance, ideal))
    total = sum(x > 0 for x in judged.values())
    found = [n for n, x in enumerate(relevance, start=1) if x > 0]
    recalls = [sum(n <= depth for n in found) / total for depth in (10, 100)]
    precisions = [sum(m <= n for m in found) / n for n in found]
    first = next((1 / n for n in found if n <= 10), 0)
    return [100 * x for x in (dcg / best, *recalls, sum(precisions) / total, first)]


@pytest.fixture
def data(tmp_path):
    random = np.random.default_rng(0)
    qrels = random_qrels(random)
    hits = random_hits(random, qrels, skill=0.1)
    (tmp_path / "qrels.txt").write_text(trec(qrels))
    (tmp_path / "hits.jsonl").write_text(rows_of(hits))
    return qrels, hits


@pytest.mark.parametrize("form", ["nested", "flat"])
def test_scores_equal_a_loop(sentkit, tmp_path, data, form):
    """For each query and on average; flat rows may have any order."""
    qrels, hits = data
    if form == "flat":
        each = sorted(((q, d, x) for q, some in hits.items() for d, x in some), key=str)
        rows = ({"id_a": q, "id_b": d, "similarity": x} for q, d, x in each)
        (tmp_path / "hits.jsonl").write_text(in_jsonl(*rows))
    done = sentkit("score", "hits.jsonl", "--qrels", "qrels.txt", "--per-query", "each.jsonl")
    each = {row["query"]: row for row in map(json.loads, (tmp_path / "each.jsonl").read_text().splitlines())}
    expected = {query: by_loop(qrels[query], [d for d, _ in some]) for query, some in hits.items()}
    (record,) = done.rows

    assert list(each) == list(expected)
    for query, values in expected.items():
        assert [each[query][name] for name in NAMES] == pytest.approx(values, rel=1e-6)
        assert each[query]["relevant"] == sum(x > 0 for x in qrels[query].values())
    assert [record[name] for name in NAMES] == pytest.approx(np.mean([*expected.values()], axis=0), rel=1e-6)
    assert (record["n"], record["missing"], record["without_relevant"]) == (40, 0, 0)
    assert record["depth"] == max(map(len, hits.values()))


def test_intervals_are_those_of_a_bootstrap_of_the_queries(sentkit, data):
    """Within the error of 1000 resamples, compared with 4000 others."""
    qrels, hits = data
    (record,) = sentkit("score", "hits.jsonl", "--qrels", "qrels.txt").rows
    values = np.array([by_loop(qrels[query], [d for d, _ in some]) for query, some in hits.items()])
    draws = np.random.default_rng(1).integers(0, 40, (4000, 40))
    means = values[draws].mean(axis=1)

    for place, name in enumerate(NAMES):
        low, high = np.percentile(means[:, place], [2.5, 97.5])
        assert record[f"{name}_ci95"] == pytest.approx([low, high], abs=0.2 * (high - low))


@pytest.mark.parametrize("form", ["trec", "beir", "jsonl", "csv", "parquet"])
def test_the_formats_of_judgements_are_equal(sentkit, tmp_path, data, form):
    qrels, _ = data
    rows = [{"query-id": q, "corpus-id": d, "score": x} for q, some in qrels.items() for d, x in some.items()]
    table = "".join("\t".join(map(str, each.values())) + "\n" for each in rows)
    table = "query-id\tcorpus-id\tscore\n" + table
    texts = {"trec": trec(qrels), "beir": table, "jsonl": in_jsonl(*rows), "csv": table.replace("\t", ",")}
    name = {"trec": "q.tsv", "beir": "q.tsv", "jsonl": "q", "csv": "q.csv", "parquet": "q.parquet"}[form]
    (tmp_path / name).write_text(texts.get(form, ""))
    if form == "parquet":
        sentkit("cat", "-o", "q.parquet", "-f", stdin=texts["jsonl"])
    done = sentkit("score", "hits.jsonl", "--qrels", name)
    expected = sentkit("score", "hits.jsonl", "--qrels", "qrels.txt")

    assert (done.code, done.rows) == (0, [expected.rows[0] | {"qrels": name}])


def test_a_better_run_wins_the_paired_comparison(sentkit, tmp_path):
    """A planted difference is certain, and noise is not; the other side has the opposite sign."""
    random = np.random.default_rng(2)
    qrels = random_qrels(random, queries=100)
    (tmp_path / "qrels.txt").write_text(trec(qrels))
    for name, skill in {"old": 0.05, "same": 0.05, "new": 0.15}.items():
        (tmp_path / f"{name}.jsonl").write_text(rows_of(random_hits(random, qrels, skill=skill)))

    def against(one, other):
        command = ("score", f"{one}.jsonl", "--qrels", "qrels.txt", "--baseline", f"{other}.jsonl")
        return sentkit(*command).rows[0]["against"]

    better, worse, noise = against("new", "old"), against("old", "new"), against("same", "old")
    assert better["file"] == "old.jsonl"
    for name in NAMES:
        assert better[name]["ci95"][0] > 0
        assert better[name]["p"] <= 0.01
        assert worse[name]["difference"] == -better[name]["difference"]
    assert noise["ndcg@10"]["p"] > 0.05
    assert against("old", "old")["map"] == {"difference": 0, "ci95": [0, 0], "p": 1}
