"""Selects the device and the precision of a model, copies arrays to and from the device, and halves
batches that do not fit into its memory.

Copies to and from a GPU use pinned memory, so the host does not wait for the work that the GPU
still has.
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
from torch import Tensor

from sentkit.errors import UnavailableError, UsageError
from sentkit.model.forks import PREPARING, ForkLock
from sentkit.model.groups import Arrays
from sentkit.model.text.tokens import TokenBlock
from sentkit.process import precision_of_environment

Input = TypeVar("Input")
Output = TypeVar("Output")

PRECISIONS = ("fp32", "bf16", "auto")


def pick_device(name: str) -> torch.device:
    """Return the device of this name. auto:<n> is for process n of a machine: a CUDA device in
    turn.
    """
    if re.fullmatch(r"cpu|auto(:\d{1,4})?|cuda(:\d{1,2})?", name) is None:
        raise UsageError(f'unknown device "{name}"', advice="available: cpu, cuda, cuda:<n>, auto")
    if name.startswith("auto") and not torch.cuda.is_available():
        name = "cpu"
    elif name == "auto":
        name = "cuda"
    elif name.startswith("auto:"):
        process = int(name.removeprefix("auto:"))
        name = f"cuda:{process % torch.cuda.device_count()}"
    device = torch.device(name)
    count = torch.cuda.device_count() if device.type == "cuda" else 1
    if (device.index or 0) >= count:
        if count == 0:
            devices = "is no CUDA device"
        elif count == 1:
            devices = "is one CUDA device"
        else:
            devices = f"are {count} CUDA devices"
        raise UnavailableError(f'device "{name}": there {devices} here', advice="use --device cpu")
    return device


def pick_precision(name: str, device: torch.device) -> torch.dtype:
    """Return float32 or bfloat16; auto selects SENTKIT_PRECISION, or what the device has.

    On a CPU this is float32, also if bfloat16 is faster: small inputs are encoded without torch in
    float32, and more rows must not change their vectors.
    """
    if name not in PRECISIONS:
        raise UsageError(
            f'unknown precision "{name}"', advice=f"available: {', '.join(PRECISIONS)}"
        )
    if name == "auto":
        name = precision_of_environment() or ("bf16" if has_fast_bf16(device) else "fp32")
    if name == "bf16":
        return torch.bfloat16
    return torch.float32


def has_fast_bf16(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


@cache
def gain_of_bf16() -> float:
    """Return how many times as fast products of bf16 are as those of fp32 on this CPU."""
    values = torch.ones(128, 768)
    weight = torch.ones(768, 768)
    half_values = values.bfloat16()
    half_weight = weight.bfloat16()
    return speed_ratio(
        new=lambda: F.linear(half_values, half_weight), old=lambda: F.linear(values, weight)
    )


def speed_ratio(new: Callable[[], object], old: Callable[[], object], rounds: int = 5) -> float:
    """Return how many times as fast `new` is as `old`: the ratio of their least CPU times of
    several rounds.

    One thread computes: several would wait for each other in a busy loop, which is CPU time too.
    """
    least_new = float("inf")
    least_old = float("inf")
    threads = torch.get_num_threads()
    # Not if it is 1 already: torch would use the number also for all threads that start later.
    if threads > 1:
        torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            # The first calls compile kernels.
            new()
            old()
            for _ in range(rounds):
                least_new = min(least_new, cpu_seconds(new))
                least_old = min(least_old, cpu_seconds(old))
                if least_new > 10 * least_old:
                    break  # a kernel without vector instructions takes seconds
    finally:
        if threads > 1:
            torch.set_num_threads(threads)
    return least_old / max(least_new, 1e-9)


def cpu_seconds(run: Callable[[], object]) -> float:
    start = time.thread_time()
    run()
    return time.thread_time() - start


def torch_threads(count: int, threads_of_each: int) -> ThreadPoolExecutor:
    """Return a pool of `count` threads, in each of which torch computes with this number of
    threads.

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
_pool_of_process = cache(
    lambda count, threads_of_each, loads, process: torch_threads(count, threads_of_each)
)


def one_thread_each(
    count: int, threads_of_each: int = 1, *, loads: bool = False
) -> ThreadPoolExecutor:
    """Return the pool of this process with so many threads. A fork has no threads of its parent.

    `loads`: another pool than that for batches, which a model may need while it is loaded. The
    threads never end: a thread that ends frees its memory of MKL, and a fork at this moment would
    leave the lock of MKL closed in the child.
    """
    with CREATING_THREADS:
        return _pool_of_process(count, threads_of_each, loads, os.getpid())


def run_all(
    function: Callable[[Input], Output], items: Iterable[Input], pool: ThreadPoolExecutor
) -> list[Output]:
    """Return the result for each item. An interrupted caller leaves no work to the threads of the
    pool.
    """
    futures: list[Future[Output]] = []
    try:
        for item in items:
            futures.append(pool.submit(function, item))
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()


def to_device(values: np.ndarray, device: torch.device) -> Tensor:
    """Copy values of the host to a device. The host does not wait for the work that the device
    still has.
    """
    tensor = torch.from_numpy(values)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def to_host(tensors: Sequence[Tensor]) -> Callable[[], Arrays]:
    """Start to copy tensors of one device to the host. The returned function waits and returns
    them.
    """
    copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
    device = tensors[0].device
    # A copy to the host has no complete numbers before the stream of the device has passed this
    # event.
    event = None if device.type == "cpu" else torch.cuda.current_stream(device).record_event()

    def wait() -> Arrays:
        if event is not None:
            event.synchronize()
        return [copy.numpy() for copy in copies]

    return wait


# Tokens in a batch of a model that pads, with the padding. On a CPU, batches of 512 are 1.04 to
# 1.13 x as fast as those of 32 sentences, batches of 1,024 are 0.91 to 1.02 x, and batches of 4,096
# are 0.59 to 0.68 x.
PADDED_TOKENS = {"cpu": 512, "cuda": 65536}


def padded_parts(
    batch: TokenBlock, device: torch.device, *, of_one_length: bool = False
) -> list[TokenBlock]:
    """Divide a batch, longest text first, for a model that pads each text to the longest one.

    `of_one_length`: the texts of a chunk have one length, so that they have no padding.
    """
    chunks = []
    start = 0
    while start < len(batch):
        longest = int(batch.lengths[start])
        stop = start + max(1, PADDED_TOKENS[device.type] // longest)
        if of_one_length:
            is_shorter = batch.lengths[start:stop] < longest
            stop = start + len(is_shorter) - int(np.count_nonzero(is_shorter))
        chunks.append(batch[start:stop])
        start = stop
    return chunks


def halve_to_fit_memory(
    run: Callable[[TokenBlock], Output], batch: TokenBlock, advice: str
) -> list[Output]:
    """Return the output of `run` for each chunk of the batch, in order: one chunk if it fits into
    memory.
    """
    try:
        return [run(batch)]
    except torch.cuda.OutOfMemoryError as error:
        if len(batch) == 1:
            problem = (
                f"a text of {batch.lengths[0]} tokens does not fit into the memory of the device"
            )
            raise UnavailableError(problem, advice=advice) from error
    # The error refers to tensors of the failed run, so free their memory after the end of its
    # handler.
    torch.cuda.empty_cache()
    middle = len(batch) // 2
    first_outputs = halve_to_fit_memory(run, batch[:middle], advice=advice)
    second_outputs = halve_to_fit_memory(run, batch[middle:], advice=advice)
    return first_outputs + second_outputs
