"""Matrix products of layers on a CPU, in floating point and in integers.

With integers, the input of a layer is unsigned with one scale and one zero point. The weights are
signed, with one scale for each output.

Axes: n tokens, k inputs of a layer, m outputs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sentkit.model.transformer.device import speed_ratio
from sentkit.model.transformer.kernels.cpu_operations import (
    onednn_int8_linear,
    onednn_int8_linear_with_residual,
    onednn_int8_weight,
)
from sentkit.model.transformer.kernels.guard import private_works
from sentkit.model.transformer.layers import ACTIVATIONS
from sentkit.model.transformer.weights import aligned

Matmul = Callable[[Tensor, Tensor | None], Tensor]  # (n, k) and optional residual (n, m) -> (n, m)


def detached(layer: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """Return weight and bias of a layer."""
    bias = None if layer.bias is None else layer.bias.detach()
    return layer.weight.detach(), bias


def float_matmul(weight: Tensor, bias: Tensor | None, activation: str = "none") -> Matmul:
    """Return a layer with an activation or a residual, not with both."""
    weight = aligned(weight)

    def run(values: Tensor, residual: Tensor | None) -> Tensor:
        result = F.linear(values, weight, bias)
        if residual is not None:
            return result.add_(residual)
        return result if activation == "none" else ACTIVATIONS[activation](result)

    return run


LARGEST_INPUT = 127  # of centered inputs, so that both signs have the same range
CENTER = 128  # the zero point of centered inputs
# The largest weight. Without VNNI, a processor adds two products in 16 bits: with 63 they fit, with
# 127 not.
LARGEST_WEIGHTS = (127, 63)
# Layers of integers run if they are this many times as fast as those of fp32. Measured are 2.4 to
# 2.9 with VNNI, 1.4 to 1.8 without it, and 0.8 to 0.97 with SSE.
FASTER_INT8 = 1.1


@dataclass(frozen=True, slots=True)
class Integers:
    """Unsigned integers (n, k) for the values (integers - zero) * scale."""

    values: Tensor
    scale: float
    zero: int


class Int8Matmul:
    """A layer with these weights (m, k), a bias (m,) or none, and an activation or a residual (n,
    m).
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        activation: str = "none",
        largest: int | None = None,  # weight; None: as this processor needs it
    ) -> None:
        largest = largest or largest_weight()
        self.scales = (weight.abs().amax(1) / largest).clamp_min(1e-30)
        integers = (weight / self.scales[:, None]).round().to(torch.int8)
        self.ordered = onednn_int8_weight(integers)
        self.zeros = torch.zeros(len(weight), dtype=torch.int64)
        self.bias = bias
        self.activation = activation

    def to_float(
        self, inputs: Integers, dtype: torch.dtype, residual: Tensor | None = None
    ) -> Tensor:
        if residual is None:
            return self.run(inputs, 1.0, 0, dtype)
        return onednn_int8_linear_with_residual(
            inputs.values,
            inputs.scale,
            inputs.zero,
            self.ordered,
            self.scales,
            self.zeros,
            residual,
            self.bias,
            dtype,
        )

    def to_integers(self, inputs: Integers, scale: float, zero: int) -> Integers:
        """Return the outputs as integers with this scale and this zero point."""
        return Integers(self.run(inputs, scale, zero, torch.uint8), scale, zero)

    def run(self, inputs: Integers, scale: float, zero: int, dtype: torch.dtype) -> Tensor:
        return onednn_int8_linear(
            inputs.values,
            inputs.scale,
            inputs.zero,
            self.ordered,
            self.scales,
            self.zeros,
            self.bias,
            scale,
            zero,
            dtype,
            self.activation,
        )


def centered(values: Tensor, factors: Tensor) -> Integers:
    """Multiply each input (n, k) by its factor (k,), round, and clip numbers larger than
    LARGEST_INPUT.
    """
    integers = (values * factors).clamp_(-LARGEST_INPUT, LARGEST_INPUT).round_().to(torch.int8)
    # Adds CENTER, as it flips the sign bit. A direct cast to unsigned integers takes six times as
    # long.
    return Integers(integers.view(torch.uint8) ^ CENTER, 1.0, CENTER)


@cache
def largest_weight() -> int:
    """Return the largest weight for which the private operations compute as integers do; 0 if none
    works.
    """
    for largest in LARGEST_WEIGHTS:
        if int8_is_exact(largest):
            return largest
    return 0


@cache
def gain_of_int8() -> float:
    """Return how many times as fast layers of integers are as those of fp32; 0 if none works."""
    if not largest_weight():
        return 0.0
    values = torch.ones(128, 768)
    weight = torch.ones(768, 768)
    factors = torch.ones(768)
    int8 = Int8Matmul(weight, None)
    return speed_ratio(
        new=lambda: int8.to_float(centered(values, factors), torch.float32),
        old=lambda: F.linear(values, weight),
    )


def int8_is_exact(largest: int) -> bool:
    """Return true if layers with weights up to the largest give the sums of integers."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randint(-largest, largest + 1, (16, 64), generator=generator)
    inputs = torch.randint(-127, 128, (3, 64), generator=generator)
    # The largest sums of two products.
    weight[:, 0] = largest
    inputs[0] = LARGEST_INPUT
    weight[0] = largest
    bias = torch.arange(16.0)
    residual = torch.ones(3, 16)
    expected = (inputs @ weight.T).float() + bias
    expected_integers = ((expected / 4096).round() + 100).clamp(0, 255)

    def exact() -> bool:
        plain = Int8Matmul(weight.float(), bias, "none", largest)
        relu = Int8Matmul(weight.float(), bias, "relu", largest)
        integers = centered(inputs.float(), torch.ones(64))
        with_residual = plain.to_float(integers, torch.float32, residual)
        with_relu = relu.to_float(integers, torch.float32)
        rounded = plain.to_integers(integers, 4096.0, 100).values
        return bool(
            torch.allclose(with_residual, expected + 1, rtol=1e-5)
            and torch.allclose(with_relu, expected.relu(), rtol=1e-5)
            and (rounded - expected_integers).abs().max() <= 1
        )

    return private_works(exact)
