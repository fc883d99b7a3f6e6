"""The entries to predict: reading of both kinds of files, and refusals."""

import json
from dataclasses import replace

import numpy as np
import pytest

from sentkit.errors import DataError
from sentkit.formats.vectors.file_writer import create_vector_file
from sentkit.formats.vectors.vector_file import VectorFile
from sentkit.papers.defsent.plus import DefSentPlus, read_entries
from support import in_jsonl
from training.small import entries_in

NAMES = ["cat", "a hot dog", "Cat", "tür"]
EMB = "dict/mean:0123456789ab"


def write_rows(path, *rows):
    path.write_text(in_jsonl(*rows))
    return str(path)


def test_both_kinds_of_files_give_the_same(tmp_path):
    """Names in the order of the file, vectors and a hash; a vector file says more of where they
    come from.
    """
    vectors = entries_in(tmp_path / "e.safetensors", NAMES, _emb=EMB, model="dict", tokenizer="t")
    named = zip(NAMES, vectors.tolist(), strict=True)
    rows = ({"entry": name, "embedding": vector, "_emb": EMB} for name, vector in named)
    path = write_rows(tmp_path / "e.jsonl", *rows)
    store = read_entries(str(tmp_path / "e.safetensors"))
    lines = read_entries(path)

    assert (
        dict(store.row_of_name)
        == dict(lines.row_of_name)
        == {name: n for n, name in enumerate(NAMES)}
    )
    assert np.array_equal(store.vectors, vectors)
    assert np.array_equal(lines.vectors, vectors)
    assert store.vectors.shape == (4, 16)
    assert store.hash == lines.hash
    assert store.space == lines.space == "0123456789ab"
    assert (
        store.lineage.items()
        >= {"hash": store.hash, "count": 4, "_emb": EMB, "model": "dict"}.items()
    )


def test_the_hash_is_of_names_vectors_and_their_space(tmp_path):
    """Also of the last one of more rows than are read at once."""

    def hash_of(names=NAMES, emb=EMB, **options):
        entries_in(tmp_path / "e.safetensors", names, _emb=emb, **options)
        return read_entries(str(tmp_path / "e.safetensors")).hash

    many_names = [f"entry {n}" for n in range(5000)]
    vectors = np.ones((5000, 2))
    other_vectors = vectors.copy()
    other_vectors[-1, -1] = 2
    hashes = [
        hash_of(),
        hash_of(seed=1),
        hash_of(NAMES[::-1]),
        hash_of(["cat", "a hot dog", "Cat", "tuer"]),
        hash_of(emb="dict/mean:ba9876543210"),
        hash_of(many_names, vectors=vectors),
        hash_of(many_names, vectors=other_vectors),
    ]

    assert hash_of(model="elsewhere", readout="mean") == hashes[0]
    assert len(set(hashes)) == len(hashes)


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


@pytest.mark.parametrize("kind", ["float16", "int8", "binary"])
def test_entries_of_each_kind_are_those_of_their_float32_copy(tmp_path, kind):
    vectors = np.random.default_rng(1).normal(size=(3, 1, 9)).astype(np.float32)
    lines = [b'{"entry":"%d"}' % number for number in range(3)]

    def write(name, spec, rows, kind):
        path = str(tmp_path / name)
        with create_vector_file(
            path, spec, ("embedding",), width=9, force=False, kind=kind
        ) as store:
            for line, vector in zip(lines, rows, strict=True):
                store.write([line], vector[None])
        return path

    stored = write("stored.safetensors", {"_emb": EMB}, vectors, kind)
    [decoded] = VectorFile(stored).blocks()
    copy = read_entries(write("copy.safetensors", VectorFile(stored).metadata, decoded, "float32"))
    entries = read_entries(stored)

    assert (entries.hash, entries.row_of_name) == (copy.hash, copy.row_of_name)
    np.testing.assert_array_equal(entries.vectors, decoded[:, 0])


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

    reported = entries.mismatch(base.training_tokenizer.hash, "bert").partition(": ")[2]
    assert reported == (mismatch and f"the entries were made with {mismatch}")


def test_the_target_of_a_row_is_the_index_of_its_entry(with_entries, corpus_of):
    rows = [{"entry": name, "definition": "a thing"} for name in ("tür", "cat", "Cat", "cat")]
    corpus = corpus_of(DefSentPlus, rows, DefSentPlus.Settings(), with_entries(NAMES))

    assert corpus.targets.tolist() == [3, 0, 2, 0]


def test_one_matrix_serves_all_seeds(with_entries, tmp_path):
    """For both kinds of files, all methods use the entries that were read once."""
    base = with_entries(NAMES)
    rows = tmp_path / "entries.jsonl"
    pairs = zip(base.entries.row_of_name, base.entries.vectors.tolist(), strict=True)
    rows.write_text(
        "".join(json.dumps({"entry": name, "embedding": row}) + "\n" for name, row in pairs)
    )

    for base_with_entries in (base, replace(base, entries=read_entries(str(rows)))):
        methods = [DefSentPlus.build(base_with_entries, DefSentPlus.Settings()) for _ in range(2)]
        assert all(
            np.shares_memory(base_with_entries.entries.vectors, method.entries.numpy())
            for method in methods
        )
