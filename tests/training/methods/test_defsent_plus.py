"""DefSent+: its steps against a padded reference, the parameters that it trains, and its projection."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from reference_steps import PlainAdamW, loss_of
from sentkit.errors import UsageError
from sentkit.formats.checkpoints.modules import Pooler
from sentkit.papers.defsent.plus import DefSentPlus, projection_of
from sentkit.papers.sg_bert.method import SelfGuided
from sentkit.training.base import open_named
from sentkit.training.method import changing, trained
from sentkit.training.methods.simcse import SimCSE
from sentkit.training.runs.run import write_checkpoint
from training.methods.loops import cross_entropy
from training.small import changed_by, equal, make_base

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
        return cross_entropy(found @ entries.T, [NAMES.index(rows[number]["entry"]) for number in numbers])

    check_steps(trainer, [], loss_of, count=8, optimizer=PlainAdamW(weights, beta2=0.999))


def test_all_of_the_encoder_and_the_projection_are_trained(trainer_of, rows, dictionary):
    """The word table, positions, types and norm too; never the entries, nor the base of other seeds."""
    trainer = trainer_of(DefSentPlus, rows, base=dictionary, batch=4, lr=1e-2)
    method, before = trainer.method, dictionary.entries.vectors.copy()
    stored = {name: value.clone() for name, value in dictionary.stored.items()}
    changed = changed_by(trainer)
    learned = {name for name, _ in trained(method)}

    assert changed == learned == method.state_dict().keys() == changing(method).keys()
    assert {"projection.weight", "projection.bias", "body.words.weight", "body.positions.weight"} < learned
    assert "entries" not in learned
    assert np.array_equal(method.entries.numpy(), before)
    assert np.array_equal(dictionary.entries.vectors, before)
    assert equal(stored, dictionary.stored)


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


def test_a_prompt_without_a_mask_token_is_refused_before_any_row(dictionary, tmp_path):
    DefSentPlus.check(dictionary, DefSentPlus.Settings(readout="mean,L3:cls"))
    folder = shutil.copytree(dictionary.checkpoint.folder, tmp_path / "maskless")
    text = (folder / "tokenizer.json").read_text().replace("[MASK]", "[COVER]")
    (folder / "tokenizer.json").write_text(text)
    base = replace(open_named(str(folder), 32), entries=dictionary.entries)

    with pytest.raises(UsageError, match="the readout prompt needs a mask token"):
        DefSentPlus.check(base, DefSentPlus.Settings())
    DefSentPlus.check(base, DefSentPlus.Settings(readout="mean,cls"))


DENSE = {"bert": "cls.predictions.transform.dense", "roberta": "lm_head.dense"}


def finished(method, base, tmp_path, name="made"):
    """The base that its checkpoint is."""
    write_checkpoint(tmp_path / name, method, base, {})
    return open_named(str(tmp_path / name), 32)


def is_layer(projection, base, end):
    """Whether it is the layer of the base with a name that ends so."""
    [weight] = [value for name, value in base.stored.items() if name.endswith(f"{end}.weight")]
    [bias] = [value for name, value in base.stored.items() if name.endswith(f"{end}.bias")]
    return torch.equal(projection.layer.weight, weight) and torch.equal(projection.layer.bias, bias)


BEGINNINGS = [
    # family, its language model head, its pooler -> auto, checkpoint, lm-head
    ("bert", True, True, "pooler", "pooler", "head"),
    ("bert", True, False, "head", None, "head"),
    ("bert", False, True, "pooler", "pooler", None),
    ("roberta", True, True, "head", "pooler", "head"),
    ("roberta", True, False, "head", None, "head"),
    ("roberta", False, True, None, "pooler", None),
]


@pytest.mark.parametrize("wanted", ["auto", "checkpoint", "lm-head"])
@pytest.mark.parametrize(("family", "head", "pooler", "auto", "checkpoint", "lm_head"), BEGINNINGS)
def test_the_projection_starts_as_a_trained_layer(
    base_of, family, head, pooler, auto, checkpoint, lm_head, wanted
):
    base = base_of(family, "ForMaskedLM" if head else "Model", pooler=head and pooler)
    expected = {"auto": auto, "checkpoint": checkpoint, "lm-head": lm_head}[wanted]
    if expected is None:
        with pytest.raises(
            UsageError, match="has no pooler" if wanted == "checkpoint" else "has no language"
        ):
            projection_of(base, wanted)
        return
    found = projection_of(base, wanted)

    assert found.activation == ("gelu" if expected == "head" else "tanh")
    assert is_layer(found, base, DENSE[family] if expected == "head" else "pooler.dense")
    assert all(weight.requires_grad for weight in found.layer.parameters())


def test_a_refusal_mentions_an_untrained_pooler(base_of):
    """That of a RoBERTa may be random numbers; BERT's is not suspected of it."""
    with pytest.raises(UsageError, match="no language model head, and its pooler is probably not trained"):
        projection_of(base_of("roberta", "Model", "one"), "auto")
    with pytest.raises(UsageError, match=r"base has no language model head$") as caught:
        projection_of(base_of("bert", "Model", "base"), "lm-head")
    assert "projection_from=CHECKPOINT" in str(caught.value.advice)


