"""`whiten fit`: the file, messages, and refusals."""

import json
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from sentkit.transforms.kinds import KINDS

FOUR = [[2, 1], [0, 1], [1, 3], [3, 0]]
MERGE = ("whiten", "fit", "--kind", "merge")


@pytest.fixture
def written(jsonl, tmp_path):
    """Vectors as JSON lines in a file of this name, in this space."""

    def write(name, vectors, emb="m/cls:0a1b00000000"):
        named = {} if emb is None else {"_emb": emb}
        rows = [{"text": "x", **named, "embedding": np.asarray(v).tolist()} for v in vectors]
        (tmp_path / name).write_bytes(jsonl(*rows))
        return name

    return write


def note_of(path):
    with safe_open(path, "np") as file:
        return json.loads(file.metadata()["sentkit"])


def test_the_file_has_the_transform_and_its_origin(sentkit, written):
    """X = [[2,1],[0,1],[1,3],[3,0]]. The hash is blake2b, 16 bytes, of the float32 numbers in
    order.
    """
    written("x.jsonl", FOUR)
    result = sentkit("whiten", "fit", "./x.jsonl", "-o", "t.safetensors")
    tensors = load_file("t.safetensors")
    note = note_of("t.safetensors")
    white = (np.array(FOUR) + tensors["bias"]) @ tensors["kernel"]

    assert (result.code, result.out, result.err) == (0, b"", "")
    assert np.cov(white.T) == pytest.approx(np.eye(2), abs=1e-12)
    assert {array.dtype for array in tensors.values()} == {np.dtype("float64")}
    assert tensors["bias"].tolist() == [[-1.5, -1.25]]
    assert (tensors["count"].tolist(), tensors["mean"].tolist()) == ([4], [1.5, 1.25])
    assert tensors["scatter"].tolist() == [[5, -2.5], [-2.5, 4.75]]
    sizes = {"rows": 4, "vectors": 4, "width": 2, "kept": 2, "dim": 2}
    numbers = np.array(FOUR, "<f4").tobytes()
    digest = blake2b(numbers, digest_size=16).hexdigest()
    origin = {
        "_emb": "m/cls:0a1b00000000",
        "inputs": [{"file": "x.jsonl", "rows": 4, "blake2b": digest}],
    }
    assert note == {"kind": "whitening"} | origin | sizes


@pytest.mark.parametrize("kind", [*KINDS, "ica", "flow"])
def test_every_kind_is_deterministic(sentkit, written, kind, tmp_path):
    """The folder of the input does not matter; a vector file gives the same numbers. `inspect`
    shows each.
    """
    vectors = np.random.default_rng(0).laplace(size=(300, 6)) @ np.diag([1, 2, 3, 4, 5, 6]) + 2
    path = written("many.jsonl", vectors.astype(np.float32))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/many.jsonl").write_bytes((tmp_path / path).read_bytes())
    sentkit("cat", path, "-o", "many.safetensors")
    for source, name in ((path, "a"), ("folder/many.jsonl", "b"), ("many.safetensors", "c")):
        result = sentkit("whiten", "fit", source, "--kind", kind, "-o", f"{name}.safetensors")
        assert (result.code, result.err) == (0, "")
    a, b, c = (tmp_path / f"{name}.safetensors" for name in "abc")

    assert a.read_bytes() == b.read_bytes()
    assert all(np.array_equal(value, load_file(c)[name]) for name, value in load_file(a).items())
    assert note_of(a)["kind"] == kind
    assert note_of(a)["inputs"][0]["blake2b"] == note_of(c)["inputs"][0]["blake2b"]
    record = sentkit("inspect", "a.safetensors").rows[0]
    origin = {
        "kind": kind,
        "fitted_on": "m/cls:0a1b00000000",
        "mergeable": kind not in ("ica", "flow"),
    }
    expected = {**origin, "rows": 300, "width": 6, "kept": 6}
    assert {name: record[name] for name in expected} == expected
    assert record["inputs"][0]["file"] == path
    name, form = ("parameters", "F64 11424") if kind == "flow" else ("kernel", "F64 6 x 6")
    assert record["tensors"][name] == form


def test_all_vectors_of_a_row_are_used(sentkit, jsonl, tmp_path):
    """Pairs and triplets are equal to rows in sequence."""
    random = np.random.default_rng(1)
    vectors = random.normal(size=(24, 2)).astype(np.float32).tolist()
    triplets = [
        {"embedding_anchor": anchor, "embedding_positive": positive, "embedding_negative": negative}
        for anchor, positive, negative in zip(*[iter(vectors)] * 3, strict=True)
    ]
    pairs = [
        {"embedding_a": a, "embedding_b": b} for a, b in zip(*[iter(vectors)] * 2, strict=True)
    ]
    for rows in (triplets, pairs, [{"embedding": vector} for vector in vectors]):
        sentkit("whiten", "fit", "-o", f"{len(rows)}.safetensors", stdin=jsonl(*rows))
    notes = {rows: note_of(f"{rows}.safetensors") for rows in (8, 12, 24)}

    assert len({load_file(f"{rows}.safetensors")["kernel"].tobytes() for rows in notes}) == 1
    assert [(note["rows"], note["vectors"]) for note in notes.values()] == [
        (8, 24),
        (12, 24),
        (24, 24),
    ]
    assert notes[8]["_emb"] is None
    assert notes[8]["inputs"][0]["file"] == "-"


