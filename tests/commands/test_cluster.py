"""`cluster`: rows with their clusters, reports, centroids, and refusals."""

import statistics
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from sklearn import cluster as library
from sklearn import metrics

from sentkit.labels.clusters.clustering import ALGORITHMS

GROUPS = {"red": (0, 0, 9), "green": (0, 9, 0), "blue": (9, 0, 0)}


@pytest.fixture
def vectors():
    """Sixty rows in three distant groups, exact in float32."""
    random = np.random.default_rng(7)
    centres = np.array(list(GROUPS.values()))[np.arange(60) % 3]
    return (centres + random.integers(-8, 8, (60, 3)) / 8).astype(np.float32)


EMB = {"_emb": "m:100000000000"}


@pytest.fixture
def rows(tmp_path, vectors, jsonl):
    """A file of these rows, with the names of their groups in their texts."""
    rows = []
    for n, vector in enumerate(vectors.tolist()):
        name = list(GROUPS)[n % 3]
        rows.append({"text": f"{name} thing {n}", "label": name, "embedding": vector, **EMB})
    (tmp_path / "rows.jsonl").write_bytes(jsonl(*rows))
    return "rows.jsonl"


def groups_of(labels):
    members = {}
    for row, label in enumerate(labels):
        members.setdefault(label, set()).add(row)
    return {frozenset(rows) for rows in members.values()}


def clusters(result):
    return [row["cluster"] for row in result.rows]


THREE = {frozenset(range(start, 60, 3)) for start in range(3)}


@pytest.mark.parametrize(
    "flags",
    [
        "-k 3",
        "-k 3 --set restarts=1 --seed 4",
        "-k 3 --normalize",
        "-k 3 --algorithm minibatch",
        "-k 3 --algorithm agglomerative",
        "-k 3 --algorithm agglomerative --set linkage=average",
        "-k 3 --algorithm faiss",
        "--algorithm hdbscan",
    ],
)
def test_rows_get_a_cluster(sentkit, rows, flags):
    """They keep their order and their other fields, and lose their vectors."""
    if "faiss" in flags:
        pytest.importorskip("faiss")
    result = sentkit("cluster", rows, *flags.split())

    assert (result.code, result.err) == (0, "")
    assert [list(row) for row in result.rows] == [["text", "label", "cluster"]] * 60
    assert [row["text"].split()[-1] for row in result.rows] == [str(n) for n in range(60)]
    assert groups_of(clusters(result)) == THREE


def test_noise_is_minus_one(sentkit, rows, vectors, tmp_path, jsonl):
    far = [{"embedding": vector, **EMB} for vector in ([500, 500, 0], [-900, 20, 7])]
    (tmp_path / "more.jsonl").write_bytes((tmp_path / "rows.jsonl").read_bytes() + jsonl(*far))
    result = sentkit("cluster", "more.jsonl", "--algorithm", "hdbscan", "--set", "min_size=7")
    both = np.concatenate([vectors, [row["embedding"] for row in far]])
    expected = library.HDBSCAN(min_cluster_size=7, copy=True).fit_predict(both)

    assert clusters(result) == expected.tolist()
    assert expected[-2:].tolist() == [-1, -1]


@pytest.mark.parametrize("store", ["float32", "float16", "int8", "binary"])
def test_empty_texts_are_noise_in_every_kind_of_vector_file(sentkit, store):
    """Of sign bits, those of an empty text are all negative."""
    texts = ["a cat", "", "a dog", "rain", "", "the sea"]
    sentkit("encode", "-q", "--store", store, "-o", "v.safetensors", stdin="\n".join(texts))
    one_file = ((), ("--normalize",), ("--keep-vectors",), ("--rejects", "bad.jsonl", "-f"))
    for flags in (*one_file, ("v.safetensors",)):
        result = sentkit("cluster", "v.safetensors", "-k", 2, *flags)
        is_empty = [not text for text in texts] * (1 + flags.count("v.safetensors"))

        assert (result.code, len(result.told)) == (0, 1)
        assert [label < 0 for label in clusters(result)] == is_empty


