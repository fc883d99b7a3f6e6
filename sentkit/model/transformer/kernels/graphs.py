"""CUDA graphs of the blocks of an encoder in training on a GPU.

A GPU finishes a short pass before the host has launched its thousand kernels. A graph launches all
kernels of a block at once. Its shapes and addresses are fixed. So passes are filled to few numbers
of tokens, and each kind of pass has its own graphs. The passes of all kinds use the same memory:
while the backward pass of one is still to come, another pass runs without graphs. Both ways give
the same numbers. Only the sum of the gradients of several passes can differ: it is float32 with
graphs, and bfloat16 without.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sentkit.model.transformer.kernels.cuda_operations import copy_all
from sentkit.model.transformer.packed import Packed, rounded

LARGEST_PASS = 8192  # tokens; the host launches the kernels of longer passes in time
MOST_KINDS = 16  # of passes; each keeps the states of its tokens in memory

Run = Callable[[int, Tensor], Tensor]  # number of a block from 0, and its input -> its output


@dataclass(frozen=True, slots=True)
class Kind:
    """What the graphs of a pass depend on, besides the weights."""

    blocks: int
    tokens: int
    sentences: int
    longest: int  # tokens of a sentence
    causal: bool
    training: bool  # with dropout
    gradient: bool


class Pass:
    """Exists as long as the backward pass of a forward pass can come."""


class Graphs:
    """The graphs of one encoder, and what all kinds of passes share."""

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        self.blocks = blocks
        self.weights = [list(block.parameters()) for block in blocks]
        self.chains: dict[Kind, Chain] = {}
        self.enabled = True  # until a recording needs too much memory, or the caller stops them
        # a weak reference: None if no backward pass can come any more
        self.latest_pass: Callable[[], Pass | None] = lambda: None

        # What the recordings share. `runner` creates it, and again if the weights have moved.
        self.pool: Any = None  # of GPU memory; each stream has its own memory in it
        self.stream: torch.cuda.Stream | None = None  # on which they are recorded
        self.recorded_blocks: list[nn.Module] = []  # copies with the same weights; see `copy_of`
        self.gradients: list[list[Tensor]] = []  # of the weights of each block; graphs write them
        self.addresses: list[int] = []  # of the weights

    def __deepcopy__(self, memo: object) -> None:
        """A copy of an encoder has no graphs: they contain the addresses of these weights."""

    def stop(self) -> None:
        """Run all passes without graphs from now on, in less memory."""
        self.enabled = False
        self.chains.clear()
        self.recorded_blocks.clear()
        self.gradients.clear()

    def runner(self, blocks: int, packed: Packed, states: Tensor) -> Run | None:
        """Return a function that runs the first blocks for this filled batch, or None: without
        graphs.

        Its results are in memory that the next pass overwrites.
        """
        # Blocks of one kind only: all or none learn, and all or none have dropout.
        learns = {weight.requires_grad for weights in self.weights[:blocks] for weight in weights}
        trains = {block.training for block in self.blocks[:blocks]}
        needs_gradient = torch.is_grad_enabled() and (states.requires_grad or True in learns)
        if len(trains) != 1 or (needs_gradient and learns != {True}):
            return None
        if not self.enabled or packed.tokens > LARGEST_PASS or self.latest_pass() is not None:
            return None
        kind = Kind(
            blocks=blocks,
            tokens=packed.tokens,
            sentences=len(packed.lengths),
            longest=rounded(packed.longest_length),
            causal=packed.causal,
            training=trains == {True},
            gradient=needs_gradient,
        )

        # Recordings have the addresses of the weights, and share one pool of memory.
        addresses = [weight.data_ptr() for weights in self.weights for weight in weights]
        is_full = len(self.chains) == MOST_KINDS and kind not in self.chains
        if addresses != self.addresses or is_full:
            self.chains.clear()
            self.addresses = addresses
            self.pool = torch.cuda.graph_pool_handle()
            self.stream = torch.cuda.Stream(states.device)
            self.recorded_blocks = [copy_of(block) for block in self.blocks]
        if kind not in self.chains:
            if needs_gradient and not self.gradients:
                self.gradients = [
                    [torch.empty_like(weight) for weight in weights] for weights in self.weights
                ]
            if needs_gradient:
                self.keep(0)  # a recording computes the first block
            try:
                self.chains[kind] = Chain(self, kind, states.detach(), packed.cumulative_lengths)
            except RuntimeError:  # too little memory
                self.stop()
                return None
        chain = self.chains[kind]
        chain.bounds.copy_(packed.cumulative_lengths)
        if not needs_gradient:
            return chain.replay
        this_pass = Pass()
        self.latest_pass = ref(this_pass)
        return lambda number, inputs: Replay.apply(
            chain, number, this_pass, inputs, *self.weights[number]
        )

    def keep(self, number: int) -> None:
        """Copy the gradients of a block from an earlier pass of this step: the next one overwrites
        them.
        """
        for weight, gradient in zip(self.weights[number], self.gradients[number], strict=True):
            if weight.grad is not None and weight.grad.data_ptr() == gradient.data_ptr():
                weight.grad = weight.grad.clone()


def copy_of(block: nn.Module) -> nn.Module:
    """The block to record: with the same weights, but as other parameters.

    A recording cannot contain the nodes that add gradients to those of the method: they belong to
    its stream.
    """
    return deepcopy(
        block, {id(weight): nn.Parameter(weight.detach()) for weight in block.parameters()}
    )


class Chain:
    """The graphs of the first blocks for one kind of pass."""

    def __init__(self, graphs: Graphs, kind: Kind, states: Tensor, bounds: Tensor) -> None:
        """`states` are X(0) of the first pass, `bounds` its `Packed.cumulative_lengths`."""
        self.graphs = graphs
        self.kind = kind
        self.bounds = bounds.clone()
        # Only the number of tokens and the longest sentence have an effect on what is recorded.
        full, remaining = divmod(kind.tokens, kind.longest)
        lengths = [kind.longest] * full
        if remaining:
            lengths.append(remaining)
        self.packed = Packed(
            ids=bounds, positions=bounds, lengths=tuple(lengths), causal=kind.causal
        )
        # of the sentences of a pass, at each replay
        self.packed.__dict__["cumulative_lengths"] = self.bounds
        self.states = [states.clone()]  # X(0), X(1) ..
        # gradients of a block's output and input in turn
        self.slopes = [torch.zeros_like(states) for _ in range(2)]
        self.forward: list[torch.cuda.CUDAGraph] = []
        self.backward: list[torch.cuda.CUDAGraph] = []
        self.blocks = [
            block.train(kind.training) for block in graphs.recorded_blocks[: kind.blocks]
        ]
        self.record()

    def record(self) -> None:
        stream = self.graphs.stream
        outer_stream = torch.cuda.current_stream(self.bounds.device)
        assert stream is not None, "the runner makes it"
        stream.wait_stream(outer_stream)
        was_enabled = gc.isenabled()
        gc.disable()  # it could free the graphs of another run, which ends a recording
        try:
            with (
                torch.random.fork_rng([stream.device]),
                torch.cuda.stream(stream),
                torch.autocast("cuda", torch.bfloat16, cache_enabled=False),
                torch.set_grad_enabled(self.kind.gradient),
            ):
                self.record_blocks()
        finally:
            if was_enabled:
                gc.enable()
        outer_stream.wait_stream(stream)

    def record_blocks(self) -> None:
        """Record a graph for each block, and with a gradient one for its backward pass."""
        # One pass without a recording: kernels load at their first use.
        inputs, output = self.run_block(0)
        if self.kind.gradient:
            self.write_gradients(0, inputs, output)

        inputs_and_outputs = []
        for number in range(self.kind.blocks):
            with recording(self.forward, self.graphs.pool):
                inputs, output = self.run_block(number)
            inputs_and_outputs.append((inputs, output))
            self.states.append(output.detach())
        if not self.kind.gradient:
            return
        for number in reversed(range(self.kind.blocks)):
            with recording(self.backward, self.graphs.pool):
                self.write_gradients(number, *inputs_and_outputs.pop())
        self.backward.reverse()

    def run_block(self, number: int) -> tuple[Tensor, Tensor]:
        """Return the input of a block, and its output."""
        inputs = self.states[number].detach().requires_grad_(torch.is_grad_enabled())
        return inputs, self.blocks[number](inputs, self.packed)

    def write_gradients(self, number: int, inputs: Tensor, output: Tensor) -> None:
        """Write the gradients of the weights and of the input."""
        variables = [inputs, *self.blocks[number].parameters()]
        slope, *gradients = torch.autograd.grad(output, variables, self.slope(number + 1))
        self.slope(number).copy_(slope)
        copy_all(self.graphs.gradients[number], gradients)

    def replay(self, number: int, inputs: Tensor) -> Tensor:
        copy_to(self.states[number], inputs)
        self.forward[number].replay()
        return self.states[number + 1].detach()

    def slope(self, number: int) -> Tensor:
        """The gradient of X(number)."""
        return self.slopes[number % 2]


@contextmanager
def recording(graphs: list[torch.cuda.CUDAGraph], pool: Any) -> Iterator[None]:
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        yield
    finally:
        graph.capture_end()
    graphs.append(graph)


class Replay(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, chain: Chain, number: int, this_pass: Pass, states: Tensor, *weights: Tensor
    ) -> Tensor:
        context.chain = chain
        context.number = number
        context.this_pass = this_pass  # lives until the backward pass
        return chain.replay(number, states)

    @staticmethod
    @once_differentiable
    def backward(context: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        chain = context.chain
        number = context.number
        copy_to(chain.slope(number + 1), slope)
        chain.graphs.keep(number)
        chain.backward[number].replay()
        slope_of_inputs = chain.slope(number).detach()
        if number == 0:  # it leaves the graphs, and the next pass overwrites it
            slope_of_inputs = slope_of_inputs.clone()
        gradients = [gradient.detach() for gradient in chain.graphs.gradients[number]]
        return None, None, None, slope_of_inputs, *gradients


def copy_to(static: Tensor, values: Tensor) -> None:
    if static.data_ptr() != values.data_ptr():
        static.copy_(values)
