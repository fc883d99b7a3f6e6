"""`plot space`: which rows are drawn, and where."""

import numpy as np
import pytest

from support import in_jsonl

random = np.random.default_rng(0)
VECTORS = random.normal(size=(12, 5)).round(3) + 1


def rows(vectors, **fields):
    lines = []
    for n, vector in enumerate(vectors):
        row_fields = {name: values[n] for name, values in fields.items()}
        lines.append({"embedding": vector.tolist(), **row_fields})
    return in_jsonl(*lines)


def pair_rows(golds, seed=0):
    vectors = np.random.default_rng(seed).normal(size=(len(golds), 2, 4))
    lines = [
        {"embedding_a": a.tolist(), "embedding_b": b.tolist(), "score": gold}
        for (a, b), gold in zip(vectors, golds, strict=True)
    ]
    return in_jsonl(*lines)


@pytest.mark.parametrize(("by", "mean"), [("pca", VECTORS.mean(axis=0)), ("svd", 0.0)])
def test_linear_maps_equal_those_of_numpy(plot, by, mean):
    """PCA subtracts the mean; the SVD does not. The sign of an axis is free."""
    records = plot("space", "--by", by, stdin=rows(VECTORS))
    points = np.array([[record["x"], record["y"]] for record in records])
    _, _, axes = np.linalg.svd(VECTORS.astype(np.float32) - mean, full_matrices=False)
    expected = (VECTORS - mean) @ axes[:2].T

    assert [record["row"] for record in records] == list(range(1, 13))
    assert np.abs(points) == pytest.approx(np.abs(expected), abs=1e-5)
    signs = np.sign(points[0] * expected[0])
    assert points.T @ points == pytest.approx(
        expected.T @ expected * np.outer(signs, signs), abs=1e-4
    )


@pytest.mark.parametrize(("flags", "perplexity"), [(["--perplexity", 4], 4), ([], 11 / 3)])
def test_tsne_is_that_of_scikit_learn(plot, flags, perplexity):
    from sklearn.manifold import TSNE

    records = plot("space", *flags, "--seed", 2, stdin=rows(VECTORS))
    oracle = TSNE(2, perplexity=perplexity, init="pca", random_state=2)
    expected = oracle.fit_transform(VECTORS.astype(np.float32))

    assert [[r["x"], r["y"]] for r in records] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("factor", [2.0**-100, 2.0**50, 2.0**120])
def test_tsne_does_not_depend_on_the_length_of_vectors(plot, factor):
    """scikit-learn finds no perplexity for extreme lengths, or ends the process."""
    scaled = plot("space", stdin=rows(VECTORS * factor))

    assert scaled == plot("space", stdin=rows(VECTORS))


@pytest.mark.parametrize("by", ["tsne", "pca", "svd"])
def test_vectors_of_one_number_are_drawn(plot, by):
    records = plot("space", "--by", by, stdin=rows(np.array([[1.0], [2.0], [5.0], [9.0]])))

    assert [record["row"] for record in records] == [1, 2, 3, 4]
    assert len({record["x"] for record in records}) == 4


@pytest.mark.parametrize("seed", [1, 2, 4])
def test_tsne_of_three_vectors_has_three_points(plot, seed):
    """With a perplexity below 1, two of them can be the same point."""
    vectors = np.random.default_rng(seed).normal(size=(3, 8)).round(3)
    records = plot("space", stdin=rows(vectors))
    points = np.array([[record["x"], record["y"]] for record in records])
    distances = np.linalg.norm(points - np.roll(points, 1, axis=0), axis=1)

    assert distances.min() > 0.3 * distances.max()


def test_the_pairs_with_extreme_scores_are_drawn(plot):
    """Two pairs with the highest and two with the lowest score, with both vectors of each."""
    golds = [1, 5, 0, 3, None, 4.5, 0, 5, 2]
    records = plot("space", "--by", "pca", "--gold", "score", "--each", 2, stdin=pair_rows(golds))
    drawn = {record["row"]: record["series"] for record in records}

    assert drawn == {2: "score 5", 8: "score 5", 3: "score 0", 7: "score 0"}
    eighth = [(record["pair"], record["side"]) for record in records if record["row"] == 8]
    assert eighth == [(4, "a"), (4, "b")]


