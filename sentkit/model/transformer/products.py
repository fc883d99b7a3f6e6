"""Products of layers on a CPU: plain ones, and those of private operations of torch that call oneDNN.

- Fused products use weights in the memory layout of oneDNN, with the bias, the activation and the residual in
  the same operation. If they are absent, fail or are slower on this CPU, plain products run.
- The input of a product of integers is unsigned with one scale and one zero point. The weights are signed,
  with one scale for each output.

Axes: n tokens, k inputs of a product, m outputs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sentkit.model.transformer.bert import ACTIVATIONS, Bert, Block
from sentkit.model.transformer.device import speed_ratio
from sentkit.model.transformer.packed import ends_of
from sentkit.model.transformer.weights import aligned

Product = Callable[[Tensor, Tensor | None], Tensor]  # (n, k) and optional residual (n, m) -> (n, m)
FUSED_ACTIVATIONS = {  # name and algorithm of the activation in oneDNN
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "relu": ("relu", ""),
    "silu": ("swish", ""),
    "none": ("none", ""),
}


def detached(layer: nn.Linear) -> tuple[Tensor, Tensor | None]:
    return layer.weight.detach(), None if layer.bias is None else layer.bias.detach()


def plain_product(weight: Tensor, bias: Tensor | None, activation: str = "none") -> Product:
    weight, function = aligned(weight), ACTIVATIONS.get(activation)

    def product(values: Tensor, residual: Tensor | None) -> Tensor:
        result = F.linear(values, weight, bias)
        if function is not None:
            result = function(result)
        return result if residual is None else result.add_(residual)

    return product


def fused_product(weight: Tensor, bias: Tensor | None, activation: str = "none") -> Product:
    name, algorithm = FUSED_ACTIVATIONS[activation]
    linear: Any = torch.ops.mkldnn._linear_pointwise
    ordered = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())

    def product(values: Tensor, residual: Tensor | None) -> Tensor:
        if residual is not None:
            return linear.binary(values, residual, ordered, bias, "add")
        return linear(values, ordered, bias, name, [], algorithm)

    return product


def works(check: Callable[[], bool]) -> bool:
    """Return true if the private operations exist here and their results pass the check."""
    try:
        return check()
    except (AttributeError, RuntimeError, TypeError, NotImplementedError):
        return False


def fused_products_work(dtype: torch.dtype) -> bool:
    """Return true if fused products give the results of plain ones."""
    generator = torch.Generator().manual_seed(0)
    weight, values, bias = (torch.randn(s, generator=generator).to(dtype) for s in [(8, 16), (3, 16), (8,)])

    def equal(activation: str, residual: Tensor | None) -> bool:
        fused, plain = (
            make(weight, bias, activation)(values, residual) for make in (fused_product, plain_product)
        )
        return torch.allclose(fused, plain, rtol=0.02, atol=0.02)

    return works(lambda: equal("gelu", None) and equal("none", torch.ones(3, 8, dtype=dtype)))


CLEAR = 1.5  # a ratio of two times that is not noise
MEASURED = 1 << 16  # weights; products of fewer weights are too short to be measured
ROWS = 96  # of a measured product


def faster_products(bert: Bert) -> tuple[str, float]:
    """Return "plain" or "fused", and how many times as fast plain products are; 0: too small to be measured.

    The last bits of vectors depend on the choice, so noise must not change it. Measured are gains of 0.7 to
    0.95 with AVX512, 0.93 to 1.25 with AVX2 only, and 2.5 with SSE only, so only a clear result overrides the
    instruction set.
    """
    dtype, block = bert.words.weight.dtype, cast(Block, bert.blocks[0])

    def both(make: Callable[..., Product]) -> Callable[[], Tensor]:
        inner, _ = ends_of(*detached(block.up), block.down.in_features)
        up, down = make(*inner, bert.architecture.activation), make(*detached(block.down))
        values = torch.ones(ROWS, bert.width, dtype=dtype)
        return lambda: down(up(values, None), values)

    gain = 0.0
    if not fused_products_work(dtype):
        gain = float("inf")
    elif block.up.weight.numel() >= MEASURED:
        gain = speed_ratio(both(plain_product), both(fused_product))
    fused_are_usual = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return "plain" if gain > (CLEAR if fused_are_usual else 1 / CLEAR) else "fused", gain


LARGEST = 127  # of centered inputs, so that both signs have the same range
CENTER = 128  # the zero point of centred inputs
# The largest weight. Without VNNI, a processor adds two products in 16 bits: with 63 they fit, with 127 not.
LARGEST_WEIGHTS = (127, 63)
# Products of integers run if they are this many times as fast as those of fp32. Measured are 2.4 to 2.9 with
# VNNI, 1.4 to 1.8 without it, and 0.8 to 0.97 with SSE.
FASTER_INT8 = 1.1


@dataclass(frozen=True, slots=True)
class Integers:
    """Unsigned integers (n, k) for the values (integers - zero) * scale."""

    values: Tensor
    scale: float
    zero: int


class Int8Product:
    """A product with these weights (m, k), a bias (m,) or none, and an activation or a residual (n, m)."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, activation: str = "none", largest: int | None = None
    ) -> None:
        largest = largest or largest_weight()
        self.scales = (weight.abs().amax(1) / largest).clamp_min(1e-30)
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


@cache
def largest_weight() -> int:
    """Return the largest weight for which the private operations compute as integers do; 0 if none works."""
    return next(filter(products_are_exact, LARGEST_WEIGHTS), 0)


@cache
def gain_of_int8() -> float:
    """Return how many times as fast products of integers are as those of fp32; 0 if none works."""
    if not largest_weight():
        return 0.0
    values, weight, factors = torch.ones(128, 768), torch.ones(768, 768), torch.ones(768)
    product = Int8Product(weight, None)
    return speed_ratio(
        lambda: product.to_float(centered(values, factors), torch.float32), lambda: F.linear(values, weight)
    )


def products_are_exact(largest: int) -> bool:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randint(-largest, largest + 1, (16, 64), generator=generator)
    inputs = torch.randint(-127, 128, (3, 64), generator=generator)
    weight[:, 0], inputs[0], weight[0] = largest, LARGEST, largest  # the largest sums of pairs
    bias, residual = torch.arange(16.0), torch.ones(3, 16)
    expected = (inputs @ weight.T).float() + bias
    near = ((expected / 4096).round() + 100).clamp(0, 255)

    def exact() -> bool:
        product, relu = (Int8Product(weight.float(), bias, name, largest) for name in ("none", "relu"))
        integers = centered(inputs.float(), torch.ones(64))
        found = product.to_float(integers, torch.float32, residual)
        rounded = product.to_integers(integers, 4096.0, 100).values
        return bool(
            torch.allclose(found, expected + 1, rtol=1e-5)
            and torch.allclose(relu.to_float(integers, torch.float32), expected.relu(), rtol=1e-5)
            and (rounded - near).abs().max() <= 1
        )

    return works(exact)
