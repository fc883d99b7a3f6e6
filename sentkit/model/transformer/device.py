"""Selects the device and the precision of a model, copies arrays to and from the device, and halves batches
that do not fit into its memory.

Copies to and from a GPU use pinned memory, so the host does not wait for the work that the GPU still has.
"""

import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from threading import Barrier
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sentkit.errors import UnavailableError, UsageError
from sentkit.model.encoding import Arrays
from sentkit.model.forks import PREPARING, ForkLock
from sentkit.model.text.tokens import TokenBlock
from sentkit.process import precision_of_environment

Input = TypeVar("Input")
Output = TypeVar("Output")

PRECISIONS = ("fp32", "bf16", "auto")


def pick_device(name: str) -> torch.device:
    """Return the device of this name. auto:<n> is for process n of a machine: a CUDA device in turn."""
    if re.fullmatch(r"cpu|auto(:\d{1,4})?|cuda(:\d{1,2})?", name) is None:
        raise UsageError(f'unknown device "{name}"', advice="available: cpu, cuda, cuda:<n>, auto")
    if name.startswith("auto"):
        turn = f":{int(name[5:]) % max(1, torch.cuda.device_count())}" if name != "auto" else ""
        name = f"cuda{turn}" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    count = torch.cuda.device_count() if device.type == "cuda" else 1
    if (device.index or 0) >= count:
        there = {0: "is no CUDA device", 1: "is one CUDA device"}.get(count, f"are {count} CUDA devices")
        raise UnavailableError(f'device "{name}": there {there} here', advice="use --device cpu")
    return device


def pick_precision(name: str, device: torch.device) -> torch.dtype:
    """Return float32 or bfloat16; auto selects SENTKIT_PRECISION, or what the device has.

    On a CPU this is float32, also if bfloat16 is faster: small inputs are encoded without torch in float32,
    and more rows must not change their vectors.
    """
    if name not in PRECISIONS:
        raise UsageError(f'unknown precision "{name}"', advice=f"available: {', '.join(PRECISIONS)}")
    if name == "auto":
        name = precision_of_environment() or ("bf16" if has_fast_bf16(device) else "fp32")
    return torch.bfloat16 if name == "bf16" else torch.float32


