"""Empty and blank texts: their vectors are zero, and commands that compare all rows omit them."""

from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import adjusted_rand_score

from sentkit import Encoder
from sentkit.formats.vectors.arrays import array_of
from sentkit.formats.vectors.vector_file import VectorFile
from support import in_jsonl

TEXTS = ["a cat", "", "a small dog", " \u00a0\t", "the market fell", "a cat"]
BLANK = [1, 3]
FULL = [0, 2, 4, 5]
COUNTED = "2 of 6 texts are empty: their vectors are zero"
OMITTED = "2 of 6 rows have a zero vector, as empty texts do, and are left out"


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """rows.jsonl with all texts, and full.jsonl with those that are not blank."""
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text(
        in_jsonl(*({"text": text, "id": n} for n, text in enumerate(TEXTS, 1)))
    )
    Path("full.jsonl").write_text(in_jsonl(*({"text": TEXTS[n], "id": n + 1} for n in FULL)))


def vectors_of(path):
    stored = array_of(VectorFile(str(path)))
    return np.asarray(stored[:])


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--precision", "int8", "--prompt", "query: ", "--normalize"),
        ("--readout", "prompt"),
        ("--on-truncate", "chunks", "--window", "8"),
        ("-m", "static"),
    ],
    ids=" ".join,
)
def test_a_blank_text_has_a_zero_vector_in_every_space(sentkit, rows, flags):
    """The model does not read it: other texts have the vectors that they have without blank
    ones.
    """
    result = sentkit("encode", "rows.jsonl", *flags, "-o", "rows.safetensors")
    sentkit("encode", "full.jsonl", *flags, "-qo", "full.safetensors")
    counted = COUNTED.replace("are empty", "have no known token") if "static" in flags else COUNTED
    vectors = vectors_of("rows.safetensors")

    assert (result.code, [line for line in result.told if "zero" in line]) == (
        0,
        [f"sentkit encode: warning: {counted}"],
    )
    assert not vectors[BLANK].any()
    assert vectors[FULL].any(axis=(1, 2)).all()
    np.testing.assert_allclose(vectors[FULL], vectors_of("full.safetensors"), atol=1e-6)


def test_transforms_keep_zero_vectors(sentkit, rows):
    """So `whiten apply` gives the vectors of an encoder with this transform, as for other texts."""
    sentkit("encode", "rows.jsonl", "--precision", "fp32", "-qo", "rows.safetensors")
    for kind in ("center", "flow"):
        sentkit("whiten", "fit", "rows.safetensors", "--kind", kind, "-qfo", "t.safetensors")
        sentkit(
            "whiten", "apply", "rows.safetensors", "-t", "t.safetensors", "-fo", "moved.safetensors"
        )
        moved = vectors_of("moved.safetensors")
        with pytest.warns(UserWarning, match="2 of 6 texts are empty"):
            encoded = Encoder(transform="t.safetensors", precision="fp32").encode(TEXTS)

        assert not moved[BLANK].any()
        np.testing.assert_allclose(encoded, moved[:, 0], atol=1e-4)
        assert moved[FULL].any(axis=(1, 2)).all()


def test_pairs_sides_readouts_and_reused_vectors(sentkit, rows):
    pairs = [{"text_a": a, "text_b": b} for a, b in pairwise(TEXTS)]
    Path("pairs.jsonl").write_text(in_jsonl(*pairs))
    is_blank = [[not text.strip() for text in pair.values()] for pair in pairs]
    for flags in ((), ("--prompt", "a=query: ,b=")):
        result = sentkit("encode", "pairs.jsonl", *flags)
        is_zero = [[not any(row[f"embedding_{side}"]) for side in "ab"] for row in result.rows]
        assert is_zero == is_blank
        assert "4 of 10 texts are empty" in result.err
    sentkit("encode", "rows.jsonl", "--readout", "mean,cls", "-qo", "sweep")
    sweep = [vectors_of(path)[BLANK] for path in sorted(Path("sweep").iterdir())]
    assert [vectors.any() for vectors in sweep] == [False, False]

    sentkit("encode", "rows.jsonl", "-qo", "old.safetensors")
    result = sentkit("encode", "rows.jsonl", "--reuse", "old.safetensors", "-o", "new.safetensors")
    assert "reused rows: 6, encoded: 0, no longer needed: 0" in result.err
    np.testing.assert_array_equal(vectors_of("new.safetensors"), vectors_of("old.safetensors"))


