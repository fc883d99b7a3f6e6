"""Training on a GPU: as on a CPU up to rounding, and with the same bytes on request."""

import pytest
import torch

from sentkit.training.loop.processes import Processes
from sentkit.training.methods.simcse import SimCSE

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture
def on_cuda(trainer_of, texts):
    """A trainer whose method is on the GPU."""

    def make(precision="fp32", **settings):
        device = torch.device("cuda")
        more = {"processes": Processes(device=device), "precision": precision}
        return trainer_of(SimCSE, texts, batch=4, epochs=3, lr=1e-3, **more, **settings)

    return make


def test_losses_are_those_of_the_cpu(trainer_of, losses_of, texts, on_cuda):
    here = losses_of(trainer_of(SimCSE, texts, batch=4, epochs=3, lr=1e-3, dropout=0))
    there = losses_of(on_cuda(dropout=0))

    assert here == pytest.approx(there, rel=1e-3)


def test_bf16_is_near(losses_of, on_cuda):
    assert losses_of(on_cuda(dropout=0)) == pytest.approx(losses_of(on_cuda("bf16", dropout=0)), rel=0.1)


def test_chunks_repeat_their_dropout(on_cuda):
    """One chunk's dropout is repeated from the state of the GPU's own generator."""
    trainer = on_cuda(dropout=0.2, chunk=2)
    trainer.method.train()
    torch.manual_seed(3)
    first = trainer.gradient.compute(trainer.batch(0))
    torch.manual_seed(3)

    assert trainer.gradient.compute(trainer.batch(0)) == first
