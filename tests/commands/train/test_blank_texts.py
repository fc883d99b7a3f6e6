"""Empty and blank texts have the zero vector: they are no examples, and count as zero on --dev."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from commands.train.records import record_of
from support import PAIRS, TEXTS, in_jsonl, write_rows

BLANK = ("", "  ", "\u2003")


@pytest.fixture
def train(sentkit, tiny):
    """Without -q, for the warnings."""

    def run(method, rows, *flags, output="out"):
        flags = ("--batch", 3, "--threads", 1, *flags)
        return sentkit("train", method, rows, "-m", tiny, "-o", output, *flags)

    return run


def with_blank_rows(rows, fields):
    """Between these rows, rows of which one text is blank."""
    mixed = []
    for index, row in enumerate(rows):
        blank = {fields[index % len(fields)]: BLANK[index % len(BLANK)]}
        mixed += [row, row | blank]
    return mixed


PAIR_ROWS = [{"text_a": a, "text_b": b, "label": "entailment"} for a, b in pairwise(TEXTS)]
PAIR_ROWS += [row | {"label": "contradiction"} for row in PAIR_ROWS[:2]]
SENTENCES = [{"text": text} for text in TEXTS]
TRIPLETS = [
    {"anchor": a, "positive": b, "negative": c}
    for a, b, c in zip(TEXTS, TEXTS[1:], TEXTS[2:], strict=False)
]


@pytest.mark.parametrize(
    ("method", "rows", "flags"),
    [
        ("simcse", SENTENCES, ()),
        ("mlm", SENTENCES, ("--set", "head=fresh")),
        ("ct", SENTENCES, ()),
        ("sbert", PAIR_ROWS, ()),
        ("pairsupcon", PAIR_ROWS, ()),
        ("contrast", TRIPLETS, ("--set", "prompt=anchor=query: ,positive=x ,negative=")),
    ],
)
def test_rows_with_a_blank_text_are_skipped(train, method, rows, flags):
    """The weights are those of the other rows."""
    fields = [name for name in rows[0] if name != "label"]
    write_rows(Path(), {"plain": rows, "mixed": with_blank_rows(rows, fields)})
    plain = train(method, "plain.jsonl", *flags)
    mixed = train(method, "mixed.jsonl", *flags, output="mixed")

    assert (plain.code, mixed.code) == (0, 0), plain.err + mixed.err
    for name in ("model.safetensors", "steps.jsonl"):
        assert Path("out", name).read_bytes() == Path("mixed", name).read_bytes()
    skipped = f"{len(rows)} rows skipped: an empty text, of which no model computes a vector"
    assert f"sentkit train: warning: {skipped}" in mixed.told
    assert "skipped" not in plain.err


def test_a_file_of_blank_lines_has_no_examples(train, tmp_path):
    (tmp_path / "blank.txt").write_text("\n\n \n")
    result = train("simcse", "blank.txt")

    assert result.code == 65
    assert "0 rows can be used, but training needs at least 2" in result.err
    assert "3 rows skipped: an empty text" in result.err


def test_a_classifier_reads_empty_texts(train):
    rows = [{"text": text, "label": index % 2} for index, text in enumerate([*TEXTS, ""])]
    write_rows(Path(), {"rows": rows})
    result = train("classify", "rows.jsonl")

    assert result.code == 0, result.err
    assert record_of()["rows"] == len(rows)
    assert "skipped" not in result.err


def test_vectors_of_empty_texts_are_skipped_by_distill(train, sentkit, tiny):
    """They are zero. A zero vector of another text is a bad row."""
    write_rows(Path(), {"plain": SENTENCES, "mixed": with_blank_rows(SENTENCES, ["text"])})
    for name in ("plain", "mixed"):
        encoded = sentkit("encode", f"{name}.jsonl", "-m", tiny, "-o", f"{name}.safetensors", "-q")
        assert encoded.code == 0
    plain = train("distill", "plain.safetensors")
    mixed = train("distill", "mixed.safetensors", output="mixed")
    zero = {"text": "a cat", "embedding": [0] * 8}
    write_rows(Path(), {"zero": [zero, {**zero, "embedding": [1] * 8}]})
    refused = train("distill", "zero.jsonl", output="zero")

    assert (plain.code, mixed.code, refused.code) == (0, 0, 65), plain.err + mixed.err
    for name in ("model.safetensors", "steps.jsonl"):
        assert Path("out", name).read_bytes() == Path("mixed", name).read_bytes()
    assert "zero.jsonl:1: the vector is 0, so it has no direction" in refused.err


@pytest.mark.parametrize("metric", ["score", "positive"])
def test_a_static_model_has_no_tokens_of_an_empty_text(train, sentkit, metric):
    """Pairs with a score, and positive pairs."""
    pairs = [dict(pair) for pair in PAIRS]
    pairs[1]["text_a"] = " "
    pairs[4]["text_b"] = ""
    if metric == "positive":
        pairs = [{"text_a": pair["text_a"], "text_b": pair["text_b"]} for pair in pairs]
    write_rows(Path(), {"dev": pairs, "rows": PAIR_ROWS})
    flags = ("-m", "static", "--dev", "dev.jsonl", "--epochs", 1)
    trained = train("contrast", "rows.jsonl", *flags)

    assert trained.code == 0, trained.err
    if metric == "score":
        encoded = sentkit("encode", "dev.jsonl", "-m", "static", "-q")
        scored = sentkit("score", "--gold", "score", "-q", stdin=encoded.out)
        expected = json.loads(scored.out)["spearman"]
        assert record_of()["dev_before"] == pytest.approx(expected, abs=1e-3)


def test_dev_without_a_text_is_refused(train):
    write_rows(Path(), {"rows": SENTENCES})
    pairs = [{**pair, "text_a": "", "text_b": " "} for pair in PAIRS]
    write_rows(Path(), {"dev": pairs})
    result = train("simcse", "rows.jsonl", "--dev", "dev.jsonl")

    assert result.code == 65
    assert "dev.jsonl: all texts are empty" in result.err


@pytest.mark.parametrize("prompt", [(), ("--set", "prompt=query: ")])
def test_the_score_on_dev_is_that_of_vectors_of_encode(train, sentkit, tiny, prompt):
    """Some pairs have a blank text, whose vector is zero, also with a prompt."""
    pairs = [dict(pair) for pair in PAIRS]
    pairs[1]["text_a"] = " "
    pairs[4]["text_b"] = ""
    Path("dev.jsonl").write_text(in_jsonl(*pairs))
    write_rows(Path(), {"rows": SENTENCES})
    trained = train("simcse", "rows.jsonl", "--dev", "dev.jsonl", "--epochs", 1, *prompt)
    encode = ("encode", "dev.jsonl", "--precision", "fp32", "-q")
    before = sentkit(*encode, "-m", tiny, *(["--prompt", "query: "] if prompt else []))
    after = sentkit(*encode, "-m", "out")
    scores = [
        json.loads(sentkit("score", "--gold", "score", "-q", stdin=vectors.out).out)
        for vectors in (before, after)
    ]

    assert trained.code == 0, trained.err
    record = record_of()
    assert record["dev_before"] == pytest.approx(scores[0]["spearman"], abs=1e-3)
    assert record["dev"] == pytest.approx(scores[1]["spearman"], abs=1e-3)
    assert (
        f"sentkit train: warning: dev.jsonl: 2 of {len(pairs)} rows have an empty text, whose "
        "vector is zero; the first is line 2"
    ) in trained.told
