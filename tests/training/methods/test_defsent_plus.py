"""DefSent+: its loss, its steps against a padded reference, and the parameters that it trains."""

import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from reference_steps import PlainAdamW
from sentkit.errors import UsageError
from sentkit.papers.defsent.plus import DefSentPlus
from sentkit.training.base import open_named
from sentkit.training.method import changing, trained
from sentkit.training.settings import build
from training.methods.loops import cross_entropy

NAMES = ["cat", "a hot dog", "rain", "sea", "old house"]


@pytest.fixture
def rows(texts):
    return [{"entry": NAMES[n % len(NAMES)], "definition": text} for n, text in enumerate(texts)]


@pytest.fixture
def dictionary(with_entries):
    return with_entries(NAMES)


@pytest.mark.parametrize(("pooling", "activation"), [("cls", "gelu"), ("mean", "gelu"), ("mean", "tanh")])
def test_eight_steps_are_those_of_a_padded_reference(
    trainer_of, check_steps, rows, reference, dictionary, base, pooling, activation
):
    """transformers' BertModel, the softmax, clipping, AdamW and the schedule in loops; float64."""
    wanted = {"batch": 4, "epochs": 3, "lr": 1e-3, "dropout": 0, "pooling": pooling}
    trainer = trainer_of(DefSentPlus, rows, double=True, base=dictionary, **wanted)
    trainer.method.activation = activation
    head = [
        base.stored[f"cls.predictions.transform.dense.{name}"].double().requires_grad_()
        for name in ("weight", "bias")
    ]
    weights = [*reference.parameters().items(), *zip(("weight", "bias"), head, strict=True)]
    entries = torch.from_numpy(dictionary.entries.vectors.copy()).double()
    read = reference.first if pooling == "cls" else reference.mean
    function = {"tanh": torch.tanh, "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2}[activation]

    def loss_of(batch, numbers):
        found = function(read(batch.texts[0]) @ head[0].T + head[1])
        logits = [torch.stack([(vector * entry).sum() for entry in entries]) for vector in found]
        return cross_entropy(logits, [NAMES.index(rows[number]["entry"]) for number in numbers])

    def rate(step):
        """Three epochs of 13 rows in batches of 4."""
        return 1e-3 * (12 - step) / 12

    check_steps(trainer, [], loss_of, count=8, optimizer=PlainAdamW(weights, beta2=0.999), rate=rate)


def test_all_of_the_encoder_and_the_projection_are_trained(trainer_of, rows, dictionary):
    """The word table, positions, types and norm too; never the entries, nor the base of other seeds."""
    trainer = trainer_of(DefSentPlus, rows, base=dictionary, batch=4, lr=1e-2)
    method, before = trainer.method, dictionary.entries.vectors.copy()
    stored = {name: value.clone() for name, value in dictionary.stored.items()}
    started = {name: value.clone() for name, value in method.state_dict().items()}
    trainer.train()
    learned = {name for name, _ in trained(method)}

    assert learned == started.keys() == changing(method).keys()
    assert {"projection.weight", "projection.bias", "body.words.weight", "body.positions.weight"} < learned
    assert {name for name in learned if torch.equal(started[name], method.state_dict()[name])} == set()
    assert not method.entries.requires_grad
    assert method.entries.grad is None
    assert "entries" not in {*dict(method.named_parameters()), *method.state_dict(), *changing(method)}
    assert np.array_equal(method.entries.numpy(), before)
    assert np.array_equal(dictionary.entries.vectors, before)
    assert all(torch.equal(stored[name], value) for name, value in dictionary.stored.items())
    assert not any(value.requires_grad for value in dictionary.stored.values())


@pytest.mark.parametrize("place", range(0, 64, 12))
def test_the_loss_does_not_depend_on_the_place_of_the_entries_in_memory(method_of, dictionary, place):
    """Vectors of a file and of rows start at other addresses. Aligned entries are not copied."""
    matrix = dictionary.entries.vectors
    room = np.zeros(matrix.nbytes + 128, np.uint8)
    start = -room.ctypes.data % 64 + place
    placed = room[start : start + matrix.nbytes].view(np.float32).reshape(matrix.shape)
    placed[:] = matrix
    base = replace(dictionary, entries=replace(dictionary.entries, vectors=placed))
    method = method_of(DefSentPlus, base)

    assert method.entries.data_ptr() % 64 == 0
    assert np.shares_memory(placed, method.entries.numpy()) == (place == 0)
    assert np.array_equal(method.entries.numpy(), matrix)


def test_missing_layers_and_a_prompt_without_a_mask_token_are_refused_before_any_row(dictionary, tmp_path):
    with pytest.raises(UsageError, match="needs more layers than the encoder has"):
        DefSentPlus.check(dictionary, DefSentPlus.Settings(readout="mean,L4:cls"))
    DefSentPlus.check(dictionary, DefSentPlus.Settings(readout="mean,L3:cls"))
    folder = shutil.copytree(dictionary.checkpoint.folder, tmp_path / "maskless")
    text = (folder / "tokenizer.json").read_text().replace("[MASK]", "[COVER]")
    (folder / "tokenizer.json").write_text(text)
    base = replace(open_named(str(folder), 32), entries=dictionary.entries)

    with pytest.raises(UsageError, match="the readout prompt needs a mask token"):
        DefSentPlus.check(base, DefSentPlus.Settings())
    DefSentPlus.check(base, DefSentPlus.Settings(readout="mean,cls"))


def test_the_presets_are_those_of_the_paper():
    """Learning rates by progressive step; BERT reads its pooler at [CLS], RoBERTa at the mean."""
    rates, pooling, origin = {}, {}, {}
    for name in DefSentPlus.presets:
        settings = build(DefSentPlus.Settings, DefSentPlus.presets, name, [])
        rates[name], pooling[name], origin[name] = settings.lr, settings.pooling, settings.projection_from

    assert [rates[f"bert-base{step}"] for step in ("", "-step2", "-step3")] == [5e-5, 4e-5, 3e-5]
    assert [rates[f"bert-large{step}"] for step in ("", "-step2", "-step3")] == [4e-5, 4e-5, 3e-5]
    for size in ("base", "large"):
        assert [rates[f"roberta-{size}{step}"] for step in ("", "-step2", "-step3")] == [3e-5, 2e-5, 1e-5]
    start = "simcse-roberta-large"  # (CLS, AC), then (Mean, AC)
    assert {pooling[name] for name in pooling if "roberta" in name and name != start} == {"mean"}
    assert pooling[start] == "cls"
    assert {name: origin[name] for name in origin if origin[name]} == {
        name: f"FacebookAI/roberta-{'base' if '-base' in name else 'large'}"
        for name in origin
        if "cse-roberta" in name
    }
    assert {pooling[name] for name in pooling if "roberta" not in name} == {"cls"}
