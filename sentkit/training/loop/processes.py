"""The processes that train one model together, and the environment of a run.

Each process encodes its share of the rows and computes the loss of the whole batch. The sum of the
gradients over all processes equals the gradient of one process with the whole batch. The gradients
are summed here instead of in a wrapper: this fixes the order of the sums and allows unused
parameters.
"""

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from sentkit.errors import OtherProcessError, SentkitError, UnavailableError
from sentkit.model.transformer.device import has_fast_bf16, pick_device, to_device
from sentkit.process import (
    most_threads,
    threads_of_command,
    threads_of_environment,
    usable_cpus,
    version_of,
)
from sentkit.training.data.corpus import shares

RandomStates = tuple[list[Tensor], list[Tensor]]
CPU = torch.device("cpu")
SUM = dist.ReduceOp.SUM
MAX = dist.ReduceOp.MAX
M_TRIM_THRESHOLD = -1  # of malloc.h
M_MMAP_THRESHOLD = -3
# Timeouts of the other processes: in a step, which can begin with an evaluation, and where they
# wait until the first process has tokenized all rows or written the checkpoint.
PATIENCE = timedelta(minutes=30)
PATIENCE_OF_WAIT = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Processes:
    """This process and its connection to the others of the run."""

    rank: int = 0
    world: int = 1
    device: torch.device = CPU
    waiting: dist.ProcessGroup | None = None  # the group of `wait`, with a longer timeout

    @property
    def is_first(self) -> bool:
        """Whether this process reports, evaluates and writes."""
        return self.rank == 0

    def share(self, rows: int) -> slice:
        return shares(rows, self.world)[self.rank]

    def gather(self, outputs: Mapping[str, Tensor], rows: int) -> dict[str, Tensor]:
        """Return the outputs of all processes in row order. Only the local outputs have a
        gradient.
        """
        if self.world == 1:
            return dict(outputs)
        row_counts = [share.stop - share.start for share in shares(rows, self.world)]
        return {name: self._gathered(output, row_counts) for name, output in outputs.items()}

    def _gathered(self, local: Tensor, row_counts: Sequence[int]) -> Tensor:
        """Return the rows of all processes: (b of this process, ...) -> (b of all, ...)."""
        padded = local.new_zeros((max(row_counts), *local.shape[1:]))  # gloo requires equal shapes
        padded[: len(local)] = local.detach()
        gathered = [torch.empty_like(padded) for _ in row_counts]
        with process_errors():
            dist.all_gather(gathered, padded)
        outputs = [output[:count] for output, count in zip(gathered, row_counts, strict=True)]
        outputs[self.rank] = local
        return torch.cat(outputs)

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum each gradient over all processes. A gradient that no process has stays None."""
        if self.world == 1:
            return
        # One tensor for all: whether this process has each gradient, then the gradients.
        has_gradient = np.array([parameter.grad is not None for parameter in parameters])
        tensors = [to_device(has_gradient, self.device).to(parameters[0].dtype)]
        for parameter in parameters:
            if parameter.grad is None:
                tensors.append(torch.zeros_like(parameter))
            else:
                tensors.append(parameter.grad)
        flat = self.reduced(torch.cat([tensor.reshape(-1) for tensor in tensors]), SUM)
        counts, *sums = flat.split([tensor.numel() for tensor in tensors])

        # On a GPU, ask the hosts of the processes, because reading `counts` would wait for the GPU.
        if self.device.type == "cpu":
            exists = [count > 0 for count in counts.tolist()]
        else:
            exists = self.any(has_gradient.tolist())
        for parameter, some_process_has_it, total in zip(parameters, exists, sums, strict=True):
            parameter.grad = None
            if some_process_has_it:
                parameter.grad = total.view_as(parameter)

    def reduced(self, values: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
        """Return the SUM or MAX of a tensor over all processes. The host does not wait for it."""
        if self.world > 1:
            with process_errors():
                dist.all_reduce(values, operation)
        return values

    def on_host(self, values: Sequence[float], operation: dist.ReduceOp.RedOpType) -> list[float]:
        """Return the SUM or MAX of each number over all processes."""
        if self.world == 1:
            return list(values)
        return self.reduced(torch.tensor(values, dtype=torch.float64), operation).tolist()

    def any(self, flags: Sequence[bool]) -> list[bool]:
        """Return for each flag whether it is true on at least one process."""
        return [value > 0 for value in self.on_host([float(flag) for flag in flags], MAX)]

    def collect(self, local: Tensor) -> list[Tensor]:
        """Return the tensor of each process, on the host. All must have the same shape."""
        if self.world == 1:
            return [local]
        tensors = [torch.empty_like(local) for _ in range(self.world)]
        with process_errors():
            dist.all_gather(tensors, local)
        return tensors

    def random_states(self) -> RandomStates:
        """Return the generator states of all processes: on the host and, with CUDA, on the
        device.
        """
        on_host = self.collect(torch.get_rng_state())
        on_device: list[Tensor] = []
        if self.device.type == "cuda":
            on_device = self.collect(torch.cuda.get_rng_state(self.device))
        return on_host, on_device

    def wait(self) -> None:
        """Return when all processes are here."""
        if self.world > 1:
            with process_errors():
                dist.all_reduce(torch.zeros(1), SUM, group=self.waiting)


@contextmanager
def process_errors() -> Iterator[None]:
    """Raise an OtherProcessError if another process has died."""
    try:
        yield
    except RuntimeError as error:
        raise OtherProcessError("another process of the run ended; see its messages") from error


@contextmanager
def open_processes(device: torch.device) -> Iterator[Processes]:
    """Connect the processes of torchrun. Without torchrun there is one process."""
    if device.type == "cpu":
        keep_memory()
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Processes(device=device)
        return
    rank = int(os.environ.get("RANK", "0"))
    backend = "gloo"
    if device.type == "cuda":
        local_rank = os.environ.get("LOCAL_RANK", "0")
        # the GPU with the number of this process on its machine
        device = pick_device(f"cuda:{local_rank}")
        torch.cuda.set_device(device)
        # Numbers of the host pass through gloo also beside NCCL: they do not wait for the GPU.
        backend = "cpu:gloo,cuda:nccl"
    try:
        dist.init_process_group(backend, timeout=PATIENCE)
    except (RuntimeError, ValueError) as error:
        raise UnavailableError(f"the processes cannot connect: {error}") from error
    try:
        with process_errors():
            waiting = dist.new_group(backend="gloo", timeout=PATIENCE_OF_WAIT)
        yield Processes(rank, world, device, waiting)
    except SentkitError as error:
        error.after_connection = True
        raise
    finally:
        dist.destroy_process_group()


Context = Callable[[], AbstractContextManager[object]]


def environment(processes: Processes, precision: str) -> dict[str, Any]:
    return {
        "sentkit": version_of("sentkit"),
        "torch": version_of("torch"),
        "threads": torch.get_num_threads(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "device": processes.device.type,
        "precision": precision_name(precision, processes.device),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "ranks": processes.world,
    }


def use_threads(requested: int | None, saved: Mapping[str, Any]) -> None:
    """Set the number of threads: the requested number, else that of the saved environment, else
    that of the command: SENTKIT_THREADS, OMP_NUM_THREADS, or all CPUs that the process may use.
    """
    saved_threads = min(saved.get("threads") or 0, most_threads())
    threads = threads_of_command() or threads_of_environment() or usable_cpus()
    torch.set_num_threads(requested or saved_threads or threads)


def be_deterministic() -> None:
    """Use deterministic algorithms on CUDA. The CPU is always deterministic."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Not use_deterministic_algorithms, which also makes a folder in TMPDIR.
    torch.set_deterministic_debug_mode("error")


def keep_memory() -> None:
    """Keep freed memory for the next step, if the library of C is glibc.

    By default, it returns each block of more than 32 MB to the system, such as the gradient of a
    large matrix, and the memory at the top. The system then clears the same pages in each step.
    """
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_TRIM_THRESHOLD, -1)  # never
        mallopt(M_MMAP_THRESHOLD, 1 << 30)


def precision_name(name: str, device: torch.device) -> str:
    """Return the precision, with `auto` resolved for the device. The environment does not change
    training.
    """
    if name != "auto":
        return name
    if has_fast_bf16(device):
        return "bf16"
    return "fp32"


def precision_of(name: str, device: torch.device) -> Context:
    """Return the context of the encoder: float32, or autocast to bfloat16."""
    if precision_name(name, device) == "bf16":
        return partial(torch.autocast, device.type, dtype=torch.bfloat16)
    return nullcontext
