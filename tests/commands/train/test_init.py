"""`train mlm --init`: an encoder from nothing but a config and a tokenizer, a new one for each seed."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.training.base import open_base
from sentkit.training.methods.mlm import CLEAR
from sentkit.training.runs.command import write_random
from support import contents, without_command

WORDS = [
    *("a", "the", "man", "dog", "cat", "child", "runs", "sleeps"),
    *("plays", "sees", "in", "on", "park", "house", "rain", "sun"),
]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CONFIG = {
    "model_type": "bert",
    "vocab_size": len(SPECIAL) + len(WORDS),
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}
RECIPE = ("--set", "max_length=16", "--batch", "8", "--lr", "0.01", "--threads", "1")


@pytest.fixture(autouse=True)
def given(tmp_path):
    """config.json, words/tokenizer.json, and forty sentences in rows.txt."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    made = Tokenizer(models.WordLevel({w: n for n, w in enumerate([*SPECIAL, *WORDS])}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.add_special_tokens(SPECIAL)
    (tmp_path / "words").mkdir()
    made.save(str(tmp_path / "words/tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    random = np.random.default_rng(1)
    rows = [
        f"the {random.choice(WORDS[2:6])} {random.choice(WORDS[6:10])} in the {random.choice(WORDS[12:])}"
        for _ in range(40)
    ]
    (tmp_path / "rows.txt").write_text("\n".join(rows) + "\n")


@pytest.fixture
def train(sentkit):
    """`train mlm` from nothing into that folder."""

    def run(output, *more, config="config.json", tokenizer="words/tokenizer.json", method="mlm"):
        files = ("--init", config, "--tokenizer", tokenizer)
        return sentkit("train", method, "rows.txt", *files, "-o", output, *RECIPE, *more)

    return run


def losses(path):
    return [json.loads(line)["loss"] for line in path.read_text().splitlines()[1:]]  # the first names the run


def test_mlm_learns_from_random_weights(train, tmp_path):
    """At first as good as guessing among all words: the logarithm of their number, 3.04."""
    done = train("out", "--epochs", "30")
    found = losses(tmp_path / "out/steps.jsonl")

    assert done.code == 0, done.err
    assert abs(found[0] - np.log(CONFIG["vocab_size"])) < 0.1
    assert np.mean(found[-10:]) < 0.75 * found[0]


def test_the_checkpoint_works_like_any_other(train, sentkit, tmp_path):
    """Read by sentkit and, with its head, by transformers; made from nothing; a base for later runs."""
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    train("out")
    model, report = AutoModelForMaskedLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    lineage = json.loads((tmp_path / "out/sentkit.json").read_text())
    encoded = sentkit("encode", "rows.txt", "-m", "out")
    later = sentkit("train", "mlm", "rows.txt", "-m", "out", "-o", "later", *RECIPE)

    assert (report["missing_keys"], report["unexpected_keys"]) == (set(), set())
    assert model.config.architectures == ["BertForMaskedLM"]
    assert AutoTokenizer.from_pretrained(tmp_path / "out").mask_token_id == 4
    assert lineage["parents"] == []
    assert encoded.code == 0, encoded.err
    assert encoded.vectors().shape == (40, 16)
    assert later.code == 0, later.err
    assert json.loads((tmp_path / "later/sentkit.json").read_text())["parents"] == ["out"]
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "words", "rows.txt", "out", "later"}


def test_each_seed_starts_with_different_weights(train, tmp_path):
    """As it does alone, to the last bit; also with the folder of the tokenizer in place of its file."""
    several, alone = train("runs", "--seed", "0,7"), train("alone", "--seed", "7", tokenizer="words")
    first, second = (contents(tmp_path / f"runs/seed-{seed}") for seed in (0, 7))
    bases = [json.loads(each["sentkit.json"])["run"]["base"] for each in (first, second)]

    assert (several.code, alone.code) == (0, 0), several.err
    assert bases[0] != bases[1]
    assert first["model.safetensors"] != second["model.safetensors"]
    assert without_command(tmp_path / "runs/seed-7") == without_command(tmp_path / "alone")
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"seed-0", "seed-7"}


