"""`score --gold`: the report, its aggregates, intervals, comparison, --fail-under, and refusals."""

import json

import numpy as np
import pytest
from scipy import stats


def pair(similarity, gold, **rest):
    """A pair of unit vectors with this cosine."""
    other = [similarity, (1 - similarity**2) ** 0.5]
    return {**rest, "embedding_a": [1, 0], "embedding_b": other, "score": gold}


@pytest.fixture
def scored_pairs():
    """Thirty pairs with ties in the gold scores."""
    random = np.random.default_rng(11)
    gold = random.integers(0, 6, 30)
    return list(zip((0.1 * gold + 0.3 * random.random(30)).round(3).tolist(), gold.tolist(), strict=True))


# A worked example with two groups; LARGER has one more pair in group B.
SMALLER = [
    *(pair(s, g, topic="A") for s, g in ((0.1, 1), (0.2, 2), (0.3, 3))),
    *(pair(s, g, topic="B") for s, g in ((0.05, 2.5), (0.15, 3.5), (0.25, 4.5))),
]
NOT_SAME = "{}.jsonl: scored pair {} is not the same pair as in {}.jsonl"
LARGER = [*SMALLER, pair(0.9, 0.5, topic="B")]


@pytest.fixture
def report(sentkit, jsonl):
    def run(rows, *flags):
        return sentkit("score", "--gold", "score", *flags, stdin=jsonl(*rows))

    return run


def test_correlations_equal_those_of_scipy(report, scored_pairs):
    """The report has them x 100, with the number of pairs and the file."""
    done = report([pair(s, g) for s, g in scored_pairs])
    similarities, gold = zip(*scored_pairs, strict=True)
    (found,) = done.rows

    assert done.code == 0
    assert found["n"] == 30
    assert found["file"] == "-"
    assert found["spearman"] == pytest.approx(100 * stats.spearmanr(similarities, gold).statistic, rel=5e-7)
    assert found["pearson"] == pytest.approx(100 * stats.pearsonr(similarities, gold).statistic, abs=1e-4)
    assert found["spearman_ci95"][0] < found["spearman"] < found["spearman_ci95"][1]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (SMALLER, {"all": 48.5714, "mean": 100, "weighted": 100}),
        (LARGER, {"all": -7.1429, "mean": 40, "weighted": 31.4286}),
    ],
)
@pytest.mark.parametrize("aggregate", ["all", "mean", "weighted"])
def test_aggregates_of_the_papers(report, rows, expected, aggregate):
    """The report has all three; its main value is the requested one."""
    (found,) = report(rows, "--group", f"topic:{aggregate}").rows

    averages = {name: both["spearman"] for name, both in found["averages"].items()}

    assert averages == pytest.approx(expected, abs=1e-4)
    assert found["aggregate"] == aggregate
    assert found["spearman"] == pytest.approx(expected[aggregate], abs=1e-4)


def test_an_undefined_group_is_a_warning(report):
    """The mean of the groups is then undefined too; the correlation of all pairs is not."""
    done = report([*SMALLER, pair(0.5, 1, topic="C")], "--group", "topic")
    (found,) = done.rows

    problem = 'the correlation of group "C" is undefined: too few pairs, or equal values'
    assert done.told == [f"sentkit score: warning: -: {problem}"]
    assert found["groups"]["C"]["spearman"] is None
    assert found["averages"]["mean"]["spearman"] is None
    assert found["spearman"] is not None


@pytest.fixture
def files(tmp_path, jsonl):
    """Three files of the same pairs: two by one encoder, one by another."""
    random = np.random.default_rng(7)
    gold = random.random(40)

    def write(name, emb, noise):
        similarities = np.clip(gold + noise * random.standard_normal(40), -1, 1).round(3).tolist()
        rows = (
            pair(s, g, text_a=f"a{n}", text_b=f"b{n}", _emb=emb)
            for n, (s, g) in enumerate(zip(similarities, gold.tolist(), strict=True))
        )
        (tmp_path / name).write_bytes(jsonl(*rows))

    write("one.jsonl", "old/mean:111111111111", 0.2)
    write("two.jsonl", "old/mean:111111111111", 0.2)
    write("new.jsonl", "new/mean:222222222222", 0.1)


