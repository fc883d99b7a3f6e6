"""`train mlm --init`: an encoder from nothing but a config and a tokenizer, a new one for each seed."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from commands.train.records import log_of, record_of
from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.training.base import open_base
from sentkit.training.methods.mlm import CLEAR
from sentkit.training.runs.command import write_random
from support import contents, without_command

RECIPE = ("--set", "max_length=16", "--batch", "3", "--lr", "0.01", "--threads", "1")


@pytest.fixture
def config_of(tiny, tmp_path):
    """A config.json like that of tiny, with these values."""

    def write(**values):
        config = json.loads((tiny / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(config | values))
        return tmp_path / "config.json"

    return write


@pytest.fixture
def train(sentkit, tiny, texts, config_of):
    """`train mlm` from nothing into that folder."""
    config = config_of()

    def run(output, *more, tokenizer=tiny / "tokenizer.json"):
        files = ("--init", config, "--tokenizer", tokenizer)
        return sentkit("train", "mlm", texts, *files, "-o", output, *RECIPE, *more)

    return run


def test_mlm_learns_from_random_weights(train, sentkit, tmp_path, texts):
    """At first as good as guessing among all words: the logarithm of their number.

    The checkpoint works like any other: transformers reads its head, and it can be a base.
    """
    from transformers import AutoModelForMaskedLM

    done = train("out", "--epochs", "30")
    found = [row["loss"] for row in log_of()[1:]]  # the first names the run
    model, report = AutoModelForMaskedLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    encoded = sentkit("encode", texts, "-m", "out")
    later = sentkit("train", "mlm", texts, "-m", "out", "-o", "later", *RECIPE)

    assert (done.code, encoded.code, later.code) == (0, 0, 0), done.err + encoded.err + later.err
    assert abs(found[0] - np.log(16384)) < 0.1
    assert np.mean(found[-10:]) < 0.75 * found[0]
    assert (report["missing_keys"], report["unexpected_keys"]) == (set(), set())
    assert model.config.architectures == ["BertForMaskedLM"]
    assert encoded.vectors().shape == (9, 16)
    assert (record_of()["parents"], record_of("later")["parents"]) == ([], ["out"])
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "texts.txt", "out", "later"}


def test_each_seed_starts_with_different_weights(train, tmp_path, tiny):
    """As it does alone, to the last bit; also with the folder of the tokenizer in place of its file."""
    several, alone = train("runs", "--seed", "0,7"), train("alone", "--seed", "7", tokenizer=tiny)
    first, second = (contents(tmp_path / f"runs/seed-{seed}") for seed in (0, 7))

    assert (several.code, alone.code) == (0, 0), several.err
    assert record_of("runs/seed-0")["run"]["base"] != record_of("runs/seed-7")["run"]["base"]
    assert first["model.safetensors"] != second["model.safetensors"]
    assert without_command(tmp_path / "runs/seed-7") == without_command(tmp_path / "alone")
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"seed-0", "seed-7"}


def test_every_tensor_that_is_drawn_is_of_the_seed(config_of, tmp_path, tiny):
    """The head's too; biases and norms are not drawn."""
    tensors = []
    for seed in (0, 0, 7):
        folder = tmp_path / f"seed{len(tensors)}"
        folder.mkdir()
        write_random(config_of(), tiny, folder, seed)
        tensors.append(load_file(folder / "model.safetensors"))
    one, again, other = tensors

    assert all(torch.equal(again[name], value) for name, value in one.items())
    assert all(torch.equal(other[name], value) == (value.ndim == 1) for name, value in one.items())
    assert "cls.predictions.transform.dense.weight" in one


def test_the_head_is_independent_of_the_layers_of_a_method(config_of, tmp_path, tiny):
    """A run sets the seed of torch before it builds the method.

    From the same stream, the uniform and the normal weights would have a correlation of about -0.34.
    """
    (tmp_path / "base").mkdir()
    write_random(config_of(hidden_size=64), tiny, tmp_path / "base", 3)
    base = open_base(read_checkpoint(str(tmp_path / "base")), 16)
    torch.manual_seed(3)
    method = CLEAR.build(base, CLEAR.Settings())
    both = torch.stack([method.tokens.head.dense.weight, method.projection[0].weight]).flatten(1)

    assert abs(torch.corrcoef(both)[0, 1].item()) < 5 / 64  # five standard deviations for 64 * 64 numbers


@pytest.mark.parametrize("change", [{"intermediate_size": 20}, {"num_attention_heads": 4}], ids=str)
def test_a_stopped_run_resumes_but_not_with_another_config(train, config_of, tmp_path, stop_at, change):
    train("whole", "--epochs", "2")
    with stop_at(4):
        stopped = train("out", "--epochs", "2", "--save-every", "1")
    left = {path.name for path in (tmp_path / "out.part").iterdir()}
    config_of(**change)
    other = train("out", "--epochs", "2", "--resume")
    config_of()
    done = train("out", "--epochs", "2", "--resume")

    assert (stopped.code, other.code, done.code) == (75, 65, 0), done.err
    assert {"state-3.pt", "state-4.pt"} <= left
    assert "init" not in left
    assert "belongs to a different run: base (" in other.err
    assert without_command(tmp_path / "out") == without_command(tmp_path / "whole")
    assert not (tmp_path / "out.part").exists()