def test_of_equal_scores_the_seed_chooses(plot):
    golds = [0] * 20 + [5] * 20
    flags = ("space", "--by", "svd", "--gold", "score", "--each", 3, "--seed")
    chosen = [{r["row"] for r in plot(*flags, seed, stdin=pair_rows(golds))} for seed in (0, 0, 1)]

    assert chosen[0] == chosen[1] != chosen[2]
    assert all(len(rows) == 6 and sum(row <= 20 for row in rows) == 3 for rows in chosen)


@pytest.mark.parametrize(("kind", "flags"), [("sentence", []), ("pair", ["--gold", "score"])])
def test_zero_vectors_of_the_picture_have_a_warning(sentkit, kind, flags):
    """A pair counts once. Rows that are not drawn do not count."""
    vectors = VECTORS.copy()
    vectors[[4, 5, 8]] = 0
    stdin = rows(vectors)
    if kind == "pair":
        scores = [9, 8, 7, 6, None, 5]
        pairs = zip(vectors[::2].tolist(), vectors[1::2].tolist(), scores, strict=True)
        stdin = in_jsonl(*({"embedding_a": a, "embedding_b": b, "score": s} for a, b, s in pairs))
    result = sentkit("plot", "space", "--by", "pca", *flags, stdin=stdin)

    count = {"sentence": "3 of 12", "pair": "1 of 5"}[kind]
    warning = f"-: {count} rows have a zero vector, as empty texts do, and are not left out"
    assert result.code == 0
    assert result.told == [f"sentkit plot space: warning: {warning}"]


def test_rare_labels_are_one_group(sentkit):
    """500 labels: 19 have a colour, and a warning has the number of the others."""
    labels = [f"topic {n}" for n in range(500)] + ["topic 7", "topic 3"]
    vectors = np.random.default_rng(1).normal(size=(502, 3))
    result = sentkit(
        "plot", "space", "--by", "pca", "--label", "label", stdin=rows(vectors, label=labels)
    )
    names = {record["series"] for record in result.rows}

    assert len(names) == 20
    assert {"topic 3", "topic 7", "other labels (481)"} <= names
    problem = "500 labels: the 481 rarest ones are drawn as one, in grey"
    assert result.told == [f"sentkit plot space: warning: -: {problem}"]


def test_labels_are_in_the_order_of_their_numbers(plot):
    words = ["class 10", "b", 2, "class 2b", "class 2", "c", 1, "1.10", "1.9", "3"]
    labels = [10, *words, f"class {'9' * 5000}"]
    order = "1|1.9|1.10|2|3|10|b|c|class 2|class 2b|class 10|" + labels[-1]
    records = plot("space", "--by", "pca", "--label", "k", stdin=rows(VECTORS, k=labels))

    assert list(dict.fromkeys(record["series"] for record in records)) == order.split("|")


def test_a_large_file_is_sampled(sentkit):
    """The sample depends only on the seed, keeps the order, and is reported."""
    lines = rows(np.random.default_rng(1).normal(size=(300, 2)))
    flags = ("space", "--by", "svd", "--sample", 40, "--seed")
    runs = [sentkit("plot", *flags, seed, stdin=lines) for seed in (0, 0, 1)]
    chosen = [[record["row"] for record in result.rows] for result in runs]

    assert chosen[0] == sorted(chosen[0]) == chosen[1] != chosen[2]
    assert len(set(chosen[0])) == 40
    problem = "the picture has a random sample of 40 of 300 rows"
    assert runs[0].told == [f"sentkit plot space: warning: -: {problem}"]