@pytest.fixture
def mixed(tmp_path, jsonl):
    """Eighty rows with classes that agree with the vectors partly; a class is a number or a
    string.
    """
    random = np.random.default_rng(3)
    classes = random.integers(4, size=80)
    groups = np.where(random.random(80) < 0.3, random.integers(4, size=80), classes)
    points = random.standard_normal((4, 5))[groups] * 3 + random.standard_normal((80, 5))
    rows = (
        {"class": int(c) if c % 2 else str(c), "embedding": v}
        for c, v in zip(classes, points.astype(np.float32).tolist(), strict=True)
    )
    (tmp_path / "mixed.jsonl").write_bytes(jsonl(*rows))
    return classes


MEASURES = {
    "nmi": metrics.normalized_mutual_info_score,
    "ari": metrics.adjusted_rand_score,
    "ami": metrics.adjusted_mutual_info_score,
    "v_measure": metrics.v_measure_score,
}


@pytest.mark.parametrize("normalize", [False, True])
def test_truth_reports_the_agreement_of_scikit_learn(sentkit, mixed, normalize):
    """x 100, for the same labels as in the rows. Without -k, there are as many clusters as
    classes.
    """
    flags = ("mixed.jsonl", "--seed", 3, *(["--normalize"] if normalize else []))
    (report,) = sentkit("cluster", *flags, "--truth", "class").rows
    labels = clusters(sentkit("cluster", *flags, "-k", 4))

    counts = {"n": 80, "k": 4, "classes": 4, "seed": 3, "noise": 0}
    assert {**counts, "file": "mixed.jsonl", "algorithm": "kmeans"}.items() <= report.items()
    assert sentkit("cluster", *flags, "-k", 4, "--truth", "class").rows == [report]
    for name, rule in MEASURES.items():
        assert report[name] == pytest.approx(100 * rule(mixed, labels), rel=5e-7)


@pytest.mark.parametrize("algorithm", ["kmeans", "minibatch", "agglomerative", "faiss"])
def test_there_are_at_most_as_many_clusters_as_rows_with_a_vector(
    sentkit, tmp_path, jsonl, algorithm
):
    """The only row of the third class has an empty text. It is in no cluster, so it counts as
    wrong: 2 of 3 rows are right.
    """
    if algorithm == "faiss":
        pytest.importorskip("faiss")
    vectors = {"x": [0, 3], "y": [4, 0], "z": [0, 0]}
    rows = [{"class": name, "embedding": vector} for name, vector in vectors.items()]
    (tmp_path / "few.jsonl").write_bytes(jsonl(*rows))
    flags = ("--truth", "class", "--algorithm", algorithm)
    result = sentkit("cluster", "few.jsonl", *flags)
    (report,) = result.rows

    assert (result.code, len(result.told)) == (0, 1)
    assert {"n": 3, "classes": 3, "k": 2, "noise": 1}.items() <= report.items()
    assert report["acc"] == pytest.approx(200 / 3)


def test_several_seeds_have_one_report_each_and_a_mean(sentkit, mixed):
    flags = ("cluster", "mixed.jsonl", "-k", 4, "--set", "restarts=1", "--truth", "class")
    *reports, mean = sentkit(*flags, "--seed", "0..4").rows
    single = [sentkit(*flags, "--seed", seed).rows[0] for seed in range(5)]

    assert reports == single
    assert mean["seeds"] == [0, 1, 2, 3, 4]
    for name in (*MEASURES, "acc", "inertia"):
        values = [report[name] for report in single]
        assert mean[f"{name}_mean"] == pytest.approx(statistics.fmean(values))
        assert mean[f"{name}_sd"] == pytest.approx(statistics.stdev(values))


def test_equal_clusterings_have_no_deviation(sentkit, jsonl, tmp_path):
    """Although the sums of their measures, in the order of the clusters, differ in the last bit."""
    names = "a" * 10 + "b" * 20 + "c" * 30 + "d" * 40
    rows = [
        {"label": name, "embedding": [3 * "abcd".index(name), n / 99]}
        for n, name in enumerate(names, start=1)
    ]
    (tmp_path / "four.jsonl").write_bytes(jsonl(*rows))
    mean = sentkit("cluster", "four.jsonl", "-k", 4, "--truth", "label", "--seed", "0..9").rows[-1]

    assert mean["nmi_mean"] == 100
    assert [mean[f"{name}_sd"] for name in (*MEASURES, "acc")] == [0] * (len(MEASURES) + 1)


