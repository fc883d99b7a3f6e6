"""`search`: hits, reports, and refusals."""

import json

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


@pytest.fixture
def held(tmp_path):
    """A corpus of these lines."""

    def write(lines, name="c.jsonl"):
        (tmp_path / name).write_text(lines)
        return name

    return write


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


def test_a_query_without_a_hit_has_an_empty_list(sentkit, held):
    flags = ("--corpus", held('{"embedding":[1,0]}'), "--threshold", 0.5)

    assert sentkit("search", *flags, stdin='{"embedding":[0,1]}').rows == [{"hits": []}]


def test_the_corpus_may_be_standard_input(sentkit, corpus, queries, tmp_path):
    (tmp_path / "q.jsonl").write_bytes(queries)
    lines = (tmp_path / "corpus.jsonl").read_bytes()
    piped = sentkit("search", "--queries", "q.jsonl", "--corpus", "-", stdin=lines)

    assert piped.out == sentkit("search", "--corpus", corpus, stdin=queries).out


def test_other_fields_keep_their_bytes(sentkit, held):
    """Long numbers, spaces and escapes; a hit has its id."""
    corpus = held('{"entry": "caf\\u00e9", "id":12345678901234567890, "x": 1.10, "embedding":[1,0]}\n')
    query = b'{"id":98765432109876543210, "embedding":[2,0],"y": 2.50 ,"_emb":null}'
    done, flat = (sentkit("search", "--corpus", corpus, *form, stdin=query) for form in ((), ("--flat",)))

    assert done.out == (
        b'{"id":98765432109876543210,"y": 2.50,"hits":[{"row":1,"similarity":1.0,"entry":"caf\\u00e9",'
        b'"id":12345678901234567890}]}\n'
    )
    assert flat.out == (
        b'{"id_a":98765432109876543210,"y_a":2.50,"row_b":1,"rank":1,"entry_b":"caf\\u00e9",'
        b'"id_b":12345678901234567890,"x_b":1.10,"similarity":1.0}\n'
    )


def test_fields_of_a_hit(sentkit, held):
    """The text, else the entry, else nothing; and the id."""
    lines = (
        '{"text":"t","entry":"e","_id":7,"embedding":[1,0]}\n'
        '{"entry":"e","label":"x","embedding":[1,1]}\n'
        '{"embedding":[0,1]}\n'
    )
    done = sentkit("search", "--corpus", held(lines), stdin=b'{"embedding":[1,0]}')
    mapped = sentkit("search", "--corpus", held(lines), "--field", "id=entry", stdin=b'{"embedding":[1,0]}')

    assert [list(hit)[2:] for hit in done.rows[0]["hits"]] == [["text", "_id"], ["entry"], []]
    assert [list(hit)[2:] for hit in mapped.rows[0]["hits"]] == [["text", "id"], ["entry", "id"], []]


@metrics
def test_flat_rows_are_the_hits(sentkit, corpus, queries, metric, tmp_path):
    """One row per hit: the fields of both sides, the rank and the similarity; Parquet has the same rows."""
    flags = ("--corpus", corpus, "--metric", metric, "--top", 3)
    nested, flat = (sentkit("search", *flags, *form, stdin=queries).rows for form in ((), ("--flat",)))
    expected = [
        {"id_a": row["id"], "row_b": hit["row"], "rank": rank, "text_b": hit["text"]}
        | {"similarity": hit["similarity"]}
        for row in nested
        for rank, hit in enumerate(row["hits"], start=1)
    ]
    assert sentkit("search", *flags, "--flat", "-o", "hits.parquet", stdin=queries).code == 0

    assert flat == expected == sentkit("cat", "hits.parquet").rows


def test_field_applies_to_queries_and_corpus(sentkit, held):
    """The text of a hit is always named text, and both texts of a flat row, so that `predict` reads them."""
    corpus = held('{"title":"x","v":[1,0],"text":"other"}\n')
    flags = ("--corpus", corpus, "--field", "text=title", "--field", "embedding=v")
    nested, flat = (
        sentkit("search", *flags, *form, stdin=b'{"title":"y","v":[1,0]}').rows for form in ((), ("--flat",))
    )

    assert nested == [{"title": "y", "hits": [{"row": 1, "similarity": 1.0, "text": "x"}]}]
    assert flat == [{"text_a": "y", "row_b": 1, "rank": 1, "text_b": "x", "similarity": 1.0}]


A, B, LANDS = "a/cls:a1b2c3d4e5f6", "b/mean:0123456789ab", "c/pooler:mean>0123456789ab:99aabbccddee"


@pytest.mark.parametrize(
    ("query", "corpus", "code"),
    [
        (A, A, 0),
        ("here:012300000000", "there:012300000000", 0),
        *((None, None, 0), (LANDS, B, 0), (LANDS, LANDS, 0)),
        *((A, B, 65), (None, A, 65), (A, None, 65), (LANDS, A, 65), (B, LANDS, 65)),
        ("c/pooler:mean>0123456789ab/n:99aabbccddee", B, 65),
    ],
)
def test_queries_and_corpus_must_be_of_one_space(sentkit, held, jsonl, query, corpus, code):
    """Or the queries are trained into the space of the corpus, but not the reverse."""
    rows = [{"embedding": [1, 0], **({"_emb": emb} if emb else {})} for emb in (query, corpus)]
    done = sentkit("search", "--corpus", held(jsonl(rows[1]).decode()), stdin=jsonl(rows[0]))

    assert done.code == code
    assert bool(done.out) == (code == 0)


def test_both_spaces_are_named(sentkit, held):
    corpus = held(f'{{"embedding":[1,0],"_emb":"{A}"}}\n')
    other = sentkit("search", "--corpus", corpus, stdin=f'{{"embedding":[1,0],"_emb":"{B}"}}')
    without = sentkit("search", "--corpus", corpus, stdin=b'{"embedding":[1,0]}')

    for done, space in ((other, "b/mean (0123…)"), (without, "without _emb")):
        spaces = f"the vectors of the query are {space}, the vectors of c.jsonl are a/cls (a1b2…)"
        assert done.told == [f"sentkit search: -:1: {spaces}"]


def test_a_bad_row_of_the_corpus_is_never_skipped(sentkit, held):
    """Later rows would have wrong numbers."""
    corpus = held('{"embedding":[1,0]}\n{"embedding":[1]}\n')
    done = sentkit("search", "--corpus", corpus, "--rejects", "/dev/null", stdin=b'{"embedding":[1,0]}')

    problem = "c.jsonl:2: this vector has 1 numbers, the vector of the first row has 2"
    assert (done.code, done.told[0]) == (65, f"sentkit search: {problem}")


def test_hits_are_a_table_on_a_terminal(on_terminal, tmp_path, corpus, jsonl):
    """A line for each hit, the query before its first."""
    rows = jsonl({"text": "first", "embedding": [1, 0, 0, 0, 0]}, {"embedding": [0, 1, 0, 0, 0]})
    (tmp_path / "q.jsonl").write_bytes(rows)
    flags = ("--queries", "q.jsonl", "--corpus", corpus, "--top", 2)
    lines = on_terminal("search", *flags)
    as_json = [json.loads(line) for line in on_terminal("search", *flags, "--json")]

    assert lines[0].split() == ["query", "cosine", "row", "hit"]
    assert [line.split()[:-3] for line in lines[1:]] == [["first"], [], ["row", "2"], []]
    assert [line.split()[-3:] for line in lines[1:3]] == [
        [f"{hit['similarity']:.4f}", str(hit["row"]), hit["text"]] for hit in as_json[0]["hits"]
    ]