def test_every_row_is_drawn_equally_often():
    """Algorithm R: of 6 items each is in half of the samples of 3."""
    from sentkit.plots.space import sampled

    counts = np.zeros(6)
    for seed in range(2000):
        counts[sampled(range(6), 3, seed)[0]] += 1

    assert counts / 2000 == pytest.approx(0.5, abs=0.05)


def test_both_vectors_of_a_pair_are_numbered_if_they_are_not_close(tmp_path):
    """Of three pairs, the second has a distance of 1 in a picture that is 100 wide."""
    from sentkit.formats.rows.rows import Inputs
    from sentkit.plots import space

    pairs = [((0, 0), (100, 3)), ((50, 5), (50, 6)), ((20, 0), (80, 9))]
    lines = [{"embedding_a": a, "embedding_b": b, "score": 1} for a, b in pairs]
    (tmp_path / "pairs.jsonl").write_text(in_jsonl(*lines))
    options = space.SpaceOptions(by="pca", gold="score")
    [panel] = space.space(Inputs([str(tmp_path / "pairs.jsonl")]), options, print).panels

    assert [mark for series in panel.series for mark in series.marks] == [
        "1",
        "1",
        "",
        "2",
        "3",
        "3",
    ]
    assert [record["pair"] for record in space.Picture((panel,)).records()] == [1, 1, 2, 2, 3, 3]


def test_each_file_is_a_panel(svg, tmp_path):
    for name in ("one.jsonl", "two.jsonl"):
        (tmp_path / name).write_text(rows(VECTORS))
    texts = svg("space", "--by", "pca", "one.jsonl", "two.jsonl")

    assert {"one", "two"} <= set(texts)


def test_clusters_have_their_keywords_in_the_legend(sentkit, plot, svg):
    """Three of each, from the rows of the picture; rows of no cluster have only their number."""
    texts = ["the cat and a kitten purr", "the market and a bank fell", "und", "the sea"]
    fields = {
        "text": [texts[n % 4] for n in range(12)],
        "cluster": [(0, 1, -1, 2)[n % 4] for n in range(12)],
    }
    lines = rows(VECTORS, **fields)
    records = plot("space", "--by", "pca", "--label", "cluster", stdin=lines)
    names = {record["label"]: record["series"] for record in records}

    expected = {"0": "0: cat kitten purr", "1": "1: bank fell market", "2": "2: sea", "-1": "-1"}
    assert names == expected
    assert {*expected.values()} <= {*svg("space", "--by", "pca", "--label", "cluster", stdin=lines)}
    assert "0: cat" not in str(plot("space", "--by", "pca", "--label", "text", stdin=lines))


def test_clusters_of_another_field_have_their_keywords(plot):
    rows = [
        {"text": text, "c": number, "embedding": vector}
        for text, number, vector in (("cats", 0, [1, 2]), ("dogs", 1, [3, 1]), ("dogs", 1, [2, 5]))
    ]
    flags = ("--by", "pca", "--label", "cluster", "--field", "cluster=c")

    records = plot("space", *flags, stdin=in_jsonl(*rows))
    assert {record["series"] for record in records} == {"0: cats", "1: dogs"}


def test_the_output_of_cluster_is_drawn(sentkit, plot):
    """With the vectors; without them, the error says how to keep them."""
    lines = rows(VECTORS, text=[f"text {n}" for n in range(12)])
    without = sentkit("cluster", "-k", 3, stdin=lines)
    with_vectors = sentkit("cluster", "-k", 3, "--keep-vectors", stdin=lines)
    failed = sentkit("plot", "space", "--label", "cluster", stdin=without.out)
    records = plot("space", "--label", "cluster", stdin=with_vectors.out)

    assert {record["label"] for record in records} == {"0", "1", "2"}
    assert failed.code == 65
    assert failed.told[1].startswith("  add --keep-vectors to sentkit cluster")


def test_a_seed_that_scikit_learn_does_not_accept_is_wrong_usage(sentkit):
    done = sentkit("plot", "space", "--seed", 2**32, stdin=rows(VECTORS))

    assert (done.code, "--seed" in done.told[0]) == (2, True)