def test_classes_that_differ_in_the_middle_have_different_names(on_terminal, rows):
    """A description of clusters shortens long names, as those of paths."""
    path = Path(rows)
    text = path.read_text()
    for name in GROUPS:
        text = text.replace(f': "{name}"', f': "{"news/" * 9}{name}{"/2026" * 9}"')
    path.write_text(text)
    lines = on_terminal("cluster", rows, "-k", 3, "--truth", "label", "--describe", "--seed", 0)
    named = {name for name in GROUPS for line in lines if f"…{name}…" in line}

    assert named == {*GROUPS}


def test_comparison_of_several_k(sentkit, rows, vectors):
    """At the true number of groups all seeds agree, and the silhouette of scikit-learn is
    highest.
    """
    reports = sentkit("cluster", rows, "-k", "2..5").rows
    labels = clusters(sentkit("cluster", rows, "-k", 3))

    assert [report["k"] for report in reports] == [2, 3, 4, 5]
    for report in reports:
        assert (report["seeds"], report["sample"]) == ([0, 1, 2, 3, 4], 60)
    assert reports[1]["silhouette"] == pytest.approx(
        metrics.silhouette_score(vectors, labels), abs=1e-6
    )
    assert max(reports, key=lambda report: report["silhouette"])["k"] == 3
    assert reports[1]["agreement"] == 100.0
    assert [a["inertia"] > b["inertia"] for a, b in pairwise(reports)] == [True] * 3


def test_stability_is_the_share_of_agreeing_seeds(sentkit, rows):
    """Every seed finds the three distant groups; five clusters differ between seeds."""
    three = sentkit("cluster", rows, "-k", 3, "--stability").rows
    five = sentkit(
        "cluster", rows, "-k", 5, "--stability", "--set", "restarts=1", "--seed", "0..4"
    ).rows
    shares = {row["stability"] for row in five}

    assert [list(row) for row in three] == [["text", "label", "cluster", "stability"]] * 60
    assert {row["stability"] for row in three} == {1.0}
    assert shares <= {0.0, 0.25, 0.5, 0.75, 1.0}
    assert len(shares) > 1


def test_a_row_that_is_left_out_has_no_stability(sentkit, jsonl):
    vectors = [[1, 0], [1, 0.125], [0, 0], [0, 1], [0.125, 1]]
    rows = jsonl(*({"embedding": vector} for vector in vectors))
    result = sentkit("cluster", "-k", 2, "--stability", stdin=rows)

    assert [row["cluster"] < 0 for row in result.rows] == [False, False, True, False, False]
    assert [row["stability"] for row in result.rows] == [1.0, 1.0, None, 1.0, 1.0]


def test_describe(sentkit, rows, vectors):
    """Sizes, keywords, and the rows nearest to the mean, counted from 1."""
    descriptions = sentkit(
        "cluster", rows, "-k", 3, "--describe", "--keywords", 1, "--nearest", 2
    ).rows
    labels = clusters(sentkit("cluster", rows, "-k", 3))

    assert [(cluster["cluster"], cluster["size"]) for cluster in descriptions] == [
        (0, 20),
        (1, 20),
        (2, 20),
    ]
    for cluster in descriptions:
        members = [n for n in range(60) if labels[n] == cluster["cluster"]]
        mean = vectors[members].mean(axis=0, dtype=np.float64)
        nearest = sorted(members, key=lambda n: (((vectors[n] - mean) ** 2).sum(), n))[:2]
        assert [near["row"] for near in cluster["nearest"]] == [n + 1 for n in nearest]
        assert all(near["text"].startswith(cluster["keywords"][0]) for near in cluster["nearest"])
        assert cluster["keywords"] == [list(GROUPS)[members[0] % 3]]


def test_a_table_describes_a_given_centroid_without_rows(sentkit, rows, vectors, jsonl, tmp_path):
    """It has the size 0, and no share of rows with a keyword."""
    sentkit("cluster", rows, "-k", 3, "--centroids", "c.jsonl", "-o", "clusters.jsonl")
    first = {"text": "red thing", "embedding": vectors[0].tolist(), **EMB}
    (tmp_path / "first.jsonl").write_bytes(jsonl(first))
    flags = ("cluster", "first.jsonl", "--from-centroids", "c.jsonl", "--describe")
    sizes = [cluster["size"] for cluster in sentkit(*flags).rows]
    result = sentkit(*flags, "--table")

    assert (result.code, sorted(sizes)) == (0, [0, 0, 1])
    lines = [line.split() for line in result.out.decode().splitlines()[1:]]
    assert [line[:2] for line in lines] == [[str(n), str(size)] for n, size in enumerate(sizes)]
    assert [len(line) == 2 for line in lines] == [size == 0 for size in sizes]


