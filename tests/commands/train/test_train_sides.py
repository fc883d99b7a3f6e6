"""Prompts by side in training: the weights are those of rows with the prompts written into the texts."""

import json
from pathlib import Path

import pytest

from support import TEXTS, in_jsonl

SIDES = ("anchor", "positive", "negative")
PROMPTS = {"anchor": "query: ", "positive": "the passage, ", "negative": ""}
OF_PAIRS = {"a": "x ", "b": "y: "}


def write(path, rows, prompts=None):
    rows = [{side: (prompts or {}).get(side, "") + text for side, text in row.items()} for row in rows]
    Path(path).write_text(in_jsonl(*rows))
    return path


@pytest.mark.parametrize(
    ("method", "prompts"),
    [*((name, PROMPTS) for name in ("contrast", "simcse-sup", "promptbert")), ("contrast", OF_PAIRS)],
)
def test_the_weights_are_those_of_written_prompts(train, method, prompts):
    """Also the scores of --dev, which is of the same rows."""
    texts = {side: TEXTS[n:] + TEXTS[:n] for n, side in enumerate(prompts)}
    names = {"a": "text_a", "b": "text_b"}
    fields = [names.get(side, side) for side in prompts]
    rows = [dict(zip(fields, own, strict=True)) for own in zip(*texts.values(), strict=True)]
    written = dict(zip(fields, prompts.values(), strict=True))
    given = ",".join(f"{side}={prompt}" for side, prompt in prompts.items())
    write("plain.jsonl", rows)
    write("written.jsonl", rows, written)
    preset = ("--preset", "sup-roberta-base") if method == "promptbert" else ()
    flags = ("--set", f"prompt={given}", "--dev", "plain.jsonl", *preset)
    own = train(*flags, method=method, rows="plain.jsonl")
    theirs = train("--dev", "written.jsonl", *preset, method=method, rows="written.jsonl", output="theirs")

    assert (own.code, theirs.code) == (0, 0), own.err + theirs.err
    for name in ("model.safetensors", "steps.jsonl"):
        assert Path("out", name).read_bytes() == Path("theirs", name).read_bytes()
    record = json.loads(Path("out/sentkit.json").read_text())
    assert record["run"]["prompt"] == given
    first, second, *_ = prompts.values()
    assert (record["prompt"], record["prompts"]) == ("", {"query": first, "document": second})


def test_the_command_of_a_checkpoint_has_the_whole_prompt(sentkit, train):
    write("rows.jsonl", [dict(zip(SIDES, TEXTS[n : n + 3], strict=True)) for n in range(6)])
    given = "anchor=q: ,positive=p: ,negative=n: "
    train("--set", f"prompt={given}", method="contrast", rows="rows.jsonl")

    assert f"--set 'prompt={given}'" in sentkit("inspect", "out", "--replay").out.decode()
