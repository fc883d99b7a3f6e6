"""Blocks of `Bert` with int8 products. The scales come from the inputs of all products on calibration texts.

- Inputs are multiplied by factors that differ between the columns, and the weights are divided by them. So
  columns with large values do not determine the rounding of the others (SmoothQuant, arXiv 2211.10438).
- After the activation of the inner layer, few columns have much larger values than the others and cause most
  of the error. They stay in floating point, in products of their own.

Axes: n tokens, k inputs of a product, m outputs, d the width.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from sentkit.model.transformer.bert import Bert, Block
from sentkit.model.transformer.inference import (
    InferenceBlock,
    Product,
    fused_product,
    fused_products_work,
    plain_product,
)
from sentkit.model.transformer.int8.products import LARGEST, Int8Product, centered

STATES, MIXED = 0.8, 0.5  # parts of the ranges of states and of attended values that weights take over
# A part of the largest range: columns that are nearly 0 in the calibration texts can be larger elsewhere.
LEAST = 1e-3
HEADROOM = 1.4  # inner values can be larger than those of the calibration texts
APART = 128  # inner columns in floating point, for each 1,536 columns
LEVELS = 255  # the largest unsigned integer


class Recorder:
    """A product in floating point that records the range of each of its inputs."""

    def __init__(self, weight: Tensor, bias: Tensor, activation: str = "none") -> None:
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


def use_integers(bert: Bert, dtype: torch.dtype) -> None:
    """Replace the blocks that have recorded ranges. `dtype` is for all that is not a product of integers."""
    make = fused_product if fused_products_work(dtype) else plain_product
    for number, block in enumerate(bert.blocks):
        bert.blocks[number] = Int8Block(cast(InferenceBlock, block), make, dtype)


class Int8Block(InferenceBlock):
    def __init__(
        self, recorded: InferenceBlock, make: Callable[[Tensor, Tensor], Product], dtype: torch.dtype
    ) -> None:
        nn.Module.__init__(self)  # that of `InferenceBlock` would order all weights in floating point
        query, pairs, mix, up, down = (
            cast(Recorder, each)
            for each in (recorded.query, recorded.key_value, recorded.mix, recorded.up, recorded.down)
        )
        self.heads, self.mix_norm, self.norm = recorded.heads, recorded.mix_norm, recorded.norm
        weight = torch.cat([query.weight, pairs.weight])
        self.factors = factors_of(pairs.largest, weight, STATES, dtype)
        self.queries = Int8Product(query.weight / self.factors, query.bias)
        self.pairs = Int8Product(pairs.weight / self.factors, pairs.bias)
        self.mix_factors = factors_of(mix.largest, mix.weight, MIXED, dtype)
        self.mixed = Int8Product(mix.weight / self.mix_factors, mix.bias)
        self.up_factors = factors_of(up.largest, up.weight, STATES, dtype)
        count = min(APART * math.ceil(len(up.weight) / 1536), len(up.weight) // 2)
        order = down.largest.argsort(descending=True, stable=True)
        large, rest = order[:count].sort().values, order[count:].sort().values
        self.up_rest, self.up_large = (
            Int8Product(up.weight[rows] / self.up_factors, up.bias[rows], up.activation)
            for rows in (rest, large)
        )
        self.scale, self.zero = unsigned_scale(down.least[rest], down.most[rest])
        self.down_rest = Int8Product(down.weight[:, rest], None)
        self.down_large = make(down.weight[:, large].to(dtype), down.bias.to(dtype))

    def project(self, states: Tensor, rows: Tensor, only: Tensor | None) -> tuple[Tensor, Tensor]:
        inputs = centered(states, self.factors)
        chosen = inputs if only is None else replace(inputs, values=inputs.values[only])
        return self.queries.to_float(chosen, states.dtype), self.pairs.to_float(inputs, states.dtype)

    def mix_in(self, attended: Tensor, rows: Tensor) -> Tensor:
        return self.mixed.to_float(centered(attended, self.mix_factors), rows.dtype, rows)

    def add_inner(self, rows: Tensor) -> Tensor:
        inputs = centered(rows, self.up_factors)
        large = self.down_large(self.up_large.to_float(inputs, rows.dtype), rows)
        rest = self.up_rest.to_integers(inputs, self.scale, self.zero)
        return self.down_rest.to_float(rest, rows.dtype, large)


def factors_of(largest: Tensor, weight: Tensor, share: float, dtype: torch.dtype) -> Tensor:
    """Return the factors (k,) of inputs: the largest absolute input becomes LARGEST.

    `largest` (k,) are the largest absolute inputs, and `weight` is (m, k). With a share of 0 the factors
    make the ranges of the weights equal, with 1 those of the inputs.
    """
    columns = weight.abs().amax(0)
    largest, columns = (each.clamp_min(LEAST * each.max() + 1e-30) for each in (largest, columns))
    factors = columns ** (1 - share) / largest**share
    factors *= LARGEST / (factors * largest).max()
    return factors.to(dtype)  # the weights are divided by the rounded factors


def unsigned_scale(least: Tensor, most: Tensor) -> tuple[float, int]:
    """Return the scale and the zero point of unsigned integers for values in these ranges."""
    low, high = HEADROOM * float(least.min()), HEADROOM * float(most.max())
    scale = max((high - low) / LEVELS, 1e-30)
    return scale, round(-low / scale)
