"""`diff`: the report against plain loops, matching of rows, limits, and refusals."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from sentkit.metrics.comparison import differences
from support import BY_HAND, in_jsonl, normal_rows

COSINE = BY_HAND["cosine"]


def saved(name, vectors):
    np.save(name, vectors)
    return name


def numbered(vectors):
    return [
        {"id": n, "text": f"t{n}", "embedding": vector.tolist()} for n, vector in enumerate(vectors)
    ]


def cosines_within(vectors):
    rows = vectors.tolist()
    return [[COSINE(row, other) for other in rows] for row in rows]


def by_loop(a, b, top):
    """The shares of common neighbours, and the similarities of all pairs in `a` and in `b`."""
    cosines_a = cosines_within(a)
    cosines_b = cosines_within(b)
    shares = []
    for n in range(len(a)):
        other_rows = [m for m in range(len(a)) if m != n]
        near_a = sorted(other_rows, key=lambda m: -cosines_a[n][m])[:top]
        near_b = sorted(other_rows, key=lambda m: -cosines_b[n][m])[:top]
        shares.append(len({*near_a} & {*near_b}) / top)
    pairs = [*itertools.combinations(range(len(a)), 2)]
    similarities = [[cosines[n][m] for n, m in pairs] for cosines in (cosines_a, cosines_b)]
    return shares, np.array(similarities)


@pytest.mark.parametrize("form", ["rows.jsonl", "rows.safetensors", "rows.npy"])
def test_the_report_equals_a_loop(sentkit, tmp_path, form):
    """60 vectors with noise; B is read from rows, a vector file, and an array of float64."""
    vectors_a = normal_rows(60, 7)
    vectors_b = (1.01 * vectors_a + 0.2 * normal_rows(60, 7, seed=1)).astype(np.float32)
    vectors_b[:3] = vectors_a[:3]
    (tmp_path / "a.jsonl").write_text(in_jsonl(*numbered(vectors_a)))
    (tmp_path / "rows.jsonl").write_text(in_jsonl(*numbered(vectors_b)))
    saved("rows.npy", vectors_b.astype(np.float64))
    assert sentkit("cat", "rows.jsonl", "-o", "rows.safetensors").code == 0
    (record,) = sentkit("diff", "a.jsonl", form, "--worst", 4, "--top", 5).rows
    rows = list(zip(vectors_a.tolist(), vectors_b.tolist(), strict=True))
    cosines = [COSINE(a, b) for a, b in rows]
    norms = [math.sqrt(sum(y * y for y in b) / sum(x * x for x in a)) for a, b in rows]
    shares, similarities = by_loop(vectors_a, vectors_b, 5)
    ranks = similarities.argsort(axis=1).argsort(axis=1)
    order = sorted(range(60), key=lambda n: cosines[n])

    assert (record["vectors"], record["equal"], record["a"]["width"]) == (60, 3, 7)
    assert record["cosine"]["lowest"] == pytest.approx(min(cosines), abs=1e-6)
    assert record["cosine"]["mean"] == pytest.approx(sum(cosines) / 60, abs=1e-6)
    assert 1 - record["cosine"]["p1"] == pytest.approx(1 - min(cosines), rel=1e-6)
    largest = np.abs(vectors_a - vectors_b).max()
    assert record["largest_difference"] == pytest.approx(largest, rel=1e-5)
    ratios = [min(norms), sum(norms) / 60, max(norms)]
    assert list(record["norm_ratio"].values()) == pytest.approx(ratios, rel=1e-5)
    overlap = {"mean": pytest.approx(sum(shares) / 60), "lowest": pytest.approx(min(shares))}
    assert record["neighbours"] == {"rows": 60, "top": 5, **overlap}
    assert record["similarities"]["pairs"] == 60 * 59 // 2
    assert record["similarities"]["spearman"] == pytest.approx(np.corrcoef(ranks)[0, 1], rel=1e-6)
    worst = [(row["row"], row["text"]) for row in record["worst"]]
    assert worst == [(n + 1, f"t{n}") for n in order[:4]]


def test_a_file_with_itself_is_exactly_1(sentkit, tmp_path):
    """Also with equal rows, which are ties, and with a zero vector."""
    vectors = [*normal_rows(30, 5), *[np.ones(5)] * 20, np.zeros(5)]
    (tmp_path / "a.jsonl").write_text(in_jsonl(*numbered(vectors)))
    (record,) = sentkit("diff", "a.jsonl", "a.jsonl", "--worst", 3).rows

    assert (record["equal"], record["largest_difference"], record["worst"]) == (51, 0, [])
    assert record["cosine"] == {"lowest": 1, "p1": 1, "mean": 1}
    assert set(record["norm_ratio"].values()) == {1}
    assert (record["neighbours"]["mean"], record["neighbours"]["lowest"]) == (1, 1)
    assert record["similarities"]["spearman"] == 1


@pytest.mark.parametrize("extra", [0, 3])
def test_a_rotation_keeps_neighbours(sentkit, extra):
    """Equal rows are ties on both sides. Columns of zeros make B wider."""
    vectors = np.repeat(normal_rows(40, 8), 2, axis=0)
    rotation, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((8, 8)))
    rotated = np.hstack([vectors @ rotation, np.zeros((80, extra))])
    result = sentkit(
        "diff", saved("a.npy", vectors), saved("b.npy", rotated), "--top", 3, "--worst", 2
    )
    (record,) = result.rows

    assert (record["neighbours"]["lowest"], record["similarities"]["spearman"]) == (
        1,
        pytest.approx(1),
    )
    assert ("cosine" in record) == (not extra)
    assert extra or record["cosine"]["lowest"] < 0
    assert record["worst"] == [] if extra else len(record["worst"]) == 2


def test_a_vector_that_is_zero_on_one_side_has_no_ratio_of_norms(sentkit):
    """Of (3, 4) and (6, 8) it is 2, and of two zeros 1."""
    vectors = {"a": [[3, 4], [0, 0], [0, 0], [1, 1]], "b": [[6, 8], [0, 0], [5, 0], [0, 0]]}
    for name, rows in vectors.items():
        Path(f"{name}.jsonl").write_text(in_jsonl(*({"embedding": row} for row in rows)))
        Path(f"{name}1.jsonl").write_text(in_jsonl({"embedding": rows[2]}))
    [record] = sentkit("diff", "a.jsonl", "b.jsonl").rows
    [of_zero] = sentkit("diff", "a1.jsonl", "b1.jsonl").rows

    assert record["norm_ratio"] == {"lowest": 1, "mean": 1.5, "highest": 2}
    assert of_zero["norm_ratio"] == {"lowest": None, "mean": None, "highest": None}
    assert of_zero["cosine"]["lowest"] == 0


def test_the_sample_is_a_part_of_all_rows(sentkit, monkeypatch):
    """Each row is equally often in it: here within five standard deviations of 1000 samples of 5 of
    20.
    """
    monkeypatch.setattr(differences, "PAIRS", 50)
    monkeypatch.setattr("sentkit.commands.diff.SAMPLE", 20)
    a = normal_rows(100, 4)
    b = normal_rows(100, 4, seed=2)
    (record,) = sentkit("diff", saved("a.npy", a), saved("b.npy", b)).rows
    labels = np.array([{"row": n} for n in range(20)])
    counts = np.zeros(20)
    for seed in range(1000):
        sample = differences.Lowest(5)
        random = np.random.default_rng(seed)
        matches = differences.Matches(labels, a[:20], b[:20])
        for block in (matches[:3], matches[3:4], matches[4:]):
            sample.add(random.random(len(block)), block)
        _, sampled = sample.result()
        rows = [label["row"] for label in sampled.labels]
        counts[rows] += 1
        assert (sampled.a == a[rows]).all()
        assert (sampled.b == b[rows]).all()

    assert (record["neighbours"]["rows"], record["similarities"]["pairs"]) == (20, 50)
    assert counts.sum() == 5000
    assert np.abs(counts - 250).max() < 5 * math.sqrt(1000 * 0.25 * 0.75)


@pytest.mark.parametrize("form", ["b.jsonl", "b.safetensors"])
def test_rows_match_by_a_field(sentkit, tmp_path, form):
    """In any order; rows of one side only are counted. The worst rows have the field."""
    a = normal_rows(12, 3)
    b = normal_rows(12, 3, seed=1)
    order = np.random.default_rng(0).permutation(np.arange(2, 12))
    (tmp_path / "a.jsonl").write_text(in_jsonl(*numbered(a)[:10]))
    (tmp_path / "b.jsonl").write_text(in_jsonl(*(numbered(b)[n] for n in order)))
    assert sentkit("cat", "b.jsonl", "-o", "b.safetensors").code == 0
    (record,) = sentkit("diff", "a.jsonl", form, "--key", "id", "--worst", 1).rows
    cosines = {n: COSINE(a[n].tolist(), b[n].tolist()) for n in range(2, 10)}
    worst = min(cosines, key=cosines.get)

    assert (record["vectors"], record["only_a"], record["only_b"]) == (8, 2, 2)
    assert record["cosine"]["mean"] == pytest.approx(sum(cosines.values()) / 8, abs=1e-6)
    cosine = pytest.approx(cosines[worst], abs=1e-6)
    assert record["worst"] == [
        {"row": worst + 1, "id": worst, "text": f"t{worst}", "cosine": cosine}
    ]


CUBE = "an array of float64 and shape (2, 2, 2), expected numbers (rows, width)"
LIMITS = '--fail-under "%s": expected cosine=X or neighbours=X, for example cosine=0.99'


@pytest.mark.parametrize(
    ("flags", "code", "problem"),
    [
        ("b.npy --fail-under cosine=0.8", 1, "the lowest cosine is 0.7071068, below 0.8"),
        ("b.npy --fail-under cosine=0.7", 0, None),
        ("wide.npy --fail-under cosine=0.7", 1, "cosine is undefined: the widths differ"),
        ("b.npy --fail-under neighbours=1.1", 1, "the mean neighbours is 1.0, below 1.1"),
        (
            "b.npy --fail-under cosine=1 --fail-under cosine=0",
            2,
            '--fail-under "cosine=0": cosine is given twice',
        ),
        ("b.npy --fail-under cosin=1", 2, LIMITS % "cosin=1"),
        ("b.npy --fail-under cosine=nan", 2, LIMITS % "cosine=nan"),
        ("short.npy", 65, "short.npy: 1 rows, but a.npy has more"),
        ("other.jsonl", 65, 'other.jsonl:2: "text" differs from row 2 of a.jsonl'),
        ("twice.jsonl --key id", 65, 'twice.jsonl:2: "id" has the value of an earlier row: 0'),
        ("far.jsonl --key id", 65, 'a.jsonl: no row has a "id" of far.jsonl'),
        ("none.jsonl --key id", 65, 'none.jsonl:1: "id" is missing'),
        ("pair.jsonl", 65, "pair.jsonl:1: this row has 2 vectors, row 1 of a.npy has 1"),
        ("b.npy --key id", 2, "--key needs rows with fields; .npy has only numbers"),
        ("cube.npy", 65, f"cube.npy: {CUBE}"),
        ("junk.npy", 65, "junk.npy: not an array of numbers in the format of numpy"),
        ("nan.npy", 65, "nan.npy:1: a vector contains NaN or infinity"),
        ("empty.npy", 65, "no rows in empty.npy"),
    ],
)
def test_limits_and_refusals(sentkit, tmp_path, flags, code, problem):
    """A is an array, or rows if B has rows with fields."""
    vectors = np.array([[1.0, 0], [0, 1]])
    arrays = {"a": vectors, "b": [[1, 1], [0, 1]], "wide": np.eye(2, 3), "short": vectors[:1]}
    arrays |= {"cube": np.ones((2, 2, 2)), "nan": [[math.nan, 1]] * 2, "empty": np.ones((0, 2))}
    for name, array in arrays.items():
        saved(f"{name}.npy", array)
    (tmp_path / "junk.npy").write_text("x")
    rows = numbered(vectors)
    pair = {"embedding_a": [1, 0], "embedding_b": [1, 0]}
    files = {"a": rows, "other": [rows[0], {**rows[1], "text": "x"}], "twice": [rows[0], rows[0]]}
    files |= {"far": [{**rows[0], "id": 7}], "none": [{"embedding": [1, 0]}], "pair": [pair, pair]}
    for name, content in files.items():
        (tmp_path / f"{name}.jsonl").write_text(in_jsonl(*content))
    first = "a.jsonl" if ".jsonl" in flags and flags != "pair.jsonl" else "a.npy"
    result = sentkit("diff", first, *flags.split())

    assert result.code == code
    assert (
        result.told == []
        if problem is None
        else result.told[0].startswith(f"sentkit diff: {problem}")
    )
    assert bool(result.out) == (code in (0, 1))


def test_arrays_become_rows_and_vector_files(sentkit):
    saved("a.npy", np.array([[1, 2], [3, 4]], np.int16))
    rows = sentkit("cat", "a.npy").rows
    assert sentkit("cat", "a.npy", "-o", "a.safetensors").code == 0

    assert (
        rows
        == [{"embedding": [1, 2]}, {"embedding": [3, 4]}]
        == sentkit("cat", "a.safetensors").rows
    )
