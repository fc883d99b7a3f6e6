"""SG-BERT: its worked numbers, its frozen parts, and what each setting changes."""

from functools import partial

import numpy as np
import pytest
import torch
import transformers

from sentkit.errors import DataError, UsageError
from sentkit.papers.sg_bert.method import SelfGuided, gelu_head, kept_layers
from sentkit.training.data.batches import Batch, stream
from sentkit.training.settings import build

SMALL = {"batch": 4, "head_width": 24}


def settings_of(*, preset=None, **settings):
    assignments = [f"{name}={value}" for name, value in settings.items()]
    return build(SelfGuided.Settings, SelfGuided.presets, preset, assignments)


def method_of(base, **settings):
    torch.manual_seed(0)
    return SelfGuided.build(base, settings_of(**({"head_width": 24} | settings)))


def batch_of(base, *columns):
    tokens = [
        [np.array(each.ids, np.int32) for each in base.training_tokenizer(list(texts))] for texts in columns
    ]
    return Batch(tuple(tokens))


# The numbers, by hand.


def test_the_drift_is_a_plain_sum_of_squares(base):
    """0.5 and 2 away in two tensors: 4.25, with a gradient of twice the distance."""
    method = method_of(base, drift_weight=0.1)

    assert method.penalty()["drift"].item() == 0
    bias, weight = method.body.blocks[0].mix.bias, method.body.blocks[1].up.weight
    with torch.no_grad():
        bias[3] += 0.5
        weight[0, 0] += 2
    drift = method.penalty()["drift"]
    drift.backward()
    assert drift.item() == pytest.approx(0.1 * 4.25)
    assert bias.grad[3].item() == pytest.approx(0.1)
    assert weight.grad[0, 0].item() == pytest.approx(0.4)
    assert not method_of(base, drift_weight=0).penalty()


def test_the_head_has_an_exact_gelu_at_its_end():
    """Its least value is -0.169971, where a tanh's would be -0.170041 and a linear layer's anything."""
    torch.manual_seed(0)
    outputs = gelu_head(768, 64)(50 * torch.randn(1000, 768))

    assert -0.169972 <= outputs.min().item() < -0.16997


def test_the_head_starts_as_bert_does():
    with torch.device("meta"):
        assert sum(each.numel() for each in gelu_head(768, 4096).parameters()) == 19_931_136
    torch.manual_seed(0)
    weight, bias, *_ = gelu_head(100, 500).parameters()
    assert weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert not bias.any()


# What stays as it was.


@pytest.mark.parametrize("dropout", ["off", "on"])
def test_the_guide_has_dropout_only_if_set(base, texts, dropout):
    method = method_of(base, guide_dropout=dropout).train()
    [rows] = batch_of(base, texts).texts

    assert method.body.training
    assert torch.equal(method.views(rows, None), method.views(rows, None)) == (dropout == "off")
    method.eval()
    assert torch.equal(method.views(rows, None), method.views(rows, None))


# The views.


@pytest.mark.parametrize("pool", ["max", "mean"])
def test_the_views_are_the_pooled_layers_of_the_guide(base, base_folder, texts, pool):
    """Those of a later range are the last of all, and a drawn one is one of them."""
    model = transformers.BertModel.from_pretrained(base_folder, add_pooling_layer=False).eval()
    batch = batch_of(base, texts[:4])
    expected = []
    for ids in batch.texts[0]:
        with torch.no_grad():
            layers = model(torch.tensor([ids.tolist()]), output_hidden_states=True).hidden_states
        rows = [states[0].max(0).values if pool == "max" else states[0].mean(0) for states in layers]
        expected.append(torch.stack(rows))
    every = method_of(base, guide_pool=pool).views(batch.texts[0], None)
    later = method_of(base, guide_pool=pool, guide_layers="2..").views(batch.texts[0], None)
    drawn = method_of(base, guide_pool=pool).views(batch.texts[0], [3, 0, 2, 1])

    assert torch.allclose(every, torch.stack(expected), atol=1e-5)
    assert torch.equal(later, every[:, 2:])
    assert torch.equal(drawn, torch.stack([every[0, 3], every[1, 0], every[2, 2], every[3, 1]]))


@pytest.mark.parametrize(
    ("objective", "shape"), [("base", (4, 24)), ("opt1", (4, 24)), ("opt2", (4, 24)), ("opt3", (4, 4, 24))]
)
def test_only_opt3_takes_the_head_over_all_layers(trainer_of, texts, objective, shape):
    trainer = trainer_of(SelfGuided, texts, **SMALL, objective=objective)
    outputs = trainer.method.encode(trainer.batch(0))

    assert outputs["views"].shape == shape
    assert outputs["queries"].shape == (4, 24)


def test_each_sentence_draws_its_layer_anew_from_those_kept(base):
    method = method_of(base, objective="opt2", guide_layers="1..2")
    rows = Batch(([np.array([1], np.int32)] * 2000,))
    first, again, second = (method.draw(rows, partial(stream, 0, step))["layer"] for step in (0, 0, 1))

    assert first == again != second
    assert set(first) == {1, 2}
    assert 900 < first.count(1) < 1100  # five standard deviations are 112


def test_without_a_head_the_vectors_are_compared_themselves(base, texts):
    method = method_of(base, head="none", head_width=4096)
    batch = batch_of(base, texts)

    outputs = method.encode(batch)
    assert torch.equal(outputs["queries"], method.vectors(method.pack(batch.texts[0]), "cls"))
    assert torch.equal(outputs["views"], method.views(batch.texts[0], None))
    assert not method.finished().heads