@pytest.mark.usefixtures("files")
def test_each_file_has_a_report_and_those_of_one_encoder_an_average(sentkit):
    done = sentkit("score", "one.jsonl", "new.jsonl", "--gold", "score")
    one, two, average = sentkit("score", "one.jsonl", "two.jsonl", "--gold", "score").rows

    assert [row["file"] for row in done.rows] == ["one.jsonl", "new.jsonl"]
    assert [row["encoder"] for row in done.rows] == ["old/mean:111111111111", "new/mean:222222222222"]
    assert (average["file"], average["n"]) == ("average", 80)
    for kind in ("spearman", "pearson"):
        assert average[kind] == pytest.approx((one[kind] + two[kind]) / 2)


@pytest.mark.usefixtures("files")
def test_comparison_with_a_baseline(sentkit):
    """The difference is that of the two reports, and its interval contains it."""
    done = sentkit("score", "new.jsonl", "--baseline", "one.jsonl", "--gold", "score")
    alone = [sentkit("score", f"{name}.jsonl", "--gold", "score").rows[0] for name in ("new", "one")]
    against = done.rows[0]["against"]

    assert against["file"] == "one.jsonl"
    for kind in ("spearman", "pearson"):
        low, high = against[kind]["ci95"]
        assert against[kind]["difference"] == pytest.approx(alone[0][kind] - alone[1][kind], abs=2e-5)
        assert low < against[kind]["difference"] < high
        assert 0 <= against[kind]["p"] <= 1


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda rows: rows[:-1], "new.jsonl: 40 scored pairs, but 39 in base.jsonl"),
        (lambda rows: [rows[1], rows[0], *rows[2:]], NOT_SAME.format("new", 1, "base")),
        (
            lambda rows: [*rows[:3], {**rows[3], "text_a": "changed"}, *rows[4:]],
            NOT_SAME.format("new", 4, "base"),
        ),
    ],
    ids=["fewer", "order", "text"],
)
def test_a_baseline_with_different_pairs_is_refused(sentkit, tmp_path, jsonl, change, problem):
    rows = [json.loads(line) for line in (tmp_path / "one.jsonl").read_text().splitlines()]
    (tmp_path / "base.jsonl").write_bytes(jsonl(*change(rows)))
    done = sentkit("score", "new.jsonl", "--baseline", "base.jsonl", "--gold", "score")

    assert (done.code, done.told[0]) == (65, f"sentkit score: {problem}")


@pytest.mark.usefixtures("files")
def test_a_baseline_with_different_groups_is_refused(sentkit, tmp_path, jsonl):
    """The texts, scores and vectors are equal."""
    rows = [json.loads(line) for line in (tmp_path / "one.jsonl").read_text().splitlines()]
    for name, size in (("halves", 20), ("quarters", 10)):
        grouped = ({**row, "topic": f"t{n // size}"} for n, row in enumerate(rows))
        (tmp_path / f"{name}.jsonl").write_bytes(jsonl(*grouped))
    flags = ("--gold", "score", "--group", "topic:mean")
    done = sentkit("score", "halves.jsonl", "--baseline", "quarters.jsonl", *flags)

    problem = NOT_SAME.format("halves", 11, "quarters")
    assert (done.code, done.told[0]) == (65, f"sentkit score: {problem}")


@pytest.mark.usefixtures("files")
def test_rows_without_a_score_do_not_change_a_comparison(sentkit, tmp_path, jsonl):
    """The resamples of a group are paired, also if the files name their groups in another order."""
    rows = [json.loads(line) for line in (tmp_path / "one.jsonl").read_text().splitlines()]
    grouped = [{**row, "topic": "xyz"[n % 3]} for n, row in enumerate(rows)]
    (tmp_path / "plain.jsonl").write_bytes(jsonl(*grouped))
    (tmp_path / "null.jsonl").write_bytes(jsonl({**grouped[1], "score": None}, *grouped))
    flags = ("--gold", "score", "--group", "topic:mean")
    against = sentkit("score", "plain.jsonl", "--baseline", "null.jsonl", *flags).rows[0]["against"]

    assert against["spearman"] == against["pearson"] == {"difference": 0, "ci95": [0, 0], "p": 1}


@pytest.mark.usefixtures("files")
def test_field_names_the_texts_that_identify_a_pair(sentkit, tmp_path):
    for name in ("one", "new"):
        text = (tmp_path / f"{name}.jsonl").read_text().replace('"text_a"', '"left"')
        (tmp_path / f"{name}.jsonl").write_text(text)
    (tmp_path / "one.jsonl").write_text((tmp_path / "one.jsonl").read_text().replace('"a3"', '"changed"'))
    flags = ("--baseline", "one.jsonl", "--gold", "score", "--field", "text_a=left")
    done = sentkit("score", "new.jsonl", *flags)

    assert (done.code, done.told[0]) == (65, f"sentkit score: {NOT_SAME.format('new', 4, 'one')}")
