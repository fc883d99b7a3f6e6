"""The private operations of torch for a CPU: linear layers of integers by oneDNN, of weights in its
memory layout. `matmul.py` compares them with the sums of integers.

The public operations are those on the floating-point values (inputs - zero) * input_scale and
integers * weight_scales.

Axes: n rows, k inputs and m outputs of a layer.
"""

from typing import Any

import torch
from torch import Tensor

ONEDNN_ACTIVATIONS = {  # name and algorithm of the activation in oneDNN
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""),
    "silu": ("swish", ""),
    "none": ("none", ""),
}


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
