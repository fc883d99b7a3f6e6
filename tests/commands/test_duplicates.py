"""`duplicates`: pairs, groups and refusals."""

import json

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
def test_pairs_groups_and_first_rows_equal_those_of_a_loop(sentkit, rows, vectors, metric):
    """Each pair once, and no row with itself; the similarities have seven digits."""
    flags = ("duplicates", "--metric", metric, "--threshold", THRESHOLDS[metric])
    done, groups, unique = (sentkit(*flags, *more, stdin=rows) for more in ((), ["--groups"], ["--unique"]))
    expected, first = by_loop(vectors, metric), groups_of(vectors, metric)
    texts = [{"id": n, "text": f"t{n}"} for n in range(40)]

    assert done.code == 0
    assert 10 < len(expected) < 300
    assert [(row["row_a"], row["row_b"]) for row in done.rows] == expected
    assert {tuple(row) for row in done.rows} == {("text_a", "text_b", "row_a", "row_b", "similarity")}
    for row, (i, j) in zip(done.rows, expected, strict=True):
        assert (row["text_a"], row["text_b"]) == (f"t{i - 1}", f"t{j - 1}")
        assert row["similarity"] == pytest.approx(BY_HAND[metric](vectors[i - 1], vectors[j - 1]), rel=1e-6)
    assert 1 < len(set(first)) < 30
    assert groups.rows == [{**row, "group": n} for row, n in zip(texts, first, strict=True)]
    assert unique.rows == [texts[n - 1] for n in sorted(set(first))]


@pytest.mark.parametrize("form", ["rows.jsonl", "rows.safetensors", "half.safetensors"])
@pytest.mark.parametrize("against", [False, True])
def test_a_vector_file_of_unique_rows_has_their_vectors(sentkit, rows, vectors, tmp_path, form, against):
    """From JSONL and from vector files; the numbers are exact in float16."""
    (tmp_path / "rows.jsonl").write_bytes(rows)
    for name, store in (("rows", "float32"), ("half", "float16")):
        sentkit("cat", "rows.jsonl", "--store", store, "-o", f"{name}.safetensors")
    other = [{"embedding": vector} for vector in vectors[:10]]
    (tmp_path / "other.jsonl").write_text("".join(json.dumps(row) + "\n" for row in other))
    flags = ("--threshold", 0.9, *(("--against", "other.jsonl") if against else ()))
    done = sentkit("duplicates", form, *flags, "--unique", "-o", "few.safetensors")
    back = sentkit("cat", "few.safetensors")
    near = [any(BY_HAND["cosine"](a, b) >= 0.9 for b in vectors[:10]) for a in vectors]
    first = groups_of(vectors, "cosine")
    kept = [n for n in range(40) if (not near[n] if against else first[n] == n + 1)]

    assert (done.code, done.out) == (0, b"")
    assert back.rows == [{"id": n, "text": f"t{n}", "embedding": vectors[n]} for n in kept]
    assert 5 < len(kept) < 35


@metrics
@pytest.mark.parametrize("files", [1, 2])
def test_rows_near_rows_of_others_equal_those_of_a_loop(sentkit, vectors, jsonl, tmp_path, metric, files):
    """Fifteen rows against the others, in one file or in two."""
    rows = [{"text": f"t{n}", "embedding": vector} for n, vector in enumerate(vectors)]
    parts = [rows[15:]] if files == 1 else [rows[15:20], rows[20:]]
    names = [f"other{number}.jsonl" for number in range(files)]
    for name, part in zip(names, parts, strict=True):
        (tmp_path / name).write_bytes(jsonl(*part))
    flags = ["--metric", metric, "--threshold", THRESHOLDS[metric]]
    flags += [word for name in names for word in ("--against", name)]
    own = jsonl(*rows[:15])
    found, new = (sentkit("duplicates", *flags, *more, stdin=own) for more in ((), ("--unique",)))
    expected = [
        (f"t{i}", other["text"], name, number)
        for i in range(15)
        for name, part in zip(names, parts, strict=True)
        for number, other in enumerate(part, start=1)
        if BY_HAND[metric](vectors[i], other["embedding"]) >= THRESHOLDS[metric]
    ]

    assert found.code == 0
    assert 5 < len(expected) < 150
    got = [(row["text_a"], row["text_b"], row.get("file_b", names[0]), row["row_b"]) for row in found.rows]
    assert got == expected
    near = {text for text, *_ in expected}
    assert [row["text"] for row in new.rows] == [f"t{n}" for n in range(15) if f"t{n}" not in near]
    assert all("embedding" not in row for row in new.rows)


@pytest.mark.parametrize("other", [False, True])
def test_counts_at_each_level_equal_those_of_a_loop(sentkit, jsonl, tmp_path, other):
    """The example is the pair with the lowest similarity that reaches the level."""
    random = np.random.default_rng(5)
    vectors = random.standard_normal((60, 3)).astype(np.float32).astype(float).tolist()
    rows = [{"text": f"t{n}", "embedding": vector} for n, vector in enumerate(vectors)]
    (tmp_path / "b.jsonl").write_bytes(jsonl(*rows[30:]))
    flags = ("--against", "b.jsonl") if other else ()
    done = sentkit("duplicates", "--json", *flags, stdin=jsonl(*(rows[:30] if other else rows)))
    every = [
        (BY_HAND["cosine"](vectors[i], vectors[j]), i, j)
        for i in range(30 if other else 60)
        for j in range(30 if other else i + 1, 60)
    ]

    assert [row["threshold"] for row in done.rows] == [0.8, 0.85, 0.9, 0.95, 0.99]
    for row in done.rows:
        reached = [pair for pair in every if pair[0] >= row["threshold"]]
        similarity, i, j = min(reached)
        both = {i for _, i, _ in reached} | (set() if other else {j for _, _, j in reached})
        assert (row["pairs"], row["rows"]) == (len(reached), len(both))
        assert (row["example"]["text_a"], row["example"]["text_b"]) == (f"t{i}", f"t{j}")
        assert row["example"]["similarity"] == pytest.approx(similarity, rel=1e-6)
