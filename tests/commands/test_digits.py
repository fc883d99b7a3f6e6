"""Numbers in reports have seven significant digits: vectors of float32 support no more."""

import re
from itertools import pairwise

import numpy as np
import pytest

NUMBER = re.compile(r"-?(\d+(?:\.\d+)?)(?:e[-+]?\d+)?")


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
    assert max(map(len, digits)) == 7
