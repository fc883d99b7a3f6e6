"""`score --qrels`: the scores against a plain loop, formats, missing queries, comparisons."""

import json
import math

import numpy as np
import pytest

from support import in_jsonl

NAMES = ("ndcg@10", "recall@10", "recall@100", "map", "mrr@10")


NULL = '"similarity" is null, expected a number'


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


def flat_rows_of(hits):
    each = [(q, d, x) for q, some in hits.items() for d, x in some]
    return in_jsonl(*({"id_a": q, "id_b": d, "similarity": x} for q, d, x in sorted(each, key=str)))


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
        (tmp_path / "hits.jsonl").write_text(flat_rows_of(hits))
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


def test_ties_keep_their_order_and_a_document_counts_once(sentkit, tmp_path):
    """Flat rows with equal similarities; the second chunk of a document is no further rank."""
    (tmp_path / "qrels.txt").write_text("1 0 a 1\n")
    flat = [("b", 0.5), ("b", 0.5), ("a", 0.5), ("a", 0.9), ("c", 0.9)]
    rows = in_jsonl(*({"id_a": 1, "id_b": d, "similarity": x} for d, x in flat[:3]))
    nested = in_jsonl({"id": 1.0, "hits": [{"id": d} for d, _ in flat]})

    for given in (rows, nested):
        (record,) = sentkit("score", "--qrels", "qrels.txt", stdin=given).rows
        assert record["mrr@10"] == 50
    rows += in_jsonl(*({"id_a": 1, "id_b": d, "similarity": x} for d, x in flat[3:]))
    assert sentkit("score", "--qrels", "qrels.txt", stdin=rows).rows[0]["mrr@10"] == 100


def test_other_names_of_fields(sentkit, tmp_path):
    """A reranker writes another score; queries and documents are named by --field."""
    (tmp_path / "qrels.txt").write_text("x 0 b 1\n")
    rows = [{"key_a": "x", "key_b": d, "similarity": s, "score": -s} for d, s in (("a", 0.9), ("b", 0.1))]
    flags = ("--field", "id=key", "--qrels", "qrels.txt")
    before = sentkit("score", *flags, stdin=in_jsonl(*rows)).rows[0]
    after = sentkit("score", *flags, "--field", "similarity=score", stdin=in_jsonl(*rows)).rows[0]

    assert (before["mrr@10"], after["mrr@10"]) == (50, 100)


def test_missing_and_unjudged_queries(sentkit, tmp_path):
    """A missing query is an error or zero. Queries without relevant documents are counted and left out."""
    (tmp_path / "qrels.txt").write_text("1 0 a 1\n2 0 a 1\n3 0 a 0\n4 0 b -1\n\n")
    hits = [{"id": n, "hits": [{"id": "a"}]} for n in (1, 3, 7)]
    refused = sentkit("score", "--qrels", "qrels.txt", stdin=in_jsonl(*hits))
    done = sentkit("score", "--qrels", "qrels.txt", "--missing", "zero", stdin=in_jsonl(*hits))
    (record,) = done.rows

    assert refused.code == 65
    assert refused.told == [
        'sentkit score: -: query "2" of qrels.txt has no hits',
        "  --missing zero counts such queries as 0",
    ]
    assert (record["n"], record["missing"], record["without_relevant"]) == (2, 1, 3)
    assert [record[name] for name in NAMES] == [50] * 5


@pytest.mark.parametrize(
    ("qrels", "rows", "problem"),
    [
        ("1 0 a 0\n", [{}], "qrels.txt: no query has a relevant document"),
        ("1 0 a 1\n1 0 a\n", [{}], "qrels.txt:2: expected four columns: query, 0, document, relevance"),
        ("1 0 a x\n", [{}], 'qrels.txt:1: "score" is a string, expected a number'),
        ("1 0 a 1_0\n", [{}], 'qrels.txt:1: "score" is a string, expected a number'),
        ("1 0 a inf\n", [{}], 'qrels.txt:1: "score" is not a finite number'),
        ("1 0 a 1\n1 0 a nan\n", [{}], 'qrels.txt:2: "score" is not a finite number'),
        ("1 0 a 1\n1 0 a 2\n", [{}], 'qrels.txt:2: document "a" of query "1" has two different scores'),
        ("query\tdocument\n1\ta\n", [{}], 'qrels.txt:2: "score" is missing'),
        ("", [{}], "no rows in qrels.txt"),
        ("1 0 a 1\n", [{"text": "x"}], '-:1: this row has no "hits"'),
        ("1 0 a 1\n", [{"hits": []}], '-:1: the query has no "id" or "_id"'),
        ("1 0 a 1\n", [{"id": 1, "hits": [{}]}], '-:1: the hit has no "id" or "_id"'),
        ("1 0 a 1\n", [{"id": None, "hits": []}], '-:1: "id" is null, expected a string or a whole number'),
        ("1 0 a 1\n", [{"id_a": 1, "id_b": 1, "similarity": None}], f"-:1: {NULL}"),
        ("1 0 a 1\n", [{"id": 1, "hits": []}] * 2, '-:2: query "1" occurs a second time'),
    ],
)
def test_refusals(sentkit, tmp_path, qrels, rows, problem):
    (tmp_path / "qrels.txt").write_text(qrels)
    done = sentkit("score", "--qrels", "qrels.txt", stdin=in_jsonl(*rows))

    assert (done.code, done.told[0]) == (65, f"sentkit score: {problem}")