def has_fast_bf16(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


@cache
def gain_of_bf16() -> float:
    """Return how many times as fast products of bf16 are as those of fp32 on this CPU."""
    values, weight = torch.ones(128, 768), torch.ones(768, 768)
    half_values, half_weight = values.bfloat16(), weight.bfloat16()
    return speed_ratio(lambda: F.linear(half_values, half_weight), lambda: F.linear(values, weight))


def speed_ratio(new: Callable[[], object], old: Callable[[], object], rounds: int = 5) -> float:
    """Return how many times as fast `new` is as `old`: the least CPU times of several rounds, in turn.

    One thread computes: several of them wait for each other, in a loop if the machine is busy.
    """
    least, threads = [float("inf")] * 2, torch.get_num_threads()
    if threads > 1:  # a thread with one would set this number for all new threads of a program
        torch.set_num_threads(1)
    with torch.inference_mode():
        for turn in range(rounds + 1):
            for number, run in enumerate((new, old)):
                start = time.thread_time()
                run()
                if turn:  # the first call compiles kernels
                    least[number] = min(least[number], time.thread_time() - start)
            if turn and least[0] > 10 * least[1]:
                break  # a reference without vectors takes seconds
    if threads > 1:
        torch.set_num_threads(threads)
    return least[1] / max(least[0], 1e-9)


def torch_threads(count: int, threads_of_each: int) -> ThreadPoolExecutor:
    """Return a pool of `count` threads, in each of which torch computes with this number of threads.

    OpenMP has a pool for each thread that calls it, so these do not need that of the caller.
    """
    number_before = torch.get_num_threads()
    all_started = Barrier(count)

    def start(_: int) -> None:
        torch.get_num_threads()  # from now on, the thread has its own number
        torch.set_num_threads(threads_of_each)
        all_started.wait()

    pool = ThreadPoolExecutor(count)
    list(pool.map(start, range(count)))
    # The number is also that of all threads that torch has not seen yet.
    torch.set_num_threads(number_before)
    return pool


CREATING_THREADS = ForkLock(PREPARING)
_pool_of_process = cache(lambda count, threads_of_each, process: torch_threads(count, threads_of_each))


def one_thread_each(count: int, threads_of_each: int = 1) -> ThreadPoolExecutor:
    """Return the pool of this process with so many threads. A fork has no threads of its parent."""
    with CREATING_THREADS:
        return _pool_of_process(count, threads_of_each, os.getpid())


def run_all(
    function: Callable[[Input], Output], items: Iterable[Input], pool: ThreadPoolExecutor
) -> list[Output]:
    """Return the result for each item. An interrupted caller leaves no work to the threads of the pool."""
    futures = list[Future[Output]]()
    try:
        for item in items:
            futures.append(pool.submit(function, item))
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()


def to_device(values: np.ndarray, device: torch.device) -> Tensor:
    """Copy values of the host to a device. The host does not wait for the work that the device still has."""
    tensor = torch.from_numpy(values)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def to_host(tensors: Sequence[Tensor]) -> Callable[[], Arrays]:
    """Start to copy tensors of one device to the host. The returned function waits and returns them."""
    copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
    device = tensors[0].device
    # A copy to the host has no complete numbers before the stream of the device has passed this event.
    event = None if device.type == "cpu" else torch.cuda.current_stream(device).record_event()

    def wait() -> Arrays:
        if event is not None:
            event.synchronize()
        return [copy.numpy() for copy in copies]

    return wait


# Tokens in a batch of a model that pads, with the padding. On a CPU, batches of 512 are 1.04 to 1.13 x as
# fast as those of 32 sentences, batches of 1,024 are 0.91 to 1.02 x, and batches of 4,096 are 0.59 to 0.68 x.
PADDED = {"cpu": 512, "cuda": 65536}


def padded_parts(batch: TokenBlock, device: torch.device) -> list[TokenBlock]:
    """Divide a batch, longest text first, for a model that pads each text to the longest one."""
    parts, start = list[TokenBlock](), 0
    while start < len(batch):
        stop = start + max(1, PADDED[device.type] // int(batch.lengths[start]))
        parts.append(batch[start:stop])
        start = stop
    return parts


def halve_to_fit_memory(run: Callable[[TokenBlock], Output], batch: TokenBlock, advice: str) -> list[Output]:
    """Return the output of `run` for each part of the batch, in order: one part if it fits into memory."""
    try:
        return [run(batch)]
    except torch.cuda.OutOfMemoryError as error:
        if len(batch) == 1:
            problem = f"a text of {batch.lengths[0]} tokens does not fit into the memory of the device"
            raise UnavailableError(problem, advice=advice) from error
    # The error refers to tensors of the failed run, so free their memory after the end of its handler.
    torch.cuda.empty_cache()
    middle = len(batch) // 2
    first = halve_to_fit_memory(run, batch[:middle], advice=advice)
    return first + halve_to_fit_memory(run, batch[middle:], advice=advice)


class Dropout(nn.Dropout):
    def forward(self, values: Tensor) -> Tensor:
        return drop(values, self.p) if self.training else values


def drop(values: Tensor, rate: float) -> Tensor:
    """Set values to 0 with the probability `rate`, and multiply the others by 1 / (1 - rate).

    The CPU kernel of torch needs four times as long. The seed is a draw of torch, so that the state of its
    generator determines all dropout. The numbers do not depend on threads.
    """
    if not rate:
        return values
    if values.device.type != "cpu":
        return F.dropout(values, rate)
    count, kind = values.numel(), np.float64 if values.dtype == torch.float64 else np.float32
    seed = int(torch.empty((), dtype=torch.int64).random_())
    numbers = np.random.SFC64(seed).random_raw((count + 1) // 2).view(np.int32)[:count]
    kept = (numbers >= round(rate * 2**32) - 2**31).view(np.uint8)
    factors = np.multiply(kept, kind(1 / (1 - rate)), dtype=kind).reshape(values.shape)
    return values * torch.from_numpy(factors).to(values.dtype)
