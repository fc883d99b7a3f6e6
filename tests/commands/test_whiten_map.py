"""`whiten fit --kind map`: the file, and comparisons of mapped vectors with --mapped."""

import json
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file
from scipy.linalg import orthogonal_procrustes

from sentkit.formats.vectors.fingerprint import digest
from sentkit.metrics.comparison.space_map import hashes_of
from sentkit.transforms.steps import read_transform

OLD = "old/mean:0a1b00000000"
NEW = "new/cls/n:9f0000000000"
FIT = ("whiten", "fit", "--kind", "map", "old.jsonl", "new.jsonl", "-o", "map.safetensors")


def rows_of(vectors, emb, ids=None):
    ids = range(len(vectors)) if ids is None else ids
    named = {} if emb is None else {"_emb": emb}
    return [
        {"id": int(i), "text": f"text {i}", **named, "embedding": vector.tolist()}
        for i, vector in zip(ids, vectors, strict=True)
    ]


@pytest.fixture
def spaces(jsonl, tmp_path):
    """300 vectors in two spaces of 4 numbers, the new ones rotated, shifted, and a bit noisy."""
    random = np.random.default_rng(0)
    old = random.normal(size=(300, 4)).astype(np.float32)
    rotation, _ = np.linalg.qr(random.normal(size=(4, 4)))
    new = (old @ rotation + 0.05 * random.normal(size=(300, 4)) + [1, 0, 2, 0]).astype(np.float32)
    (tmp_path / "old.jsonl").write_bytes(jsonl(*rows_of(old, OLD)))
    (tmp_path / "new.jsonl").write_bytes(jsonl(*rows_of(new, NEW)))
    return old, new


def note_of(path):
    with safe_open(path, "np") as file:
        return json.loads(file.metadata()["sentkit"])


def test_the_file_has_the_map_and_its_measures(sentkit, spaces):
    """It is the solution of scipy for the texts that are not held out."""
    old, new = spaces
    done = sentkit(*FIT)
    tensors, note = load_file("map.safetensors"), note_of("map.safetensors")
    is_fitted = hashes_of(old) % 10 != 0
    mean_old = old[is_fitted].astype(np.float64).mean(axis=0)
    mean_new = new[is_fitted].astype(np.float64).mean(axis=0)
    kernel, _ = orthogonal_procrustes(old[is_fitted] - mean_old, new[is_fitted] - mean_new)
    held_out = old[~is_fitted]
    mapped = (held_out - mean_old) @ kernel + mean_new
    cosines = np.vecdot(mapped, new[~is_fitted]) / (
        np.linalg.norm(mapped, axis=1) * np.linalg.norm(new[~is_fitted], axis=1)
    )

    assert (done.code, done.out) == (0, b"")
    assert tensors["kernel"] == pytest.approx(kernel, abs=1e-9)
    assert tensors["bias"][0] == pytest.approx(-mean_old, abs=1e-12)
    assert tensors["offset"] == pytest.approx(mean_new, abs=1e-12)
    assert (note["_emb"], note["target"], note["method"]) == (OLD, NEW, "orthogonal")
    assert note["vectors"] == is_fitted.sum()
    assert note["held_out"]["vectors"] == len(held_out)
    assert note["held_out"]["cosine"]["mean"] == pytest.approx(cosines.mean(), abs=1e-6)
    assert [record["blake2b"] for record in note["inputs"]] == [
        blake2b(vectors.tobytes(), digest_size=16).hexdigest() for vectors in (old, new)
    ]
    assert done.err.startswith(
        "sentkit whiten fit: orthogonal map of 4 to 4 numbers, fitted to "
        f"{is_fitted.sum()} vectors; on {len(held_out)} held-out ones: cosine {cosines.mean():.4f}"
    )


def test_mapped_vectors_have_a_space_of_their_own(sentkit, spaces):
    """NEW~mapped:HASH, with the hash of a checkpoint that has the map. It is not applied twice."""
    old, _ = spaces
    sentkit(*FIT)
    step = read_transform("map.safetensors")
    mapped = f"{NEW}~mapped:{digest(['0a1b00000000', step.hash])}"
    done = sentkit("whiten", "apply", "-t", "map.safetensors", "old.jsonl", "-o", "m.jsonl")
    rows = [json.loads(line) for line in Path("m.jsonl").read_text().splitlines()]

    assert done.code == 0
    assert {row["_emb"] for row in rows} == {mapped}
    assert np.array([row["embedding"] for row in rows]) == pytest.approx(step(old), abs=1e-6)
    again = sentkit("whiten", "apply", "-t", "map.safetensors", "m.jsonl")
    assert again.code == 65
    refused = sentkit("whiten", "apply", "-t", "map.safetensors", "new.jsonl")
    assert "fitted on old/mean (0a1b…), but the vectors are new/cls/n (9f00…)" in refused.err


