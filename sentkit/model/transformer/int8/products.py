"""Matrix products of 8-bit integers, through private operations of torch that call oneDNN.

The input is unsigned with one scale and one zero point. The weights are signed, with one scale for each
output. Axes: n tokens, k inputs, m outputs.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sentkit.model.transformer.device import usable_instructions
from sentkit.model.transformer.inference import FUSED_ACTIVATIONS

LARGEST = 127  # of signed integers, also of centred inputs, so that both signs have the same range
CENTER = 128  # the zero point of centred inputs
INSTRUCTIONS = ("avx512_vnni", "amx_int8")  # without them, oneDNN runs a reference that is 1,000 times slower


@dataclass(frozen=True, slots=True)
class Integers:
    """Unsigned integers (n, k) for the values (integers - zero) * scale."""

    values: Tensor
    scale: float
    zero: int


class Int8Product:
    """A product with these weights (m, k), a bias (m,) or none, and an activation or a residual (n, m)."""

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: str = "none") -> None:
        self.scales = (weight.abs().amax(1) / LARGEST).clamp_min(1e-30)
        integers = (weight / self.scales[:, None]).round().to(torch.int8)
        self.ordered = torch.ops.onednn.qlinear_prepack(integers, [1, weight.shape[1]])
        self.zeros = torch.zeros(len(weight), dtype=torch.int64)
        self.bias, self.activation = bias, FUSED_ACTIVATIONS[activation]

    def to_float(self, inputs: Integers, dtype: torch.dtype, residual: Tensor | None = None) -> Tensor:
        if residual is None:
            return self.run(inputs, 1.0, 0, dtype)
        linear: Any = torch.ops.onednn.qlinear_pointwise
        before, output, other = self.before(inputs), (1.0, 0, dtype), (1.0, 0)
        result: Tensor = linear.binary(
            *before, residual, self.bias, *output, *other, "add", 1.0, "none", [], ""
        )
        return result

    def to_integers(self, inputs: Integers, scale: float, zero: int) -> Integers:
        return Integers(self.run(inputs, scale, zero, torch.uint8), scale, zero)

    def run(self, inputs: Integers, scale: float, zero: int, dtype: torch.dtype) -> Tensor:
        name, algorithm = self.activation
        result: Tensor = torch.ops.onednn.qlinear_pointwise(
            *self.before(inputs), self.bias, scale, zero, dtype, name, [], algorithm
        )
        return result

    def before(self, inputs: Integers) -> tuple[Any, ...]:
        return inputs.values, inputs.scale, inputs.zero, self.ordered, self.scales, self.zeros


def centered(values: Tensor, factors: Tensor) -> Integers:
    """Multiply each input (n, k) by its factor (k,) and round; larger numbers than LARGEST are clipped."""
    integers = (values * factors).clamp_(-LARGEST, LARGEST).round_().to(torch.int8)
    return Integers(integers.view(torch.uint8) ^ CENTER, 1.0, CENTER)  # a direct cast takes six times as long


def instructions() -> list[str]:
    """Return the instructions for int8 that oneDNN can use here."""
    usable = usable_instructions()
    return [name for name in INSTRUCTIONS if name in usable]


def int8_products_work() -> bool:
    """Return true if the private operations exist here, are fast and compute as integers do."""
    if not instructions():
        return False
    generator = torch.Generator().manual_seed(0)
    weight, inputs = (torch.randint(-127, 128, size, generator=generator) for size in [(16, 64), (3, 64)])
    weight[:, 0], inputs[0], weight[0] = LARGEST, LARGEST, LARGEST  # sums of pairs that overflow 16 bits
    bias, residual = torch.arange(16.0), torch.ones(3, 16)
    expected = (inputs @ weight.T).float() + bias
    try:
        product = Int8Product(weight.float(), bias)
        integers = centered(inputs.float(), torch.ones(64))
        found = product.to_float(integers, torch.float32, residual)
        rounded = product.to_integers(integers, 4096.0, 100).values
        relu = Int8Product(weight.float(), bias, "relu").to_float(integers, torch.float32)
    except (AttributeError, RuntimeError, TypeError, NotImplementedError):
        return False
    near = ((expected / 4096).round() + 100).clamp(0, 255)
    return bool(
        torch.allclose(found, expected + 1, rtol=1e-5)
        and torch.allclose(relu, expected.relu(), rtol=1e-5)
        and (rounded - near).abs().max() <= 1
    )
