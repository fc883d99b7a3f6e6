"""Where a model runs, in which number format, and on how many threads."""

import re

import torch

from sentkit.errors import UnavailableError, UsageError

PRECISIONS = ("fp32", "bf16", "auto")
FAST_BF16 = ("amx_bf16", "avx512_bf16")  # without one of them, bf16 products on a CPU are slower than fp32
WITHOUT_BF16 = ("DEFAULT", "NO AVX", "AVX2")  # instruction sets of torch's kernels that cannot use them


def pick_device(name: str) -> torch.device:
    """The device called cpu, cuda, cuda:<n>, or auto, which is cuda where there is one."""
    if re.fullmatch(r"cpu|auto|cuda(:\d{1,2})?", name) is None:
        raise UsageError(f'no device "{name}"', advice="there are: cpu, cuda, cuda:<n>, auto")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    count = torch.cuda.device_count() if device.type == "cuda" else 1
    if (device.index or 0) >= count:
        raise UnavailableError(f'device "{name}": there {counted(count)} here', advice="use --device cpu")
    return device


def counted(devices: int) -> str:
    return {0: "is no CUDA device", 1: "is one CUDA device"}.get(devices, f"are {devices} CUDA devices")


def pick_precision(name: str, device: torch.device) -> torch.dtype:
    """float32 or bfloat16; auto takes bfloat16 where the hardware multiplies it faster."""
    if name not in PRECISIONS:
        raise UsageError(f'no precision "{name}"', advice=f"there are: {', '.join(PRECISIONS)}")
    if name == "auto":
        name = "bf16" if has_fast_bf16(device) else "fp32"
    return torch.bfloat16 if name == "bf16" else torch.float32


def has_fast_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if torch.backends.cpu.get_cpu_capability() in WITHOUT_BF16:  # the processor, or ATEN_CPU_CAPABILITY
        return False
    # Older releases of torch do not report capabilities; then fp32 is the safe choice.
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name) for name in FAST_BF16)
