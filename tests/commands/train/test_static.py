"""`sentkit train` on a static model: its scores."""

import pytest

from support import write_rows

TEXTS = [
    "the cat sat",
    "a dog",
    "the dog plays.",
    "a cat playing",
    "cats sat",
    "dogs play",
    "the cat",
    "sat",
]


def test_dev_scores_are_those_of_encode(train, sentkit, model2vec, tmp_path):
    base = model2vec(normalize=True)
    rows = [{"text": text, "embedding": [n, 1, n % 3]} for n, text in enumerate(TEXTS)]
    texts = enumerate(zip(TEXTS[:4], TEXTS[4:], strict=True))
    scored_pairs = [{"text_a": a, "text_b": b, "score": n} for n, (a, b) in texts]
    write_rows(tmp_path, {"rows": rows, "pairs": scored_pairs})
    pairs = tmp_path / "pairs.jsonl"
    flags = ("--epochs", 5, "--lr", 0.1, "--dev", pairs, "--set", "final=last")
    [result] = train(*flags, method="distill", rows="rows.jsonl", model=base).rows
    scores = []
    for name in (base, "out"):
        encoded = sentkit("encode", "-q", "-m", name, pairs).out
        [report] = sentkit("score", "--gold", "score", stdin=encoded).rows
        scores.append(report["spearman"])

    assert scores == pytest.approx([result["dev_before"], result["dev"]], abs=1e-4)
    assert (result["step"], result["readout"]) == (15, "mean")
