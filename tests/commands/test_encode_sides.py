"""Prompts by side: each text of a pair or triplet gets the prompt of its side."""

import json
from pathlib import Path

import numpy as np
import pytest

from sentkit.formats.rows.kinds import split_by_side
from support import in_jsonl

PAIRS = [
    ("a cat", "the sea"),
    ("the sea", "a cat"),
    ("a dog runs",) * 2,
    ("ships", "a cat sat on it"),
]
PROMPTS = {"a": "query: ", "b": "the passage = 1, b: "}
SIDE_PROMPTS = "a=query: ,b=the passage = 1, b: "
DECLARED = {
    "readout": "mean",
    "prompts": {"query": "query: ", "document": "passage: ", "a=x": "odd "},
}


def write(name, pairs=PAIRS, **more):
    Path(name).write_text(in_jsonl(*({"text_a": a, "text_b": b, **more} for a, b in pairs)))
    return name


@pytest.mark.parametrize(
    ("text", "sides"),
    [
        ("query: ", {}),
        ("x=1, a=2", {}),
        (" a=2", {}),
        ("query=q,document=d", {}),
        ("a=", {"a": ""}),
        ("b=d,a=q", {"a": "q", "b": "d"}),
        ("a=q, b=x,c=y,b=a=1,,", {"a": "q, b=x,c=y", "b": "a=1,,"}),
        ("positive=p\nanchor=q,anchor=r", {"positive": "p\nanchor=q", "anchor": "r"}),
    ],
)
def test_only_known_sides_at_the_start_or_behind_a_comma_are_sides(text, sides):
    assert split_by_side(text) == sides


@pytest.fixture
def words(tmp_path):
    text = "a b c d q 1 cat the sea dog runs ships sat on it query passage and"
    names = text.split()
    numbers = np.random.default_rng(0).standard_normal((len(names), 4)).round(3)
    lines = (
        f"{name} {' '.join(map(str, row))}\n" for name, row in zip(names, numbers, strict=True)
    )
    (tmp_path / "words.txt").write_text("".join(lines))
    return "words.txt"


@pytest.fixture
def model(request, tiny, words, model2vec, copy_of):
    if request.param == "model2vec":
        return model2vec()
    if request.param != "without prompt":
        return {"tiny": tiny, "words": words}.get(request.param, request.param)
    folder = copy_of(tiny, "instructor")
    (folder / "sentkit.json").write_text(json.dumps({"readout": "mean", "prompt_is_read": False}))
    return folder


WINDOWS = ("--on-truncate", "window", "--max-length", 12, "--window", "12:2")


@pytest.mark.parametrize("flags", [(), WINDOWS], ids=["whole", "windows"])
@pytest.mark.parametrize("model", ["tiny", "words", "model2vec", "without prompt"], indirect=True)
def test_each_column_has_the_vectors_of_its_own_prompt(sentkit, model, flags):
    rows = [(f"{a} {n}", f"{b} and {n} {a}") for n in range(20) for a, b in PAIRS]
    write("pairs.jsonl", rows)
    result = sentkit("encode", "pairs.jsonl", "-m", model, "--prompt", SIDE_PROMPTS, *flags)
    exact = str(model).endswith(("txt", "vec", "words"))

    assert (result.code, len(result.rows)) == (0, len(rows))
    assert [(row["text_a"], row["text_b"]) for row in result.rows] == rows
    for side, prompt in PROMPTS.items():
        of_side = ("--field", f"text=text_{side}", "--prompt", prompt, "-q", *flags)
        alone = sentkit("encode", "pairs.jsonl", "-m", model, *of_side).vectors()
        vectors = result.vectors(f"embedding_{side}")
        if exact:
            assert np.array_equal(vectors, alone)
        else:
            assert np.abs(vectors - alone).max() < 2e-6


def test_names_by_side_are_those_of_the_checkpoint(sentkit, tiny, copy_of):
    folder = copy_of(tiny)
    (folder / "sentkit.json").write_text(json.dumps(DECLARED))
    pairs = write("pairs.jsonl")
    command = ("encode", pairs, "-m", folder)
    named = sentkit(*command, "--prompt-name", "b=document,a=query")
    literal = sentkit(*command, "--prompt-name", "a=x")  # the name of a prompt

    assert named.out == sentkit(*command, "--prompt", "a=query: ,b=passage: ").out
    assert literal.out == sentkit(*command, "--prompt", "odd ").out
    assert sentkit(*command, "--prompt-name", "a=query,b=passage").told == [
        'sentkit encode: the model declares no prompt with the name "passage"',
        "  available: query, document, a=x",
    ]


@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_old_vectors_are_reused_only_with_the_same_prompts(sentkit, words, kind):
    """The same text has other vectors on the other side."""
    old = write("old.jsonl")
    new = write("new.jsonl", [("ships", "a cat"), ("a cat", "ships"), ("a dog runs", "the sea")])
    command = ("encode", "-m", words)
    prompts = ("--prompt", SIDE_PROMPTS)
    sentkit(*command, old, *prompts, "-o", "old.safetensors")
    stored = (*command, new, *prompts, "--store", kind)
    fresh = sentkit(*stored, "-o", "fresh.safetensors")
    reused = sentkit(*stored, "-o", "reused.safetensors", "--reuse", "old.safetensors")
    swapped = ("--prompt", "b=query: ,a=x", "-o", "o.safetensors", "--reuse", "old.safetensors")
    other = sentkit(*command, new, *swapped)
    sentkit(*command, new, "-o", "plain.safetensors")
    of_plain = ("--reuse", "plain.safetensors", "-o", "x.safetensors")
    without = sentkit(*command, new, *prompts, *of_plain)

    assert fresh.code == reused.code == 0
    assert Path("reused.safetensors").read_bytes() == Path("fresh.safetensors").read_bytes()
    assert reused.told[-1].endswith("reused rows: 2, encoded: 1, no longer needed: 0")
    assert '"prompt" is {"a":"query: "' in other.told[0]
    assert "nothing is reused" in other.told[0]
    assert "nothing is reused" in without.err


def test_a_folder_continues_only_with_the_same_prompts(sentkit, words):
    pairs = write("pairs.jsonl")
    command = ("encode", "-m", words, pairs, "-o", "v/", "--block-bytes", 60)
    first = sentkit(*command, "--prompt", SIDE_PROMPTS, "--shard", "1/2")
    same = sentkit(*command, "--prompt", SIDE_PROMPTS, "--resume")
    swapped = sentkit(*command, "--prompt", "b=query: ,a=the passage = 1, b: ", "--resume")
    plain = sentkit(*command, "--resume")

    assert (first.code, same.code, swapped.code, plain.code) == (0, 0, 65, 65)
    assert 'run.json: "prompt" is {"a":"query: "' in swapped.told[0]
    sentkit("encode", "-m", words, pairs, "--prompt", SIDE_PROMPTS, "-o", "v.safetensors")
    assert sentkit("cat", "v").out == sentkit("cat", "v.safetensors").out