# Pairs.


def test_back_translation_teaches_through_both_texts(base, texts):
    method = method_of(base, preset="bt")
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


def test_with_sg_opt_the_guide_reads_the_paraphrase(base, texts):
    method = method_of(base, preset="bt-sg-opt")
    outputs = method.encode(batch_of(base, texts[:6], texts[6:12]))
    originals, paraphrases = (method.encode(batch_of(base, each)) for each in (texts[:6], texts[6:12]))

    assert torch.equal(outputs["queries"], originals["queries"])
    assert torch.equal(outputs["views"], paraphrases["views"])


def test_pairs_need_the_setting_second_text(base, texts, corpus_of):
    pairs = [{"text_a": text, "text_b": text} for text in texts]

    with pytest.raises(DataError, match='needs "text"; this row has'):
        corpus_of(SelfGuided, pairs, settings_of())
    assert corpus_of(SelfGuided, pairs, settings_of(preset="bt")).columns == 2


# The settings.


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"second_text": "tuned"}, "can be used only with objective=base, not opt3"),
        (
            {"second_text": "tuned", "objective": "base", "guide_pool": "mean"},
            "guide_pool has no effect with second_text=tuned",
        ),
        ({"head": "none", "head_width": 24}, "head_width has no effect with head=none"),
        ({"compat_opt2_slice": "on"}, "compat_opt2_slice has no effect with objective=opt3"),
        (
            {"objective": "base", "compat_opt2_slice": "on"},
            "compat_opt2_slice has no effect with objective=base",
        ),
        ({"guide_layers": "..4"}, 'guide_layers="..4"'),
        ({"guide_layers": "4..2"}, "the last layer is before the first"),
        ({"optimizer": "adam"}, "no weight decay"),
    ],
)
def test_settings_without_effect_are_refused(settings, problem):
    with pytest.raises(UsageError, match=problem):
        settings_of(**settings)


def test_the_layers_that_a_range_keeps():
    assert kept_layers("all", 12) == range(13)
    assert kept_layers(settings_of(preset="senteval").guide_layers, 12) == range(4, 13)
    assert kept_layers("4..6", 12) == range(4, 7)
    assert kept_layers("0", 12) == range(1)
    with pytest.raises(UsageError, match="layers are 0 to 12"):
        kept_layers("4..13", 12)


def test_a_layer_that_the_base_does_not_have_is_refused_before_it_is_built(base):
    SelfGuided.check(base, settings_of(guide_layers="3"))
    with pytest.raises(UsageError, match=r"^guide_layers=4\.\.: the encoder's layers are 0 to 3$"):
        SelfGuided.check(base, settings_of(guide_layers="4.."))


@pytest.mark.parametrize(
    ("preset", "objective", "sliced"), [("released", "opt3", False), ("released-opt2", "opt2", True)]
)
def test_the_released_recipe_keeps_the_last_weights(preset, objective, sliced):
    settings = settings_of(preset=preset)

    assert (settings.objective, settings.compat_opt2_slice) == (objective, sliced)
    assert (settings.guide_pool, settings.guide_dropout) == ("mean", True)
    assert (settings.early_stop, settings.final) == ("cumulative", "last")


@pytest.mark.parametrize(
    ("sampler", "shares"),
    [("uniform", [0.25] * 4), ("upper", [0.1, 0.2, 0.3, 0.4]), ("lower", [0.4, 0.3, 0.2, 0.1])],
)
def test_a_sampler_draws_layers_by_their_weights(trainer_of, texts, sampler, shares):
    """Of the layers 0 to 3, with the weights 1 to 4."""
    settings = {"objective": "base", "head_width": 8, "layer_sampler": sampler}
    trainer = trainer_of(SelfGuided, texts, batch=13, **settings)
    drawn = [layer for step in range(400) for layer in trainer_draw(trainer, step)]

    assert np.bincount(drawn) / len(drawn) == pytest.approx(shares, abs=0.03)


def trainer_draw(trainer, step):
    batch = trainer.run.corpus.batch(np.arange(13))
    return trainer.method.draw(batch, partial(stream, 0, step))["layer"]


@pytest.mark.parametrize("pool", ["max", "mean"])
def test_the_tuned_encoder_as_its_own_guide_takes_one_pass(base, texts, pool):
    """Its vectors are those of the readout, and its views have a gradient."""
    settings = settings_of(guide="self", head="none", guide_pool=pool, readout="mean", dropout=0)
    method = SelfGuided.build(base, settings)
    [ids] = batch_of(base, texts[:3]).texts
    vectors, states = method.vectors_and_layers(ids)

    assert torch.allclose(vectors, method.vectors(method.pack(ids)), atol=1e-6)
    assert {layer for layer, name in states if name == pool} == {0, 1, 2, 3}
    assert states[3, pool].requires_grad


@pytest.mark.parametrize(
    ("assignments", "problem"),
    [
        (["guide=self", "guide_dropout=on"], "guide_dropout has no effect with guide=self"),
        (["layer_sampler=upper"], "layer_sampler has no effect with objective=opt3"),
        (["lora=8", "freeze_embeddings=off"], "freeze_embeddings has no effect with lora=8"),
        (["objective=base", "second_text=tuned", "guide=self"], "guide has no effect with second_text=tuned"),
        (["guide=none"], "available: copy, self"),
    ],
)
def test_a_switch_without_effect_is_refused(assignments, problem):
    with pytest.raises(UsageError, match=problem):
        build(SelfGuided.Settings, SelfGuided.presets, None, assignments)
