"""Training with the kernel for attention without padding, as on a GPU. Here a kernel on a CPU replaces it."""

import pytest
import torch

from flash_kernel import kernel_on_cpu
from sentkit.model.transformer import bert
from sentkit.model.transformer.bert import Block, attend_packed
from sentkit.model.transformer.flash import flash
from sentkit.training.loop.gradient import Gradient
from sentkit.training.loop.processes import Processes, precision_of
from sentkit.training.method import trained

CPU = torch.device("cpu")
METHODS = [
    ("simcse", {"readout": "cls"}),  # one query for each sentence in the last block
    ("simcse", {"readout": "mean", "chunk": 3, "mlm_weight": 0.1}),
    ("sg-bert", {}),
    ("tsdae", {"chunk": 2}),  # its decoder attends to the tokens before
    ("cosent", {"lora": 2, "lora_layers": "all"}),
]


@pytest.fixture
def kernel(monkeypatch):
    """A kernel that computes in float64, and blocks that use it for values in float64."""
    with kernel_on_cpu() as made:
        made.refuses = False
        monkeypatch.setattr(bert, "kernel_for_training", lambda *arguments: flash)
        monkeypatch.setattr(bert, "HALF", (torch.float64, torch.bfloat16))
        yield made


def gradient_of(trainer, precision="fp32"):
    trainer.method.train()
    torch.manual_seed(5)
    gradient = Gradient(trainer.method, Processes(), trainer.recipe.chunk, precision_of(precision, CPU))
    terms = gradient.compute(trainer.batch(0))
    slopes = {name: each.grad.clone() for name, each in trained(trainer.method) if each.grad is not None}
    return {name: value.item() for name, value in terms.items()}, slopes


@pytest.mark.parametrize(("name", "settings"), METHODS, ids=str)
def test_losses_and_gradients_are_those_of_padded_attention(small, kernel, name, settings):
    trainer = small(name, batch=8, dropout=0, **settings)
    trainer.method.double()
    padded, slopes = gradient_of(trainer)
    attend_packed(trainer.method, CPU)
    packed, others = gradient_of(trainer)

    assert kernel.calls
    assert kernel.backward_calls
    assert packed == pytest.approx(padded, abs=1e-12)
    assert slopes.keys() == others.keys()
    for parameter, slope in slopes.items():
        torch.testing.assert_close(others[parameter], slope, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("name", "settings"), METHODS[:4], ids=str)
def test_with_dropout_a_small_step_changes_the_loss_as_the_gradient_foretells(small, kernel, name, settings):
    """The kernel drops weights of attention, and each chunk is encoded again with the same ones."""
    trainer = small(name, batch=8, dropout=0.2, **settings)
    trainer.method.double()
    attend_packed(trainer.method, CPU)
    before, slopes = gradient_of(trainer)
    parameter = dict(trained(trainer.method))["body.blocks.0.qkv.weight"]
    slope = slopes["body.blocks.0.qkv.weight"]
    with torch.no_grad():
        parameter -= 1e-6 * slope
    after, _ = gradient_of(trainer)
    kernel.drops = False
    without, _ = gradient_of(trainer)

    foretold = -1e-6 * slope.square().sum().item()
    assert sum(after.values()) - sum(before.values()) == pytest.approx(foretold, rel=1e-3)
    assert abs(sum(without.values()) - sum(after.values())) > 1e-4


def test_bfloat16_is_as_near_to_float32_as_padded_attention(small, kernel):
    trainer = small("simcse", batch=12, dropout=0)
    _, exact = gradient_of(trainer)
    _, padded = gradient_of(trainer, "bf16")
    assert not kernel.calls
    attend_packed(trainer.method, CPU)
    _, packed = gradient_of(trainer, "bf16")

    def error(found):
        return sum((found[name] - slope).square().sum() for name, slope in exact.items()).sqrt()

    assert kernel.backward_calls == trainer.method.body.depth
    assert error(packed) < 1.5 * error(padded)


def test_in_float32_and_on_a_cpu_attention_is_padded(small, kernel):
    trainer = small("simcse", batch=12, precision="bf16")
    assert {block.kernel for block in trainer.method.modules() if isinstance(block, Block)} == {None}
    attend_packed(trainer.method, CPU)
    gradient_of(trainer)  # in float32

    assert not kernel.calls
