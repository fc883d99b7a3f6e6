"""Settings and presets of single-file methods and papers have the values of the authors' released
scripts.
"""

from dataclasses import fields

import pytest

from sentkit.training.catalogue import METHODS
from sentkit.training.settings import build

SIMCSE = {
    "epochs": 1,
    "max_length": 32,
    "temperature": 0.05,
    "eval_every": 125,
    "warmup": 0,
    "clip": 1,
}
TRIPLETS = SIMCSE | {"epochs": 3, "batch": 512}  # 128 on each of four devices
CONSERT = {
    "batch": 96,
    "temperature": 0.1,
    "eval_every": 200,
    "optimizer": "adamw-bert",
    "warmup": 0.1,
}
CONSERT |= {"weight_decay": 0.01, "clip": 1, "max_length": 64, "dropout": None}
UNSUP = CONSERT | {"lr": 5e-7, "patience": 10, "mode": "unsup"}
PAIRS = CONSERT | {"lr": 2e-5, "epochs": 1, "pair_features": "uvdm", "patience": 0}
JOINT = PAIRS | {"mode": "joint", "view_b": "token-cutoff", "token_cutoff_rate": 0.1}
DEFSENT = {"batch": 16, "epochs": 1, "optimizer": "adam", "schedule": "warmup-constant"}

