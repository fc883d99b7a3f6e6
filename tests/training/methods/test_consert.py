"""ConSERT: its views, its two losses and their factors."""

import pytest
import torch

from sentkit.errors import DataError
from sentkit.papers.consert.method import ConSERT, direction
from sentkit.papers.pairsupcon.method import PairSupCon
from sentkit.training.methods.classify import Classify
from sentkit.training.methods.pairs import SBERT
from sentkit.training.settings import build, format_value, parsed
from training.methods.loops import labelled


def encoded(trainer, step=0):
    trainer.method.train()
    with torch.no_grad():
        return trainer.method.encode(trainer.batch(step))


@pytest.mark.parametrize(("mode", "passes"), [("unsup", 2), ("sup", 1), ("joint", 2)])
def test_each_view_is_one_pass_and_labels_are_numbered_as_in_the_released_code(
    trainer_of, texts, mode, passes
):
    trainer = trainer_of(ConSERT, labelled(texts), mode=mode, batch=4)
    calls = []
    trainer.method.body.blocks[0].register_forward_hook(lambda *_: calls.append(1))
    outputs, rows = encoded(trainer), trainer.order.at(0)
    assert len(calls) == passes
    if mode != "unsup":
        assert outputs["labels"].tolist() == [[1, 2, 0][row % 3] for row in rows]


# The views.


def test_every_view_and_side_draws_its_own(trainer_of, texts):
    same = [{"text_a": text, "text_b": text, "label": "neutral"} for text in texts]
    views = {"view_a": "feature-cutoff", "view_b": "feature-cutoff"}
    draws = trainer_of(ConSERT, same, mode="joint", batch=13, **views).batch(0).draws

    assert sorted(draws) == ["a0", "a1", "b0", "b1"]
    assert {len(each) for values in draws.values() for each in values} == {3}  # of 16
    every = [tuple(sorted(each)) for values in draws.values() for each in values]
    assert len(set(every)) > 40  # of 52


# The runs.


def test_the_direction_of_an_attack():
    slopes = torch.tensor([[3.0, -4.0], [0.0, 0.0]])

    assert torch.allclose(direction(slopes, "fgv"), torch.tensor([[0.6, -0.8], [0.0, 0.0]]))
    assert direction(slopes, "fgsm").tolist() == [[1.0, -1.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (ConSERT, {"mode": "sup"}),
        (ConSERT, {"mode": "joint"}),
        (SBERT, {}),
        (PairSupCon, {"objective": "cls"}),
        (Classify, {}),
        (Classify, {"objective": "regression"}),
    ],
)
def test_equal_targets_are_refused(corpus_of, texts, kind, settings):
    rows = [row | {"label": "entailment", "score": 2} for row in labelled(texts)]
    name, verb = ("score", "predict") if "regression" in settings.values() else ("label", "classify")
    settings = kind.Settings(**settings)
    corpus = corpus_of(kind, rows, settings)
    with pytest.raises(DataError, match=f'^x: "{name}" is the same in all 13 rows: nothing to {verb}$'):
        kind.check_rows(corpus, settings, "x")


@pytest.mark.parametrize("preset", list(ConSERT.presets))
def test_each_preset_is_within_the_limits_and_builds(base, preset):
    overrides = ConSERT.presets[preset]
    assert (
        parsed(ConSERT.Settings, [f"{name}={format_value(each)}" for name, each in overrides.items()])
        == overrides
    )
    settings = build(ConSERT.Settings, ConSERT.presets, preset, [])
    method = ConSERT.build(base, settings)
    assert (method.classifier is None) == (settings.mode == "unsup")
    assert bool(method.finished().heads) == (settings.mode != "unsup")


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("token-cutoff", "token_cutoff_rate"),
        ("feature-cutoff", "feature_cutoff_rate"),
        ("dropout", "view_dropout_rate"),
    ],
)
def test_each_cut_has_its_own_rate(trainer_of, texts, name, setting):
    """Of 0 here, where the other two are not."""
    outputs = encoded(trainer_of(ConSERT, texts, view_a="none", view_b=name, batch=8, **{setting: 0}))
    assert torch.equal(outputs["a0"], outputs["b0"])
