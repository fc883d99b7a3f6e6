"""The gradient of one batch. It does not depend on the number of processes and chunks.

A contrast needs the whole batch. With chunks, GradCache (arXiv 2101.06983) is used: encode all chunks without
gradient, compute the gradient of the loss for each output, then encode each chunk again with the same dropout
and backpropagate that gradient. For a row-wise loss, the gradients of the chunks are summed.
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
    trained,
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
        """Store the gradient of the whole batch in the parameters. Return the terms of the loss by name.

        They stay on the device: the host does not wait for them.
        """
        self.parameters = [parameter for _, parameter in trained(self.method)]
        for parameter in self.parameters:
            parameter.grad = None
        share = self.processes.share(len(batch))
        # With fewer rows than processes, a process without rows encodes one row and discards it.
        own = batch.take(share if share.stop > share.start else slice(0, 1))
        with keeping_casts(self.processes.device):
            if self.method.needs.row_wise:
                terms = self._row_wise(own, share)
            else:
                terms = self._contrast(own, share, len(batch))
        # On one process only, because gradients are summed over processes.
        penalties = dict[str, Tensor]()
        if self.processes.first:
            penalties = checked_penalties(self.method, self.method.penalty())
        if penalties:
            torch.stack(list(penalties.values())).sum().backward()
        self.processes.sum_gradients(self.parameters)
        return terms | {name: value.detach() for name, value in penalties.items()}

    def parts(self, own: Batch) -> list[slice]:
        return chunks_of_tokens(own.row_tokens, self.tokens) if self.tokens else chunks(len(own), self.chunk)

    def _contrast(self, own: Batch, share: slice, rows: int) -> dict[str, Tensor]:
        parts, device = self.parts(own), self.processes.device
        whole, restores = len(parts) == 1, list[Callable[[], None]]()
        if whole:
            outputs = self._encode(own)
        else:
            passes = list[Outputs]()
            with torch.no_grad():
                for part in parts:
                    restores.append(random_state(device))
                    passes.append(self._encode(own.take(part)))
            torch.clear_autocast_cache()  # casts without gradient
            outputs = {name: torch.cat([each[name] for each in passes]) for name in passes[0]}
            del passes
        for name, value in outputs.items():
            if len(value) != len(own):
                problem = f'the output "{name}" of encode() has {len(value)} rows, expected {len(own)}'
                raise wrong_result(self.method.encode, problem, OF_ENCODE)
        outputs = {name: value[: share.stop - share.start] for name, value in outputs.items()}
        if not whole:
            # Leaf tensors, which store the gradient of the loss. Slices of them would not.
            outputs = {n: v.requires_grad_() if v.is_floating_point() else v for n, v in outputs.items()}
        gathered = self.processes.gather(outputs, rows)
        terms = terms_of(self.method, gathered)
        torch.stack([term.value for term in terms.values()]).sum().backward()
        for part, restore in zip(parts, restores, strict=False):  # none if there is one part
            restore()
            again = self._encode(own.take(part))
            live = [name for name, value in again.items() if value.requires_grad]
            slopes = [outputs[name].grad for name in live]  # None: the loss does not use this output
            gradients = [
                torch.zeros_like(outputs[name][part]) if slope is None else slope[part]
                for name, slope in zip(live, slopes, strict=True)
            ]
            used = [again[name][: len(each)] for name, each in zip(live, gradients, strict=True)]
            torch.autograd.backward(used, gradients)
            del again, used  # the memory of the pass is free for the next one
        self.outputs = {name: value.detach() for name, value in gathered.items()}
        return {name: term.value.detach() for name, term in terms.items()}

    def _row_wise(self, own: Batch, share: slice) -> dict[str, Tensor]:
        sums, weight, empty = dict[str, Tensor](), 0.0, share.stop == share.start
        for part in self.parts(own):
            terms = terms_of(self.method, self._encode(own.take(part)))
            weights = {term.weight for term in terms.values()}  # equal, so that one division is enough
            if len(weights) > 1:
                problem = f"the terms of loss() have different numbers of values: {sorted(weights)}"
                raise wrong_result(self.method.loss, problem, OF_ROW_WISE)
            scaled = {name: term.sum * (0.0 if empty else term.factor) for name, term in terms.items()}
            torch.stack(list(scaled.values())).sum().backward()
            sums = {name: value.detach().double() + sums.get(name, 0.0) for name, value in scaled.items()}
            weight += 0.0 if empty else weights.pop()
            del terms, scaled  # the memory of the pass is free for the next one
        whole = torch.full((), weight, dtype=torch.float64, device=self.processes.device)
        *totals, whole = self.processes.reduced(torch.stack([*sums.values(), whole]), SUM).unbind()
        whole = whole.clamp(min=1.0)
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad /= whole
        return {name: value / whole for name, value in zip(sums, totals, strict=True)}

    def _encode(self, batch: Batch) -> Outputs:
        with self.precision():
            return checked_outputs(self.method, self.method.encode(batch))


def keeping_casts(device: torch.device) -> AbstractContextManager[object]:
    """Return a context within which autocast casts each weight once: its outermost context keeps the casts.

    Not on a CPU: the gradient of a weight that is used in several ways would be added in another order.
    """
    return nullcontext() if device.type == "cpu" else torch.autocast(device.type, enabled=False)


def random_state(device: torch.device) -> Callable[[], None]:
    """Return a function that restores the present state of the generators of dropout."""
    on_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return partial(set_random_state, device, torch.get_rng_state(), on_device)


def set_random_state(device: torch.device, on_host: Tensor, on_device: Tensor | None) -> None:
    torch.set_rng_state(on_host)
    if on_device is not None:
        torch.cuda.set_rng_state(on_device, device)


def clip_gradient(parameters: Sequence[nn.Parameter], clip: float) -> Tensor:
    """Clip the gradient to the norm `clip` and return the norm before. 0 disables clipping."""
    return nn.utils.clip_grad_norm_(parameters, clip if clip else float("inf"), foreach=True)


MEASURED = (4, 16)  # rows of the two batches that are measured
USED = 0.8  # share of the memory; its blocks have gaps, and batches differ
MOMENTS = 2  # numbers of the optimizer for each weight


def memory_of(device: torch.device) -> tuple[int, int, int, int]:
    """Bytes of a GPU: free, all, in use, and in use at most since the last call."""
    free, total = torch.cuda.mem_get_info(device)
    used, peak = torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
    unused = torch.cuda.memory_reserved(device) - used
    torch.cuda.reset_peak_memory_stats(device)
    return free + unused, total, used, peak


def tokens_that_fit(gradient: Gradient, batch: Batch, *, of_whole_memory: bool) -> int:
    """Return the limit of a chunk, from the memory that a few rows and some more of them need.

    `of_whole_memory` ignores what is in use now, so that each run on the same kind of GPU has the same limit.
    """
    device = gradient.processes.device
    restore = random_state(device)
    needs = list[tuple[int, int]]()  # tokens and bytes
    encoders = [(each, each.graphs) for each in gradient.method.modules() if isinstance(each, Bert)]
    for encoder, _ in encoders:
        encoder.graphs = None  # a graph has its memory from its first pass on
    for rows in MEASURED:
        part = batch.take(slice(0, rows))
        gradient.compute(part)  # the first pass of a shape needs more
        gradient.method.zero_grad()
        _, _, used, _ = memory_of(device)
        gradient.compute(part)
        _, _, _, peak = memory_of(device)
        needs.append((part.tokens, peak - used))
        gradient.method.zero_grad()
    for encoder, graphs in encoders:
        encoder.graphs = graphs
    restore()
    (few, least), (many, most) = needs
    each = max(1.0, (most - least) / max(1, many - few))
    free, total, used, _ = memory_of(device)
    weights = sum(weight.numel() for _, weight in trained(gradient.method))
    room = USED * (total if of_whole_memory else free) - 4 * MOMENTS * weights
    room -= used if of_whole_memory else 0
    fit = max(1, int((room - (least - each * few)) / each))
    return fit - fit % (1 << max(0, fit.bit_length() - 4))  # small differences do not matter
