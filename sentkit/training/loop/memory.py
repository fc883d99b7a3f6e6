"""The number of tokens of a chunk that fit into the memory of a GPU."""

from dataclasses import dataclass

import torch

from sentkit.training.data.batches import Batch
from sentkit.training.loop.gradient import Gradient, RandomState
from sentkit.training.method import trained

MEASURED = (4, 16)  # rows of the two batches that are measured
USED = 0.8  # share of the memory; its blocks have gaps, and batches differ
MOMENTS = 2  # numbers of the optimizer for each weight


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of a GPU. `peak` are those in use at most since the last call of `memory_of`."""

    free: int
    total: int
    used: int
    peak: int


def memory_of(device: torch.device) -> Memory:
    free, total = torch.cuda.mem_get_info(device)
    used, peak = torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
    unused = torch.cuda.memory_reserved(device) - used
    torch.cuda.reset_peak_memory_stats(device)
    return Memory(free + unused, total, used, peak)


def tokens_that_fit(gradient: Gradient, batch: Batch, *, of_whole_memory: bool) -> int:
    """Return the limit of a chunk, from the memory that a few rows and some more of them need.

    `of_whole_memory` ignores what is in use now, so that each run on the same kind of GPU has the same limit.
    """
    device, state = gradient.processes.device, RandomState.capture(gradient.processes.device)
    needs = list[tuple[int, int]]()  # tokens and bytes
    for rows in MEASURED:
        part = batch.part(slice(0, rows))
        gradient.compute(part)  # the first pass of a shape needs more
        gradient.method.zero_grad()
        before = memory_of(device)
        gradient.compute(part)
        needs.append((part.tokens, memory_of(device).peak - before.used))
        gradient.method.zero_grad()
    state.restore()
    (few, least), (many, most) = needs
    each = max(1.0, (most - least) / max(1, many - few))
    memory, weights = memory_of(device), sum(weight.numel() for _, weight in trained(gradient.method))
    room = USED * (memory.total if of_whole_memory else memory.free) - 4 * MOMENTS * weights
    if of_whole_memory:
        room -= memory.used
    fit = max(1, int((room - (least - each * few)) / each))
    return fit - fit % (1 << max(0, fit.bit_length() - 4))  # small differences do not matter
