"""`search`: hits, reports, and refusals."""

import json
import statistics

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
    done = sentkit(
        "search", "--corpus", held('{"embedding":[1,0]}'), "--threshold", 0.5, stdin='{"embedding":[0,1]}'
    )

    assert done.rows == [{"hits": []}]


def test_ten_hits_are_the_default(sentkit, corpus, queries):
    done = sentkit("search", "--corpus", corpus, stdin=queries)

    assert [len(row["hits"]) for row in done.rows] == [10] * 7


def test_the_corpus_may_be_standard_input(sentkit, corpus, queries, tmp_path):
    (tmp_path / "q.jsonl").write_bytes(queries)
    piped = sentkit(
        "search", "--queries", "q.jsonl", "--corpus", "-", stdin=(tmp_path / "corpus.jsonl").read_bytes()
    )

    assert piped.out == sentkit("search", "--corpus", corpus, stdin=queries).out


def test_other_fields_and_shown_fields_keep_their_bytes(sentkit, held):
    """Long numbers, spaces and escapes."""
    corpus = held('{"entry": "caf\\u00e9", "id":12345678901234567890, "x": 1.10, "embedding":[1,0]}\n')
    query = b'{"id":98765432109876543210, "embedding":[2,0],"y": 2.50 ,"_emb":null}'
    done = sentkit("search", "--corpus", corpus, stdin=query)
    shown = sentkit("search", "--corpus", corpus, "--show", "x", "--show", "id", stdin=query)

    assert done.out == (
        b'{"id":98765432109876543210,"y": 2.50,"hits":[{"row":1,"similarity":1.0,"entry":"caf\\u00e9"}]}\n'
    )
    assert shown.rows[0]["hits"][0]["row"] == 1
    assert b'"x":1.10,"id":12345678901234567890}' in shown.out


def test_fields_of_a_hit(sentkit, held):
    """The text, else the entry, else nothing; with --show the field if the row has it."""
    lines = (
        '{"text":"t","entry":"e","embedding":[1,0]}\n'
        '{"entry":"e","label":"x","embedding":[1,1]}\n'
        '{"embedding":[0,1]}\n'
    )
    default = sentkit("search", "--corpus", held(lines), stdin=b'{"embedding":[1,0]}').rows[0]["hits"]
    label = sentkit("search", "--corpus", held(lines), "--show", "label", stdin=b'{"embedding":[1,0]}')

    assert [list(hit)[2:] for hit in default] == [["text"], ["entry"], []]
    assert [list(hit)[2:] for hit in label.rows[0]["hits"]] == [[], ["label"], []]


@pytest.mark.parametrize("name", ["lable", "embedding", "_emb"])
def test_show_refuses_a_field_that_no_row_has(sentkit, held, name):
    """Vectors cannot be shown either."""
    corpus = held('{"text":"t","embedding":[1,0],"_emb":"m:100000000000"}\n')
    done = sentkit(
        "search", "--corpus", corpus, "--show", name, stdin=b'{"embedding":[1,0],"_emb":"m:100000000000"}'
    )

    assert done.code == 65
    assert done.told == [f'sentkit search: c.jsonl: no row has "{name}"']


def test_field_applies_to_queries_and_corpus(sentkit, held):
    """The text of a hit is always named text."""
    corpus = held('{"title":"x","v":[1,0]}\n')
    flags = ("--field", "text=title", "--field", "embedding=v")
    done = sentkit("search", "--corpus", corpus, *flags, stdin=b'{"title":"y","v":[1,0]}')

    assert done.rows == [{"title": "y", "hits": [{"row": 1, "similarity": 1.0, "text": "x"}]}]


A, B, LANDS = "a/cls:a1b2c3d4e5f6", "b/mean:0123456789ab", "c/pooler:mean>0123456789ab:99aabbccddee"


@pytest.mark.parametrize(
    ("query", "corpus", "code"),
    [
        (A, A, 0),
        ("here:012300000000", "there:012300000000", 0),
        (None, None, 0),
        (LANDS, B, 0),
        (LANDS, LANDS, 0),
        (A, B, 65),
        (None, A, 65),
        (A, None, 65),
        (LANDS, A, 65),
        (B, LANDS, 65),
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

    assert other.told == [
        "sentkit search: -:1: the vectors of the query are b/mean (0123…),"
        " the vectors of c.jsonl are a/cls (a1b2…)"
    ]
    assert without.told == [
        "sentkit search: -:1: the vectors of the query are without _emb,"
        " the vectors of c.jsonl are a/cls (a1b2…)"
    ]


def test_a_bad_row_of_the_corpus_is_never_skipped(sentkit, held):
    """Later rows would have wrong numbers."""
    corpus = held('{"embedding":[1,0]}\n{"embedding":[1]}\n')
    done = sentkit("search", "--corpus", corpus, "--rejects", "/dev/null", stdin=b'{"embedding":[1,0]}')

    assert done.code == 65
    assert (
        done.told[0]
        == "sentkit search: c.jsonl:2: this vector has 1 numbers, the vector of the first row has 2"
    )


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ((), "missing option '--corpus'"),
        (("--corpus", "-"), "standard input can be read only once"),
        (("--corpus", "c", "--show", "row"), "--show row: every hit has this field"),
        (("--corpus", "c", "--gold", "=x"), '--gold "=x": expected a name, or NAME=THEIRS'),
        (("--corpus", "c", "--gold", "x="), '--gold "x=": expected a name, or NAME=THEIRS'),
        (("--corpus", "c", "--top", "0"), "invalid value for '--top'"),
        (
            ("--corpus", "c", "-o", "out.safetensors"),
            "out.safetensors: this output cannot be a vector file",
        ),
    ],
)
def test_invalid_flags(sentkit, flags, problem):
    done = sentkit("search", *flags)

    assert done.code == 2
    assert done.told[0].startswith(f"sentkit search: {problem}")