RELEASED = {
    # README and run_unsup_example.sh, run_sup_example.sh
    ("simcse", "bert-base"): SIMCSE | {"batch": 64, "lr": 3e-5},
    ("simcse", "bert-large"): SIMCSE | {"batch": 64, "lr": 1e-5},
    ("simcse", "roberta-base"): SIMCSE | {"batch": 512, "lr": 1e-5},
    ("simcse", "roberta-large"): SIMCSE | {"batch": 512, "lr": 3e-5},
    ("simcse-sup", "bert-base"): TRIPLETS | {"lr": 5e-5, "hard_negative_weight": 0},
    ("simcse-sup", "bert-large"): TRIPLETS | {"lr": 1e-5},
    ("simcse-sup", "roberta-base"): TRIPLETS | {"lr": 5e-5},
    ("simcse-sup", "roberta-large"): TRIPLETS | {"lr": 1e-5},
    # the script of ESimCSE for roberta-base, and its log
    ("esimcse", "roberta-base"): {"lr": 1e-5, "repeat_rate": 0.3},
    # run.sh of Prompt-BERT; 32 tokens of the sentence and 10 of the template
    ("promptbert", "bert-base"): SIMCSE | {"batch": 256, "lr": 1e-5, "max_length": 42},
    ("promptbert", "roberta-base"): SIMCSE | {"batch": 256, "lr": 1e-5, "max_length": 42},
    ("promptbert", "sup-bert-base"): TRIPLETS | {"lr": 5e-5, "max_length": 42, "head": "own"},
    ("promptbert", "sup-roberta-base"): TRIPLETS | {"lr": 5e-5, "max_length": 42, "head": "fresh"},
    # train_SNCSE.sh
    ("sncse", "bert-base"): SIMCSE | {"batch": 256, "lr": 1e-5},
    ("sncse", "bert-large"): SIMCSE | {"batch": 128, "lr": 5e-6},
    ("sncse", "roberta-base"): SIMCSE | {"batch": 256, "lr": 1e-5},
    ("sncse", "roberta-large"): SIMCSE | {"batch": 128, "lr": 5e-6},
    # unsupervised_training_nli.py of IS-BERT, and `fit` in its copy of sentence-transformers
    ("is-bert", None): {
        "batch": 32,
        "lr": 2e-6,
        "warmup": 0.1,
        "weight_decay": 0.01,
        "eval_every": 1000,
    }
    | {
        "optimizer": "adamw-bert",
        "epsilon": 1e-7,
        "schedule": "linear",
        "clip": 1,
        "max_length": 128,
    },
    # run_simcse_rank_encoder.sh trains bert-base-uncased and ranks by a SimCSE checkpoint
    ("rank-encoder", "bert-base"): SIMCSE
    | {"batch": 64, "lr": 3e-5, "rank_weight": 0.05, "rank_low": 0.5, "rank_high": 0.9999}
    | {"guide": "princeton-nlp/unsup-simcse-bert-base-uncased"},
    # Training.py of CT: 16 pairs, seven of eight are negative; RMSprop of TensorFlow
    ("ct", None): {"batch": 2, "negatives": 7, "lr": 1e-5, "optimizer": "rmsprop", "beta2": 0.9}
    | {"epsilon": 1e-7, "clip": 0, "dropout": 0, "max_length": 75, "eval_every": 500},
    # train_tsdae_from_file.py and training_nli.py of sentence-transformers
    ("tsdae", None): {
        "batch": 8,
        "lr": 3e-5,
        "weight_decay": 0,
        "schedule": "constant",
        "deletion": 0.6,
    },
    ("sbert", "nli"): {"objective": "softmax", "batch": 16, "epochs": 1, "lr": 2e-5, "warmup": 0.1}
    | {"weight_decay": 0.01, "clip": 1, "eval_every": 1000},
    ("sbert", "stsb"): {"objective": "regression", "epochs": 4, "scale": 5, "eval_every": 1000},
    ("sbert", "sections"): {"objective": "triplet", "epochs": 1, "margin": 1, "eval_every": 1000},
    # training.py of SG-BERT
    ("sg-bert", "released-opt2"): {"objective": "opt2", "compat_opt2_slice": True, "final": "last"},
    ("sg-bert", "released"): {
        "batch": 16,
        "epochs": 1,
        "lr": 5e-5,
        "beta2": 0.9,
        "temperature": 0.01,
    }
    | {"drift_weight": 0.1, "guide_pool": "mean", "warmup": 0.1, "eval_every": 50, "patience": 10}
    | {"objective": "opt3", "compat_opt2_slice": False, "guide_dropout": True, "final": "last"}
    | {"early_stop": "cumulative"},
    # scripts/*.sh of ConSERT
    ("consert", "unsup-base"): UNSUP
    | {"epochs": 10, "view_a": "feature-cutoff", "view_b": "shuffle", "feature_cutoff_rate": 0.2}
    | {"dropout": 0},
    ("consert", "unsup-base-tuned"): {"lr": 2e-5, "temperature": 0.05, "dropout": 0},
    ("consert", "unsup-large"): UNSUP | {"epochs": 25, "view_b": "shuffle", "eval_every": 100},
    ("consert", "sup-base"): PAIRS | {"mode": "sup"},
    ("consert", "sup-large"): PAIRS | {"mode": "sup"},
    ("consert", "joint-base"): JOINT | {"alpha": 0.6},
    ("consert", "joint-large"): JOINT | {"alpha": 0.6, "max_length": 40},
    ("consert", "joint-base-paper"): JOINT | {"alpha": 0.15, "pair_features": "uvd"},
    ("consert", "joint-large-paper"): JOINT
    | {"alpha": 0.15, "pair_features": "uvd", "max_length": 40},
    ("consert", "sup-unsup-base"): UNSUP
    | {"epochs": 25, "view_b": "feature-cutoff", "feature_cutoff_rate": 0.1},
    ("consert", "sup-unsup-large"): UNSUP
    | {"epochs": 10, "view_b": "feature-cutoff", "feature_cutoff_rate": 0.1},
    ("consert", "joint-unsup-base"): UNSUP | {"epochs": 25, "view_b": "shuffle"},
    ("consert", "joint-unsup-large"): UNSUP | {"epochs": 10, "view_b": "shuffle", "max_length": 40},
    # the paper of BERT, and what GLUE reports of each task
    ("classify", None): {"batch": 32, "epochs": 3, "lr": 2e-5, "weight_decay": 0.01, "warmup": 0.1}
    | {"eval_every": None},
    ("classify", "sg-bert-glue"): {"eval_every": 0},
    ("classify", "sg-bert-glue-cola"): {"metric_name": "matthews", "eval_every": 0},
    ("classify", "stsb"): {"metric_name": "pearson", "eval_every": 0},
    ("mlm", "bert"): {"eval_every": 0},
    ("defsent", None): {"eval_every": 0},
    ("defsent-plus", None): {"eval_every": 0},
    ("simcse", None): {"eval_every": 125},
    **{
        (name, None): {"eval_every": None}
        for name in ("sbert", "contrast", "distill", "cosent", "angle")
    },
    # run_pairsupcon.sh
    ("pairsupcon", "paper"): {
        "batch": 1024,
        "epochs": 3,
        "lr": 5e-6,
        "head_lr_factor": 100,
        "beta": 1,
    }
    | {"max_length": 32, "temperature": 0.05, "eval_every": 500, "optimizer": "adam"},
} | {
    # experiments/scripts/run-*.sh of DefSent
    ("defsent", f"{base}-{pooling}"): DEFSENT
    | {"lr": pytest.approx(1e-6 * 2 ** (step / 2), rel=1e-3)}
    for base, steps in {
        "bert-base": (5, 7, 7),
        "bert-large": (5, 7, 6),
        "roberta-base": (5, 6, 4),
        "roberta-large": (4, 4, 5),
    }.items()
    for pooling, step in zip(("cls", "mean", "max"), steps, strict=True)
}
# The tables of DefSent+: rates by progressive step. BERT reads its pooler at [CLS], RoBERTa at the
# mean.
OWN = {"projection_from": None}
RELEASED |= {
    ("defsent-plus", f"{base}{step}"): {"lr": rate, "pooling": pooling} | OWN
    for base, pooling, rates in (
        ("bert-base", "cls", (5e-5, 4e-5, 3e-5)),
        ("bert-large", "cls", (4e-5, 4e-5, 3e-5)),
        ("roberta-base", "mean", (3e-5, 2e-5, 1e-5)),
        ("roberta-large", "mean", (3e-5, 2e-5, 1e-5)),
    )
    for step, rate in zip(("", "-step2", "-step3"), rates, strict=True)
}
for start in ("simcse", "sncse"):
    for size in ("base", "large"):
        of_roberta = {"pooling": "mean", "projection_from": f"FacebookAI/roberta-{size}"}
        RELEASED["defsent-plus", f"{start}-bert-{size}"] = {"pooling": "cls"} | OWN
        RELEASED["defsent-plus", f"{start}-roberta-{size}"] = of_roberta
    RELEASED["defsent-plus", f"{start}-roberta-large-step2"] = of_roberta
RELEASED["defsent-plus", "simcse-roberta-large"] = of_roberta | {"pooling": "cls"}


@pytest.mark.parametrize(("name", "preset"), RELEASED)
def test_a_recipe_has_the_released_values(name, preset):
    kind = METHODS[name].load()
    values = RELEASED[name, preset]
    settings = build(kind.Settings, kind.presets, preset, [])

    assert {setting: getattr(settings, setting) for setting in values} == values


@pytest.mark.parametrize("name", METHODS)
def test_a_setting_has_the_default_of_the_nearest_class(name):
    """A dataclass takes all fields of a base, also inherited ones: the order of bases can hide a
    value.
    """
    kind = METHODS[name].load().Settings

    for field in fields(kind):
        owner = next(
            parent
            for parent in kind.__mro__
            if field.name in vars(parent).get("__annotations__", {})
        )
        assert field.default == vars(owner)["__dataclass_fields__"][field.name].default, field.name