@pytest.mark.parametrize(
    ("store", "folder"), [("float32", True), ("float16", False), ("int8", False), ("binary", True)]
)
def test_commands_that_compare_all_rows_omit_them(sentkit, rows, store, folder):
    path = "rows/" if folder else "rows.safetensors"
    sentkit("encode", "rows.jsonl", "--store", store, "-qo", path)
    search = sentkit("search", "a cat", "--corpus", path, "--top", "9")
    assert sorted(hit["row"] for hit in search.rows[0]["hits"]) == [n + 1 for n in FULL]
    assert search.told == [f"sentkit search: warning: {path}: {OMITTED}"]
    every = sentkit("search", "a cat", "--corpus", path, "--threshold", "-1")
    assert len(every.rows[0]["hits"]) == len(FULL)
    near = sentkit("duplicates", path, "--threshold", "-1")
    assert len(near.rows) == 6  # pairs of four rows
    assert near.told == [f"sentkit duplicates: warning: {path}: {OMITTED}"]
    assert [
        row["group"] for row in sentkit("duplicates", path, "--threshold", "0.99", "--groups").rows
    ] == [*(1, 2, 3, 4, 5, 1)]
    blank = {"anchor": " ", "positive": "a cat"}  # has no negatives
    Path("pairs.jsonl").write_text(in_jsonl({"anchor": "a dog", "positive": "a small dog"}, blank))
    sentkit("encode", "pairs.jsonl", "-qo", "pairs.safetensors")
    if store != "binary":
        mined = sentkit(
            "mine", "pairs.safetensors", "--corpus", path, "--margin", "1.5", "--top", "9"
        )
        assert set(mined.rows[0]["negatives"]) == {"a cat", "the market fell"}
        assert mined.rows[1]["negatives"] == []
        assert f"sentkit mine: warning: {path}: {OMITTED}" in mined.told


def test_signs_of_an_empty_text_are_read_as_a_zero_vector(sentkit, rows):
    """A binary file has no zeros. `cat` writes the same file again."""
    pairs = [{"text_a": a, "text_b": b} for a, b in (("", ""), ("a cat", " "), ("a cat", "a cat"))]
    sentkit("encode", "-o", "pairs.safetensors", "--store", "binary", stdin=in_jsonl(*pairs))
    sentkit("encode", "rows.jsonl", "-qo", "signs.safetensors", "--store", "binary")
    sentkit("whiten", "fit", "signs.safetensors", "--kind", "center", "-o", "t.safetensors")
    sentkit("cat", "signs.safetensors", "--store", "binary", "-o", "again.safetensors")

    assert [row["similarity"] for row in sentkit("score", "pairs.safetensors").rows] == [0, 0, 1]
    same = ("--queries", "signs.safetensors", "--corpus", "again.safetensors")
    hits = [len(row["hits"]) for row in sentkit("search", *same).rows]
    assert hits == [0 if n in BLANK else 4 for n in range(6)]
    moved = sentkit("whiten", "apply", "signs.safetensors", "-t", "t.safetensors").vectors()
    assert moved.any(axis=1).tolist() == [n not in BLANK for n in range(6)]
    signs = vectors_of("signs.safetensors")
    assert set(np.unique(signs[FULL])) == {-1, 1}
    assert not signs[BLANK].any()
    assert Path("again.safetensors").read_bytes() == Path("signs.safetensors").read_bytes()


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean", "manhattan"])
def test_no_metric_finds_a_zero_vector(sentkit, rows, metric):
    """Not even another one, whose distance is 0; and a query without a text has no hit."""
    sentkit("encode", "rows.jsonl", "-qo", "rows.safetensors")
    queries = sentkit("encode", "rows.jsonl", "-q").out
    hits = sentkit(
        "search", "--corpus", "rows.safetensors", "--metric", metric, "--top", "9", stdin=queries
    ).rows
    against = sentkit(
        *(
            "duplicates",
            "-",
            "--against",
            "rows.safetensors",
            "--metric",
            metric,
            "--threshold",
            "-1e-4",
        ),
        stdin=queries,
    )

    assert [len(row["hits"]) for row in hits] == [4, 0, 4, 0, 4, 4]
    assert {2, 4}.isdisjoint(pair[f"row_{side}"] for pair in against.rows for side in "ab")
    assert len(against.rows) >= 6


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_the_closest_sentences_omit_them(sentkit, rows, metric):
    """Two of them have the Euclidean distance 0."""
    sentkit("encode", "rows.jsonl", "-qo", "rows.safetensors")
    full = sentkit("encode", "full.jsonl", "-q").out
    score = ("score", "--metric", metric)
    for flags in (("--top", "99"), ("--threshold", "-99")):
        if metric == "cosine":
            flags = (flags[0], flags[1].replace("-99", "-1"))
        result = sentkit(*score, "rows.safetensors", *flags)
        expected = sentkit(*score, *flags, stdin=full).rows

        assert len(expected) == 6  # pairs of four rows
        assert result.told == [f"sentkit score: warning: rows.safetensors: {OMITTED}"]
        similarities = [row["similarity"] for row in expected]
        assert [row["similarity"] for row in result.rows] == pytest.approx(similarities, abs=1e-6)
        assert {row["row_a"] for row in result.rows} | {row["row_b"] for row in result.rows} == {
            index + 1 for index in FULL
        }


