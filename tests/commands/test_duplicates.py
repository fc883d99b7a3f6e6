"""`duplicates`: pairs, groups and refusals."""

import numpy as np
import pytest

from support import BY_HAND

THRESHOLDS = {"cosine": 0.9, "dot": 25.0, "euclidean": -3.0, "manhattan": -5.0}
metrics = pytest.mark.parametrize("metric", BY_HAND)


@pytest.fixture
def vectors():
    """Forty vectors of three numbers, exact in float32; the last ten repeat earlier ones."""
    random = np.random.default_rng(3)
    own = (random.integers(-40, 40, (30, 3)) / 8).tolist()
    return own + [own[n] for n in random.integers(0, 30, 10)]


@pytest.fixture
def rows(vectors, jsonl):
    return jsonl(*({"id": n, "text": f"t{n}", "embedding": v} for n, v in enumerate(vectors)))


def by_loop(vectors, metric):
    """(row_a, row_b) of all pairs that reach the threshold, from 1."""
    numbered = list(enumerate(vectors, start=1))
    return [
        (i, j) for i, a in numbered for j, b in numbered[i:] if BY_HAND[metric](a, b) >= THRESHOLDS[metric]
    ]


def groups_of(vectors, metric):
    """The first row of the group of each row, from 1."""
    first = list(range(1, len(vectors) + 1))
    for _ in vectors:
        for i, j in by_loop(vectors, metric):
            first[i - 1] = first[j - 1] = min(first[i - 1], first[j - 1])
    return first


@metrics
def test_pairs_equal_those_of_a_loop(sentkit, rows, vectors, metric):
    """Each pair once, and no row with itself; the similarities have seven digits."""
    done = sentkit("duplicates", "--metric", metric, "--threshold", THRESHOLDS[metric], stdin=rows)
    expected = by_loop(vectors, metric)

    assert done.code == 0
    assert 10 < len(expected) < 300
    assert [(row["row_a"], row["row_b"]) for row in done.rows] == expected
    assert {tuple(row) for row in done.rows} == {("text_a", "text_b", "row_a", "row_b", "similarity")}
    for row, (i, j) in zip(done.rows, expected, strict=True):
        assert (row["text_a"], row["text_b"]) == (f"t{i - 1}", f"t{j - 1}")
        assert row["similarity"] == pytest.approx(BY_HAND[metric](vectors[i - 1], vectors[j - 1]), rel=1e-6)


@metrics
def test_groups_and_first_rows_equal_those_of_a_loop(sentkit, rows, vectors, metric):
    flags = ("--metric", metric, "--threshold", THRESHOLDS[metric])
    groups = sentkit("duplicates", *flags, "--groups", stdin=rows)
    unique = sentkit("duplicates", *flags, "--unique", stdin=rows)
    expected = groups_of(vectors, metric)
    texts = [{"id": n, "text": f"t{n}"} for n in range(40)]

    assert 1 < len(set(expected)) < 30
    assert groups.rows == [{**row, "group": first} for row, first in zip(texts, expected, strict=True)]
    assert unique.rows == [texts[first - 1] for first in sorted(set(expected))]


def test_shown_fields_and_rows_keep_their_bytes(sentkit):
    lines = (
        '{"x": 1.10, "id":12345678901234567890,"embedding":[1,0]}\n'
        '{"x":"\\u00e9","embedding":[1,0],"y":2.50}\n'
    )
    pair = sentkit("duplicates", "--threshold", 1, "--show", "x", "--show", "id", stdin=lines)
    groups = sentkit("duplicates", "--threshold", 1, "--groups", stdin=lines)
    unique = sentkit("duplicates", "--threshold", 1, "--unique", stdin=lines)

    assert pair.out == (
        b'{"x_a":1.10,"id_a":12345678901234567890,"x_b":"\\u00e9","row_a":1,"row_b":2,"similarity":1.0}\n'
    )
    assert (
        groups.out
        == b'{"x": 1.10, "id":12345678901234567890,"group":1}\n{"x":"\\u00e9","y":2.50,"group":1}\n'
    )
    assert unique.out == b'{"x": 1.10, "id":12345678901234567890}\n'


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ((), "missing option '--threshold'"),
        (("--threshold", 2), "--threshold 2: expected a number from -1 to 1"),
        (("--threshold", 1, "--unique", "--json"), "--json cannot be used with --unique"),
        (("--threshold", 1, "--show", "row"), "--show row: every pair has this field"),
        (("--threshold", 1, "-o", "x.safetensors"), "x.safetensors: this output cannot be a vector file"),
    ],
)
def test_invalid_flags(sentkit, flags, problem):
    done = sentkit("duplicates", *flags)

    assert done.code == 2
    assert done.told[0].startswith(f"sentkit duplicates: {problem}")


def test_pairs_are_refused(sentkit):
    done = sentkit("duplicates", "--threshold", 1, stdin='{"embedding_a":[1],"embedding_b":[1]}')

    assert done.told == ["sentkit duplicates: -:1: expected 1 vector, this row has 2"]
    assert done.code == 65


def test_a_shown_field_that_no_row_has_is_refused(sentkit, rows):
    done = sentkit("duplicates", "--threshold", 1, "--show", "lable", stdin=rows)

    assert done.told == ['sentkit duplicates: -: no row has "lable"']
