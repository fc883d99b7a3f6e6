"""Numbers in reports have seven significant digits: vectors of float32 support no more."""

import math
import re
from itertools import pairwise

import numpy as np
import pytest

from sentkit.digits import rounded, significant

NUMBER = re.compile(r"-?(\d+(?:\.\d+)?)(?:e[-+]?\d+)?")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1 / 3, 0.3333333),
        (2e5 / 3, 66666.67),
        (1.0, 1.0),
        (-1e-9 / 7, -1.428571e-10),
        (123456789.5, 123456800.0),
    ],
)
def test_seven_digits(value, expected):
    assert significant(value) == expected


def test_a_record_is_rounded_at_every_depth():
    kept = {"n": 123456789, "d": None, "e": True, "f": "0.33333333333"}
    record = {"a": 1 / 3, "b": [2 / 3, {"c": 1 / 7}], **kept}

    assert rounded(record) == {"a": 0.3333333, "b": [0.6666667, {"c": 0.1428571}], **kept}
    assert math.isnan(rounded(math.nan))


@pytest.mark.parametrize(
    "arguments",
    [
        ["score"],
        ["score", "--gold", "g"],
        ["inspect", "pairs.jsonl", "--gold", "g"],
        ["search", "--queries", "sentences.jsonl", "--corpus", "sentences.jsonl"],
        ["cluster", "sentences.jsonl", "-k", "3", "--truth", "c", "--seed", "0..2"],
        ["cluster", "sentences.jsonl", "-k", "3", "--stability"],
        ["probe", "sentences.jsonl", "--label", "c", "--folds", "3"],
    ],
    ids=" ".join,
)
def test_no_report_prints_more(sentkit, tmp_path, jsonl, arguments):
    random = np.random.default_rng(3)
    vectors = random.standard_normal((48, 5)).round(3).tolist()
    rows = [{"embedding": v, "g": n, "c": "xyz"[n % 3]} for n, v in enumerate(vectors)]
    pairs = [{"embedding_a": a, "embedding_b": b, "g": n % 7} for n, (a, b) in enumerate(pairwise(vectors))]
    (tmp_path / "sentences.jsonl").write_bytes(jsonl(*rows))
    corpus = [{**row, "embedding": vectors[-1 - n]} for n, row in enumerate(rows)]
    (tmp_path / "corpus.jsonl").write_bytes(jsonl(*corpus))
    (tmp_path / "pairs.jsonl").write_bytes(jsonl(*pairs))
    if arguments == ["score"] or arguments[1] == "--gold":
        arguments = [*arguments, "pairs.jsonl"]
    done = sentkit(*arguments)
    digits = [match[1].replace(".", "").strip("0") for match in NUMBER.finditer(done.out.decode())]

    assert done.code == 0
    assert max(map(len, digits)) in (6, 7)
