"""`score` of pairs and of sentences: similarities, closest pairs, and the matrix."""

import itertools

import numpy as np
import pytest

from support import BY_HAND

metrics = pytest.mark.parametrize("metric", BY_HAND)


@pytest.fixture
def vectors():
    """Twelve of seven numbers, exact in float32."""
    return (np.random.default_rng(5).integers(-40, 40, (12, 7)) / 8).tolist()


@pytest.fixture
def pairs(vectors, jsonl):
    sides = zip(vectors[::2], vectors[1::2], strict=True)
    return jsonl(*({"id": n, "embedding_a": a, "embedding_b": b} for n, (a, b) in enumerate(sides)))


@pytest.fixture
def sentences_with_vectors(vectors, jsonl):
    return jsonl(*({"text": f"t{n}", "embedding": v} for n, v in enumerate(vectors)))


@metrics
def test_pairs_get_their_similarity(sentkit, pairs, vectors, metric):
    """As loops compute it; the vectors are gone, the rest is as it was."""
    done = sentkit("score", "--metric", metric, stdin=pairs)
    expected = [BY_HAND[metric](a, b) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]

    assert done.code == 0
    assert [list(row) for row in done.rows] == [["id", "similarity"]] * 6
    assert [row["similarity"] for row in done.rows] == pytest.approx(expected, rel=5e-7)


def test_the_rest_of_a_row_passes_through(sentkit, pairs):
    """And the vectors on request."""
    row = (
        b'{"id":12345678901234567890, "embedding_a":[1,0],"x": 1.10 ,'
        b'"_emb":"m:0123456789ab","embedding_b":[2,0]}'
    )

    assert sentkit("score", stdin=row).out == b'{"id":12345678901234567890,"x": 1.10,"similarity":1.0}\n'
    kept = sentkit("score", "--keep-vectors", stdin=pairs).rows
    assert list(kept[0]) == ["id", "embedding_a", "embedding_b", "similarity"]


@metrics
def test_the_closest_sentences_come_first(sentkit, sentences_with_vectors, vectors, metric):
    """The best four of all pairs, each once, as loops find them. Ten pairs are the default."""
    done = sentkit("score", "--top", 4, "--metric", metric, stdin=sentences_with_vectors)
    every = [(BY_HAND[metric](vectors[i], vectors[j]), i, j) for i, j in itertools.combinations(range(12), 2)]
    expected = sorted(every, key=lambda found: -found[0])[:4]

    assert [(row["row_a"] - 1, row["row_b"] - 1) for row in done.rows] == [(i, j) for _, i, j in expected]
    assert [row["similarity"] for row in done.rows] == pytest.approx([x for x, _, _ in expected], abs=1e-5)
    assert [(row["text_a"], row["text_b"]) for row in done.rows] == [
        (f"t{i}", f"t{j}") for _, i, j in expected
    ]
    assert len(sentkit("score", "--metric", metric, stdin=sentences_with_vectors).rows) == 10


def test_a_pair_has_the_entry_of_a_row_without_text(sentkit, jsonl):
    """A row without both has only its number, and null is no name."""
    rows = jsonl(
        {"entry": "dog", "embedding": [1, 0]},
        {"text": None, "entry": "cat", "embedding": [1, 0]},
        {"embedding": [1, 0]},
    )
    done = sentkit("score", "--threshold", 1, stdin=rows)

    assert [[row.get("entry_a"), row.get("entry_b")] for row in done.rows] == [
        ["dog", "cat"], ["dog", None], ["cat", None]
    ]  # fmt: skip
    assert {name for row in done.rows for name in row} == {
        "entry_a", "entry_b", "row_a", "row_b", "similarity"
    }  # fmt: skip


@metrics
def test_pairs_above_a_threshold_have_the_order_of_rows(sentkit, sentences_with_vectors, vectors, metric):
    """Of all pairs, as loops find them, the 20 best; with --top the best of these come first."""
    places = itertools.combinations(range(12), 2)
    every = [(BY_HAND[metric](vectors[i], vectors[j]), i + 1, j + 1) for i, j in places]
    values = sorted(value for value, _, _ in every)
    flags = ("--metric", metric, "--threshold", (values[-20] + values[-21]) / 2)
    done = sentkit("score", *flags, stdin=sentences_with_vectors)
    few = sentkit("score", *flags, "--top", 5, stdin=sentences_with_vectors)
    more = sentkit("score", *flags, "--top", 50, stdin=sentences_with_vectors)
    best = sorted((pair for pair in every if pair[0] > values[-21]), key=lambda pair: -pair[0])

    assert values[-20] - values[-21] > 1e-9
    assert [(row["row_a"], row["row_b"]) for row in done.rows] == sorted(pair[1:] for pair in best)
    assert [row["text_a"] for row in done.rows] == [f"t{row['row_a'] - 1}" for row in done.rows]
    assert [(row["row_a"], row["row_b"]) for row in few.rows] == [pair[1:] for pair in best[:5]]
    assert [(row["row_a"], row["row_b"]) for row in more.rows] == [pair[1:] for pair in best]


def test_equal_rows_reach_a_cosine_of_one(sentkit):
    """Their cosine is exactly 1, so a threshold of 1 finds duplicates; ties are in the order of the rows.

    Two other rows, and a single row, give no pair and no error.
    """
    rows = "".join(f'{{"embedding":{vector}}}\n' for vector in ([0.1, 0.7], [1, 0], [0.1, 0.7], [0.1, 0.7]))
    for flags in ((), ("--top", 9)):
        done = sentkit("score", "--threshold", "1", *flags, stdin=rows)

        assert [(row["row_a"], row["row_b"]) for row in done.rows] == [(1, 3), (1, 4), (3, 4)]
    two, one = '{"embedding":[1,0]}\n{"embedding":[0,1]}', '{"embedding":[1,0]}'
    for flags, rows in ((("--threshold", "1"), two), ((), one)):
        done = sentkit("score", *flags, stdin=rows)
        assert (done.code, done.out, done.err) == (0, b"", "")


@metrics
def test_the_matrix_has_all_similarities(sentkit, sentences_with_vectors, vectors, metric):
    done = sentkit("score", "--matrix", "--metric", metric, stdin=sentences_with_vectors)
    expected = [[BY_HAND[metric](a, b) for b in vectors] for a in vectors]

    assert [list(row) for row in done.rows] == [["text", "similarities"]] * 12
    assert np.abs(done.vectors("similarities") - expected).max() < 1e-5


def test_a_matrix_of_too_many_is_wrong_usage(sentkit, monkeypatch, sentences_with_vectors):
    monkeypatch.setattr("sentkit.metrics.neighbours.pairs.LARGEST_MATRIX", 11)
    done = sentkit("score", "--matrix", stdin=sentences_with_vectors)

    assert done.code == 2
    assert done.err == "sentkit score: --matrix accepts up to 11 rows; the input has more\n"


def test_fields_are_mapped(sentkit):
    """Vectors and texts under other names, which go where they would go under ours."""
    rows = b'{"title":"x","v":[1,0]}\n{"title":"y","v":[1,1]}\n'
    flags = ("--field", "text=title", "--field", "embedding=v")
    closest, matrix = sentkit("score", *flags, stdin=rows), sentkit("score", "--matrix", *flags, stdin=rows)

    assert (closest.rows[0]["text_a"], closest.rows[0]["text_b"]) == ("x", "y")
    assert list(matrix.rows[0]) == ["title", "similarities"]