def test_rows_have_the_keywords_of_their_cluster(sentkit, rows):
    """Those of --describe, as JSONL and in a vector file, and with other new fields; not beside
    centroids.
    """
    words = {
        row["cluster"]: row["keywords"]
        for row in sentkit("cluster", rows, "-k", 3, "--describe").rows
    }
    flags = ("cluster", rows, "-k", 3, "--keywords")
    result = sentkit(*flags, 10)
    sentkit(*flags, 10, "-o", "v.safetensors")
    stored = sentkit("cat", "v.safetensors").rows
    one_keyword = sentkit(*flags, 1, "--stability", "--seed", "0,1").rows
    with_centroids = sentkit(*flags, 1, "--centroids", "c.jsonl").rows

    assert result.code == 0
    keywords = [row["keywords"] for row in result.rows]
    assert keywords == [words[row["cluster"]] for row in result.rows]
    assert [row["keywords"] for row in stored] == keywords
    assert [row["keywords"] for row in one_keyword] == [
        [row["text"].split()[0]] for row in one_keyword
    ]
    assert [*one_keyword[0]][-3:] == ["cluster", "stability", "keywords"]
    assert not any("keywords" in row for row in with_centroids)


@pytest.mark.parametrize("name", ["c.safetensors", "c.jsonl"])
@pytest.mark.parametrize("normalize", [(), ("--normalize",)])
def test_centroids_label_rows(sentkit, rows, vectors, name, normalize):
    """The same rows get the same clusters; a centroid is a row with the mean vector and a
    description.
    """
    clustered = sentkit("cluster", rows, "-k", 4, "--centroids", name, *normalize)
    labelled = sentkit("cluster", rows, "--from-centroids", name, *normalize)
    centroids = sentkit("cat", name)
    labels = np.array(clusters(clustered))

    assert (clustered.code, labelled.code, labelled.err) == (0, 0, "")
    assert labelled.out == clustered.out
    assert clusters(centroids) == [0, 1, 2, 3]
    assert sum(row["size"] for row in centroids.rows) == 60
    assert all(row["nearest"] and row["keywords"] for row in centroids.rows)
    if not normalize:
        means = np.array([vectors[labels == n].mean(axis=0) for n in range(4)])
        assert centroids.vectors() == pytest.approx(means, abs=1e-6)


def test_centroids_of_an_unknown_model_are_no_reason_to_name_it(sentkit, jsonl, tmp_path):
    """The label of normalized vectors without _emb, "unnamed/n", has no model and no readout."""
    (tmp_path / "some.jsonl").write_bytes(jsonl(*({"embedding": [n, 1]} for n in range(4))))
    sentkit("cluster", "some.jsonl", "-k", 2, "--normalize", "--centroids", "c.jsonl")
    result = sentkit("cluster", "some.jsonl", "--from-centroids", "c.jsonl")

    assert result.code == 65
    assert result.told[1:] == ["  encode all rows with one model (-m)"]


def test_algorithms_with_quadratic_memory_have_a_limit(sentkit, rows, monkeypatch):
    monkeypatch.setitem(
        ALGORITHMS, "agglomerative", replace(ALGORITHMS["agglomerative"], max_rows=59)
    )
    result = sentkit("cluster", rows, "-k", 3, "--algorithm", "agglomerative")

    problem = "sentkit cluster: rows.jsonl: 60 rows, agglomerative accepts up to 59"
    assert (result.code, result.told) == (65, [problem, "  use --algorithm kmeans"])


def test_a_missing_library_is_named(sentkit, rows, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    result = sentkit("cluster", rows, "-k", 3, "--algorithm", "faiss")
    problem = "sentkit cluster: --algorithm faiss needs the package faiss"

    assert (result.code, result.told) == (69, [problem, "  pip install faiss-cpu"])