def test_they_are_compared_with_the_new_space_only_with_mapped(sentkit, spaces):
    sentkit(*FIT)
    sentkit("whiten", "apply", "-t", "map.safetensors", "old.jsonl", "-o", "m.jsonl")
    sentkit("cluster", "new.jsonl", "-k", "3", "--centroids", "c.jsonl", "-o", "n.jsonl")
    advice = "search, score and cluster compare mapped vectors with --mapped"
    note = "mapped vectors are compared with those of the other space"
    commands = [
        ["search", "--corpus", "m.jsonl", "--queries", "new.jsonl"],
        ["search", "--corpus", "new.jsonl", "--queries", "m.jsonl"],
        ["score", "new.jsonl", "m.jsonl"],
        ["cluster", "m.jsonl", "--from-centroids", "c.jsonl"],
        ["cluster", "m.jsonl", "new.jsonl", "-k", "2"],
    ]
    for command in commands:
        refused = sentkit(*command)
        assert (refused.code, refused.err.splitlines()[-1].strip()) == (65, advice)
        done = sentkit(*command, "--mapped", "-v")
        assert (done.code, done.err.count(note)) == (0, 1), command
        assert sentkit(*command, "--mapped").err.count("warning") == 0
    same = sentkit("score", "new.jsonl", "new.jsonl", "--mapped", "-v")
    assert (same.code, note in same.err) == (0, False)
    old = sentkit("search", "--corpus", "m.jsonl", "--queries", "old.jsonl", "--mapped")
    assert old.code == 65


def test_the_hits_are_those_of_the_mapped_vectors(sentkit, spaces):
    old, new = spaces
    sentkit(*FIT)
    sentkit("whiten", "apply", "-t", "map.safetensors", "old.jsonl", "-o", "m.safetensors")
    mapped = read_transform("map.safetensors")(old)
    unit = mapped / np.linalg.norm(mapped, axis=1, keepdims=True)
    done = sentkit(
        "search", "--corpus", "m.safetensors", "--queries", "new.jsonl", "--mapped", "--top", "1"
    )

    best = [row["hits"][0]["row"] - 1 for row in done.rows]
    assert best == (unit @ new.T).argmax(axis=0).tolist()


def test_signs_of_mapped_vectors_are_of_the_signs_of_the_new_space(sentkit, spaces):
    sentkit(*FIT)
    sentkit("whiten", "apply", "-t", "map.safetensors", "old.jsonl", "-o", "m.jsonl")
    sentkit("cat", "m.jsonl", "--store", "binary", "-o", "signs.safetensors")
    command = ["search", "--corpus", "signs.safetensors", "--queries", "new.jsonl"]

    assert sentkit(*command).code == 65
    assert sentkit(*command, "--mapped").code == 0
    assert sentkit("search", "--corpus", "signs.safetensors", "--queries", "m.jsonl").code == 0


def test_a_query_of_the_new_model_needs_mapped(sentkit, tmp_path):
    """Also if the corpus records the old model: the map does not fit the vectors of the new one."""
    texts = "".join(f"sentence {number} of {number % 7} dogs\n" for number in range(300))
    (tmp_path / "t.txt").write_text(texts)
    sentkit("encode", "t.txt", "-m", "static", "-o", "old.safetensors")
    sentkit("encode", "t.txt", "-m", "nano", "-o", "new.safetensors")
    fit = sentkit(*FIT[:4], "old.safetensors", "new.safetensors", *FIT[6:])
    assert fit.code == 0, fit.err
    sentkit(
        "whiten", "apply", "-t", "map.safetensors", "old.safetensors", "-o", "corpus.safetensors"
    )
    search = ("search", "a dog", "--corpus", "corpus.safetensors", "-m")
    new = sentkit(*search, "nano")
    other = sentkit(*search, "static", "--mapped")

    assert (new.code, new.told[1:]) == (
        65,
        ["  search, score and cluster compare mapped vectors with --mapped"],
    )
    assert [sentkit(*search, "nano", "--mapped").code, sentkit(*search, "static").code] == [0, 0]
    assert other.code == 65


