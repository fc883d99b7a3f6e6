"""DefSent+: its loss, its steps against a padded reference, and the parameters that it trains."""

import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from reference_steps import PlainAdamW, loss_of
from sentkit.errors import UsageError
from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.papers.defsent.entries import Entries
from sentkit.papers.defsent.plus import DefSentPlus, Projection
from sentkit.training.base import open_base
from sentkit.training.data.batches import Batch
from sentkit.training.method import changing, trained
from sentkit.training.settings import build

NAMES = ["cat", "a hot dog", "rain", "sea", "old house"]
DENSE = {"bert": "cls.predictions.transform.dense", "roberta": "lm_head.dense"}
RATE, STEPS = 1e-3, 8


@pytest.fixture
def rows(texts):
    return [{"entry": NAMES[n % len(NAMES)], "definition": text} for n, text in enumerate(texts)]


@pytest.fixture
def dictionary(with_entries):
    return with_entries(NAMES)


@pytest.fixture
def method_of(dictionary):
    def make(base=dictionary, **settings):
        wanted = build(DefSentPlus.Settings, {}, None, [f"{n}={v}" for n, v in settings.items()])
        return DefSentPlus.build(base, wanted)

    return make


def on_vectors(vectors, entries, layer=None, activation="tanh"):
    """A method with an encoder that gives these vectors."""
    width = vectors.shape[1]
    body = torch.nn.Linear(1, 1)
    body.width = width
    if layer is None:
        layer = torch.nn.Linear(width, width)
        torch.nn.init.eye_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
    matrix = np.array(entries, np.float32)
    found = Entries("entries", matrix, {str(n): n for n in range(len(matrix))}, {}, "")
    method = DefSentPlus(body, DefSentPlus.Settings(), Projection(layer, activation), found).double()
    method.pack = lambda texts: None
    method.vectors = lambda packed, name=None: vectors
    return method


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_eight_steps_are_those_of_a_padded_reference(
    trainer_of, losses_of, rows, reference, dictionary, base, pooling
):
    """transformers' BertModel, the softmax, clipping, AdamW and the schedule in loops; float64."""
    wanted = {"batch": 4, "epochs": 3, "lr": RATE, "dropout": 0, "pooling": pooling}
    trainer = trainer_of(DefSentPlus, rows, double=True, base=dictionary, **wanted)
    batches = [trainer.order.at(step) for step in range(STEPS)]
    ours = losses_of(trainer)[:STEPS]

    head = [base.stored[f"{DENSE['bert']}.{name}"].double().requires_grad_() for name in ("weight", "bias")]
    weights = [*reference.parameters().items(), *zip(("weight", "bias"), head, strict=True)]
    optimizer, theirs = PlainAdamW(weights, beta2=0.999), []
    entries = torch.from_numpy(dictionary.entries.vectors.copy()).double()
    read = reference.first if pooling == "cls" else reference.mean
    for step, batch in enumerate(batches):
        own = [rows[row] for row in batch]
        found = F.gelu(read([row["definition"] for row in own]) @ head[0].T + head[1])
        loss = torch.zeros((), dtype=torch.float64)
        for vector, row in zip(found, own, strict=True):
            powers = [torch.exp((vector * entry).sum()) for entry in entries]
            loss = loss - torch.log(powers[NAMES.index(row["entry"])] / sum(powers)) / len(own)
        rate = RATE * (12 - step) / 12  # 13 rows in batches of 4, three times
        theirs.append(optimizer.step(loss, rate))

    assert trainer.order.steps == 12
    assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) < 1e-9
    assert abs(ours[0] - ours[-1]) > 0.01


def test_all_of_the_encoder_and_the_projection_are_trained(trainer_of, rows, dictionary):
    """The word table, positions, types and norm too; the entries never."""
    trainer = trainer_of(DefSentPlus, rows, base=dictionary, batch=4, lr=1e-2)
    method, before = trainer.method, dictionary.entries.vectors.copy()
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


def test_training_does_not_change_the_base(trainer_of, losses_of, rows, dictionary):
    """Another seed, and the next step, begin from it too."""
    before = {name: value.clone() for name, value in dictionary.stored.items()}
    losses_of(trainer_of(DefSentPlus, rows, base=dictionary, batch=4, lr=1e-2))

    assert all(torch.equal(before[name], value) for name, value in dictionary.stored.items())
    assert not any(value.requires_grad for value in dictionary.stored.values())


