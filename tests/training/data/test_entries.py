"""The entries to predict: reading of both kinds of files, and refusals."""

import json
from dataclasses import replace

import numpy as np
import pytest

from sentkit.errors import DataError
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.store import Store
from sentkit.formats.vectors.vector_file import create_vector_file
from sentkit.papers.defsent.plus import DefSentPlus, read_entries
from sentkit.training.data.corpus import write_corpus
from sentkit.training.data.examples import ExampleParser
from support import in_jsonl
from training.small import entries_in

NAMES = ["cat", "a hot dog", "Cat", "tür"]
EMB = "dict/mean:0123456789ab"


def write_rows(path, *rows):
    path.write_text(in_jsonl(*rows))
    return str(path)


def test_both_kinds_of_files_give_the_same(tmp_path):
    """Names in the order of the file, vectors and a hash; a vector file says more of where they come from."""
    vectors = entries_in(tmp_path / "e.safetensors", NAMES, _emb=EMB, model="dict", tokenizer="t")
    named = zip(NAMES, vectors.tolist(), strict=True)
    rows = ({"entry": name, "embedding": vector, "_emb": EMB} for name, vector in named)
    path = write_rows(tmp_path / "e.jsonl", *rows)
    store, lines = read_entries(str(tmp_path / "e.safetensors")), read_entries(path)

    assert dict(store.places) == dict(lines.places) == {name: n for n, name in enumerate(NAMES)}
    assert np.array_equal(store.vectors, vectors)
    assert np.array_equal(lines.vectors, vectors)
    assert store.vectors.shape == (4, 16)
    assert store.hash == lines.hash
    assert store.space == lines.space == "0123456789ab"
    assert store.lineage.items() >= {"hash": store.hash, "count": 4, "_emb": EMB, "model": "dict"}.items()


def test_the_hash_is_of_names_vectors_and_their_space(tmp_path):
    def hash_of(names=NAMES, emb=EMB, **given):
        entries_in(tmp_path / "e.safetensors", names, _emb=emb, **given)
        return read_entries(str(tmp_path / "e.safetensors")).hash

    found = [
        hash_of(),
        hash_of(seed=1),
        hash_of(NAMES[::-1]),
        hash_of(["cat", "a hot dog", "Cat", "tuer"]),
        hash_of(emb="dict/mean:ba9876543210"),
    ]

    assert hash_of(model="elsewhere", readout="mean") == found[0]
    assert len(set(found)) == len(found)


def test_a_hash_is_of_all_blocks(tmp_path):
    """Of more rows than are read at once, the last one counts too."""
    names = [f"entry {n}" for n in range(5000)]
    vectors = entries_in(tmp_path / "a.safetensors", names, width=2)
    vectors[-1, -1] += 1
    entries_in(tmp_path / "b.safetensors", names, vectors=vectors)
    a, b = (read_entries(str(tmp_path / f"{name}.safetensors")) for name in "ab")

    assert a.hash != b.hash
    assert b.vectors[-1].tolist() == vectors[-1].tolist()


def test_a_vector_file_is_mapped_and_stays_as_it_is(tmp_path):
    """torch may write into the memory, the file does not see it."""
    path = tmp_path / "e.safetensors"
    entries_in(path, NAMES)
    before = path.read_bytes()
    entries = read_entries(str(path))
    entries.vectors[0] = 7

    assert entries.space == ""
    assert path.read_bytes() == before
    assert not entries.vectors.flags.owndata


A = {"entry": "a", "embedding": [1, 2]}
BAD = [
    ([{"embedding": [1, 2]}], '1: "entry" is missing'),
    ([{"entry": 7, "embedding": [1, 2]}], '1: "entry" is a number, expected a string'),
    ([{"entry": "a"}], "1: this row has no vector"),
    ([A, {**A, "embedding": [3, 4]}], '2: the entry "a" occurs twice'),
    ([A, {"entry": "b", "embedding": [3]}], "2: this vector has 1 numbers"),
    ([{**A, "embedding": [1, float("inf")]}], "1: "),
    ([{**A, "_emb": EMB}, {**A, "entry": "b"}], "2: the vectors of this row are without _emb"),
    ([{"entry": "a", "embedding_a": [1], "embedding_b": [1]}], "1: expected 1 vector"),
]  # fmt: skip


@pytest.mark.parametrize(("rows", "problem"), BAD, ids=[each[1][:30] for each in BAD])
def test_entries_that_are_none(tmp_path, rows, problem):
    path = write_rows(tmp_path / "e.jsonl", *rows)
    with pytest.raises(DataError) as caught:
        read_entries(path)

    assert str(caught.value).startswith(f"{path}:{problem}")


@pytest.mark.parametrize("kind", ["float16", "int8", "binary"])
def test_entries_of_each_kind_are_those_of_their_float32_copy(tmp_path, kind):
    vectors = np.random.default_rng(1).normal(size=(3, 1, 9)).astype(np.float32)
    lines = [b'{"entry":"%d"}' % number for number in range(3)]

    def write(name, spec, rows, kind):
        path = str(tmp_path / name)
        with create_vector_file(path, spec, ("embedding",), width=9, force=False, kind=kind) as store:
            for line, vector in zip(lines, rows, strict=True):
                store.write([line], vector[None])
        return path

    stored = write("stored.safetensors", {"_emb": EMB}, vectors, kind)
    [decoded] = Store(stored).blocks()
    copy = read_entries(write("copy.safetensors", Store(stored).spec, decoded, "float32"))
    found = read_entries(stored)

    assert (found.hash, found.places) == (copy.hash, copy.places)
    np.testing.assert_array_equal(found.vectors, decoded[:, 0])


