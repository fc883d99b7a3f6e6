"""Settings and presets of single-file methods have the values of the authors' released scripts."""

import pytest

from sentkit.training.catalogue import METHODS
from sentkit.training.settings import build

RELEASED = [
    # unsup scripts of ESimCSE: run_unsup_esimcse_roberta_base and its log
    ("esimcse", "roberta-base", {"lr": 1e-5, "repeat_rate": 0.3}),
    # IS-BERT: unsupervised_training_nli.py, and the defaults of `fit` in its copy of sentence-transformers
    (
        "is-bert",
        None,
        {
            "batch": 32,
            "lr": 2e-6,
            "warmup": 0.1,
            "weight_decay": 0.01,
            "optimizer": "adamw-bert",
            "epsilon": 1e-7,
            "schedule": "linear",
            "clip": 1.0,
            "max_length": 128,
        },
    ),
    # RankEncoder: run_simcse_rank_encoder.sh trains bert-base-uncased and ranks by a SimCSE checkpoint
    (
        "rank-encoder",
        "bert-base",
        {
            "batch": 64,
            "lr": 3e-5,
            "max_length": 32,
            "temperature": 0.05,
            "rank_weight": 0.05,
            "eval_every": 125,
        }
        | {"rank_low": 0.5, "rank_high": 0.9999, "guide": "princeton-nlp/unsup-simcse-bert-base-uncased"},
    ),
]


@pytest.mark.parametrize(("name", "preset", "values"), RELEASED)
def test_a_recipe_has_the_released_values(name, preset, values):
    kind = METHODS[name].load()
    settings = build(kind.Settings, kind.presets, preset, [])

    assert {each: getattr(settings, each) for each in values} == values