@pytest.mark.parametrize("kind", [*KINDS, "ica", "flow"])
def test_zero_vectors_are_left_out(sentkit, written, kind):
    """Those of blank texts, which remain zero in every space."""
    vectors = np.random.default_rng(0).laplace(size=(300, 6)).astype(np.float32) + 2
    with_zeros = np.insert(vectors, [0, 7, 300], 0, axis=0)
    written("few.jsonl", vectors)
    written("zeros.jsonl", with_zeros)
    fitted = [
        sentkit("whiten", "fit", f"{name}.jsonl", "--kind", kind, "-o", f"{name}.safetensors")
        for name in ("few", "zeros")
    ]
    expected, arrays = load_file("few.safetensors"), load_file("zeros.safetensors")

    assert fitted[0].err == ""
    assert fitted[1].told == [
        "sentkit whiten fit: warning: 3 of 303 vectors are zero, as those of empty texts are, and "
        "are left out"
    ]
    assert arrays.keys() == expected.keys()
    for name, array in arrays.items():
        assert np.allclose(array, expected[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["whitening", "abtt"])
def test_a_merge_equals_one_fit(sentkit, written, kind):
    """Identical for the same files in the same order; within 1e-9 for all rows in one file."""
    vectors = (np.random.default_rng(2).normal(size=(900, 6)) ** 3 + 100).astype(np.float32)
    shards = np.split(vectors, [100, 117])
    names = [written(f"{n}.jsonl", shard) for n, shard in enumerate(shards)]
    whole = written("all.jsonl", vectors)
    flags = ("--kind", kind)
    for name in names:
        sentkit("whiten", "fit", name, *flags, "-o", f"{name}.safetensors")
    sentkit("whiten", "fit", whole, *flags, "-o", "whole.safetensors")
    sentkit("whiten", "fit", *names, *flags, "-o", "together.safetensors")
    result = sentkit(*MERGE, *(f"{name}.safetensors" for name in names), "-o", "merged.safetensors")
    merged = load_file("merged.safetensors")
    expected = load_file("whole.safetensors")

    assert (result.code, result.err) == (0, "")
    assert Path("merged.safetensors").read_bytes() == Path("together.safetensors").read_bytes()
    for name, value in expected.items():
        assert np.allclose(merged[name], value, rtol=1e-9, atol=1e-9), name


def test_shards_of_low_rank_merge_to_full_rank(sentkit, written):
    """Each of three shards spans one direction, with a warning; together they span both."""
    problem = "2 vectors of 2 numbers have only 1 independent directions after centering"
    vectors = np.array([[1, 0], [2, 0.5], [0, 3], [1, 1], [5, 5], [7, 1]])
    for n, shard in enumerate(np.split(vectors, 3)):
        result = sentkit("whiten", "fit", written(f"{n}.jsonl", shard), "-o", f"{n}.safetensors")
        assert result.told == [f"sentkit whiten fit: warning: {problem}: 1 of 2 are kept"]
    result = sentkit(*MERGE, *(f"{n}.safetensors" for n in range(3)), "-o", "all.safetensors")

    assert (result.code, result.err) == (0, "")
    assert note_of("all.safetensors")["kept"] == 2


UNLIKE = "the moments and the metadata do not match"


@pytest.mark.parametrize(
    ("note", "tensors", "problem"),
    [
        ({"width": 3}, {}, UNLIKE),
        ({"dim": "2"}, {}, UNLIKE),
        ({"inputs": 7}, {}, UNLIKE),
        ({"inputs": [7]}, {}, UNLIKE),
        ({"inputs": [{"rows": "4"}]}, {}, UNLIKE),
        ({}, {"mean": np.array([1.0, np.nan])}, UNLIKE),
        ({}, {"count": np.array([0.0])}, UNLIKE),
        ({}, {"count": np.array([np.inf])}, UNLIKE),
        ({}, {"scatter": np.eye(3)}, UNLIKE),
        ({}, {"mean": np.ones(3)}, UNLIKE),
        ({}, {"count": np.ones(2)}, UNLIKE),
        ({}, {"count": np.ones(1, bool)}, 'no tensor "count" of a supported type'),
    ],
)
def test_invalid_metadata_and_moments_are_refused(sentkit, written, note, tensors, problem):
    sentkit("whiten", "fit", written("x.jsonl", FOUR), "-o", "t.safetensors")
    metadata = {"sentkit": json.dumps({**note_of("t.safetensors"), **note})}
    save_file({**load_file("t.safetensors"), **tensors}, "u.safetensors", metadata)
    result = sentkit(*MERGE, "u.safetensors", "-o", "c.safetensors")

    assert (result.code, result.err) == (65, f"sentkit whiten fit: u.safetensors: {problem}\n")


@pytest.mark.parametrize("kind", ["whitening", "ica", "flow"])
def test_too_wide_vectors_are_refused(sentkit, kind):
    """The transform would have 20000 x 20000 numbers of 8 bytes."""
    row = b'{"embedding":[%b]}\n' % b",".join([b"1"] * 20000)
    result = sentkit("whiten", "fit", "--kind", kind, "-o", "t.safetensors", stdin=row)

    assert result.code == 65
    assert result.told == [
        "sentkit whiten fit: -: vectors of 20000 numbers: a transform accepts at most 4096"
    ]
