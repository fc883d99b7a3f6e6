"""The gradient of one batch. It does not depend on the number of processes and chunks.

A contrast needs the whole batch. With chunks, GradCache (arXiv 2101.06983) is used: encode all
chunks without gradient, compute the gradient of the loss for each output, then encode each chunk
again with the same dropout and backpropagate that gradient. For a row-wise loss, the gradients of
the chunks are summed.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from sentkit.model.transformer.bert import Bert
from sentkit.training.data.corpus import Batch, chunks, chunks_of_tokens
from sentkit.training.loop.processes import SUM, Context, Processes
from sentkit.training.method import (
    OF_ENCODE,
    OF_ROW_WISE,
    Method,
    Outputs,
    checked_outputs,
    checked_penalties,
    terms_of,
    trained_parameters,
    wrong_result,
)


@dataclass(slots=True)
class Gradient:
    method: Method
    processes: Processes
    chunk: int = 0  # rows per chunk; 0: one chunk
    precision: Context = nullcontext  # precision context of the encoder
    tokens: int = 0  # tokens per chunk, in place of `chunk`; 0: see `chunk`
    # Outputs of the last whole batch; empty for row-wise methods.
    outputs: Outputs = field(default_factory=dict, init=False)
    parameters: list[nn.Parameter] = field(default_factory=list, init=False)  # those in training

    def compute(self, batch: Batch) -> dict[str, Tensor]:
        """Store the gradient of the whole batch in the parameters. Return the terms of the loss by
        name.

        They stay on the device: the host does not wait for them.
        """
        self.parameters = [parameter for _, parameter in trained_parameters(self.method)]
        for parameter in self.parameters:
            parameter.grad = None
        share = self.processes.share(len(batch))
        # With fewer rows than processes, a process without rows encodes one row and discards it.
        encoded_rows = share
        if share.start == share.stop:
            encoded_rows = slice(0, 1)
        local_batch = batch.take(encoded_rows)
        with keeping_casts(self.processes.device):
            if self.method.needs.row_wise:
                terms = self._row_wise(local_batch, share)
            else:
                terms = self._contrast(local_batch, share, len(batch))
        # On one process only, because gradients are summed over processes.
        penalties: dict[str, Tensor] = {}
        if self.processes.is_first:
            penalties = checked_penalties(self.method, self.method.penalty())
        if penalties:
            torch.stack(list(penalties.values())).sum().backward()
        self.processes.sum_gradients(self.parameters)
        return terms | {name: value.detach() for name, value in penalties.items()}

    def chunks_of(self, batch: Batch) -> list[slice]:
        """Return the rows of each chunk of the batch of this process."""
        if self.tokens:
            return chunks_of_tokens(batch.row_tokens, self.tokens)
        return chunks(len(batch), self.chunk)

    def _contrast(self, local_batch: Batch, share: slice, rows: int) -> dict[str, Tensor]:
        """Compute the gradient of a loss of all rows. `share` are those of this process."""
        chunk_rows = self.chunks_of(local_batch)
        in_one_pass = len(chunk_rows) == 1
        restores: list[Callable[[], None]] = []  # for each chunk, to repeat its dropout
        if in_one_pass:
            outputs = self._encode(local_batch)
        else:
            outputs, restores = self._encode_without_gradient(local_batch, chunk_rows)
        for name, value in outputs.items():
            if len(value) != len(local_batch):
                problem = (
                    f'the output "{name}" of encode() has {len(value)} rows, expected '
                    f"{len(local_batch)}"
                )
                raise wrong_result(self.method.encode, problem, OF_ENCODE)

        # The outputs of this process without the discarded row. With chunks, they are leaf tensors,
        # which store the gradient of the loss. Slices of them would not.
        outputs = {name: value[: share.stop - share.start] for name, value in outputs.items()}
        if not in_one_pass:
            for value in outputs.values():
                if value.is_floating_point():
                    value.requires_grad_()

        # The loss of the whole batch.
        gathered = self.processes.gather(outputs, rows)
        terms = terms_of(self.method, gathered)
        torch.stack([term.value for term in terms.values()]).sum().backward()
        if not in_one_pass:
            for chunk, restore in zip(chunk_rows, restores, strict=True):
                restore()
                self._backpropagate(local_batch.take(chunk), chunk, outputs)
        self.outputs = {name: value.detach() for name, value in gathered.items()}
        return {name: term.value.detach() for name, term in terms.items()}

    def _encode_without_gradient(
        self, batch: Batch, chunk_rows: Sequence[slice]
    ) -> tuple[Outputs, list[Callable[[], None]]]:
        """Return the outputs of the batch, and for each chunk a function that restores its random
        state.
        """
        restores: list[Callable[[], None]] = []
        outputs_of_chunks: list[Outputs] = []
        with torch.no_grad():
            for chunk in chunk_rows:
                restores.append(restorer_of_random_state(self.processes.device))
                outputs_of_chunks.append(self._encode(batch.take(chunk)))
        torch.clear_autocast_cache()  # casts without gradient
        joined: Outputs = {}
        for name in outputs_of_chunks[0]:
            joined[name] = torch.cat([outputs[name] for outputs in outputs_of_chunks])
        return joined, restores

    def _backpropagate(self, chunk_batch: Batch, chunk: slice, outputs: Outputs) -> None:
        """Encode a chunk again, and pass the gradient of the loss for its outputs to the
        parameters.

        `outputs` are those of the whole share, with this gradient. The memory of the pass is free
        at the end.
        """
        chunk_outputs: list[Tensor] = []
        gradients: list[Tensor] = []
        for name, value in self._encode(chunk_batch).items():
            if not value.requires_grad:
                continue
            gradient = outputs[name].grad
            if gradient is None:  # the loss does not use this output
                gradient = torch.zeros_like(outputs[name])
            gradients.append(gradient[chunk])
            chunk_outputs.append(value[: len(gradients[-1])])  # without a discarded row
        torch.autograd.backward(chunk_outputs, gradients)

    def _row_wise(self, local_batch: Batch, share: slice) -> dict[str, Tensor]:
        """Compute the gradient of a loss that is a mean over values of rows. Chunks add
        their sums.
        """
        has_rows = share.stop > share.start
        sums: dict[str, Tensor] = {}
        weight = 0.0
        for chunk in self.chunks_of(local_batch):
            terms = terms_of(self.method, self._encode(local_batch.take(chunk)))
            # All terms must have one weight, so that one division is enough.
            weights = {float(term.weight) for term in terms.values()}
            if len(weights) > 1:
                problem = f"the terms of loss() have different numbers of values: {sorted(weights)}"
                raise wrong_result(self.method.loss, problem, OF_ROW_WISE)
            # No loop variable may keep a tensor of this pass: its memory is free for the next one.
            chunk_sums = {
                name: term.sum * (term.factor if has_rows else 0.0) for name, term in terms.items()
            }
            torch.stack(list(chunk_sums.values())).sum().backward()
            sums = {
                name: value.detach().double() + sums.get(name, 0.0)
                for name, value in chunk_sums.items()
            }
            if has_rows:
                weight += weights.pop()
            del terms, chunk_sums

        # The sums and the weight of all processes.
        local_weight = torch.full((), weight, dtype=torch.float64, device=self.processes.device)
        reduced = self.processes.reduced(torch.stack([*sums.values(), local_weight]), SUM)
        *totals, total_weight = reduced.unbind()
        total_weight = total_weight.clamp(min=1.0)
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad /= total_weight
        return {name: total / total_weight for name, total in zip(sums, totals, strict=True)}

    def _encode(self, batch: Batch) -> Outputs:
        with self.precision():
            return checked_outputs(self.method, self.method.encode(batch))


def keeping_casts(device: torch.device) -> AbstractContextManager[object]:
    """Return a context within which autocast casts each weight once: its outermost context keeps
    the casts.

    Not on a CPU: the gradient of a weight that is used in several ways would be added in another
    order.
    """
    if device.type == "cpu":
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def restorer_of_random_state(device: torch.device) -> Callable[[], None]:
    """Return a function that restores the present state of the generators of dropout."""
    on_device: Tensor | None = None
    if device.type == "cuda":
        on_device = torch.cuda.get_rng_state(device)
    return partial(set_random_state, device, torch.get_rng_state(), on_device)


def set_random_state(device: torch.device, on_host: Tensor, on_device: Tensor | None) -> None:
    torch.set_rng_state(on_host)
    if on_device is not None:
        torch.cuda.set_rng_state(on_device, device)


def clip_gradient(parameters: Sequence[nn.Parameter], clip: float) -> Tensor:
    """Clip the gradient to the norm `clip` and return the norm before. 0 disables clipping."""
    max_norm = clip if clip else float("inf")
    return nn.utils.clip_grad_norm_(parameters, max_norm, foreach=True)


# Rows of the two batches whose memory is measured.
FEW_ROWS = 4
MORE_ROWS = 16
USED_SHARE = 0.8  # of the memory; its blocks have gaps, and batches differ
MOMENTS = 2  # numbers of the optimizer for each weight


def bytes_of_pass(gradient: Gradient, batch: Batch) -> int:
    """Return the memory of a GPU that the gradient of a batch needs besides what is in use."""
    device = gradient.processes.device
    gradient.compute(batch)  # the first pass of a shape needs more
    gradient.method.zero_grad()
    used_before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    gradient.compute(batch)
    peak = torch.cuda.max_memory_allocated(device)
    gradient.method.zero_grad()
    return peak - used_before


def tokens_that_fit(gradient: Gradient, batch: Batch, *, of_whole_memory: bool) -> int:
    """Return the limit of a chunk, from the memory that a few rows and some more of them need.

    `of_whole_memory` ignores what is in use now, so that each run on the same kind of GPU has the
    same limit.
    """
    device = gradient.processes.device
    restore = restorer_of_random_state(device)
    encoders = [module for module in gradient.method.modules() if isinstance(module, Bert)]
    graphs = [encoder.graphs for encoder in encoders]
    for encoder in encoders:
        encoder.graphs = None  # a graph has its memory from its first pass on

    # The bytes that the pass of a few rows and that of more rows need.
    few_rows = batch.take(slice(0, FEW_ROWS))
    more_rows = batch.take(slice(0, MORE_ROWS))
    bytes_of_few = bytes_of_pass(gradient, few_rows)
    bytes_of_more = bytes_of_pass(gradient, more_rows)
    for encoder, encoder_graphs in zip(encoders, graphs, strict=True):
        encoder.graphs = encoder_graphs
    restore()

    # A straight line through the two points: bytes = fixed + bytes_per_token * tokens.
    more_tokens = max(1, more_rows.tokens - few_rows.tokens)
    bytes_per_token = max(1.0, (bytes_of_more - bytes_of_few) / more_tokens)
    fixed_bytes = bytes_of_few - bytes_per_token * few_rows.tokens

    # The memory for a pass, besides the optimizer. Memory that torch has reserved is free, too.
    not_reserved, total = torch.cuda.mem_get_info(device)
    used = torch.cuda.memory_allocated(device)
    if of_whole_memory:
        room = USED_SHARE * total - used
    else:
        room = USED_SHARE * (not_reserved + torch.cuda.memory_reserved(device) - used)
    weights = sum(weight.numel() for _, weight in trained_parameters(gradient.method))
    room -= 4 * MOMENTS * weights
    fit = max(1, int((room - fixed_bytes) / bytes_per_token))

    # Only the four highest bits, because small differences do not matter.
    step = 1 << max(0, fit.bit_length() - 4)
    return fit - fit % step
