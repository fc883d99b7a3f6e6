"""`score` beside scipy, scikit-learn and loops: --gold, --dim, --seen, --label and --qrels."""

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import average_precision_score, precision_recall_curve, roc_auc_score

from sentkit.metrics.gold_pairs import GoldPairs
from sentkit.metrics.label_scores import Ranking
from support import BY_HAND, in_jsonl, normal_rows

# --dim: correlations of the first numbers, with paired tests against all numbers.

N = 40
D = 12


@pytest.fixture(scope="module")
def rows():
    """Pairs of unit vectors whose later numbers matter most to the score."""
    random = np.random.default_rng(0)
    vectors = random.standard_normal((N, 2, D))
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    scores = (vectors[:, 0, 5:] * vectors[:, 1, 5:]).sum(-1) + 0.02 * random.standard_normal(N)
    rows = []
    for n, (score, (a, b)) in enumerate(zip(scores, vectors, strict=True)):
        texts = {"text_a": f"a{n}", "text_b": f"b{n}"}
        fields = {"score": round(float(score), 4), "topic": "xy"[n % 2]}
        rows.append({**texts, **fields, "embedding_a": a.tolist(), "embedding_b": b.tolist()})
    return rows


def cut(rows, dim):
    """The rows with shorter vectors, again of unit length."""
    short_rows = []
    for row in rows:
        vectors = {}
        for name in ("embedding_a", "embedding_b"):
            vector = np.array(row[name])[:dim]
            vectors[name] = (vector / np.linalg.norm(vector)).tolist()
        short_rows.append(row | vectors)
    return short_rows


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean"])
def test_each_width_is_scored_as_vectors_of_this_width(sentkit, rows, metric, tmp_path):
    """With the paired test of a separate file against the whole vectors as its baseline."""
    (tmp_path / "whole.jsonl").write_text(in_jsonl(*rows))
    flags = ("--gold", "score", "--metric", metric)
    gold = [row["score"] for row in rows]

    for dim in (5, 2):
        result = sentkit("score", "-", *flags, "--dim", dim, stdin=in_jsonl(*rows))
        assert (result.code, [row["dim"] for row in result.rows]) == (0, [D, dim])
        assert "against" not in result.rows[0]
        record = result.rows[1]
        short = cut(rows, record["dim"])
        similarities = [BY_HAND[metric](row["embedding_a"], row["embedding_b"]) for row in short]
        expected = 100 * stats.spearmanr(similarities, gold).statistic
        assert record["spearman"] == pytest.approx(expected, abs=1e-3)
        (tmp_path / "cut.jsonl").write_text(in_jsonl(*short))
        [alone] = sentkit("score", "cut.jsonl", *flags, "--baseline", "whole.jsonl").rows
        for kind in ("spearman", "pearson"):
            test = record["against"][kind]
            expected = alone["against"][kind]
            assert test["difference"] == pytest.approx(expected["difference"], abs=1e-3)
            assert test["ci95"] == pytest.approx(expected["ci95"], abs=1e-3)
            assert test["p"] == expected["p"]
        assert record["spearman_ci95"] == pytest.approx(alone["spearman_ci95"], abs=1e-3)


def test_the_warnings_of_a_width_are_those_of_its_comparison(sentkit, rows):
    """Rows without a score are counted once, and fewer than five pairs have no paired test."""
    few = [*rows[:4], rows[4] | {"score": None}]
    result = sentkit("score", "--gold", "score", "--dim", 5, stdin=in_jsonl(*few))

    assert result.rows[1]["against"]["spearman"]["p"] is None
    assert result.told == [
        "sentkit score: warning: -: 1 rows without a score skipped",
        "sentkit score: warning: -: a paired test needs 5 pairs, n is 4, so the difference has no "
        "interval and no p",
    ]


