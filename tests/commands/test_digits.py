"""Numbers in reports have seven significant digits: vectors of float32 support no more."""

import re
from itertools import pairwise

import numpy as np
import pytest

from support import write_rows

NUMBER = re.compile(r"-?(\d+(?:\.\d+)?)(?:e[-+]?\d+)?")


@pytest.mark.parametrize(
    "arguments",
    [
        ["score", "pairs.jsonl"],
        ["score", "pairs.jsonl", "--gold", "g"],
        ["inspect", "pairs.jsonl", "--gold", "g"],
        ["search", "--queries", "sentences.jsonl", "--corpus", "sentences.jsonl"],
        ["cluster", "sentences.jsonl", "-k", "3", "--truth", "c", "--seed", "0..2"],
        ["cluster", "sentences.jsonl", "-k", "3", "--stability"],
        ["probe", "sentences.jsonl", "--label", "c", "--folds", "3"],
    ],
    ids=" ".join,
)
def test_no_report_prints_more(sentkit, tmp_path, arguments):
    random = np.random.default_rng(3)
    vectors = random.standard_normal((48, 5)).round(3).tolist()
    rows = [{"embedding": v, "g": n, "c": "xyz"[n % 3]} for n, v in enumerate(vectors)]
    pairs = [
        {"embedding_a": a, "embedding_b": b, "g": n % 7}
        for n, (a, b) in enumerate(pairwise(vectors))
    ]
    write_rows(tmp_path, {"sentences": rows, "pairs": pairs})
    result = sentkit(*arguments)
    digits = [
        match[1].replace(".", "").strip("0") for match in NUMBER.finditer(result.out.decode())
    ]

    assert result.code == 0
    assert max(map(len, digits)) == 7
