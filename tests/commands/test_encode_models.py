"""`encode -m`: supported checkpoints, messages about broken ones, and equality of spaces."""

import json
import re

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

WEIGHTS = "model.safetensors"


@pytest.fixture
def refusal(sentkit):
    """The code and the lines of a run that must fail."""

    def run(model, *arguments):
        done = sentkit("encode", "-q", "-m", model, *arguments, stdin="a cat")
        assert done.out == b""
        return done.code, done.told

    return run


@pytest.mark.parametrize(
    ("without", "code", "problem"),
    [
        ((WEIGHTS,), 66, "copy: has no model.safetensors and no pytorch_model.bin"),
        (("tokenizer*", "vocab.txt"), 65, "copy: no tokenizer in this folder"),
    ],
)
def test_a_checkpoint_without_weights_or_tokenizer_is_refused(refusal, copy_of, tiny, without, code, problem):
    found, told = refusal(copy_of(tiny, without=without))

    assert (found, problem in told[0]) == (code, True)


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("config.json", "{", "config.json:1: not JSON"),
        ("config.json", "[]", "config.json: expected a JSON object"),
        ("config.json", '{"model_type":"bert","vocab_size":"many"}', "\"vocab_size\" cannot be 'many'"),
        ("sentkit.json", '{"readout":"median"}', 'sentkit.json: unknown readout "median"'),
        (WEIGHTS, "short", "not a safetensors file, or incomplete"),
    ],
)
def test_a_broken_file_of_a_checkpoint_is_named(refusal, copy_of, tiny, file, content, problem):
    """65, one line and at most one of advice, no traceback."""
    folder = copy_of(tiny)
    (folder / file).write_text(content)
    code, told = refusal(folder)

    assert code == 65
    assert problem in told[0]
    assert len(told) <= 2


def test_a_tokenizer_of_another_model_is_reported(refusal, copy_of, tiny):
    """More word pieces than there are weights for."""
    folder = copy_of(tiny)
    arrays, config = load_file(folder / WEIGHTS), json.loads((folder / "config.json").read_text())
    words = "embeddings.word_embeddings.weight"
    save_file({**arrays, words: arrays[words][:200]}, folder / WEIGHTS, {"format": "pt"})
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 200}))
    code, told = refusal(folder)

    problem = "the tokenizer and the model do not match: token id [0-9]+, but the model has 200 tokens"
    assert code == 65
    assert re.search(f"copy: {problem}$", told[0])


@pytest.mark.parametrize("name", ["out.jsonl", "out.safetensors", "-"])
def test_vectors_of_broken_weights_are_refused(sentkit, copy_of, tiny, tmp_path, name):
    """65 with the row, and no `null` or NaN in any output."""
    folder = copy_of(tiny)
    arrays = load_file(folder / WEIGHTS)
    arrays["embeddings.word_embeddings.weight"][2000:] = np.nan
    save_file(arrays, folder / WEIGHTS, {"format": "pt"})
    done = sentkit("encode", "-q", "-m", folder, "-o", name, stdin="!\na cat\n")

    assert done.code == 65
    assert done.err == "sentkit encode: -:2: a vector contains NaN or infinity\n"
    assert b"null" not in done.out
    assert not (tmp_path / name).exists()


def test_the_space_is_of_what_changes_the_vectors(sentkit, tiny, other, copy_of):
    """Weights, attention heads, readout, steps; not the prefix, the length, the batches."""
    heads = copy_of(tiny, "heads")
    config = json.loads((heads / "config.json").read_text())
    (heads / "config.json").write_text(json.dumps(config | {"num_attention_heads": 4}))

    def space(*flags, model=tiny):
        return sentkit("encode", "-q", "-m", model, *flags, stdin="a cat").rows[0]["_emb"].partition(":")[2]

    same = {space(), space("--prompt", "x "), space("--max-length", 9), space("--batch-tokens", 7)}
    changed = (("--readout", "cls"), ("--readout", "pooler"), ("--normalize",), ("--dim", 4))

    assert same == {space("--readout", "mean")}
    models = {space(model=model) for model in (other, heads)}
    assert len({*same, *models, *(space(*flags) for flags in changed)}) == 7
