"""The presets of ConSERT have the published values, and the settings accept them."""

import pytest

from sentkit.papers.consert.method import ConSERT
from sentkit.training.data.batches import Order
from sentkit.training.loop.optimizers import warmup_steps
from sentkit.training.settings import build, format_value, parsed

PUBLISHED = {  # views, encoder's dropout, lr, tokens, epochs, steps between looks, patience
    "unsup-base": ("feature-cutoff 0.2", "shuffle", 0.0, 5e-7, 64, 10, 200, 10),
    "unsup-large": ("none", "shuffle", None, 5e-7, 64, 25, 100, 10),
    "sup-base": ("none", None, None, 2e-5, 64, 1, 200, 0),
    "sup-large": ("none", None, None, 2e-5, 64, 1, 200, 0),
    "joint-base": ("none", "token-cutoff 0.1", None, 2e-5, 64, 1, 200, 0),
    "joint-large": ("none", "token-cutoff 0.1", None, 2e-5, 40, 1, 200, 0),
    "sup-unsup-base": ("none", "feature-cutoff 0.1", None, 5e-7, 64, 25, 200, 10),
    "sup-unsup-large": ("none", "feature-cutoff 0.1", None, 5e-7, 64, 10, 200, 10),
    "joint-unsup-base": ("none", "shuffle", None, 5e-7, 64, 25, 200, 10),
    "joint-unsup-large": ("none", "shuffle", None, 5e-7, 40, 10, 200, 10),
}
MODES = {"unsup": "unsup", "sup": "sup", "joint": "joint", "sup-unsup": "unsup", "joint-unsup": "unsup"}


def view(settings, which):
    name = settings.views.get(which)  # labels alone need one
    rates = {"token-cutoff": settings.token_cutoff_rate, "feature-cutoff": settings.feature_cutoff_rate}
    return f"{name} {rates[name]:g}" if name in rates else name


@pytest.mark.parametrize("preset", list(PUBLISHED))
def test_presets_have_the_published_values(preset):
    settings = build(ConSERT.Settings, ConSERT.presets, preset, [])
    assert (
        view(settings, "a"),
        view(settings, "b"),
        settings.dropout,
        settings.lr,
        settings.max_length,
        settings.epochs,
        settings.eval_every,
        settings.patience,
    ) == PUBLISHED[preset]
    assert settings.mode == MODES[preset.rpartition("-")[0]]
    assert (settings.batch, settings.temperature, settings.optimizer) == (96, 0.1, "adamw-bert")
    assert (settings.weight_decay, settings.clip, settings.warmup) == (0.01, 1.0, 0.1)
    assert settings.pair_features == ("uvd" if settings.mode == "unsup" else "uvdm")


def test_the_other_presets():
    tuned = build(ConSERT.Settings, ConSERT.presets, "unsup-base-tuned", [])
    assert (tuned.lr, tuned.temperature, tuned.dropout) == (2e-5, 0.05, 0.0)
    for size in ("base", "large"):
        written = build(ConSERT.Settings, ConSERT.presets, f"joint-{size}-paper", [])
        code = build(ConSERT.Settings, ConSERT.presets, f"joint-{size}", [])
        assert (written.alpha, written.pair_features) == (0.15, "uvd")
        assert code.alpha == 0.6
        assert written.max_length == code.max_length


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


def test_the_published_run_has_930_steps_an_epoch():
    settings = ConSERT.Settings()
    order = Order(89_192, settings.batch, settings.epochs, seed=1)
    assert (order.epoch_steps, warmup_steps(settings.warmup, order.steps)) == (930, 930)


def test_it_is_judged_as_trained_and_saved_as_the_paper_reports():
    settings = ConSERT.Settings()
    assert (ConSERT.dev_readout(settings), ConSERT.readouts(settings)[0]) == ("mean", "mean-last2")
