"""The hash of a base, which the identity of a run contains."""

import json
import math
import shutil
from dataclasses import replace

import pytest

from sentkit.errors import DataError
from sentkit.formats.files import write_json
from sentkit.training.base import open_named
from support import declare_modules
from training.small import make_base

CHANGES = [
    ("num_attention_heads", 4),
    ("hidden_act", "relu"),
    ("layer_norm_eps", 1e-3),
    ("hidden_dropout_prob", 0.3),
    ("attention_probs_dropout_prob", 0.3),
]


@pytest.mark.parametrize(
    ("folder", "name", "value"),
    [
        *(("base_folder", *change) for change in [*CHANGES, ("transformers_version", "0")]),
        # Its weights depend on the number of heads.
        *(("albert", *change) for change in CHANGES[1:]),
    ],
)
def test_values_that_change_the_training_change_the_hash(folder, name, value, request, tmp_path):
    """Others keep it."""
    folder = request.getfixturevalue(folder)
    config = json.loads((folder / "config.json").read_text())
    assert config[name] != value
    shutil.copytree(folder, tmp_path / "base")
    (tmp_path / "base/config.json").write_text(json.dumps(config | {name: value}))
    hashes = [open_named(str(checkpoint), 16).hash for checkpoint in (folder, tmp_path / "base")]

    assert (hashes[0] == hashes[1]) == (name == "transformers_version")


def test_a_declared_truncation_is_among_the_steps_that_are_not_copied(tmp_path):
    folder = declare_modules(make_base(tmp_path / "base"), "mean_tokens", 32)
    write_json(folder / "config_sentence_transformers.json", {"truncate_dim": 4})

    assert open_named(str(folder), 32).dropped_steps == "normalise, truncate_dim=4"


def test_a_base_with_nan_is_refused_before_rows_are_read(tmp_path):
    """NaN in the pooler, which only some methods read, is no problem of the others."""
    from safetensors.torch import load_file, save_file

    folder = make_base(tmp_path / "base", kind="BertModel")
    file = folder / "model.safetensors"
    weights = load_file(file)
    weights["pooler.dense.bias"][0] = math.nan
    save_file(weights, file, {"format": "pt"})
    open_named(str(folder), 32)
    weights["encoder.layer.0.output.dense.bias"][1] = math.inf
    save_file(weights, file, {"format": "pt"})

    with pytest.raises(DataError) as error:
        open_named(str(folder), 32)
    assert str(error.value).startswith(f"{folder}: ")
    assert str(error.value).endswith('layer.0.output.dense.bias" contains NaN or infinity')


@pytest.mark.parametrize(
    ("declared", "trained", "expected"),
    [
        ({}, {"anchor": "x ", "positive": "x "}, {"query": "x ", "document": "x "}),
        ({"query": "x "}, {"a": "x ", "b": "x "}, {"query": "x ", "document": "x "}),
        ({"document": "x "}, {"a": "x ", "b": "y "}, {"document": "y ", "query": "x "}),
        # The base has them, the second one by a name that search and report also know.
        (
            {"query": "x ", "passage": "y "},
            {"a": "x ", "b": "y "},
            {"query": "x ", "passage": "y "},
        ),
    ],
)
def test_both_sides_have_their_prompt_by_the_name_that_search_takes(
    base, declared, trained, expected
):
    declaration = replace(base.checkpoint.declaration, prompts=declared)
    checkpoint = replace(base.checkpoint, declaration=declaration)

    assert replace(base, checkpoint=checkpoint, prompt_of_side=trained).prompts == expected
