"""`sentkit build-entries`: the vector of an entry, its input rows, and the record of its origin."""

import gzip

import numpy as np
import pytest

from sentkit.formats.vectors.store import Store
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


def in_csv(rows):
    return b"entry,definition\n" + b"".join(f'{e},"{d}"\n'.encode() for e, d in rows)


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
    """In the order of first sight; an entry may come again anywhere, and one definition is its vector."""
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


def test_tables_rows_and_vector_files_give_the_same(build, sentkit, other, tmp_path):
    """By the names of their columns, in one file or in several."""
    lines = ["definition\tid\tentry", *(f"{definition}\t7\t{entry}" for entry, definition in ROWS)]
    (tmp_path / "a.tsv").write_text("\n".join(lines))
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(in_csv(ROWS)))
    (tmp_path / "b.csv").write_bytes(in_csv(ROWS[3:]))
    sentkit(*("encode", "-q", "-m", other, "--field", "text=definition", "-o", "a.safetensors"), stdin=STREAM)
    made = [build(name).out for name in ("a.tsv", "a.csv.gz", "a.safetensors")]

    assert {*made, build("-", "b.csv", stdin=dictionary(ROWS[:3])).out} == {build().out}


def test_nothing_is_cut_that_the_encoder_has_room_for(build, expected, sentkit, tiny):
    """Also if the checkpoint declares a length for sentences."""
    sentkit("export", "-q", "-m", tiny, "--readout", "mean", "--max-length", "6", "-o", "short")
    done = build(model="short")

    assert np.abs(done.vectors() - expected("--readout", "mean")).max() < 1e-5


@pytest.mark.parametrize("readout", ["mean", "L1:mean"])
def test_a_vector_file_has_the_same_vectors(build, sentkit, tiny, readout):
    """Beside the spec that `encode` writes, which has the space."""
    build("--readout", readout, "-o", "e.safetensors")
    flags = ("--readout", readout, "--precision", "fp32", "-o", "v.safetensors")
    sentkit("encode", "-q", "-m", tiny, *flags, stdin="a cat")
    entries = {name: value for name, value in Store("e.safetensors").spec.items() if name != "entries"}

    assert sentkit("cat", "e.safetensors").out == build("--readout", readout).out
    assert entries == Store("v.safetensors").spec


def test_the_file_names_the_source_of_the_entries(build, sentkit, tiny):
    sentkit("export", "-q", "-m", tiny, "--readout", "cls", "-o", "child")
    build("-o", "all.safetensors", model="child")
    build("-o", "words.safetensors", "--words-only", model="child")
    about = {"family": "bert", "parents": ["child", str(tiny)]}

    assert Store("all.safetensors").spec["entries"] == {"definitions": 8, "words_only": False, **about}
    assert Store("words.safetensors").spec["entries"] == {"definitions": 6, "words_only": True, **about}
