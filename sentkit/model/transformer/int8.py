"""Blocks of `Bert` with products of 8-bit integers, through private operations of torch that call oneDNN.

- The input of a product is unsigned with one scale and one zero point. The weights are signed, with one scale
  for each output.
- Inputs are multiplied by factors that differ between the columns, and the weights are divided by them. So
  columns with large values do not determine the rounding of the others (SmoothQuant, arXiv 2211.10438).
- After the activation of the inner layer, few columns have much larger values than the others and cause most
  of the error. They stay in floating point, in products of their own.
- The scales, and the loss of vectors, come from the texts of the package. These are always the same, so a
  checkpoint always has the same scales. They differ in length, subject, style and language, and none of them
  is from a data set.

Axes: n tokens, k inputs of a product, m outputs, d the width.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from sentkit.errors import DataError
from sentkit.formats.checkpoints.folders import Checkpoint
from sentkit.model.encoding import Arrays
from sentkit.model.reading import max_length
from sentkit.model.text.tokenizer import Tokenizer
from sentkit.model.text.tokens import TokenBlock
from sentkit.model.transformer.bert import Bert, Block
from sentkit.model.transformer.device import speed_ratio
from sentkit.model.transformer.inference import (
    FUSED_ACTIVATIONS,
    InferenceBlock,
    Product,
    fused_product,
    fused_products_work,
    plain_product,
)
from sentkit.model.transformer.packed import pack

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
    try:
        product = Int8Product(weight.float(), bias, "none", largest)
        integers = centered(inputs.float(), torch.ones(64))
        found = product.to_float(integers, torch.float32, residual)
        rounded = product.to_integers(integers, 4096.0, 100).values
        relu = Int8Product(weight.float(), bias, "relu", largest).to_float(integers, torch.float32)
    except (AttributeError, RuntimeError, TypeError, NotImplementedError):
        return False
    near = ((expected / 4096).round() + 100).clamp(0, 255)
    return bool(
        torch.allclose(found, expected + 1, rtol=1e-5)
        and torch.allclose(relu, expected.relu(), rtol=1e-5)
        and (rounded - near).abs().max() <= 1
    )


STATES, MIXED = 0.8, 0.5  # parts of the ranges of states and of attended values that weights take over
# A part of the largest range: columns that are nearly 0 in the calibration texts can be larger elsewhere.
LEAST = 1e-3
HEADROOM = 1.4  # inner values can be larger than those of the calibration texts
APART = 128  # inner columns in floating point, for each 1,536 columns
LEVELS = 255  # the largest unsigned integer


class Recorder:
    """A product in floating point that records the range of each of its inputs."""

    def __init__(self, weight: Tensor, bias: Tensor | None, activation: str = "none") -> None:
        self.weight, self.bias, self.activation = weight, bias, activation
        self.product = plain_product(weight, bias, activation)
        self.least, self.most = torch.zeros(weight.shape[1]), torch.zeros(weight.shape[1])

    def __call__(self, values: Tensor, residual: Tensor | None) -> Tensor:
        self.least, self.most = self.least.minimum(values.amin(0)), self.most.maximum(values.amax(0))
        return self.product(values, residual)

    @property
    def largest(self) -> Tensor:
        return self.most.maximum(-self.least)


def start_recording(bert: Bert) -> None:
    """Replace the blocks of an encoder in float32 by blocks that record the ranges."""
    for number, block in enumerate(bert.blocks):
        bert.blocks[number] = InferenceBlock(cast(Block, block), bert.architecture.activation, Recorder)


def use_integers(bert: Bert) -> None:
    """Replace the blocks that have recorded ranges. All that is not a product of integers is in float32."""
    make = fused_product if fused_products_work(torch.float32) else plain_product
    for number, block in enumerate(bert.blocks):
        kind = GatedInt8Block if block.gates else Int8Block
        bert.blocks[number] = kind(cast(InferenceBlock, block), make)


class Int8Block(InferenceBlock):
    def __init__(self, recorded: InferenceBlock, make: Callable[[Tensor, Tensor | None], Product]) -> None:
        nn.Module.__init__(self)  # that of `InferenceBlock` would order all weights in floating point
        query, pairs, mix, up, down = (
            cast(Recorder, each)
            for each in (recorded.query, recorded.key_value, recorded.mix, recorded.up, recorded.down)
        )
        self.take(recorded)
        weight = torch.cat([query.weight, pairs.weight])
        self.factors = factors_of(pairs.largest, weight, STATES)
        self.queries = Int8Product(query.weight / self.factors, query.bias)
        self.pairs = Int8Product(pairs.weight / self.factors, pairs.bias)
        self.mix_factors = factors_of(mix.largest, mix.weight, MIXED)
        self.mixed = Int8Product(mix.weight / self.mix_factors, mix.bias)
        self.up_factors = factors_of(up.largest, up.weight, STATES)
        count = large_columns(len(up.weight))
        order = down.largest.argsort(descending=True, stable=True)
        large, rest = order[:count].sort().values, order[count:].sort().values
        self.parts = [  # the inner values and their gates, each as those of few large columns and the rest
            [
                Int8Product(each.weight[c] / self.up_factors, taken(each.bias, c), each.activation)
                for c in (rest, large)
            ]
            for each in (up, *cast(list[Recorder], recorded.gates))
        ]
        self.scale, self.zero = unsigned_scale(down.least[rest], down.most[rest])
        self.down_rest = Int8Product(down.weight[:, rest], None)
        self.down_large = make(down.weight[:, large], down.bias)

    def project(self, states: Tensor, rows: Tensor, only: Tensor | None) -> tuple[Tensor, Tensor]:
        inputs = centered(states, self.factors)
        chosen = inputs if only is None else replace(inputs, values=inputs.values[only])
        return self.queries.to_float(chosen, states.dtype), self.pairs.to_float(inputs, states.dtype)

    def mix_in(self, attended: Tensor, rows: Tensor) -> Tensor:
        return self.mixed.to_float(centered(attended, self.mix_factors), rows.dtype, rows)

    def add_inner(self, inputs: Tensor, rows: Tensor) -> Tensor:
        integers = centered(inputs, self.up_factors)
        [(up_rest, up_large)] = self.parts
        large = self.down_large(up_large.to_float(integers, rows.dtype), rows)
        rest = up_rest.to_integers(integers, self.scale, self.zero)
        return self.down_rest.to_float(rest, rows.dtype, large)


class GatedInt8Block(Int8Block):
    """Integers also for the products of inner values and gates, which are computed in floating point."""

    def __init__(self, recorded: InferenceBlock, make: Callable[[Tensor, Tensor | None], Product]) -> None:
        super().__init__(recorded, make)
        down = cast(Recorder, recorded.down)
        order = down.largest.argsort(descending=True, stable=True)
        rest = order[large_columns(len(order)) :].sort().values
        self.down_factors = factors_of(down.largest[rest], down.weight[:, rest], MIXED)
        self.down_rest = Int8Product(down.weight[:, rest] / self.down_factors, None)

    def add_inner(self, inputs: Tensor, rows: Tensor) -> Tensor:
        integers = centered(inputs, self.up_factors)
        rest, large = (
            inner.to_float(integers, rows.dtype).mul_(gate.to_float(integers, rows.dtype))
            for inner, gate in zip(*self.parts, strict=True)
        )
        result = self.down_large(large, rows)
        return self.down_rest.to_float(centered(rest, self.down_factors), rows.dtype, result)


def large_columns(inner: int) -> int:
    """Return how many inner columns stay in floating point."""
    return min(APART * math.ceil(inner / 1536), inner // 2)


def taken(bias: Tensor | None, rows: Tensor) -> Tensor | None:
    return None if bias is None else bias[rows]


def factors_of(largest: Tensor, weight: Tensor, share: float) -> Tensor:
    """Return the factors (k,) of inputs: the largest absolute input becomes LARGEST.

    `largest` (k,) are the largest absolute inputs, and `weight` is (m, k). With a share of 0 the factors
    make the ranges of the weights equal, with 1 those of the inputs.
    """
    columns = weight.abs().amax(0)
    largest, columns = (each.clamp_min(LEAST * each.max() + 1e-30) for each in (largest, columns))
    factors = columns ** (1 - share) / largest**share
    factors *= LARGEST / (factors * largest).max()
    return factors


def unsigned_scale(least: Tensor, most: Tensor) -> tuple[float, int]:
    """Return the scale and the zero point of unsigned integers for values in these ranges."""
    low, high = HEADROOM * float(least.min()), HEADROOM * float(most.max())
    scale = max((high - low) / LEVELS, 1e-30)
    return scale, round(-low / scale)


WARN_BELOW = 0.99  # the lowest cosine


def calibration_texts() -> list[str]:
    return Path(__file__).with_name("int8_texts.txt").read_text(encoding="utf-8").splitlines()


def usable(tokenizer: Tokenizer) -> TokenBlock:
    """Return the tokens of the texts, except those that this tokenizer cannot read."""
    tokens = tokenizer(calibration_texts())
    return tokens.take([place for place in range(len(tokens)) if place not in tokens.problems])


def calibrate(bert: Bert, checkpoint: Checkpoint) -> None:
    """Replace the blocks of an encoder in float32.

    The scales do not depend on the prompt, the length or the readout, because the space does not depend on
    the prompt and the length.
    """
    limit, lowercase = max_length(checkpoint, None), checkpoint.declared.lowercase
    tokens = usable(Tokenizer(checkpoint, max_length=limit, lowercase=lowercase))
    start_recording(bert)
    with torch.inference_mode():
        *_, last = bert.states(pack(sorted((each.ids for each in tokens), key=len)))
    check_finite([last], checkpoint.name)
    use_integers(bert)


def check_finite(values: Sequence[Tensor], name: str) -> None:
    if not values or not all(bool(each.isfinite().all()) for each in values):
        problem = "the model has no finite vectors for the texts of the package, which int8 needs"
        raise DataError(problem, source=name, advice="use --precision fp32")


def losses(exact: Arrays, found: Arrays) -> list[dict[str, float]]:
    """Return the lowest and the mean cosine between two versions of vectors, for each array."""
    cosines = [cosine(*pair) for pair in zip(exact, found, strict=True)]
    return [{"lowest": round(float(c.min()), 4), "mean": round(float(c.mean()), 4)} for c in cosines]


def cosine(left: NDArray[np.float32], right: NDArray[np.float32]) -> NDArray[np.float64]:
    left, right = left.astype(np.float64), right.astype(np.float64)
    norms = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return (left * right).sum(1) / np.where(norms == 0, 1.0, norms)
