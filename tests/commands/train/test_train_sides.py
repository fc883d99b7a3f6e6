"""Prompts by side in training: the weights are those of rows with the prompts written into the
texts.
"""

from pathlib import Path

import pytest

from commands.train.records import record_of
from support import TEXTS, write_rows

PROMPTS = {"anchor": "query: ", "positive": "the passage, ", "negative": ""}
OF_PAIRS = {"a": "x ", "b": "y: "}


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
    longer = [
        [prompt + text for text in own]
        for prompt, own in zip(prompts.values(), columns, strict=True)
    ]
    for name, each in (("plain", columns), ("written", longer)):
        write_rows(
            Path(), {name: [dict(zip(fields, row, strict=True)) for row in zip(*each, strict=True)]}
        )
    given = ",".join(f"{side}={prompt}" for side, prompt in prompts.items())
    preset = ("--preset", "sup-roberta-base") if method == "promptbert" else ()
    flags = ("--set", f"prompt={given}", "--dev", "plain.jsonl", *preset)
    own = train(*flags, method=method, rows="plain.jsonl")
    theirs = train(
        "--dev", "written.jsonl", *preset, method=method, rows="written.jsonl", output="theirs"
    )

    assert (own.code, theirs.code) == (0, 0), own.err + theirs.err
    for name in ("model.safetensors", "steps.jsonl"):
        assert Path("out", name).read_bytes() == Path("theirs", name).read_bytes()
    record = record_of()
    assert record["run"]["prompt"] == given
    first, second, *_ = prompts.values()
    assert (record["prompt"], record["prompts"]) == ("", {"query": first, "document": second})
    assert f"--set 'prompt={given}'" in record["command"]