@pytest.mark.parametrize("unit", [5e-324, 1e-300, 3.0, 1e308])
def test_the_unit_of_the_grades_does_not_matter(sentkit, tmp_path, unit):
    """The first hit has the grade 1, of two documents with this grade: 1 / (1 + 1 / log2(3))."""
    (tmp_path / "qrels.txt").write_text(f"1 0 a {unit}\n1 0 b {unit}\n")
    hits = in_jsonl({"id": 1, "hits": [{"id": "a"}]})

    done = sentkit("score", "--qrels", "qrels.txt", stdin=hits)

    assert done.rows[0]["ndcg@10"] == pytest.approx(100 / (1 + 1 / math.log2(3)), rel=1e-6)


def test_two_fields_of_one_name_are_refused(sentkit, tmp_path):
    """In hits and in judgements."""
    (tmp_path / "good.jsonl").write_text('{"query-id":1,"corpus-id":1,"score":1}')
    (tmp_path / "bad.jsonl").write_text('{"query-id":1,"corpus-id":1,"score":1,"score":0}')
    hits = '{"id":1,"hits":[{"id":1}],"hits":[]}\n'

    for qrels, problem in {
        "bad.jsonl": 'bad.jsonl:1: duplicate field "score"',
        "good.jsonl": '-:1: duplicate field "hits"',
    }.items():
        done = sentkit("score", "--qrels", qrels, stdin=hits)
        assert (done.code, done.told[0]) == (65, f"sentkit score: {problem}")


def test_long_numbers_are_ids(sentkit, tmp_path):
    (tmp_path / "qrels.txt").write_text("1 0 100000000000000000001 1\n")
    rows = '{"id":1,"hits":[{"id":100000000000000000002},{"id":100000000000000000001}]}\n'

    assert sentkit("score", "--qrels", "qrels.txt", stdin=rows).rows[0]["mrr@10"] == 50


def test_a_limit_and_several_files(sentkit, tmp_path):
    (tmp_path / "qrels.txt").write_text("1 0 a 1\n")
    for name, document in {"good": "a", "bad": "b"}.items():
        (tmp_path / f"{name}.jsonl").write_text(in_jsonl({"id": 1, "hits": [{"id": document}]}))
    flags = ("--qrels", "qrels.txt", "--fail-under", 50, "--per-query", "each.jsonl")
    done = sentkit("score", "good.jsonl", "bad.jsonl", *flags)
    each = [json.loads(line) for line in (tmp_path / "each.jsonl").read_text().splitlines()]

    assert done.code == 1
    assert done.told == [
        "sentkit score: warning: bad.jsonl: no relevant document of qrels.txt is a hit; do the ids agree?"
        " --field id=row uses the numbers of rows",
        "sentkit score: bad.jsonl: nDCG@10 is 0.00, below 50",
    ]
    assert [record["ndcg@10"] for record in done.rows] == [100, 0]
    assert [(row["file"], row["first_rank"]) for row in each] == [("good.jsonl", 1), ("bad.jsonl", None)]


@pytest.mark.usefixtures("data")
def test_a_terminal_shows_a_table(on_terminal):
    flags = ("--qrels", "qrels.txt", "--baseline", "hits.jsonl")
    lines = on_terminal("score", "hits.jsonl", *flags)

    names = ["hits.jsonl", "n", "recall@100", "MAP", "MRR@10"]  # n: the number of queries
    assert [line.split()[0] for line in lines[1:-1]] == names
    assert lines[-1] == "[a, b]: 95 % interval"
    assert (lines[1].split()[1], lines[1].split()[-1]) == ("nDCG@10", "1.000")
    assert max(map(len, lines)) <= 80
