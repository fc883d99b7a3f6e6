"""`sentkit build-entries`: the vector of an entry, its input rows, and the record of its origin."""

import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

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


def counts_of(result):
    return [(row["entry"], row["definitions"]) for row in result.rows]


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

    def average(*arguments, model=tiny, rows=ROWS):
        flags = ("--precision", "fp32", "--field", "text=definition")
        result = sentkit("encode", "-q", "-m", model, *flags, *arguments, stdin=dictionary(rows))
        vectors_of = {}
        for row in result.rows:
            vectors_of.setdefault(row["entry"], []).append(row["embedding"])
        means = []
        for vectors in vectors_of.values():
            columns = zip(*vectors, strict=True)
            means.append([sum(column) / len(vectors) for column in columns])
        return np.array(means, np.float32)

    return average


@pytest.mark.parametrize("readout", ["cls", "mean-last2", "pooler", "prompt"])
def test_an_entry_is_the_average_of_what_encode_gives(build, expected, readout):
    """In the order of first sight; an entry may come again anywhere, and one definition is its
    vector.
    """
    result = build("--readout", readout)

    assert result.code == 0
    assert counts_of(result) == COUNTS
    assert list(result.rows[0]) == ["entry", "definitions", "_emb", "embedding"]
    assert np.abs(result.vectors() - expected("--readout", readout)).max() < 1e-5


def test_groups_do_not_matter(build, expected, monkeypatch):
    """An entry's definitions may come in groups far apart."""
    monkeypatch.setattr("sentkit.model.groups.FIRST_GROUP", 2)
    monkeypatch.setattr("sentkit.model.groups.LAST_GROUP", 3)
    rows = ROWS * 3 + [("zebra", "striped")] + ROWS
    result = build("--readout", "mean", stdin=dictionary(rows))

    assert counts_of(result) == [*((entry, 4 * count) for entry, count in COUNTS), ("zebra", 1)]
    assert np.abs(result.vectors() - expected("--readout", "mean", rows=rows)).max() < 1e-5


def test_the_number_of_definitions_has_no_rejected_rows(build, tiny, copy_of, tmp_path):
    """The vector of a rejected row is not finite."""
    folder = copy_of(tiny, "damaged")
    weights = load_file(folder / "model.safetensors")
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    weights["embeddings.word_embeddings.weight"][vocabulary["dog"]] = np.inf
    save_file(weights, folder / "model.safetensors")
    stream = dictionary([("cat", "a cat"), ("dog", "a dog"), ("cat", "the cat")])
    flags = ("--rejects", "rejects.jsonl", "-o", "entries.safetensors")
    result = build("--readout", "mean", *flags, model=folder, stdin=stream)
    with safe_open("entries.safetensors", "np") as file:
        record = json.loads(file.metadata()["sentkit"])

    assert result.code == 0, result.err
    assert (tmp_path / "rejects.jsonl").read_text().count("\n") == 1
    assert record["entries"]["definitions"] == 2
