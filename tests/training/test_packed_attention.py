"""Training with the kernel for attention without padding, as on a GPU. Here a kernel on a CPU
replaces it.
"""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from flash_kernel import kernel_on_cpu
from sentkit.model.transformer import bert, packed
from sentkit.model.transformer.bert import Bert, Block, attend_packed
from sentkit.model.transformer.kernels import graphs
from sentkit.training.loop.processes import precision_of
from sentkit.training.method import trained_parameters
from training.small import gradient_of

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
    with kernel_on_cpu() as kernel_calls:
        kernel_calls.refuses = False
        monkeypatch.setattr(bert, "kernel_is_right", lambda *arguments, **more: True)
        monkeypatch.setattr(bert, "HALF", (torch.float64, torch.bfloat16))
        monkeypatch.setattr(bert, "Graphs", lambda blocks: None)
        yield kernel_calls


@pytest.mark.parametrize(("name", "settings"), METHODS, ids=str)
def test_losses_and_gradients_are_those_of_padded_attention(small, kernel, name, settings):
    trainer = small(name, batch=8, dropout=0, **settings)
    trainer.method.double()
    padded, slopes = gradient_of(trainer)
    attend_packed(trainer.method, CPU)
    packed, packed_slopes = gradient_of(trainer)

    assert kernel.calls
    assert kernel.backward_calls
    assert packed == pytest.approx(padded, abs=1e-12)
    assert slopes.keys() == packed_slopes.keys()
    for parameter, slope in slopes.items():
        torch.testing.assert_close(packed_slopes[parameter], slope, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(("name", "settings"), METHODS[:4], ids=str)
def test_with_dropout_a_small_step_changes_the_loss_as_the_gradient_foretells(
    small, kernel, name, settings
):
    """The kernel drops weights of attention, and each chunk is encoded again with the same ones."""
    trainer = small(name, batch=8, dropout=0.2, **settings)
    trainer.method.double()
    attend_packed(trainer.method, CPU)
    before, slopes = gradient_of(trainer)
    parameter = dict(trained_parameters(trainer.method))["body.blocks.0.qkv.weight"]
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

    def error(gradient):
        squares = [(gradient[name] - slope).square().sum() for name, slope in exact.items()]
        return sum(squares).sqrt()

    assert kernel.backward_calls == trainer.method.body.depth
    assert error(packed) < 1.5 * error(padded)


def test_in_float32_and_on_a_cpu_attention_is_padded(small, kernel):
    trainer = small("simcse", batch=12, precision="bf16")
    assert {
        block.uses_packed_kernel for block in trainer.method.modules() if isinstance(block, Block)
    } == {False}
    attend_packed(trainer.method, CPU)
    gradient_of(trainer, "fp32")

    assert not kernel.calls


class StepByStep(graphs.Chain):
    """The graphs of a kind of passes, which a CPU does not have: blocks run instead, on the same
    tensors.

    What a block keeps for its backward pass is lost in a pass of another kind, which has the same
    memory. A recording computes the first block.
    """

    def record(self):
        self.states += [torch.full_like(self.states[0], torch.nan) for _ in self.blocks]
        self.ends = {}
        if self.kind.gradient:
            with (
                torch.autocast("cpu", torch.bfloat16, cache_enabled=False),
                torch.random.fork_rng(),
            ):
                self.write_gradients(0, *self.run_block(0))
        for number in range(len(self.blocks)):
            self.forward.append(SimpleNamespace(replay=partial(self.compute, number)))
            self.backward.append(SimpleNamespace(replay=partial(self.pull, number)))

    def compute(self, number):
        lowered = torch.autocast("cpu", torch.bfloat16, cache_enabled=False)
        with lowered, torch.set_grad_enabled(self.kind.gradient):
            ends = self.run_block(number)
        for chain in self.graphs.chains.values():
            if number == 0:
                chain.ends.clear()
        self.ends[number] = ends
        self.states[number + 1].copy_(ends[1].detach())

    def pull(self, number):
        with torch.enable_grad():
            self.write_gradients(number, *self.ends.pop(number))


@pytest.fixture
def recorded(kernel, monkeypatch):
    monkeypatch.setattr(bert, "Graphs", graphs.Graphs)
    monkeypatch.setattr(graphs, "Chain", StepByStep)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(packed, "SENTENCES", 2)  # the chunks of a batch are of several kinds


@pytest.mark.parametrize(
    ("name", "settings"), [*METHODS, ("simcse", {"chunk": 3}), ("consert", {})], ids=str
)
def test_graphs_have_the_gradient_and_the_random_numbers_of_blocks(small, recorded, name, settings):
    """Of whole batches, of chunks that run twice, and of passes before the backward pass of another
    one.

    The gradients of several passes are added in float32 with graphs, and without in bfloat16.
    """
    several = name in ("tsdae", "consert") or "mlm_weight" in settings
    trainer = small(name, batch=8, dropout=0.2, **settings)
    attend_packed(trainer.method, CPU)
    results = []
    for works in (True, True, False):  # the first time, graphs are recorded
        for module in trainer.method.modules():
            if isinstance(module, Bert):
                module.graphs.enabled = works
        results.append((*gradient_of(trainer, "bf16"), torch.get_rng_state()))
    (first, *recording), (second, *replayed), (without, *plain) = results

    assert trainer.method.body.graphs.chains or "lora" in settings
    assert first == second == without
    for slopes, random in (recording, replayed):
        assert slopes.keys() == plain[0].keys()
        assert torch.equal(random, plain[1])
        for parameter, slope in slopes.items():
            expected = plain[0][parameter]
            near = (slope - expected).norm() < 0.02 * expected.norm() + 1e-9
            assert near if several else torch.equal(slope, expected), parameter


def test_graphs_of_many_kinds_of_passes_end_with_the_oldest(small, recorded, monkeypatch):
    monkeypatch.setattr(graphs, "MOST_KINDS", 2)
    trainer = small("simcse", batch=8, dropout=0.2)
    attend_packed(trainer.method, CPU)
    trainer.method.train()
    body = trainer.method.body
    for count in (2, 5, 8, 11):
        with precision_of("bf16", CPU)():
            vectors = trainer.method.vectors(trainer.method.pack([np.full(60, 7)] * count))
        assert vectors.isfinite().all()
        assert 1 <= len(body.graphs.chains) <= 2
        del vectors


def test_other_weights_are_recorded_again(small, recorded):
    trainer = small("simcse", batch=8, dropout=0)
    attend_packed(trainer.method, CPU)
    gradient_of(trainer, "bf16")
    for parameter in trainer.method.parameters():
        parameter.data = parameter.data * 1.5
    gradient = gradient_of(trainer, "bf16")
    trainer.method.body.graphs.enabled = False

    assert gradient[0] == gradient_of(trainer, "bf16")[0]