def test_vectors_of_other_lengths_stay_cut(sentkit, rows):
    """Their lengths matter to the dot product, as for encode --dim."""
    doubled = [row | {"embedding_a": [2 * x for x in row["embedding_a"]]} for row in rows]
    flags = ("--gold", "score", "--metric", "dot", "--dim", 5)
    result = sentkit("score", *flags, stdin=in_jsonl(*doubled))
    similarities = []
    for row in doubled:
        a = row["embedding_a"][:5]
        b = row["embedding_b"][:5]
        similarities.append(BY_HAND["dot"](a, b) / np.linalg.norm(b))
    expected = 100 * stats.spearmanr(similarities, [row["score"] for row in rows]).statistic

    assert result.rows[1]["spearman"] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("flag", ["--gold", "--label"])
def test_an_empty_baseline_is_named(sentkit, rows, tmp_path, flag):
    (tmp_path / "empty.jsonl").touch()
    lines = in_jsonl(*(row | {"score": n % 2} for n, row in enumerate(rows)))
    result = sentkit("score", flag, "score", "--baseline", "empty.jsonl", stdin=lines)

    assert (result.code, result.err) == (65, "sentkit score: no rows in empty.jsonl\n")


# --seen: pairs of a test set that occur in training rows.

EMB = "m:100000000000"
GOLD = ("score", "test.jsonl", "--gold", "score")
TEXTS = [(f"left {n}.", f"right {n}") for n in range(12)]
SEEN_PAIR = (1, 4)
SEEN_TEXTS = (5, 7, 8)
SEEN_TEXT = (2, 11)
TRAIN = [
    *({"text_a": f"RIGHT {n}", "text_b": f"left  {n}"} for n in SEEN_PAIR),
    *({"text": f"{side} {n}"} for n in SEEN_TEXTS for side in ("left", "right")),
    *({"anchor": "x", "positive": "y", "negatives": ["z", f"left {n}!"]} for n in SEEN_TEXT),
]


@pytest.fixture
def vectors(tmp_path):
    """Twelve pairs with gold scores and vectors, (12, 2, 6)."""
    vectors = normal_rows(24, 6).reshape(12, 2, 6)
    rows = (
        {"id": n, "text_a": a, "text_b": b, "score": n * 5 % 7, **vectors_of(pair)}
        for n, ((a, b), pair) in enumerate(zip(TEXTS, vectors, strict=True))
    )
    (tmp_path / "test.jsonl").write_text(in_jsonl(*rows))
    for number, train_rows in enumerate((TRAIN[:2], TRAIN[2:8], TRAIN[8:])):
        lines = in_jsonl(*train_rows).encode()
        (tmp_path / f"train-{number}.jsonl.gz").write_bytes(gzip.compress(lines))
    return vectors


def vectors_of(pair):
    return {"embedding_a": pair[0].tolist(), "embedding_b": pair[1].tolist(), "_emb": EMB}


def test_the_report_counts_seen_pairs_and_has_the_correlation_without_them(sentkit, vectors):
    [plain] = sentkit(*GOLD).rows
    [record] = sentkit(*GOLD, "--seen", "train-0.jsonl.gz", "--seen", "train-[12].jsonl.gz").rows
    seen = record.pop("seen")
    unseen = [n for n in range(12) if n not in SEEN_PAIR + SEEN_TEXTS]
    cosines = [BY_HAND["cosine"](*vectors[n].tolist()) for n in unseen]

    assert record == plain
    assert seen["rows"] == len(TRAIN)
    assert [seen[level] for level in ("pair", "both", "one")] == [2, 3, 2]
    assert seen["without"]["n"] == len(unseen)
    expected = 100 * stats.spearmanr(cosines, [n * 5 % 7 for n in unseen]).statistic
    assert seen["without"]["spearman"] == pytest.approx(expected, abs=1e-4)


