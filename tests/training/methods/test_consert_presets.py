"""The presets of ConSERT have the published values, and the settings accept them."""

import pytest

from sentkit.papers.consert.method import ConSERT
from sentkit.training.settings import build, format_value, parsed


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


def test_it_is_judged_as_trained_and_saved_as_the_paper_reports():
    settings = ConSERT.Settings()
    assert (ConSERT.dev_readout(settings), ConSERT.readouts(settings)[0]) == ("mean", "mean-last2")
