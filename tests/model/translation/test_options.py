"""Limits come from the flags, else from the checkpoint, and never exceed its positions."""

import json
from pathlib import Path
from typing import Any

import pytest

from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.model.translation.options import Limits, TranslationOptions, generation_settings, limits_of

MARIAN = {"model_type": "marian", "max_position_embeddings": 512}
T5 = {"model_type": "t5", "n_positions": 300}
PAIR = {"encoder": {"model_type": "x", "max_position_embeddings": 64}}
PAIR |= {"decoder": {"model_type": "x", "max_position_embeddings": 32}}
ENDLESS = int(1e30)  # the value of transformers if a tokenizer declares no length


@pytest.mark.parametrize(
    ("config", "said", "usual", "expected"),
    [
        (MARIAN, {}, ENDLESS, Limits(512, 512, 4)),
        (MARIAN, {}, 128, Limits(128, 128, 4)),
        (MARIAN, {}, 9999, Limits(512, 512, 4)),
        # A length counts the token that the decoder starts from, a number of new tokens does not.
        (MARIAN, {"max_length": 200, "num_beams": 6}, 512, Limits(512, 199, 6)),
        (MARIAN, {"max_length": 200, "max_new_tokens": 70}, 512, Limits(512, 70, 4)),
        (MARIAN, {"max_length": 9999}, 512, Limits(512, 512, 4)),
        (MARIAN, {"max_length": "many", "num_beams": None}, 512, Limits(512, 512, 4)),
        (T5, {}, ENDLESS, Limits(300, 300, 4)),
        (T5, {"max_length": 900}, 200, Limits(200, 899, 4)),
        ({"model_type": "mt5"}, {}, ENDLESS, Limits(512, 512, 4)),
        (PAIR, {}, ENDLESS, Limits(64, 32, 4)),
    ],
)
def test_limits_without_flags_come_from_the_checkpoint(
    config: Any, said: Any, usual: int, expected: Limits
) -> None:
    assert limits_of(config, said, TranslationOptions(), usual=usual, source="config.json") == expected


@pytest.mark.parametrize(
    ("config", "options", "expected"),
    [
        (MARIAN, TranslationOptions(beams=1, max_length=9, max_new_tokens=8), Limits(9, 8, 1)),
        (MARIAN, TranslationOptions(beams=7), Limits(128, 99, 7)),
        (MARIAN, TranslationOptions(max_length=512), Limits(512, 99, 6)),
        (MARIAN, TranslationOptions(sample=True), Limits(128, 99, 1)),
        # Relative positions have a default, but no bound.
        (T5, TranslationOptions(max_length=9999, max_new_tokens=8888), Limits(9999, 8888, 6)),
    ],
)
def test_flags_override_the_checkpoint(config: Any, options: TranslationOptions, expected: Limits) -> None:
    assert (
        limits_of(config, {"max_length": 100, "num_beams": 6}, options, usual=128, source="config.json")
        == expected
    )


def test_older_checkpoints_keep_the_settings_in_the_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**MARIAN, "num_beams": 6}))

    assert generation_settings(read_checkpoint(str(tmp_path)))["num_beams"] == 6
    (tmp_path / "generation_config.json").write_text('{"num_beams": 2}')
    assert generation_settings(read_checkpoint(str(tmp_path))) == {"num_beams": 2}
