"""The private operations of torch for a GPU, each beside the public operations that it replaces.
`guard.py` compares attention and kernels from source with them.

Axes: n rows, b sentences; h heads of queries, g of keys and values, e numbers of a head.
"""

import ctypes
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

# Attention of concatenated sentences. The public operation is `scaled_dot_product_attention`, for
# each alone.


def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_bounds: Tensor,
    key_bounds: Tensor,
    longest_query: int,
    longest_key: int,
    *,
    dropout: float,
    causal: bool,
    window: int,
) -> Tensor:
    """Attention of queries (n, h, e), keys and values (n, g, e) -> (n, h, e).

    The bounds (b + 1,) are the first row of each sentence, and the number of rows. `window` is the
    largest distance of a key; 0: all keys.
    """
    operation: Any = torch.ops.aten._flash_attention_forward
    window_sizes = {}
    if window:
        window_sizes = {"window_size_left": window, "window_size_right": 0 if causal else window}
    outputs = operation(
        query,
        key,
        value,
        query_bounds,
        key_bounds,
        longest_query,
        longest_key,
        dropout,
        causal,
        False,  # return_debug_mask
        **window_sizes,
    )
    attended: Tensor = outputs[0]
    return attended


# Kernels from source. The public operations are those that the kernel replaces.


def compile_kernel(source: str, name: str) -> Any:
    """Return the kernel of this name. It can be called with a grid, a block and arguments.

    `torch.cuda._compile_kernel` does the same, and first imports the tools for extensions, which
    takes long.
    """
    loader: Any = import_module("torch.cuda._utils")
    compiler = loader._get_nvrtc_library()

    def call(function: str, *arguments: Any) -> None:
        if getattr(compiler, f"nvrtc{function}")(*arguments):
            raise RuntimeError(f"NVRTC: {function} failed")

    major, minor = torch.cuda.get_device_capability()
    options = (ctypes.c_char_p * 1)(f"--gpu-architecture=sm_{major}{minor}".encode())
    program = ctypes.c_void_p()
    call(
        "CreateProgram",
        ctypes.byref(program),
        source.encode(),
        f"{name}.cu".encode(),
        0,
        None,
        None,
    )
    call("CompileProgram", program, 1, options)
    size = ctypes.c_size_t()
    call("GetCUBINSize", program, ctypes.byref(size))
    binary = ctypes.create_string_buffer(size.value)
    call("GetCUBIN", program, binary)
    call("DestroyProgram", ctypes.byref(program))
    return loader._cuda_load_module(binary.raw, [name])[name]


# One kernel for many tensors. The public operations are those on each tensor.


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source to its target."""
    torch._foreach_copy_(list(targets), list(sources))


def subtract_all(a: Sequence[Tensor], b: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the difference of each tensor of a with that of b."""
    differences: Sequence[Tensor] = torch._foreach_sub(list(a), list(b))
    return differences


def norms_of(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the Euclidean norm () of each tensor."""
    norms: Sequence[Tensor] = torch._foreach_norm(list(tensors))
    return norms


def multiply_all(tensors: Sequence[Tensor], factor: Tensor) -> None:
    """Multiply each tensor by the factor (), in place."""
    torch._foreach_mul_(list(tensors), factor)
