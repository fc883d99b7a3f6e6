"""`sentkit train` on a static model: its scores."""

import pytest

from support import in_jsonl

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
    rows, pairs, base = tmp_path / "rows.jsonl", tmp_path / "pairs.jsonl", model2vec(normalize=True)
    rows.write_text(
        in_jsonl(*({"text": text, "embedding": [n, 1, n % 3]} for n, text in enumerate(TEXTS)))
    )
    texts = enumerate(zip(TEXTS[:4], TEXTS[4:], strict=True))
    pairs.write_text(in_jsonl(*({"text_a": a, "text_b": b, "score": n} for n, (a, b) in texts)))
    flags = ("--epochs", 5, "--lr", 0.1, "--dev", pairs, "--set", "final=last")
    [result] = train(*flags, method="distill", rows=rows, model=base).rows
    scores = []
    for name in (base, "out"):
        encoded = sentkit("encode", "-q", "-m", name, pairs).out
        [report] = sentkit("score", "--gold", "score", stdin=encoded).rows
        scores.append(report["spearman"])

    assert scores == pytest.approx([result["dev_before"], result["dev"]], abs=1e-4)
    assert (result["step"], result["readout"]) == (15, "mean")