@pytest.mark.parametrize("place", range(0, 64, 12))
def test_the_loss_does_not_depend_on_the_place_of_the_entries_in_memory(method_of, dictionary, place):
    """Vectors of a file and of rows start at other addresses. Aligned entries are not copied."""
    matrix = dictionary.entries.vectors
    room = np.zeros(matrix.nbytes + 128, np.uint8)
    start = -room.ctypes.data % 64 + place
    placed = room[start : start + matrix.nbytes].view(np.float32).reshape(matrix.shape)
    placed[:] = matrix
    method = method_of(replace(dictionary, entries=replace(dictionary.entries, vectors=placed)))

    assert method.entries.data_ptr() % 64 == 0
    assert np.shares_memory(placed, method.entries.numpy()) == (place == 0)
    assert np.array_equal(method.entries.numpy(), matrix)


@pytest.mark.parametrize(
    ("readouts", "problem"),
    [
        ("mean,cola", 'unknown readout "cola"'),
        ("mean,", 'unknown readout ""'),
        ("L*:mean", 'unknown readout "L\\*:mean"'),
        ("mean,pooler", "the pooler cannot be the readout"),
        ("pooler:mean", "the pooler cannot be the readout"),
    ],
)
def test_invalid_readouts_are_refused_with_the_settings(readouts, problem):
    with pytest.raises(UsageError, match=problem):
        build(DefSentPlus.Settings, {}, None, [f"readout={readouts}"])


def test_readouts_of_missing_layers_are_refused_before_any_row(dictionary):
    with pytest.raises(UsageError, match="needs more layers than the encoder has"):
        DefSentPlus.check(dictionary, DefSentPlus.Settings(readout="mean,L4:cls"))
    DefSentPlus.check(dictionary, DefSentPlus.Settings(readout="mean,L3:cls"))


def test_a_prompt_without_a_mask_token_is_refused_before_any_row(dictionary, tmp_path):
    folder = shutil.copytree(dictionary.checkpoint.folder, tmp_path / "maskless")
    text = (folder / "tokenizer.json").read_text().replace("[MASK]", "[COVER]")
    (folder / "tokenizer.json").write_text(text)
    base = replace(open_base(read_checkpoint(str(folder)), 32), entries=dictionary.entries)

    with pytest.raises(UsageError, match="the readout prompt needs a mask token"):
        DefSentPlus.check(base, DefSentPlus.Settings())
    DefSentPlus.check(base, DefSentPlus.Settings(readout="mean,cls"))


def test_a_template_without_a_prompt_readout_is_refused():
    assert DefSentPlus.Settings(template="promptbert").template == "promptbert"
    with pytest.raises(UsageError, match="template has no effect with readout=mean,cls"):
        DefSentPlus.Settings(readout="mean,cls", template="promptbert")


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
    assert {pooling[name] for name in pooling if "roberta" in name} == {"mean"}
    assert {name: origin[name] for name in origin if origin[name]} == {
        name: f"FacebookAI/roberta-{'base' if '-base' in name else 'large'}"
        for name in origin
        if "cse-roberta" in name
    }
    assert {pooling[name] for name in pooling if "roberta" not in name} == {"cls"}


@pytest.mark.parametrize("activation", ["tanh", "gelu"])
def test_the_loss_is_that_of_plain_loops(activation):
    random = np.random.default_rng(3)
    vectors, entries = random.standard_normal((4, 3)), random.standard_normal((7, 3)).astype(np.float32)
    places, layer = [6, 0, 2, 2], torch.nn.Linear(3, 3)
    method = on_vectors(torch.from_numpy(vectors), entries, layer, activation)
    function = {"tanh": math.tanh, "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2}[activation]
    weight, bias = layer.weight.tolist(), layer.bias.tolist()
    total = 0.0
    for vector, place in zip(vectors, places, strict=True):
        read = [
            function(sum(w * x for w, x in zip(row, vector, strict=True)) + b)
            for row, b in zip(weight, bias, strict=True)
        ]
        logits = [sum(r * float(e) for r, e in zip(read, entry, strict=True)) for entry in entries]
        total -= logits[place] - math.log(sum(map(math.exp, logits)))

    assert loss_of(method, Batch(([None] * 4,), np.array(places, np.float64))).item() == pytest.approx(
        total / 4, rel=0, abs=1e-12
    )
