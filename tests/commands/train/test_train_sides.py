"""Prompts by side in training: the weights are those of rows with the prompts written into the
texts.
"""

from pathlib import Path

import pytest

from commands.train.records import log_of, record_of
from support import TEXTS, write_rows

PROMPTS = {"anchor": "query: ", "positive": "the passage, ", "negative": ""}
OF_PAIRS = {"a": "x ", "b": "y: "}


def rows_of(fields, columns):
    return [dict(zip(fields, texts, strict=True)) for texts in zip(*columns, strict=True)]


@pytest.mark.parametrize(
    ("method", "prompts"),
    [
        *((name, PROMPTS) for name in ("contrast", "simcse-sup", "promptbert")),
        ("contrast", OF_PAIRS),
    ],
)
def test_the_weights_are_those_of_written_prompts(train, sentkit, method, prompts):
    """Also the scores of --dev, which is of the same rows."""
    fields = [{"a": "text_a", "b": "text_b"}.get(side, side) for side in prompts]
    columns = [TEXTS[n:] + TEXTS[:n] for n in range(len(fields))]
    with_prompts = [
        [prompt + text for text in column]
        for prompt, column in zip(prompts.values(), columns, strict=True)
    ]
    write_rows(
        Path(), {"plain": rows_of(fields, columns), "written": rows_of(fields, with_prompts)}
    )
    value = ",".join(f"{side}={prompt}" for side, prompt in prompts.items())
    preset = ("--preset", "sup-roberta-base") if method == "promptbert" else ()
    if method == "contrast":  # a written prompt is part of the text
        preset = ("--set", "equal_texts=off")
    flags = ("--set", f"prompt={value}", "--dev", "plain.jsonl", *preset)
    by_setting = train(*flags, method=method, rows="plain.jsonl")
    flags = ("--dev", "written.jsonl", *preset)
    by_texts = train(*flags, method=method, rows="written.jsonl", output="by_texts")

    assert (by_setting.code, by_texts.code) == (0, 0), by_setting.err + by_texts.err
    for name in ("model.safetensors", "steps.jsonl"):
        assert Path("out", name).read_bytes() == Path("by_texts", name).read_bytes()
    record = record_of()
    assert record["run"]["prompt"] == value
    first, second, *_ = prompts.values()
    assert (record["prompt"], record["prompts"]) == ("", {"query": first, "document": second})
    assert f"--set 'prompt={value}'" in record["command"]


@pytest.mark.parametrize("guide", ["none", "self", "nano"])
def test_prompts_by_side_do_not_change_which_texts_are_equal(train, guide):
    """The only other candidate has the text of the anchor, so it is no negative: the loss is
    log 1.
    """
    first, second, *_ = TEXTS
    rows = [{"anchor": first, "positive": second}, {"anchor": second, "positive": first}]
    write_rows(Path(), {"rows": rows})
    flags = ("--set", "prompt=anchor=query: ,positive=the passage, ", "--epochs", 1)
    flags += ("--set", f"guide={guide}", "--set", "warmup=0")
    result = train(*flags, method="contrast", rows="rows.jsonl")
    compared = train(
        *flags, "--set", "equal_texts=off", method="contrast", rows="rows.jsonl", output="all"
    )

    assert (result.code, compared.code) == (0, 0), result.err + compared.err
    assert [step["loss"] for step in log_of()] == [0]
    assert guide != "none" or log_of("all")[0]["loss"] > 1e-3