@pytest.mark.parametrize(
    ("names", "fields", "problem"),
    [
        ("cat dog cat", ("embedding",), '3: the entry "cat" occurs twice'),
        ("cat", ("embedding_a", "embedding_b"), "1: expected 1 vector, this row has 2"),
    ],
)
def test_bad_rows_of_a_vector_file_are_refused(tmp_path, names, fields, problem):
    path = str(tmp_path / "e.safetensors")
    with create_vector_file(path, {}, fields, width=2, force=False) as store:
        for name in names.split():
            line = in_jsonl({"entry": name}).strip().encode()
            store.write([line], np.ones((1, len(fields), 2), np.float32))
    with pytest.raises(DataError, match=f"safetensors:{problem}"):
        read_entries(path)


@pytest.mark.parametrize("name", ["e.jsonl", "e.safetensors"])
def test_a_file_without_entries(tmp_path, name):
    path = tmp_path / name
    entries_in(path, [], vectors=np.empty((0, 4))) if name.endswith("s") else path.write_text("")
    with pytest.raises(DataError, match=f"no rows in .*{name}"):
        read_entries(str(path))


@pytest.mark.parametrize(
    ("spec", "mismatch"),
    [
        ({"entries": {"family": "roberta"}}, "dict (roberta), but the base is bert"),
        ({"tokenizer": "other"}, "dict, which has another tokenizer than the base"),
        ({"model": None, "tokenizer": None, "entries": "hostile"}, ""),
    ],
)
def test_entries_of_another_kind_of_model_are_reported(base, with_entries, spec, mismatch):
    """Another family, or another tokenizer. Entries without a recorded origin are accepted."""
    spec = {"model": "dict", "tokenizer": base.training_tokenizer.hash} | spec
    recorded = {name: value for name, value in spec.items() if value is not None}
    entries = with_entries(NAMES, **recorded).entries

    found = entries.mismatch(base.training_tokenizer.hash, "bert").partition(": ")[2]
    assert found == (mismatch and f"the entries were made with {mismatch}")


def targets_of(tmp_path, base, *rows, fields=None):
    path = write_rows(tmp_path / "rows.jsonl", *rows)
    parser = ExampleParser("defsent-plus", DefSentPlus.reads(base, DefSentPlus.Settings()), fields or {})
    write_corpus(tmp_path, Inputs([path]), parser, base.training_tokenizer)
    return np.load(tmp_path / "targets.npy").tolist()


def test_the_target_of_a_row_is_the_index_of_its_entry(tmp_path, with_entries):
    """By the names of the members that --field gives, too."""
    base, fields = with_entries(NAMES), {"entry": "word", "definition": "gloss"}
    rows = [{"entry": name, "definition": "a thing"} for name in ("tür", "cat", "Cat", "cat")]

    assert targets_of(tmp_path, base, *rows) == [3, 0, 2, 0]
    assert targets_of(tmp_path, base, {"word": "tür", "gloss": "x"}, fields=fields) == [3]
    with pytest.raises(DataError, match='the entry "none" is not in'):
        targets_of(tmp_path, base, {"word": "none", "gloss": "x"}, fields=fields)


WRONG = [
    ({"entry": "Dog", "definition": "x"}, 'the entry "Dog" is not in '),
    ({"entry": " cat", "definition": "x"}, 'the entry " cat" is not in '),
    ({"entry": "", "definition": "x"}, '"entry" is empty'),
    ({"entry": "cat", "definition": " \t"}, '"definition" is empty'),
    ({"entry": "cat", "definition": 3}, '"definition" is a number, expected a string'),
    ({"entry": ["cat"], "definition": "x"}, '"entry" is a list, expected a string'),
    ({"definition": "x"}, '"entry" is missing'),
    ({"entry": "cat"}, '"definition" is missing'),
]


@pytest.mark.parametrize(("row", "problem"), WRONG, ids=[each[1] for each in WRONG])
def test_rows_that_it_cannot_learn_from(tmp_path, with_entries, row, problem):
    good = {"entry": "cat", "definition": "a thing"}
    with pytest.raises(DataError) as caught:
        targets_of(tmp_path, with_entries(NAMES), good, row)

    assert str(caught.value).startswith(f"{tmp_path}/rows.jsonl:2: {problem}")


def test_one_matrix_serves_all_seeds(with_entries, tmp_path):
    """For both kinds of files, all methods use the entries that were read once."""
    base, rows = with_entries(NAMES), tmp_path / "entries.jsonl"
    pairs = zip(base.entries.places, base.entries.vectors.tolist(), strict=True)
    rows.write_text("".join(json.dumps({"entry": name, "embedding": row}) + "\n" for name, row in pairs))

    for each in (base, replace(base, entries=read_entries(str(rows)))):
        methods = [DefSentPlus.build(each, DefSentPlus.Settings()) for _ in range(2)]
        assert all(np.shares_memory(each.entries.vectors, own.entries.numpy()) for own in methods)
