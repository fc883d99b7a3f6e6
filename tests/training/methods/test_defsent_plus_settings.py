"""The settings of DefSent+, and the bases, entries and templates that it refuses."""

import shutil
from dataclasses import replace

import pytest

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.papers.defsent.plus import DefSentPlus
from sentkit.training.base import open_base
from sentkit.training.settings import build

NAMES = ["cat", "a hot dog", "rain", "sea", "old house"]


@pytest.fixture
def dictionary(with_entries):
    return with_entries(NAMES)


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


def test_a_readout_named_twice_counts_once():
    assert DefSentPlus.readouts(DefSentPlus.Settings(readout="cls, mean,cls")) == ("cls", "mean")


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