def test_rows_are_matched_by_a_field(sentkit, spaces, jsonl, tmp_path):
    """In any order, the same vectors are held out, and the sums differ only by rounding."""
    _, new = spaces
    order = np.random.default_rng(1).permutation(len(new))
    (tmp_path / "shuffled.jsonl").write_bytes(jsonl(*rows_of(new[order], NEW, order)))
    sentkit(*FIT)
    by_key = ["whiten", "fit", "--kind", "map", "old.jsonl", "shuffled.jsonl", "--key", "id"]
    done = sentkit(*by_key, "-o", "by_key.safetensors")

    assert done.code == 0
    expected = load_file("map.safetensors")["kernel"]
    assert load_file("by_key.safetensors")["kernel"] == pytest.approx(expected, abs=1e-10)
    by_order = sentkit(
        "whiten", "fit", "--kind", "map", "old.jsonl", "shuffled.jsonl", "-o", "x.safetensors"
    )
    assert by_order.code == 65
    assert '"text" differs from row 1 of old.jsonl' in by_order.err


def test_rows_without_a_partner_are_counted(sentkit, spaces, jsonl, tmp_path):
    old, new = spaces
    (tmp_path / "old.jsonl").write_bytes(jsonl(*rows_of(old[:298], OLD)))
    (tmp_path / "new.jsonl").write_bytes(jsonl(*rows_of(new[3:], NEW, range(3, 300))))
    done = sentkit(*FIT, "--key", "id")

    assert note_of("map.safetensors")["inputs"][0]["vectors"] == 295
    reason = 'rows have no row with their "id" in the other file, and are left out'
    assert done.told[:2] == [
        f"sentkit whiten fit: warning: old.jsonl: 3 {reason}",
        f"sentkit whiten fit: warning: new.jsonl: 2 {reason}",
    ]


def test_spaces_of_two_widths_have_a_ridge_map(sentkit, spaces, jsonl, tmp_path):
    """Vector files and rows give the same map; vectors without _emb have the space "unnamed"."""
    _, new = spaces
    (tmp_path / "new.jsonl").write_bytes(jsonl(*rows_of(new[:, :3], None)))
    sentkit("cat", "new.jsonl", "-o", "new.safetensors")
    done = sentkit(*FIT)
    sentkit(*FIT[:5], "new.safetensors", "-o", "b.safetensors")
    sentkit("whiten", "apply", "-t", "map.safetensors", "old.jsonl", "-o", "m.jsonl")
    row = json.loads((tmp_path / "m.jsonl").read_bytes().splitlines()[0])

    assert done.err.startswith("sentkit whiten fit: ridge map (penalty ")
    assert note_of("map.safetensors")["method"] == "ridge"
    a, b = load_file("map.safetensors"), load_file("b.safetensors")
    assert all(np.array_equal(a[name], b[name]) for name in a)
    assert len(row["embedding"]) == 3
    assert row["_emb"].startswith("unnamed:")
    search = ["search", "--corpus", "m.jsonl", "--queries", "new.jsonl"]
    assert [sentkit(*search).code, sentkit(*search, "--mapped").code] == [65, 0]


def test_zero_vectors_are_left_out_and_stay_zero(sentkit, spaces, jsonl, tmp_path):
    old, _ = spaces
    old = old.copy()
    old[7] = 0
    (tmp_path / "old.jsonl").write_bytes(jsonl(*rows_of(old, OLD)))
    done = sentkit(*FIT)
    applied = sentkit("whiten", "apply", "-t", "map.safetensors", "old.jsonl")

    assert "warning: 1 of 300 vectors are zero on a side" in done.err
    assert applied.rows[7]["embedding"] == [0, 0, 0, 0]


def test_what_cannot_be_mapped(sentkit, spaces, jsonl, tmp_path):
    old, new = spaces
    (tmp_path / "few.jsonl").write_bytes(jsonl(*rows_of(new[:20], NEW)))
    (tmp_path / "few_old.jsonl").write_bytes(jsonl(*rows_of(old[:20], OLD)))
    (tmp_path / "equal.jsonl").write_bytes(jsonl(*rows_of(np.ones((300, 4)), NEW)))
    fit = ("whiten", "fit", "--kind", "map", "-o", "map.safetensors")
    cases = {
        ("few_old.jsonl", "few.jsonl"): "20 texts are too few for a map: one in 10 is held out",
        ("old.jsonl", "equal.jsonl"): "all vectors are equal, so there is nothing to fit",
        ("old.jsonl", "few.jsonl"): "few.jsonl: 20 rows, but old.jsonl has more",
        ("old.jsonl",): "--kind map needs two files, not 1",
        ("old.jsonl", "old.jsonl"): "--kind map needs two different files",
    }
    for files, problem in cases.items():
        done = sentkit(*fit, *files)
        assert (done.code != 0, problem in done.err) == (True, True), done.err
        assert not (tmp_path / "map.safetensors").exists()
    sentkit(*FIT)
    merged = sentkit("whiten", "fit", "--kind", "merge", "map.safetensors", "-o", "x.safetensors")
    assert "contains no moments, so it cannot be merged" in merged.err
