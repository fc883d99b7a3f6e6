"""Each method, stopped and resumed, ends with the bits of an uninterrupted run."""

import pytest
import torch

from sentkit.training.catalogue import METHODS
from sentkit.training.method import changing_tensors
from training.small import stop_after

MORE = {
    "simcse-sup": {"mlm_weight": 0.1, "dims": "8,4"},
    "esimcse": {"mlm_weight": 0.1, "lora": 2},
    "sg-bert": {"objective": "base", "lora": 2},
    "consert": {"dropout": 0.1, "view_a": "dropout"},
    "contrast": {"form": "full", "guide": "self", "dims": "8,4"},
    "ct": {"lora": 2, "lora_layers": "all"},
    "is-bert": {"lora": 2},
    "distill": {"relational": 1},
}


@pytest.fixture
def chunked(small):
    return lambda name: small(name, batch=6, epochs=2, lr=0.003, chunk=4, **MORE.get(name, {}))


@pytest.mark.parametrize("name", METHODS)
def test_products_in_bfloat16_give_losses_in_float32(name, chunked):
    trainer = chunked(name)
    with torch.autocast("cpu", torch.bfloat16):
        terms = trainer.method.loss(trainer.method.encode(trainer.batch(0)))

    assert {term.sum.dtype for term in terms.values()} == {torch.float32}
    assert all(term.sum.isfinite() for term in terms.values())


@pytest.mark.parametrize("name", METHODS)
def test_a_stopped_and_resumed_run_equals_a_whole_run(name, chunked):
    """With dropout and chunks: weights, optimizer and position are equal to the last bit."""
    whole, stopped, resumed = (chunked(name) for _ in range(3))
    torch.manual_seed(11)
    whole.train()
    torch.manual_seed(11)
    stop_after(stopped, 3)
    torch.manual_seed(99)  # the random state of a new process does not matter
    resumed.checkpointer = stopped.checkpointer
    resumed.resume_from(stopped.checkpointer.load(resumed.run.identity))
    resumed.train()

    assert (whole.position.step, resumed.position.step) == (4, 4)
    assert changing_tensors(whole.method).keys() == changing_tensors(resumed.method).keys()
    for tensor, value in changing_tensors(whole.method).items():
        assert torch.equal(value, changing_tensors(resumed.method)[tensor]), tensor
