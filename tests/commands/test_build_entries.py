"""`sentkit build-entries`: the vector of an entry, its input rows, and the record of its origin."""

import numpy as np
import pytest

from support import in_jsonl

ROWS = [
    ("cat", "a small animal that purrs"),
    ("ice cream", "a frozen dessert, sweet and made of milk"),
    ("cat", "an informal term for a youth or man"),
    ("dog", "a member of the genus Canis"),
    ("Cat", "a given name"),
    ("cat", "a whip with nine knotted cords"),
    ("ice cream", "what children ask for"),
    ("cat", "a small animal that purrs"),  # the same again counts twice
]
COUNTS = [("cat", 4), ("ice cream", 2), ("dog", 1), ("Cat", 1)]


def counts_of(done):
    return [(row["entry"], row["definitions"]) for row in done.rows]


def dictionary(rows):
    return in_jsonl(*({"pos": "n", "entry": e, "definition": d} for e, d in rows)).encode()


STREAM = dictionary(ROWS)


@pytest.fixture
def build(sentkit, tiny):
    def run(*arguments, model=tiny, stdin=STREAM):
        return sentkit("build-entries", "-q", "-m", model, *arguments, stdin=stdin)

    return run


@pytest.fixture
def expected(sentkit, tiny):
    """Entries by `encode` and loops: an entry's average in float64 of its definitions' vectors."""

    def make(*arguments, model=tiny, rows=ROWS):
        flags = ("--precision", "fp32", "--field", "text=definition")
        done = sentkit("encode", "-q", "-m", model, *flags, *arguments, stdin=dictionary(rows))
        sums = {}
        for row in done.rows:
            sums.setdefault(row["entry"], []).append(row["embedding"])
        means = [[sum(axis) / len(own) for axis in zip(*own, strict=True)] for own in sums.values()]
        return np.array(means, np.float32)

    return make


@pytest.mark.parametrize("readout", ["cls", "mean-last2", "pooler", "prompt"])
def test_an_entry_is_the_average_of_what_encode_gives(build, expected, readout):
    """In the order of first sight; an entry may come again anywhere, and one definition is its
    vector.
    """
    done = build("--readout", readout)

    assert done.code == 0
    assert counts_of(done) == COUNTS
    assert list(done.rows[0]) == ["entry", "definitions", "_emb", "embedding"]
    assert np.abs(done.vectors() - expected("--readout", readout)).max() < 1e-5


def test_groups_do_not_matter(build, expected, monkeypatch):
    """An entry's definitions may come in groups far apart."""
    monkeypatch.setattr("sentkit.model.encoding.FIRST_GROUP", 2)
    monkeypatch.setattr("sentkit.model.encoding.LAST_GROUP", 3)
    rows = ROWS * 3 + [("zebra", "striped")] + ROWS
    done = build("--readout", "mean", stdin=dictionary(rows))

    assert counts_of(done) == [*((entry, 4 * count) for entry, count in COUNTS), ("zebra", 1)]
    assert np.abs(done.vectors() - expected("--readout", "mean", rows=rows)).max() < 1e-5
