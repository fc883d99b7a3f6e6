"""SG-BERT: its worked numbers, its frozen parts, and what each setting changes."""

from copy import deepcopy
from functools import partial

import numpy as np
import pytest
import torch
import transformers
from torch.nn import functional as F

from reference_steps import PlainAdamW
from sentkit.errors import UsageError
from sentkit.papers.sg_bert.method import SelfGuided, gelu_head, kept_layers
from sentkit.training.data.corpus import Batch, stream
from sentkit.training.method import changing_tensors
from sentkit.training.settings import build
from support import padded
from training.losses.formulas import loop_opt3, loop_paired, mean
from training.methods.loops import copies
from training.small import changed_by

SMALL = {"batch": 4, "head_width": 24}


def settings_of(*, preset=None, **settings):
    assignments = [f"{name}={value}" for name, value in settings.items()]
    return build(SelfGuided.Settings, SelfGuided.presets, preset, assignments)


def batch_of(base, *columns):
    tokens = [
        [
            np.array(tokens_of_text.ids, np.int32)
            for tokens_of_text in base.training_tokenizer(list(texts))
        ]
        for texts in columns
    ]
    return Batch(tuple(tokens))


def test_the_head_starts_as_bert_does():
    with torch.device("meta"):
        assert (
            sum(parameter.numel() for parameter in gelu_head(768, 4096).parameters()) == 19_931_136
        )
    torch.manual_seed(0)
    weight, bias, *_ = gelu_head(100, 500).parameters()
    assert weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert not bias.any()


@pytest.mark.parametrize("dropout", ["off", "on"])
def test_the_guide_has_dropout_only_if_set(base, texts, method_of, dropout):
    method = method_of(SelfGuided, head_width=24, guide_dropout=dropout).train()
    [rows] = batch_of(base, texts).texts

    assert method.body.training
    assert torch.equal(method.views(rows, None), method.views(rows, None)) == (dropout == "off")
    method.eval()
    assert torch.equal(method.views(rows, None), method.views(rows, None))


def test_without_a_head_the_vectors_are_compared_themselves(base, texts, method_of):
    method = method_of(SelfGuided, head="none")
    batch = batch_of(base, texts)

    outputs = method.encode(batch)
    assert torch.equal(outputs["queries"], method.vectors(method.pack(batch.texts[0]), "cls"))
    assert torch.equal(outputs["views"], method.views(batch.texts[0], None))
    assert not method.finished().heads


def test_back_translation_teaches_through_both_texts(base, texts, method_of):
    method = method_of(SelfGuided, head_width=24, preset="bt")
    batch = batch_of(base, texts[:6], texts[6:12])
    outputs = method.encode(batch)
    for value in outputs.values():
        value.retain_grad()
    [term] = method.loss(outputs).values()
    term.value.backward()

    assert all(value.grad.abs().sum() > 0 for value in outputs.values())
    swapped = method.encode(batch_of(base, texts[6:12], texts[:6]))
    assert torch.allclose(swapped["queries"], outputs["views"], atol=1e-5)  # one encoder reads both
    assert not method.draw(batch, partial(stream, 0, 0))


def test_with_sg_opt_the_guide_reads_the_paraphrase(base, texts, method_of):
    method = method_of(SelfGuided, head_width=24, preset="bt-sg-opt")
    outputs = method.encode(batch_of(base, texts[:6], texts[6:12]))
    originals, paraphrases = (
        method.encode(batch_of(base, sentences)) for sentences in (texts[:6], texts[6:12])
    )

    assert torch.equal(outputs["queries"], originals["queries"])
    assert torch.equal(outputs["views"], paraphrases["views"])


def test_the_layers_that_a_range_keeps(base):
    assert kept_layers("all", 12) == range(13)
    assert kept_layers(settings_of(preset="senteval").guide_layers, 12) == range(4, 13)
    assert kept_layers("4..6", 12) == range(4, 7)
    assert kept_layers("0", 12) == range(1)
    with pytest.raises(UsageError, match="layers are 0 to 12"):
        kept_layers("4..13", 12)
    SelfGuided.check(base, settings_of(guide_layers="3"))


@pytest.mark.parametrize(
    ("sampler", "shares"),
    [("uniform", [0.25] * 4), ("upper", [0.1, 0.2, 0.3, 0.4]), ("lower", [0.4, 0.3, 0.2, 0.1])],
)
def test_a_sampler_draws_layers_by_their_weights(trainer_of, texts, sampler, shares):
    """Of the layers 0 to 3, with the weights 1 to 4. Seed and step alone determine the draw."""
    settings = {"objective": "base", "head_width": 8, "layer_sampler": sampler}
    trainer = trainer_of(SelfGuided, texts, batch=13, **settings)
    rows = Batch(([np.array([1], np.int32)] * 2000,))
    drawn, same_step, next_step = (
        trainer.method.draw(rows, partial(stream, 0, n))["layer"] for n in (0, 0, 1)
    )

    assert np.bincount(drawn) / 2000 == pytest.approx(shares, abs=0.05)  # five standard deviations
    assert drawn == same_step != next_step


