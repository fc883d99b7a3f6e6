"""Where a run runs: what may change between stop and resume, and then gives other bits."""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib.metadata import version
from typing import Any

import torch

from sentkit.model.transformer.device import pick_precision
from sentkit.training.loop.processes import Ranks

Context = Callable[[], AbstractContextManager[object]]


def surroundings(ranks: Ranks, precision: str) -> dict[str, Any]:
    return {
        "sentkit": version("sentkit"),
        "torch": version("torch"),
        "threads": torch.get_num_threads(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "device": ranks.device.type,
        "precision": precision_name(precision, ranks.device),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "ranks": ranks.world,
    }


def use_threads(asked: int | None, before: Mapping[str, Any] | None) -> None:
    """As asked, else as before the stop, else all this process may use; never by the environment."""
    most = max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    torch.set_num_threads(asked or (before or {}).get("threads") or most)


def be_deterministic() -> None:
    """On CUDA too; on a CPU it is so anyway."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)


def precision_name(name: str, device: torch.device) -> str:
    """What `auto` comes to here."""
    return "fp32" if pick_precision(name, device) == torch.float32 else "bf16"


def precision_of(name: str, device: torch.device) -> Context:
    """What the encoder runs in: as it is, or with products in bfloat16."""
    kind = pick_precision(name, device)
    return nullcontext if kind == torch.float32 else partial(torch.autocast, device.type, dtype=kind)