def test_score_counts_pairs_with_a_zero_vector(sentkit, tmp_path, monkeypatch):
    """Their cosine is 0, as in torch: a model without a vector for a text gains nothing by it."""
    monkeypatch.chdir(tmp_path)
    angles = [0.1, 0.5, 1.0, 1.4, 2.0, 2.5]
    vectors = [[np.cos(angle), np.sin(angle)] for angle in angles]
    vectors[2] = [0.0, 0.0]
    gold = [5, 4, 3, 2.5, 1, 0]
    pairs = [
        {"embedding_a": [1, 0], "embedding_b": vector, "gold": score, "same": int(score > 2)}
        for vector, score in zip(vectors, gold, strict=True)
    ]
    Path("pairs.jsonl").write_text(in_jsonl(*pairs))
    cosines = [vector[0] for vector in vectors]
    warning = "1 of 6 pairs have a zero vector, as empty texts do, and are not left out"

    scored = sentkit("score", "pairs.jsonl")
    report = sentkit("score", "pairs.jsonl", "--gold", "gold")
    labels = sentkit("score", "pairs.jsonl", "--label", "same")

    assert [row["similarity"] for row in scored.rows] == pytest.approx(cosines, rel=1e-6)
    spearman = 100 * spearmanr(cosines, gold).statistic
    assert report.rows[0]["spearman"] == pytest.approx(spearman, rel=1e-6)
    assert (report.rows[0]["n"], labels.rows[0]["n"]) == (6, 6)
    for result in (scored, report, labels):
        assert f"sentkit score: warning: pairs.jsonl: {warning}" in result.told


def test_the_matrix_has_zero_vectors(sentkit, rows):
    sentkit("encode", "rows.jsonl", "-qo", "rows.safetensors")
    result = sentkit("score", "rows.safetensors", "--matrix")
    warning = OMITTED.replace("are left out", "are not left out")

    assert result.told == [f"sentkit score: warning: rows.safetensors: {warning}"]
    assert [len(row["similarities"]) for row in result.rows] == [6] * 6
    assert result.rows[1]["similarities"] == [0] * 6


def test_clusters_omit_zero_vectors(sentkit, rows):
    """Their label is -1, and they change neither the clusters nor the silhouette."""
    for name in ("rows", "full"):
        sentkit("encode", f"{name}.jsonl", "-qo", f"{name}.safetensors")
    both = [sentkit("cluster", f"{name}.safetensors", "-k", "3") for name in ("rows", "full")]
    labels = [[row["cluster"] for row in result.rows] for result in both]
    counts = [
        sentkit("cluster", f"{name}.safetensors", "-k", "2..3", "--json").rows
        for name in ("rows", "full")
    ]

    assert both[0].told == [f"sentkit cluster: warning: rows.safetensors: {OMITTED}"]
    assert [labels[0][n] for n in BLANK] == [-1, -1]
    assert [labels[0][n] for n in FULL] == labels[1]
    for name in ("silhouette", "inertia", "agreement"):
        assert [row[name] for row in counts[0]] == pytest.approx(
            [row[name] for row in counts[1]], rel=1e-6
        )
    assert sentkit("cluster", "rows.safetensors", "-k", "5").code == 65


def test_the_agreement_of_seeds_omits_zero_vectors(sentkit, tmp_path, monkeypatch):
    """The mean adjusted Rand index of scikit-learn, over the pairs of seeds that disagree."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    vectors = np.concatenate([random.normal(size=(30, 4)), np.zeros((30, 4))])
    Path("v.jsonl").write_text(in_jsonl(*({"embedding": row} for row in vectors.tolist())))
    flags = ("cluster", "v.jsonl", "--set", "restarts=1")
    labels = [
        [row["cluster"] for row in sentkit(*flags, "-k", 5, "--seed", seed).rows][:30]
        for seed in range(5)
    ]
    rand_indices = [adjusted_rand_score(a, b) for a, b in combinations(labels, 2)]
    report = sentkit(*flags, "-k", "5,6", "--json").rows[0]

    assert report["agreement"] < 50
    assert report["agreement"] == pytest.approx(100 * np.mean(rand_indices), rel=1e-6)