@pytest.mark.parametrize(
    ("objective", "guide", "pool", "layer_range"),
    [  # each pair of values once
        ("opt3", "copy", "max", range(3)),
        ("base", "self", "max", range(3)),
        ("opt3", "self", "mean", range(1, 3)),
        ("base", "copy", "mean", range(1, 3)),
    ],
)
def test_ten_steps_are_those_of_a_padded_reference(
    objective, guide, pool, layer_range, trainer_of, check_steps, texts, base_of
):
    """transformers' BertModel with padding, a frozen copy, loops and AdamW; float64, no dropout."""
    base = base_of(pooler=True)  # for which SG-BERT has no task
    settings = {
        "epochs": 4,
        "lr": 1e-3,
        "dropout": 0,
        "guide": guide,
        "objective": objective,
        **SMALL,
    }
    settings |= {"guide_pool": pool, "guide_layers": f"{layer_range[0]}..{layer_range[-1]}"}
    trainer = trainer_of(SelfGuided, texts, double=True, base=base, **settings)
    tuned = transformers.BertModel.from_pretrained(
        base.checkpoint.folder,
        dtype=torch.float64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    ).train()
    frozen = deepcopy(tuned).eval()
    start = [value.detach() for value in frozen.parameters()]
    tuned.embeddings.requires_grad_(False)
    head = dict(
        zip(("a.weight", "a.bias", "b.weight", "b.bias"), copies(trainer.method.head), strict=True)
    )

    def projected(values):
        values = F.gelu(values @ head["a.weight"].T + head["a.bias"])
        return F.gelu(values @ head["b.weight"].T + head["b.bias"])

    def pooled(states):
        return states.max(0).values if pool == "max" else states.mean(0)

    def views_of(ids, mask):
        """By sentence and layer: the largest or the mean value of each dimension, over the real
        tokens.
        """
        model = tuned if guide == "self" else frozen
        with torch.set_grad_enabled(guide == "self"):
            layers = model(
                input_ids=ids, attention_mask=mask, output_hidden_states=True
            ).hidden_states
        lengths = mask.sum(1).tolist()
        return [
            [
                pooled(states[row, :length])
                for states in layers[layer_range.start : layer_range.stop]
            ]
            for row, length in enumerate(lengths)
        ]

    def loss_of(batch, rows):
        """Of one drawn view of each sentence with the objective `base`, and of all views
        with opt3.
        """
        ids, mask = padded(batch.texts[0])
        queries = projected(tuned(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0])
        views = [
            [projected(view) for view in views_of_text] for views_of_text in views_of(ids, mask)
        ]
        if objective == "opt3":
            loss = torch.cat(loop_opt3(queries, views, 0.01)).mean()
        else:
            chosen = [
                views_of_text[layer - layer_range[0]]
                for views_of_text, layer in zip(views, batch.draws["layer"], strict=True)
            ]
            loss = mean(loop_paired(queries, chosen, 0.01))
        return loss + 0.1 * sum(
            ((now - was) ** 2).sum() for now, was in zip(tuned.parameters(), start, strict=True)
        )

    weights = [(name, value) for name, value in tuned.named_parameters() if value.requires_grad]
    optimizer = PlainAdamW([*weights, *head.items()], beta2=0.9, decay=0.01)
    assert trainer.order.steps == 12
    check_steps(trainer, [], loss_of, count=10, optimizer=optimizer, warmup=2)  # ceil(0.1 * 12)


@pytest.mark.parametrize("frozen", [True, False])
def test_three_steps_change_the_blocks_and_nothing_frozen(trainer_of, texts, frozen):
    trainer = trainer_of(SelfGuided, texts, **SMALL, freeze_embeddings=frozen, guide_dropout="on")
    method = trainer.method
    changed = changed_by(trainer)
    blocks = {
        f"body.{name}" for name, _ in method.body.named_parameters() if name.startswith("blocks.")
    }
    tables = {f"body.{name}.weight" for name in ("words", "positions", "types", "norm")}

    assert trainer.position.step == 3
    assert blocks <= changed
    assert changed & tables == (set() if frozen else tables)
    assert not any(name.startswith("guide.") for name in changed | changing_tensors(method).keys())
    assert {name.split(".")[0] for name in method.finished().heads} == {"head"}
    assert not any(weight.requires_grad for weight in method.guide.parameters())


QUERIES = [[1.0, 0.0], [0.0, 1.0]]
VIEWS = [[0.8, 0.6], [0.28, 0.96]]


@pytest.mark.parametrize(
    ("settings", "queries", "views", "expected"),
    [
        ({"objective": "base"}, QUERIES, VIEWS, 0.649763),
        ({"objective": "opt1"}, QUERIES, VIEWS, 0.466170),
        ({"objective": "opt2"}, QUERIES, VIEWS, 0.349627),
        ({"objective": "opt2", "compat_opt2_slice": "on"}, QUERIES, VIEWS, 0.0),
        (
            {"objective": "opt2"},
            [*QUERIES, [0.6, 0.8]],
            [[0.8, 0.6], [0.6, -0.8], [0, 1.0]],
            1.843389,
        ),
        ({"objective": "opt3"}, QUERIES, [[[0.8, 0.6], [1, 0]], [[0.28, 0.96], [0, 1]]], 0.427293),
        ({"objective": "opt3"}, QUERIES, [[[0.8, 0.6]], [[0.28, 0.96]]], 0.349627),
    ],
)
def test_the_loss_of_vectors_worked_by_hand(method_of, settings, queries, views, expected):
    method = method_of(SelfGuided, head_width=24, temperature=0.5, **settings)
    terms = method.loss({"queries": torch.tensor(queries), "views": torch.tensor(views)})

    assert terms["contrast"].value.item() == pytest.approx(expected, abs=1e-6)
