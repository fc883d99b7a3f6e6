"""`score --seen`: pairs of a test set that occur in training rows."""

import gzip
import json

import pytest
from scipy.stats import spearmanr

from support import BY_HAND, in_jsonl, normal_rows

EMB = "m:100000000000"
GOLD = ("score", "test.jsonl", "--gold", "score")
TEXTS = [(f"left {n}.", f"right {n}") for n in range(12)]
SEEN_PAIR, SEEN_TEXTS, SEEN_TEXT = (1, 4), (5, 7, 8), (2, 11)
TRAIN = [
    *({"text_a": f"RIGHT {n}", "text_b": f"left  {n}"} for n in SEEN_PAIR),
    *({"text": f"{side} {n}"} for n in SEEN_TEXTS for side in ("left", "right")),
    *({"anchor": "x", "positive": "y", "negatives": ["z", f"left {n}!"]} for n in SEEN_TEXT),
]


@pytest.fixture
def vectors(tmp_path):
    """Twelve pairs with gold scores and vectors, (12, 2, 6)."""
    made = normal_rows(24, 6).reshape(12, 2, 6)
    rows = (
        {"id": n, "text_a": one, "text_b": other, "score": n * 5 % 7, **vectors_of(pair)}
        for n, ((one, other), pair) in enumerate(zip(TEXTS, made, strict=True))
    )
    (tmp_path / "test.jsonl").write_text(in_jsonl(*rows))
    for number, part in enumerate((TRAIN[:2], TRAIN[2:8], TRAIN[8:])):
        (tmp_path / f"train-{number}.jsonl.gz").write_bytes(gzip.compress(in_jsonl(*part).encode()))
    return made


def vectors_of(pair):
    return {"embedding_a": pair[0].tolist(), "embedding_b": pair[1].tolist(), "_emb": EMB}


def test_the_report_counts_seen_pairs_and_has_the_correlation_without_them(sentkit, vectors):
    [plain] = sentkit(*GOLD).rows
    [record] = sentkit(*GOLD, "--seen", "train-0.jsonl.gz", "--seen", "train-[12].jsonl.gz").rows
    seen, left = record.pop("seen"), [n for n in range(12) if n not in SEEN_PAIR + SEEN_TEXTS]
    cosines = [BY_HAND["cosine"](*vectors[n].tolist()) for n in left]

    assert record == plain
    assert seen["rows"] == len(TRAIN)
    assert [seen[level] for level in ("pair", "both", "one")] == [2, 3, 2]
    assert seen["without"]["n"] == len(left)
    expected = 100 * spearmanr(cosines, [n * 5 % 7 for n in left]).statistic
    assert seen["without"]["spearman"] == pytest.approx(expected, abs=1e-4)


def test_a_skipped_row_leaves_nothing_behind(sentkit, vectors, tmp_path):
    """The report is that of the file without the bad rows."""
    (tmp_path / "train.jsonl").write_text(in_jsonl(*TRAIN[:2]))
    lines = (tmp_path / "test.jsonl").read_text().splitlines(keepends=True)
    bad = [
        lines[2].replace('"left 2."', "5"),
        lines[3].replace('"right 3"', "null"),
        lines[4].replace(EMB, "n:200000000000"),
        lines[5].replace('"score": 4', '"score": "x"').replace('"score":4', '"score":"x"'),
    ]
    (tmp_path / "good.jsonl").write_text("".join(lines))
    (tmp_path / "mixed.jsonl").write_text("".join([lines[0], *bad, *lines[1:]]))
    flags = ("--gold", "score", "--seen", "train.jsonl")
    sentkit("score", "good.jsonl", *flags, "-o", "good.json")
    mixed = sentkit("score", "mixed.jsonl", *flags, "-o", "mixed.json", "--rejects", "/dev/null")
    reports = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("good", "mixed")]

    assert mixed.code == 0
    assert "bad rows dropped: 4; " in mixed.err
    assert [report.pop("file") for report in reports] == ["good.jsonl", "mixed.jsonl"]
    assert reports[0] == reports[1]
    assert reports[0]["seen"]["pair"] == 2