def test_a_skipped_row_leaves_nothing_behind(sentkit, vectors, tmp_path):
    """The report is that of the file without the bad rows."""
    (tmp_path / "train.jsonl").write_text(in_jsonl(*TRAIN[:2]))
    lines = (tmp_path / "test.jsonl").read_text().splitlines(keepends=True)
    bad = [
        lines[2].replace('"left 2."', "5"),
        lines[3].replace('"right 3"', "null"),
        lines[4].replace(EMB, "n:200000000000"),
        lines[5].replace('"score": 4', '"score": "x"').replace('"score":4', '"score":"x"'),
    ]
    (tmp_path / "good.jsonl").write_text("".join(lines))
    (tmp_path / "mixed.jsonl").write_text("".join([lines[0], *bad, *lines[1:]]))
    flags = ("--gold", "score", "--seen", "train.jsonl")
    sentkit("score", "good.jsonl", *flags, "-o", "good.json")
    mixed = sentkit("score", "mixed.jsonl", *flags, "-o", "mixed.json", "--rejects", "/dev/null")
    reports = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("good", "mixed")]

    assert mixed.code == 0
    assert "bad rows dropped: 4; " in mixed.err
    assert [report.pop("file") for report in reports] == ["good.jsonl", "mixed.jsonl"]
    assert reports[0] == reports[1]
    assert reports[0]["seen"]["pair"] == 2


SIDES = {"text_a": "anchor", "text_b": "positive"} | {
    f"embedding_{a}": f"embedding_{b}" for a, b in (("a", "anchor"), ("b", "positive"))
}


def test_anchors_with_positives_are_pairs(sentkit, vectors, tmp_path):
    """Their texts are found in training rows, and are compared with those of a baseline."""
    lines = (tmp_path / "test.jsonl").read_text().splitlines()
    rows = [{SIDES.get(k, k): v for k, v in json.loads(line).items()} for line in lines]
    (tmp_path / "anchors.jsonl").write_text(in_jsonl(*rows))
    rows[3]["anchor"] = "another text"
    (tmp_path / "other.jsonl").write_text(in_jsonl(*rows))
    seen = ("--seen", "train-[012].jsonl.gz")
    [expected] = sentkit(*GOLD, *seen).rows
    result = sentkit("score", "anchors.jsonl", "--gold", "score", *seen)
    compared = sentkit("score", "anchors.jsonl", "--gold", "score", "--baseline", "other.jsonl")

    assert (result.code, result.rows) == (0, [expected | {"file": "anchors.jsonl"}]), result.err
    assert compared.code == 65
    assert "anchors.jsonl: not the same scored pairs as in other.jsonl" in compared.err


# --label


