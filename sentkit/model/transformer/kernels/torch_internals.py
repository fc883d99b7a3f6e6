"""The private operations of torch that the encoder uses, each beside the public operations that it
replaces.

Another version of torch can change or remove them. So their users compare both on this machine,
once, and run the public operations if the results differ or the private operation is absent
(`private_works`).

Axes: n rows, b sentences, k inputs and m outputs of a layer; h heads of queries, g of keys and
values, e numbers of a head.
"""

import ctypes
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sentkit.model.transformer.layers import ACTIVATIONS

ONEDNN_ACTIVATIONS = {  # name and algorithm of the activation in oneDNN
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""),
    "silu": ("swish", ""),
    "none": ("none", ""),
}


def private_works(check: Callable[[], bool]) -> bool:
    """Return true if the private operations exist here and their results pass the check."""
    try:
        return check()
    except (AttributeError, RuntimeError, TypeError, NotImplementedError):
        return False


# A linear layer with its activation or its residual connection.


def public_linear(
    values: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str
) -> Tensor:
    """Return activation(values weight^T + bias) + residual: (n, k), (m, k), (m,), (n, m) ->
    (n, m).
    """
    result = F.linear(values, weight, bias)
    if activation != "none":
        result = ACTIVATIONS[activation](result)
    if residual is not None:
        result.add_(residual)
    return result


def onednn_weight(weight: Tensor) -> Tensor:
    """Return the weight in the memory layout of oneDNN, for `onednn_linear`."""
    ordered: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
    return ordered


def onednn_linear(
    values: Tensor, ordered: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str
) -> Tensor:
    """Do the same as `public_linear` in one operation: with a residual or an activation, not with
    both.
    """
    linear: Any = torch.ops.mkldnn._linear_pointwise
    if residual is not None:
        result: Tensor = linear.binary(values, residual, ordered, bias, "add")
    else:
        name, algorithm = ONEDNN_ACTIVATIONS[activation]
        result = linear(values, ordered, bias, name, [], algorithm)
    return result


# A linear layer of integers. The public operations are those of `public_linear` on the
# floating-point values (inputs - zero) * input_scale and integers * weight_scales.


def onednn_int8_weight(integers: Tensor) -> Tensor:
    """Return an int8 weight (m, k) in the memory layout of oneDNN, for `onednn_int8_linear`."""
    ordered: Tensor = torch.ops.onednn.qlinear_prepack(integers, [1, integers.shape[1]])
    return ordered


def onednn_int8_linear(
    inputs: Tensor,
    input_scale: float,
    input_zero: int,
    ordered: Tensor,
    weight_scales: Tensor,
    weight_zeros: Tensor,
    bias: Tensor | None,
    output_scale: float,
    output_zero: int,
    dtype: torch.dtype,
    activation: str,
) -> Tensor:
    """Return a layer of uint8 inputs (n, k) as `dtype`; uint8 outputs have the scale and the zero
    point.
    """
    name, algorithm = ONEDNN_ACTIVATIONS[activation]
    result: Tensor = torch.ops.onednn.qlinear_pointwise(
        inputs,
        input_scale,
        input_zero,
        ordered,
        weight_scales,
        weight_zeros,
        bias,
        output_scale,
        output_zero,
        dtype,
        name,
        [],
        algorithm,
    )
    return result


def onednn_int8_linear_with_residual(
    inputs: Tensor,
    input_scale: float,
    input_zero: int,
    ordered: Tensor,
    weight_scales: Tensor,
    weight_zeros: Tensor,
    residual: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """Return the sum of a layer of uint8 inputs (n, k) and the residual (n, m), as `dtype`."""
    linear: Any = torch.ops.onednn.qlinear_pointwise
    result: Tensor = linear.binary(
        inputs,
        input_scale,
        input_zero,
        ordered,
        weight_scales,
        weight_zeros,
        residual,
        bias,
        1.0,  # scale and zero point of the output
        0,
        dtype,
        1.0,  # scale and zero point of the residual
        0,
        "add",
        1.0,  # the factor of the residual
        "none",
        [],
        "",
    )
    return result


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
    mixed: Tensor = outputs[0]
    return mixed


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


# Copies. The public operation is `target.copy_(source)` for each of them.


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source to its target, with one kernel for many tensors of a GPU."""
    torch._foreach_copy_(list(targets), list(sources))