@pytest.mark.parametrize("wanted", ["auto", "checkpoint", "lm-head"])
def test_the_projection_of_another_checkpoint(base_of, with_entries, wanted):
    """Its layer and activation, on the encoder of the base; each run trains its own copy."""
    other = base_of("roberta", "ForMaskedLM", "other", pooler=True)
    base, name = with_entries(NAMES, base_of("bert")), other.checkpoint.name
    settings = DefSentPlus.Settings(projection_from=name, pooler=wanted)
    DefSentPlus.check(base, settings)
    method, again = (DefSentPlus.build(base, settings) for _ in range(2))
    expected = projection_of(other, wanted)

    assert method.activation == expected.activation == ("tanh" if wanted == "checkpoint" else "gelu")
    assert torch.equal(method.projection.weight, expected.layer.weight)
    assert torch.equal(method.projection.bias, expected.layer.bias)
    assert torch.equal(next(method.body.parameters()), next(base.body(None).parameters()))
    assert method.projection.weight.data_ptr() != again.projection.weight.data_ptr()


def test_a_projection_of_another_width_is_refused(with_entries, tmp_path):
    dictionary = with_entries(NAMES)
    name = str(make_base(tmp_path / "wide", hidden_size=32))
    problem = f"projection_from={name}: its layer takes 32 dimensions, but the encoder has 16"
    with pytest.raises(UsageError, match=f"^{problem}$"):
        DefSentPlus.check(dictionary, DefSentPlus.Settings(projection_from=name))


def test_the_families_without_a_pooler_have_a_head(base_of, with_entries, trainer_of, rows):
    """Its projection serves training alone there, and is kept beside the checkpoint."""
    trainer = trainer_of(DefSentPlus, rows, base=with_entries(NAMES, base_of("distilbert")))

    assert trainer.method.activation == "gelu"
    assert math.isfinite(loss_of(trainer.method, trainer.batch(0)).item())


@pytest.mark.parametrize(
    ("kind", "family", "settings", "pooler"),
    [
        *((SimCSE, family, {}, Pooler("tanh", "pooler:cls", "")) for family in ("bert", "roberta")),
        *(
            (DefSentPlus, "roberta", {"pooling": name}, Pooler("gelu", f"pooler:{name}", "0123456789ab"))
            for name in ("cls", "mean")
        ),
    ],
)
def test_a_trained_pooler_is_trained_further(
    trainer_of, base_of, with_entries, rows, texts, tmp_path, kind, family, settings, pooler
):
    """By its activation, which is tanh for SimCSE in each family, and by the space in which it lands."""
    base = with_entries(NAMES, base_of(family), _emb="dict/mean:0123456789ab")
    trainer = trainer_of(kind, texts if kind is SimCSE else rows, base=base, batch=4, lr=1e-2, **settings)
    trainer.train()
    made = finished(trainer.method, base, tmp_path)
    found = projection_of(made, "auto")
    layer = trainer.method.head if kind is SimCSE else trainer.method.projection

    assert made.checkpoint.declared.pooler == pooler
    assert made.architecture.pooler_activation == found.activation == pooler.activation
    assert torch.equal(found.layer.weight, layer.weight)
    assert torch.equal(found.layer.bias, layer.bias)


@pytest.mark.parametrize("kind", [SelfGuided, SimCSE])
def test_later_training_ends_the_space(trainer_of, base_of, with_entries, rows, texts, tmp_path, kind):
    """A method without a pooler leaves this one as it is; one with a pooler says what its own is."""
    base = with_entries(NAMES, base_of("roberta"), _emb="dict/mean:0123456789ab")
    first = finished(DefSentPlus.build(base, DefSentPlus.Settings()), base, tmp_path, "first")
    more = {"head_width": 8} if kind is SelfGuided else {}
    trainer = trainer_of(kind, texts, base=first, batch=4, **more)
    trainer.train()
    second = finished(trainer.method, first, tmp_path, "second")

    kept = "gelu" if kind is SelfGuided else "tanh"
    assert second.checkpoint.declared.pooler == Pooler(kept, "pooler:cls", "")
    assert projection_of(second, "auto").activation == kept


def test_another_activation_gives_another_hash(base_of, with_entries, tmp_path):
    """A run cannot be resumed with a different activation."""
    base = with_entries(NAMES, base_of("roberta"))
    made = finished(DefSentPlus.build(base, DefSentPlus.Settings()), base, tmp_path)
    own = Path(made.checkpoint.folder) / "sentkit.json"
    own.write_text(own.read_text().replace('"gelu"', '"relu"'))

    assert open_named(str(own.parent), 32).hash != made.hash


def test_a_head_keeps_its_activation(base, base_folder, tmp_path):
    """BERT's head has the encoder's own; RoBERTa's is always the exact GELU."""
    shutil.copytree(base_folder, tmp_path / "relu")
    config = json.loads((tmp_path / "relu/config.json").read_text())
    (tmp_path / "relu/config.json").write_text(json.dumps(config | {"hidden_act": "relu"}))
    changed = open_named(str(tmp_path / "relu"), 32)

    assert projection_of(changed, "auto").activation == "relu"
    assert projection_of(base, "auto").activation == "gelu"
