"""The gradient is of the whole batch, in however many chunks and processes it is computed."""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sentkit.training.data.corpus import chunks
from sentkit.training.loop import gradient as loop
from sentkit.training.loop.gradient import Gradient
from sentkit.training.loop.processes import CPU, Processes, precision_of
from sentkit.training.method import trained_parameters
from sentkit.training.methods.simcse import SimCSE
from training.small import gradient_of


def test_chunks_are_encoded_again_with_the_same_dropout(trainer_of, texts):
    """The gradient is that of the loss of the masks first drawn: a small step changes it as
    foretold.
    """
    trainer = trainer_of(SimCSE, texts, double=True, batch=12, dropout=0.2)
    before, slopes = gradient_of(trainer, chunk=5)
    name, weight = next(
        (n, p) for n, p in trained_parameters(trainer.method) if n.endswith("up.weight")
    )
    with torch.no_grad():
        weight -= 1e-6 * slopes[name]
    after, _ = gradient_of(trainer, chunk=5)

    foretold = -1e-6 * slopes[name].square().sum().item()
    assert after["contrast"] - before["contrast"] == pytest.approx(foretold, rel=1e-3)


def test_chunks_leave_the_random_state_of_a_whole_batch(trainer_of, texts):
    """After a step in one chunk or in several, the generator stands where the masks of one pass
    left it.
    """
    trainer = trainer_of(SimCSE, texts, batch=12)
    states = []
    for chunk in (12, 4):
        gradient_of(trainer, chunk=chunk)
        states.append(torch.get_rng_state())
    trainer.method.train()
    torch.manual_seed(5)
    for rows in chunks(12, 4):
        trainer.method.encode(trainer.batch(0).take(rows))

    assert torch.equal(torch.get_rng_state(), states[1])


class Casts(TorchDispatchMode):
    """The casts to bfloat16 of tensors, by their places in memory."""

    def __init__(self):
        super().__init__()
        self.found = Counter()

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        if (
            function == torch.ops.aten._to_copy.default
            and (options or {}).get("dtype") == torch.bfloat16
        ):
            self.found[arguments[0].data_ptr()] += 1
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize(("chunk", "passes"), [(0, 1), (4, 2)])
def test_weights_are_cast_once_for_each_kind_of_pass(trainer_of, texts, chunk, passes):
    """The gradient is that of casts in each chunk, to the last bit."""
    trainer = trainer_of(SimCSE, texts, batch=12, readout="mean")
    precision = precision_of("bf16", CPU)
    blocks = trainer.method.body.blocks
    matrices = [
        layer.weight for block in blocks for layer in (block.qkv, block.mix, block.up, block.down)
    ]
    gradient = Gradient(trainer.method, Processes(), chunk, precision)
    gradients = []
    for keeps in (True, False):
        trainer.method.train()
        torch.manual_seed(5)
        with pytest.MonkeyPatch.context() as patch, Casts() as casts:
            if keeps:  # as on a GPU
                patch.setattr(
                    loop, "keeping_casts", lambda device: torch.autocast("cpu", enabled=False)
                )
            gradient.compute(trainer.batch(0))
        gradients.append([parameter.grad for _, parameter in trained_parameters(trainer.method)])
        counts = [casts.found[weight.data_ptr()] for weight in matrices]
        assert counts == [passes if keeps else passes * max(1, 12 // (chunk or 12))] * len(matrices)

    assert all(map(torch.equal, *gradients))