def labelled(seed, n=120, skill=0.3, values=32):
    """Similarities with ties, and labels 0 and 1 that they partly predict."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, n)
    return np.round(random.random(n) + skill * labels, 2) * values // 1 / values, labels


def rows_of(similarities, labels, **rest):
    """Rows whose dot product is the similarity."""
    rows = []
    pairs = zip(similarities.tolist(), labels.tolist(), strict=True)
    for n, (similarity, label) in enumerate(pairs):
        vectors = {"embedding_a": [similarity], "embedding_b": [1]}
        rows.append({"text_a": f"a{n}", "text_b": "b", **vectors, "same": label, **rest})
    return in_jsonl(*rows)


def by_sklearn(similarities, labels, precision):
    """Average precision, AUC, best F1 and recall at a precision, both with their threshold."""
    precisions, recalls, thresholds = precision_recall_curve(labels, similarities)
    precisions = precisions[:-1]  # the last point has no threshold
    recalls = recalls[:-1]
    f1 = 2 * precisions * recalls / np.maximum(precisions + recalls, 1e-300)
    best = thresholds[f1 >= f1.max() - 1e-12].max()
    average = average_precision_score(labels, similarities)
    auc = roc_auc_score(labels, similarities)
    reached = precisions >= precision
    recall = np.nan
    threshold = np.nan
    if reached.any():
        recall = recalls[reached].max()
        threshold = thresholds[reached & (recalls == recall)].max()
    return [average, auc, f1.max(), best, recall, threshold]


@pytest.mark.parametrize("precision", [0.5, 0.75, 0.95, 1])
def test_resamples_equal_sklearn(precision):
    """A resample counts each row several times; without rows of one class it is undefined."""
    similarities, labels = labelled(0, n=30, values=8)
    times = np.random.default_rng(1).multinomial(30, np.full(30, 1 / 30), 40).astype(float)
    times[0] = 1
    times[1] = labels
    pairs = GoldPairs(similarities, labels.astype(float))
    scores = Ranking(pairs).scores(times, precision)

    assert np.isnan(scores[1]).all()
    for n in (0, *range(2, 40)):
        counts = times[n].astype(int)
        drawn_similarities = np.repeat(similarities, counts)
        drawn_labels = np.repeat(labels, counts)
        expected = by_sklearn(drawn_similarities, drawn_labels, precision)
        np.testing.assert_allclose(scores[n], expected, rtol=1e-12)


def test_the_report_has_the_scores_of_sklearn(sentkit, tmp_path):
    similarities, labels = labelled(2)
    (tmp_path / "p.jsonl").write_text(rows_of(similarities, labels))
    (record,) = sentkit(
        "score", "p.jsonl", "--label", "same", "--metric", "dot", "--precision-at", 0.8
    ).rows
    names = ("average_precision", "auc", "f1", "f1_threshold", "recall", "recall_threshold")
    factors = np.array([100, 100, 100, 1, 100, 1])
    expected = by_sklearn(similarities, labels, 0.8) * factors

    assert [record[name] for name in names] == pytest.approx(expected, rel=1e-6)
    assert (record["n"], record["positives"], record["precision_at"]) == (120, labels.sum(), 0.8)
    draws = np.random.default_rng(3).integers(0, 120, (300, 120))
    resampled = [by_sklearn(similarities[draw], labels[draw], 0.8) for draw in draws]
    resampled = np.array(resampled) * factors
    for name, column in zip(names, resampled.T, strict=True):
        low, high = np.nanpercentile(column, [2.5, 97.5])
        assert record[f"{name}_ci95"] == pytest.approx([low, high], abs=0.3 * (high - low) + 0.032)
    assert record["resamples"] == 1000


def test_a_worked_example():
    """Similarities .9 .8 .8 .3 with labels 1 1 0 1: the tied pairs are predicted together."""
    pairs = GoldPairs(np.array([0.8, 0.3, 0.9, 0.8]), np.array([1.0, 1.0, 1.0, 0.0]))
    (scores,) = Ranking(pairs).scores(np.ones((1, 4)), 0.6)
    average = 1 / 3 * 1 + 1 / 3 * 2 / 3 + 1 / 3 * 3 / 4

    assert scores == pytest.approx([average, (1 + 0.5 + 0) / 3, 2 * 0.75 / 1.75, 0.3, 1, 0.3])


def test_a_baseline_is_compared_on_the_same_resamples(sentkit, tmp_path):
    """A planted difference is certain, the same file has none, and other labels are refused."""
    similarities, labels = labelled(4, n=400)
    for name, skill in {"same": 0, "better": 0.4}.items():
        (tmp_path / f"{name}.jsonl").write_text(rows_of(similarities + skill * labels, labels))
    (tmp_path / "other.jsonl").write_text(rows_of(similarities, 1 - labels))
    measures = ("--label", "same", "--metric", "dot", "--precision-at", 0.75)
    flags = (*measures, "--baseline", "same.jsonl")
    same, better = sentkit("score", "same.jsonl", "better.jsonl", *flags).rows
    against = better["against"]
    changes = {name: value for name, value in against.items() if isinstance(value, dict)}

    assert changes.keys() == {"average_precision", "auc", "f1", "recall"}
    for name, change in changes.items():
        assert same["against"][name] == {"difference": 0, "ci95": [0, 0], "p": 1}
        assert change["difference"] == pytest.approx(better[name] - same[name], rel=1e-4)
        assert change["p"] == 0.001
    assert "not the same scored pairs as in" in sentkit("score", "other.jsonl", *flags).err


# --qrels

NAMES = ("ndcg@10", "recall@10", "recall@100", "map", "mrr@10")


def random_qrels(random, queries=40, documents=300):
    """Graded judgements 0 to 3, several relevant documents per query."""
    chosen = {
        f"q{n}": random.choice(documents, random.integers(3, 40), replace=False)
        for n in range(queries)
    }
    qrels = {}
    for query, numbers in chosen.items():
        qrels[query] = {f"d{number}": int(random.integers(0, 4)) for number in numbers}
    for judged in qrels.values():
        judged[next(iter(judged))] = 2
    return qrels


def random_hits(random, qrels, depth=150, documents=300, skill=0.0):
    """Hits without ties; `skill` moves relevant documents up."""
    hits = {}
    for query, judged in qrels.items():
        scores = {
            f"d{n}": random.random() + skill * judged.get(f"d{n}", 0) for n in range(documents)
        }
        best = sorted(scores, key=scores.get, reverse=True)[: random.integers(1, depth)]
        # No ties in float32.
        hits[query] = [(document, 1 - rank / 1024) for rank, document in enumerate(best)]
    return hits


def hits_in(hits):
    return in_jsonl(
        *(
            {"id": q, "hits": [{"id": d, "similarity": x} for d, x in some]}
            for q, some in hits.items()
        )
    )


def trec(qrels):
    return "".join(f"{q} 0 {d} {x}\n" for q, some in qrels.items() for d, x in some.items())


def by_loop(judged, ranked):
    """The five measures of a query, x 100, from their definitions."""
    relevance = [max(0, judged.get(d, 0)) for d in ranked]
    ideal = sorted(judged.values(), reverse=True)
    dcg = sum(x / math.log2(n + 2) for n, x in enumerate(relevance[:10]))
    highest_dcg = sum(x / math.log2(n + 2) for n, x in enumerate(ideal[:10]))
    total = sum(x > 0 for x in judged.values())
    ranks = [n for n, x in enumerate(relevance, start=1) if x > 0]
    recalls = [sum(n <= depth for n in ranks) / total for depth in (10, 100)]
    precisions = [sum(m <= n for m in ranks) / n for n in ranks]
    reciprocal_rank = next((1 / n for n in ranks if n <= 10), 0)
    measures = (dcg / highest_dcg, *recalls, sum(precisions) / total, reciprocal_rank)
    return [100 * x for x in measures]


@pytest.fixture
def data(tmp_path):
    random = np.random.default_rng(0)
    qrels = random_qrels(random)
    hits = random_hits(random, qrels, skill=0.1)
    (tmp_path / "qrels.txt").write_text(trec(qrels))
    (tmp_path / "hits.jsonl").write_text(hits_in(hits))
    return qrels, hits


@pytest.mark.parametrize("form", ["nested", "flat"])
def test_scores_equal_a_loop(sentkit, tmp_path, data, form):
    """For each query and on average; flat rows may have any order."""
    qrels, hits = data
    if form == "flat":
        rows = [
            {"id_a": query, "id_b": document, "similarity": similarity}
            for query, ranked in hits.items()
            for document, similarity in ranked
        ]
        rows.sort(key=str)
        (tmp_path / "hits.jsonl").write_text(in_jsonl(*rows))
    result = sentkit("score", "hits.jsonl", "--qrels", "qrels.txt", "--per-query", "q.jsonl")
    (record,) = result.rows
    lines = (tmp_path / "q.jsonl").read_text().splitlines()
    by_query = {row["query"]: row for row in map(json.loads, lines)}
    expected = {}
    for query, ranked in hits.items():
        expected[query] = by_loop(qrels[query], [document for document, _ in ranked])
    means = np.mean([*expected.values()], axis=0)

    assert list(by_query) == list(expected)
    for query, values in expected.items():
        assert [by_query[query][name] for name in NAMES] == pytest.approx(values, rel=1e-6)
        assert by_query[query]["relevant"] == sum(x > 0 for x in qrels[query].values())
    assert [record[name] for name in NAMES] == pytest.approx(means, rel=1e-6)
    assert (record["n"], record["missing"], record["without_relevant"]) == (40, 0, 0)
    assert record["depth"] == max(map(len, hits.values()))


def test_intervals_are_those_of_a_bootstrap_of_the_queries(sentkit, data):
    """Within the error of 1000 resamples, compared with 4000 others."""
    qrels, hits = data
    (record,) = sentkit("score", "hits.jsonl", "--qrels", "qrels.txt").rows
    values = np.array([by_loop(qrels[query], [d for d, _ in some]) for query, some in hits.items()])
    draws = np.random.default_rng(1).integers(0, 40, (4000, 40))
    means = values[draws].mean(axis=1)

    for column, name in enumerate(NAMES):
        low, high = np.percentile(means[:, column], [2.5, 97.5])
        assert record[f"{name}_ci95"] == pytest.approx([low, high], abs=0.2 * (high - low))


@pytest.mark.parametrize("form", ["trec", "beir", "jsonl", "csv", "parquet"])
def test_the_formats_of_judgements_are_equal(sentkit, tmp_path, data, form):
    qrels, _ = data
    rows = [
        {"query-id": q, "corpus-id": d, "score": x}
        for q, some in qrels.items()
        for d, x in some.items()
    ]
    table = "query-id\tcorpus-id\tscore\n"
    for row in rows:
        table += f"{row['query-id']}\t{row['corpus-id']}\t{row['score']}\n"
    texts = {
        "trec": trec(qrels),
        "beir": table,
        "jsonl": in_jsonl(*rows),
        "csv": table.replace("\t", ","),
    }
    name = {"trec": "q.tsv", "beir": "q.tsv", "jsonl": "q", "csv": "q.csv", "parquet": "q.parquet"}[
        form
    ]
    (tmp_path / name).write_text(texts.get(form, ""))
    if form == "parquet":
        sentkit("cat", "-o", "q.parquet", "-f", stdin=texts["jsonl"])
    result = sentkit("score", "hits.jsonl", "--qrels", name)
    expected = sentkit("score", "hits.jsonl", "--qrels", "qrels.txt")

    assert (result.code, result.rows) == (0, [expected.rows[0] | {"qrels": name}])


@pytest.mark.parametrize("form", ["trec", "beir", "jsonl"])
def test_judgements_can_come_from_a_pipe(sentkit, data, form):
    """A pipe can be read only once, also the part that decides the format."""
    qrels, _ = data
    judgements = [(q, d, x) for q, judged in qrels.items() for d, x in judged.items()]
    names = ("query-id", "corpus-id", "score")
    texts = {
        "trec": "\n" + trec(qrels),
        "beir": "\n".join("\t".join(map(str, cells)) for cells in (names, *judgements)) + "\n",
        "jsonl": in_jsonl(*(dict(zip(names, cells, strict=True)) for cells in judgements)),
    }
    result = sentkit("score", "hits.jsonl", "--qrels", "-", stdin=texts[form])
    expected = sentkit("score", "hits.jsonl", "--qrels", "qrels.txt")

    assert (result.code, result.rows) == (0, [expected.rows[0] | {"qrels": "-"}])


@pytest.mark.parametrize("content", ["", "\n", "query-id\tcorpus-id\tscore\n"])
def test_judgements_without_rows_are_an_error(sentkit, data, content):
    result = sentkit("score", "hits.jsonl", "--qrels", "-", stdin=content)

    assert (result.code, result.err) == (65, "sentkit score: no rows in standard input\n")


def test_a_query_that_occurs_twice_is_refused(sentkit, tmp_path):
    """In both forms. So the hits of two files of queries are never those of one query, also if the
    numbers of rows are the ids. Hits in two corpora, which have the row of the query, are joined.
    """
    (tmp_path / "qrels.txt").write_text("q 0 d1 1\nq 0 d2 1\n")
    hit = {"id_a": "q", "row_a": 1, "row_b": 1, "rank": 1, "id_b": "d1", "similarity": 0.9}
    one = {"id": "q", "hits": [{"id": "d1", "similarity": 0.9}]}
    of_other_text = [hit | {"text_a": "a cat"}, hit | {"text_a": "a dog"}]
    of_other_row = [hit, hit | {"row_a": 2, "id_b": "d2"}]
    for again in ([one, one], of_other_row, of_other_text, [one, hit], [hit, one]):
        result = sentkit("score", "--qrels", "qrels.txt", stdin=in_jsonl(*again))
        problem, advice = result.told
        assert (result.code, problem) == (65, 'sentkit score: -:2: query "q" occurs a second time')
        assert "give each query its own id" in advice
    other = {name: value for name, value in hit.items() if name != "row_a"} | {"id_b": "d2"}
    for joined in ([hit, hit | {"id_b": "d2"}], [other, other | {"id_b": "d1"}]):
        result = sentkit("score", "--qrels", "qrels.txt", stdin=in_jsonl(*joined))
        assert (result.code, result.rows[0]["map"]) == (0, 100)


def test_a_better_run_wins_the_paired_comparison(sentkit, tmp_path):
    """A planted difference is certain, and noise is not; the other side has the opposite sign."""
    random = np.random.default_rng(2)
    qrels = random_qrels(random, queries=100)
    (tmp_path / "qrels.txt").write_text(trec(qrels))
    for name, skill in {"old": 0.05, "same": 0.05, "new": 0.15}.items():
        (tmp_path / f"{name}.jsonl").write_text(hits_in(random_hits(random, qrels, skill=skill)))

    def against(one, other):
        command = ("score", f"{one}.jsonl", "--qrels", "qrels.txt", "--baseline", f"{other}.jsonl")
        return sentkit(*command).rows[0]["against"]

    better = against("new", "old")
    worse = against("old", "new")
    noise = against("same", "old")
    assert better["file"] == "old.jsonl"
    for name in NAMES:
        assert better[name]["ci95"][0] > 0
        assert better[name]["p"] <= 0.01
        assert worse[name]["difference"] == -better[name]["difference"]
    assert noise["ndcg@10"]["p"] > 0.05
    assert against("old", "old")["map"] == {"difference": 0, "ci95": [0, 0], "p": 1}


def test_different_gold_scores_are_not_the_same_pairs(sentkit, vectors):
    """Python has the same hash for -1.0 and -2.0."""
    for name, score in (("a", -1.0), ("b", -2.0)):
        rows = [
            {"text_a": "a", "text_b": "b", "score": value, **vectors_of(pair)}
            for value, pair in zip((score, 3.0, 4.0), vectors, strict=False)
        ]
        Path(f"{name}.jsonl").write_text(in_jsonl(*rows))
    result = sentkit("score", "a.jsonl", "--gold", "score", "--baseline", "b.jsonl")

    assert result.code == 65
    assert "not the same scored pairs" in result.err


def test_equal_gold_scores_of_other_formats_are_the_same_pairs(sentkit, vectors):
    for name, kind in (("a", int), ("b", float), ("c", str)):
        rows = [
            {"text_a": "a", "text_b": "b", "score": kind(value), **vectors_of(pair)}
            for value, pair in zip((0, 3, 4), vectors, strict=False)
        ]
        Path(f"{name}.jsonl").write_text(in_jsonl(*rows))
    result = sentkit("score", "b.jsonl", "c.jsonl", "--gold", "score", "--baseline", "a.jsonl")

    assert (result.code, len(result.rows)) == (0, 3), result.err


def test_one_sentence_has_no_pairs(sentkit):
    result = sentkit("score", stdin=sentkit("encode", "-m", "static", stdin=b"a cat\n").out)

    assert (result.code, result.rows) == (0, [])
    assert "there is only one sentence, so there are no pairs" in result.err
