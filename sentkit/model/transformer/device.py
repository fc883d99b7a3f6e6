"""Selects the device and the precision of a model, copies arrays to and from the device, and halves batches
that do not fit into its memory.

Copies to and from a GPU use pinned memory, so the host does not wait for the work that the GPU still has.
"""

import os
import re
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from sentkit.errors import UnavailableError, UsageError
from sentkit.model.encoding import Arrays
from sentkit.model.text.tokens import Tokens

Output = TypeVar("Output")

PRECISIONS = ("fp32", "bf16", "auto")
# Values of ONEDNN_MAX_CPU_ISA, in their order; the last one excludes avx512_bf16, the others avx512_vnni too.
BELOW_BF16 = ("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI")
WITHOUT_BF16 = ("DEFAULT", "NO AVX", "AVX2")  # instruction sets of torch kernels without fast bf16


def pick_device(name: str) -> torch.device:
    """Return the device for cpu, cuda, cuda:<n> or auto; auto selects cuda if it is available.

    auto:<n> is for process n of a machine: it selects a CUDA device in turn.
    """
    if re.fullmatch(r"cpu|auto(:\d{1,4})?|cuda(:\d{1,2})?", name) is None:
        raise UsageError(f'unknown device "{name}"', advice="available: cpu, cuda, cuda:<n>, auto")
    if name.startswith("auto"):
        turn = f":{int(name[5:]) % max(1, torch.cuda.device_count())}" if name != "auto" else ""
        name = f"cuda{turn}" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    count = torch.cuda.device_count() if device.type == "cuda" else 1
    if (device.index or 0) >= count:
        raise UnavailableError(f'device "{name}": there {counted(count)} here', advice="use --device cpu")
    return device


def counted(devices: int) -> str:
    return {0: "is no CUDA device", 1: "is one CUDA device"}.get(devices, f"are {devices} CUDA devices")


def pick_precision(name: str, device: torch.device) -> torch.dtype:
    """Return float32 or bfloat16; auto selects bfloat16 if it is faster on the device."""
    if name not in PRECISIONS:
        raise UsageError(f'unknown precision "{name}"', advice=f"available: {', '.join(PRECISIONS)}")
    if name == "auto":
        name = "bf16" if has_fast_bf16(device) else "fp32"
    return torch.bfloat16 if name == "bf16" else torch.float32


def has_fast_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if torch.backends.cpu.get_cpu_capability() in WITHOUT_BF16:  # from the CPU or ATEN_CPU_CAPABILITY
        return False
    # With avx512_bf16 but without AMX, bf16 is faster than fp32 on AMD and slower on Intel (0.74 x).
    # Only processors of AMD have sse4a.
    found = usable_instructions()
    return "amx_bf16" in found or {"avx512_bf16", "sse4a"} <= found


def usable_instructions() -> set[str]:
    """Return the names of the CPU's instructions, without those that ONEDNN_MAX_CPU_ISA excludes.

    Older releases of torch do not report them. The set is then empty, so that fp32 is used.
    """
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    limit = (os.environ.get("ONEDNN_MAX_CPU_ISA") or "ALL").upper()
    excluded = set()
    if limit not in ("ALL", "DEFAULT") and "AMX" not in limit:
        excluded |= {"amx_bf16", "amx_int8"}
    if limit in BELOW_BF16:
        excluded.add("avx512_bf16")
    if limit in BELOW_BF16[:-1]:
        excluded.add("avx512_vnni")
    return {name for name, present in capabilities.items() if present} - excluded


def to_device(values: np.ndarray, device: torch.device) -> Tensor:
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


def halve_to_fit_memory(
    run: Callable[[Sequence[Tokens]], Output], batch: Sequence[Tokens], *, advice: str
) -> list[Output]:
    """Return the output of `run` for each part of the batch, in order.

    There is one part unless the memory of the device is too small. Each halving adds one part.
    """
    try:
        return [run(batch)]
    except torch.cuda.OutOfMemoryError as error:
        if len(batch) == 1:
            problem = f"a text of {len(batch[0].ids)} tokens does not fit into the memory of the device"
            raise UnavailableError(problem, advice=advice) from error
    # The error refers to tensors of the failed run, so free their memory after the end of its handler.
    torch.cuda.empty_cache()
    middle = len(batch) // 2
    first = halve_to_fit_memory(run, batch[:middle], advice=advice)
    return first + halve_to_fit_memory(run, batch[middle:], advice=advice)
