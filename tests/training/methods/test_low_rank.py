"""LoRA: the steps of a padded reference, the merged checkpoint, and each method with it."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from sentkit.errors import UsageError
from sentkit.model.transformer.weights import read_weights
from sentkit.papers.sg_bert.method import SelfGuided
from sentkit.training.base import open_named
from sentkit.training.catalogue import METHODS
from sentkit.training.lora import constant_tensors
from sentkit.training.method import changing_tensors
from sentkit.training.methods.pairs import CoSENT
from sentkit.training.recipe import LORA_LAYERS, Recipe
from sentkit.training.runs.checkpoint import write_checkpoint
from training.losses.formulas import loop_ranked
from training.methods.loops import RECIPE
from training.small import changed_by

THEIRS = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "mix": "attention.output.dense",
    "up": "intermediate.dense",
    "down": "output.dense",
}
FUSED = ("query", "key", "value")
ADVERSARIAL = {"mode": "joint", "view_a": "none", "view_b": "adversarial"}  # frozen embeddings


def halves(method, layers):
    """Copies of A and B by the module name of transformers. The names of the fused matrix are its
    parts.
    """
    named = dict(method.body.named_parameters())
    pairs = {}
    for block in range(len(method.body.blocks)):
        fused = [name for name in FUSED if name in LORA_LAYERS[layers]]
        for name in LORA_LAYERS[layers]:
            layer, index = ("qkv", fused.index(name)) if name in FUSED else (name, 0)
            pair = [named[f"blocks.{block}.{layer}.lora_{half}"][index] for half in "ab"]
            pairs[f"encoder.layer.{block}.{THEIRS[name]}"] = [
                tensor.detach().clone() for tensor in pair
            ]
    return pairs


@pytest.mark.parametrize(("layers", "alpha"), [("query-value", None), ("all", 5.0)])
def test_steps_are_those_of_a_reference(trainer_of, check_steps, scored, reference, layers, alpha):
    """transformers' BertModel with W + alpha / r B A instead of each W, and torch's AdamW, in
    float64.
    """
    settings = {"lora": 3, "lora_layers": layers} | ({} if alpha is None else {"lora_alpha": alpha})
    trainer = trainer_of(CoSENT, scored, **RECIPE | {"lr": 1e-2, "chunk": 3}, **settings)
    trained = halves(trainer.method, layers)
    scale = 1.0 if alpha is None else alpha / 3
    parameters = [tensor.requires_grad_() for pair in trained.values() for tensor in pair]
    plain = dict(reference.model.named_parameters())

    def loss_of(batch, numbers):
        sums = {
            f"{n}.weight": plain[f"{n}.weight"].detach() + scale * b @ a
            for n, (a, b) in trained.items()
        }
        summed = replace(
            reference, model=lambda **x: torch.func.functional_call(reference.model, sums, kwargs=x)
        )
        cosines = torch.cosine_similarity(*map(summed.mean, batch.texts))
        return loop_ranked(cosines, [scored[number]["score"] for number in numbers])

    check_steps(trainer, parameters, loss_of)


@pytest.mark.parametrize("layers", LORA_LAYERS)
def test_the_checkpoint_is_the_base_with_the_adapter(
    trainer_of, scored, base, base_folder, tmp_path, layers
):
    """The adapter in the files of peft, which `encode` adds to the weights."""
    trainer = trainer_of(CoSENT, scored, batch=4, lr=0.01, lora=3, lora_alpha=5, lora_layers=layers)
    trainer.train()
    write_checkpoint(tmp_path / "made", trainer.method, base, {"parents": []}, "mean")
    config = {
        "peft_type": "LORA",
        "r": 3,
        "lora_alpha": 5,
        "bias": "none",
        "init_lora_weights": True,
    }
    peft = shutil.copytree(base_folder, tmp_path / "peft")
    (peft / "adapter_config.json").write_text(json.dumps(config))
    named = {
        f"base_model.model.{module}.lora_{half}.weight": value
        for module, pair in halves(trainer.method, layers).items()
        for half, value in zip("AB", pair, strict=True)
    }
    save_file(named, peft / "adapter_model.safetensors")
    tensors = load_file(tmp_path / "made/model.safetensors")
    expected = read_weights(peft, "peft")
    before = load_file(base_folder / "model.safetensors")

    assert not list((tmp_path / "made").glob("adapter*"))
    changed = {name for name, value in tensors.items() if not torch.equal(value, before[name])}
    blocks = {name.split("layer.")[1].split(".")[0] for name in before if "encoder.layer." in name}
    assert len(changed) == len(blocks) * len(LORA_LAYERS[layers])
    for name, value in tensors.items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "more"),
    [*((name, {}) for name in METHODS), ("consert", ADVERSARIAL)],
    ids=[*METHODS, "consert-adversarial"],
)
def test_each_method_trains_only_updates_and_heads(name, more, small):
    """The base's weights stay, and neither the optimizer nor the state contains them."""
    schedule = {} if name == "ct" else {"schedule": "constant"}
    trainer = small(name, batch=4, lr=0.01, lora=2, warmup=0, **schedule, **more)
    method = trainer.method
    constant = constant_tensors(method)
    changed = changed_by(trainer)
    optimized = {
        id(parameter) for group in trainer.optimizer.param_groups for parameter in group["params"]
    }

    assert sum(".lora_b" in key for key in changing_tensors(method) if key.startswith("body.")) > 0
    assert not constant & (changing_tensors(method).keys() | changed)
    assert all(
        id(value) not in optimized for key, value in method.named_parameters() if key in constant
    )
    of_body = {key: value for key, value in method.named_parameters() if key.startswith("body.")}
    assert all(value.abs().max() > 0 for key, value in of_body.items() if "lora_b" in key)


def test_the_drift_is_the_distance_of_the_sums(trainer_of, texts):
    """The guide has the weights of the base, so the drift is that of the updates."""
    trainer = trainer_of(SelfGuided, texts, batch=4, lr=0.01, lora=2, lora_alpha=6, head_width=8)
    trainer.train()
    method = trainer.method
    expected = sum(
        ((3 * b @ a) ** 2).sum().item() for a, b in halves(method, "query-value").values()
    )

    assert method.penalty()["drift"].item() == pytest.approx(0.1 * expected, rel=1e-4)
    assert expected > 0


@pytest.mark.parametrize(("name", "value"), [("lora", 2), ("dropout", 0.0)])
def test_a_base_that_transformers_runs_is_refused(albert, name, value):
    with pytest.raises(
        UsageError, match=f"^{name}: not supported, because transformers runs this model"
    ):
        open_named(str(albert), 32).check_settings(Recipe(**{name: value}))
