"""The environment of a run. It may change on resume, which can change the last bits of the results."""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib.metadata import version
from typing import Any

import torch

from sentkit.model.transformer.device import pick_precision
from sentkit.process import threads_of_environment, usable_cpus
from sentkit.training.loop.processes import Processes

Context = Callable[[], AbstractContextManager[object]]


def environment(processes: Processes, precision: str) -> dict[str, Any]:
    return {
        "sentkit": version("sentkit"),
        "torch": version("torch"),
        "threads": torch.get_num_threads(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "device": processes.device.type,
        "precision": precision_name(precision, processes.device),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "ranks": processes.world,
    }


def use_threads(requested: int | None, saved: Mapping[str, Any] | None) -> None:
    """Set the number of threads: the requested number, else that of the saved environment, else that of
    SENTKIT_THREADS, else all CPUs that the process may use.

    Environment variables of torch are ignored.
    """
    recorded = (saved or {}).get("threads")
    torch.set_num_threads(requested or recorded or threads_of_environment() or usable_cpus())


def be_deterministic() -> None:
    """Use deterministic algorithms on CUDA. The CPU is always deterministic."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)


def precision_name(name: str, device: torch.device) -> str:
    """Return the precision, with `auto` resolved for the device."""
    return "fp32" if pick_precision(name, device) == torch.float32 else "bf16"


def precision_of(name: str, device: torch.device) -> Context:
    """Return the context of the encoder: float32, or autocast to bfloat16."""
    kind = pick_precision(name, device)
    return nullcontext if kind == torch.float32 else partial(torch.autocast, device.type, dtype=kind)