@pytest.fixture
def gold_queries(tmp_path, corpus_vectors, query_vectors, jsonl):
    """A corpus in eight groups, and queries of groups that may be missing."""
    rows = ({"word": n % 8, "embedding": v} for n, v in enumerate(corpus_vectors))
    (tmp_path / "corpus.jsonl").write_bytes(jsonl(*rows))
    return jsonl(*({"entry": str(n + 3), "embedding": v} for n, v in enumerate(query_vectors)))


@metrics
@pytest.mark.parametrize("top", [1, 2, 3, 10, 25])
def test_the_report_equals_that_of_loops(sentkit, gold_queries, corpus_vectors, query_vectors, metric, top):
    """The groups of two of the seven queries are not in the corpus."""
    flags = ("--gold", "entry=word", "--top", top, "--metric", metric)
    done = sentkit("search", "--corpus", "corpus.jsonl", *flags, stdin=gold_queries)
    ranks = []
    for n, query in enumerate(query_vectors):
        places = [row for row, _ in ranked(query, corpus_vectors, metric)]
        right = [place for place, row in enumerate(places, 1) if (row - 1) % 8 == n + 3]
        ranks.append(min(right, default=1000) if min(right, default=1000) <= top else float("inf"))
    (found,) = done.rows
    depths = {1, 3, 10} & set(range(1, top + 1)) | {top}
    median = statistics.median(ranks)

    assert done.code == 0
    assert (found["n"], found["absent"], found["top"]) == (7, 2, top)
    assert (found["queries"], found["corpus"], found["metric"]) == ("-", "corpus.jsonl", metric)
    assert {name for name in found if name.startswith("hit@")} == {f"hit@{depth}" for depth in depths}
    for depth in depths:
        assert found[f"hit@{depth}"] == pytest.approx(100 * sum(rank <= depth for rank in ranks) / 7)
    assert found["mrr"] == pytest.approx(100 * sum(1 / rank for rank in ranks) / 7)
    assert found["median_rank"] == (None if median == float("inf") else median)


def test_a_bad_gold_value_in_the_corpus_is_refused(sentkit, held):
    corpus = held('{"g":1,"embedding":[1,0]}\n{"g":null,"embedding":[1,0]}\n')
    done = sentkit("search", "--corpus", corpus, "--gold", "g", stdin=b'{"g":1,"embedding":[1,0]}')

    assert done.code == 65
    assert done.told == ['sentkit search: c.jsonl:2: "g" is null, expected a string or a number']


@pytest.mark.parametrize(("theirs", "ours"), [("1", "1.0"), ("1.0", '"1"'), ("-0.0", "0"), ("2.5", '"2.5"')])
def test_a_number_is_the_same_answer_however_it_is_spelled(sentkit, held, theirs, ours):
    corpus = held(f'{{"g":{theirs},"embedding":[1,0]}}\n')
    done = sentkit("search", "--corpus", corpus, "--gold", "g", stdin=f'{{"g":{ours},"embedding":[1,0]}}')

    assert (done.rows[0]["absent"], done.rows[0]["hit@1"]) == (0, 100)


@pytest.mark.parametrize(("ours", "absent"), [("100000000000000000001", 0), ("100000000000000000002", 1)])
def test_long_numbers_are_compared_exactly(sentkit, held, ours, absent):
    """As floats both are 1e20."""
    corpus = held('{"g":100000000000000000001,"embedding":[1,0]}\n')
    done = sentkit("search", "--corpus", corpus, "--gold", "g", stdin=f'{{"g":{ours},"embedding":[1,0]}}')

    assert done.rows[0]["absent"] == absent


def test_true_is_not_a_valid_answer(sentkit, held):
    corpus = held('{"g":1,"embedding":[1,0]}\n')
    done = sentkit("search", "--corpus", corpus, "--gold", "g", stdin=b'{"g":true,"embedding":[1,0]}')

    assert done.code == 65
    assert done.told == ['sentkit search: -:1: "g" is true or false, expected a string or a number']


def test_gold_names_members_as_the_rows_do(sentkit, held):
    """--field does not change this."""
    corpus = held('{"word":"x","embedding":[1,0]}\n')
    flags = ("--field", "entry=word", "--gold", "word")
    done = sentkit("search", "--corpus", corpus, *flags, stdin=b'{"word":"x","embedding":[1,0]}')

    assert done.rows[0]["hit@1"] == 100


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
