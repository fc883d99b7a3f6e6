"""`plot pairs` and `plot heat`: similarities."""

import numpy as np
import pytest

from sentkit.metrics.statistics import spearman
from support import BY_HAND, in_jsonl


def pair_rows(count, seed=0):
    random = np.random.default_rng(seed)
    golds = random.integers(0, 11, count) / 2
    lines = []
    for gold in golds:
        a = random.normal(size=4)
        b = a * gold + random.normal(size=4)
        lines.append({"embedding_a": a.tolist(), "embedding_b": b.tolist(), "score": gold})
    return lines


@pytest.mark.parametrize("metric", BY_HAND)
def test_few_pairs_are_points(plot, metric):
    lines = pair_rows(20)
    records = plot("pairs", "--gold", "score", "--metric", metric, stdin=in_jsonl(*lines))

    assert [record["gold"] for record in records] == [line["score"] for line in lines]
    expected = [BY_HAND[metric](line["embedding_a"], line["embedding_b"]) for line in lines]
    assert [record["similarity"] for record in records] == pytest.approx(expected, rel=1e-5)


def test_many_pairs_are_a_density_with_medians(plot):
    """All pairs are counted, and the medians are those of the bands [0, 0.5), [0.5, 1), ..., [4.5,
    5].
    """
    lines = pair_rows(600)
    records = plot("pairs", "--gold", "score", stdin=in_jsonl(*lines))
    medians = [record for record in records if record.get("series") == "median"]
    values = [
        (line["score"], BY_HAND["cosine"](line["embedding_a"], line["embedding_b"]))
        for line in lines
    ]

    assert sum(record["count"] for record in records if "count" in record) == 600
    for number, record in enumerate(medians):
        band = [value for gold, value in values if min(9, int(gold * 2)) == number]
        assert record["similarity"] == pytest.approx(np.median(band), rel=1e-5)
        assert record["similarity_interval"] == pytest.approx(
            np.percentile(band, (25, 75)), rel=1e-5
        )


def test_panels_have_equal_limits_and_their_correlation(svg, tmp_path):
    for seed in (1, 2):
        (tmp_path / f"{seed}.jsonl").write_text(in_jsonl(*pair_rows(30, seed)))
    texts = svg("pairs", "--gold", "score", "1.jsonl", "2.jsonl")
    lines = pair_rows(30, 1)
    similarities = [BY_HAND["cosine"](line["embedding_a"], line["embedding_b"]) for line in lines]
    correlation = 100 * spearman(similarities, [line["score"] for line in lines])

    assert f"Spearman {correlation:.1f}, n = 30" in texts
    ticks = texts[: texts.index("gold score")]
    assert texts.count(ticks[0]) == 2


def test_equal_similarities_have_no_correlation(svg):
    rows = "".join(f'{{"embedding_a":[1,0],"embedding_b":[1,0],"score":{n}}}\n' for n in range(3))

    assert "undefined, n = 3" in svg("pairs", "--gold", "score", stdin=rows)


def test_heat_has_the_similarities_of_all_sentences(plot):
    """A sentence without text has the name of its entry or row."""
    random = np.random.default_rng(0)
    vectors = random.normal(size=(4, 3)).round(3).tolist()
    sentences = [{"text": f"text {n}", "embedding": v} for n, v in enumerate(vectors)]
    records = plot("heat", stdin=in_jsonl(*sentences))
    expected = [BY_HAND["cosine"](a, b) for a in vectors for b in vectors]

    assert [record["similarity"] for record in records] == pytest.approx(expected, abs=1e-6)
    assert [record["text"] for record in records[::4]] == ["text 0", "text 1", "text 2", "text 3"]
    assert [record["column"] for record in records[:4]] == [1, 2, 3, 4]
    rows = [{"embedding": [1, 0]}, {"text": None, "entry": "dog", "embedding": [1, 0]}]
    records = plot("heat", stdin=in_jsonl(*rows))
    assert [record["text"] for record in records[::2]] == ["row 1", "dog"]


@pytest.mark.parametrize("count", [4, 10])
def test_columns_of_heat_have_the_numbers_of_the_rows(plot, svg, count):
    """Blank lines count, so that a number is that of a message about the row."""
    rows = [in_jsonl({"embedding": [n + 1, 1]}) for n in range(count)]
    numbers = [2, *range(4, count + 3)]
    stdin = "\n" + rows[0] + "\n" + "".join(rows[1:])
    records = plot("heat", stdin=stdin)
    texts = svg("heat", stdin=stdin)

    assert [record["column"] for record in records[:count]] == numbers
    assert [record["text"] for record in records[::count]] == [f"row {n}" for n in numbers]
    ticks = texts[: texts.index("row")]
    assert {int(tick) for tick in ticks} <= {*numbers}
    if count == 4:
        assert ticks == ["2", "4", "5", "6"]


def test_rows_of_several_files_are_counted_on(plot, tmp_path):
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text("\n" + in_jsonl({"embedding": [1, 0]}))
    records = plot("heat", "a.jsonl", "b.jsonl")

    assert [record["column"] for record in records] == [1, 2, 1, 2]


def test_heat_warns_of_zero_vectors(sentkit):
    result = sentkit("plot", "heat", stdin=in_jsonl(*({"embedding": v} for v in ([1, 0], [0, 0]))))

    warning = "-: 1 of 2 rows have a zero vector, as empty texts do, and are not left out"
    assert result.code == 0
    assert result.told == [f"sentkit plot heat: warning: {warning}"]


def test_heat_draws_a_hundred_sentences(sentkit):
    lines = [{"text": str(n), "embedding": [n + 1, 1]} for n in range(101)]
    result = sentkit("plot", "heat", stdin=in_jsonl(*lines))

    assert len(sentkit("plot", "heat", stdin=in_jsonl(*lines[:100])).rows) == 10_000
    assert result.code == 65
    assert result.told == [
        "sentkit plot heat: -: more than 100 sentences",
        "  draw a part: sentkit cat FILE --head 100",
    ]


@pytest.mark.parametrize(
    ("metric", "label"),
    [("euclidean", "negative Euclidean distance"), ("manhattan", "negative Manhattan distance")],
)
def test_the_labels_say_that_distances_are_negative(svg, metric, label):
    """Also the note of few sentences, and the bar of many."""
    vectors = np.random.default_rng(0).normal(size=(12, 4)).tolist()
    few = in_jsonl(*({"embedding": vector} for vector in vectors[:3]))
    many = in_jsonl(*({"embedding": vector} for vector in vectors))
    flags = ("--metric", metric)

    assert label in svg("pairs", "--gold", "score", *flags, stdin=in_jsonl(*pair_rows(5)))
    assert label in svg("heat", *flags, stdin=few)
    assert label in svg("heat", *flags, stdin=many)