def test_every_tensor_that_is_drawn_is_of_the_seed(tmp_path):
    """The head's too; biases and norms are not drawn."""
    tensors = []
    for seed in (0, 0, 7):
        folder = tmp_path / f"seed{len(tensors)}"
        folder.mkdir()
        write_random(tmp_path / "config.json", tmp_path / "words", folder, seed)
        tensors.append(load_file(folder / "model.safetensors"))
    one, again, other = tensors

    assert all(torch.equal(again[name], value) for name, value in one.items())
    assert all(torch.equal(other[name], value) == (value.ndim == 1) for name, value in one.items())
    assert "cls.predictions.transform.dense.weight" in one


def test_the_head_is_independent_of_the_layers_of_a_method(tmp_path):
    """A run sets the seed of torch before it builds the method.

    From the same stream, the uniform and the normal weights would have a correlation of about -0.34.
    """
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"hidden_size": 64}))
    (tmp_path / "base").mkdir()
    write_random(tmp_path / "config.json", tmp_path / "words", tmp_path / "base", 3)
    base = open_base(read_checkpoint(str(tmp_path / "base")), 16)
    torch.manual_seed(3)
    method = CLEAR.build(base, CLEAR.Settings())
    both = torch.stack([method.tokens.head.dense.weight, method.projection[0].weight]).flatten(1)

    assert abs(torch.corrcoef(both)[0, 1].item()) < 5 / 64  # five standard deviations for 64 * 64 numbers


def test_a_stopped_run_resumes_to_the_same_bytes(train, tmp_path, stop_at):
    train("whole", "--epochs", "3")
    with stop_at(7):
        stopped = train("out", "--epochs", "3", "--save-every", "1")
    left = {path.name for path in (tmp_path / "out.part").iterdir()}
    done = train("out", "--epochs", "3", "--resume")

    assert stopped.code == 75
    assert {"state-6.pt", "state-7.pt"} <= left
    assert "init" not in left
    assert done.code == 0, done.err
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert losses(tmp_path / "out/steps.jsonl") == losses(tmp_path / "whole/steps.jsonl")
    assert not (tmp_path / "out.part").exists()


@pytest.mark.parametrize("change", [{"intermediate_size": 20}, {"num_attention_heads": 4}], ids=str)
def test_another_config_is_another_run(train, tmp_path, stop_at, change):
    with stop_at(2):
        train("out")
    (tmp_path / "other.json").write_text(json.dumps(CONFIG | change))
    done = train("out", "--resume", config="other.json")

    assert done.code == 65
    assert "belongs to a different run: base (" in done.err
    assert (tmp_path / "out.part/state-2.pt").is_file()


@pytest.mark.parametrize(
    ("config", "tokenizer", "code", "told"),
    [
        ("none.json", "words", 66, "none.json: no such file"),
        ("config.json", "none.json", 66, "none.json: no such tokenizer"),
        ("albert.json", "words", 2, 'model type "albert": not supported by --init'),
        ("few.json", "words", 65, '21 tokens, but "vocab_size" in config.json is 9'),
        ("short.json", "words", 2, "max_length=16: the maximum of this encoder is 8"),
    ],
)
def test_invalid_configs_are_refused_and_leave_no_files(train, tmp_path, config, tokenizer, code, told):
    (tmp_path / "albert.json").write_text(json.dumps(CONFIG | {"model_type": "albert"}))
    (tmp_path / "few.json").write_text(json.dumps(CONFIG | {"vocab_size": 9}))
    (tmp_path / "short.json").write_text(json.dumps(CONFIG | {"max_position_embeddings": 8}))
    before = set(tmp_path.iterdir())
    done = train("out", config=config, tokenizer=tokenizer)

    assert done.code == code
    assert told in done.told[0]
    assert set(tmp_path.iterdir()) == before
