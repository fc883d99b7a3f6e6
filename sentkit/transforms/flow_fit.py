"""Fits a flow by maximum likelihood under N(0, I), with the optimizer of BERT and plain numpy."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from sentkit.arrays import Float32, Float64
from sentkit.errors import DataError
from sentkit.transforms.flow import SCALE, Block, blocks_of, parameter_count, run

DECAY, CLIP = 0.01, 1.0
BETAS, EPSILON = (0.9, 0.999), 1e-6
INITIAL = 0.05  # standard deviation of the weights of the first two layers; the third begins at 0
ROUNDING = 1e-6  # relative to the numbers that vary most
CHUNK = 1024  # vectors at once, where no gradient is needed


@dataclass(frozen=True, slots=True)
class FlowOptions:
    """The parameters of the fit, with the values of BERT-flow.

    Its code takes a step for 32 pairs of texts, which it encodes with dropout. This fit has fixed vectors.
    """

    epochs: int = 1
    batch: int = 32
    lr: float = 1e-3
    seed: int = 0


@dataclass(frozen=True, slots=True)
class FlowFit:
    parameters: Float64  # (n,)
    record: Mapping[str, Any] = field(default_factory=dict)  # fields for the note in the file
    warnings: tuple[str, ...] = ()


def fit_parameters(vectors: Float32, options: FlowOptions, source: str) -> FlowFit:
    """Fit a flow to (n, d) vectors."""
    count, width = vectors.shape
    parameters = np.zeros(parameter_count(width))
    gradient, first, second = (np.zeros_like(parameters) for _ in range(3))
    random, started = np.random.default_rng(options.seed), False
    for _ in range(options.epochs):
        order = random.permutation(count)
        for place in range(0, count, options.batch):
            x = vectors[order[place : place + options.batch]].astype(np.float64)
            if not started:
                initialise(parameters, x, random)
                started = True
            with np.errstate(over="ignore", invalid="ignore"):  # refused below
                loss(parameters, x, gradient)
                norm = float(np.linalg.norm(gradient))
            if not np.isfinite(norm):
                raise DataError("the fit of the flow diverged", source=source, advice="a lower --lr may help")
            gradient *= min(1.0, CLIP / max(norm, EPSILON))
            first += (1 - BETAS[0]) * (gradient - first)
            second += (1 - BETAS[1]) * (gradient**2 - second)
            parameters -= options.lr * (first / (np.sqrt(second) + EPSILON) + DECAY * parameters)
    parts = [vectors[place : place + CHUNK].astype(np.float64) for place in range(0, count, CHUNK)]
    bits = sum(loss(parameters, part) * len(part) for part in parts) / count
    return FlowFit(parameters, {**asdict(options), "bits": bits})


def initialise(parameters: Float64, x: Float64, random: np.random.Generator) -> None:
    """Draw the weights. Each ActNorm gives the numbers of the first batch mean 0 and variance 1."""
    least = ROUNDING * x.std(axis=0).max()  # of the vectors; all later numbers vary by about 1
    for blocks in blocks_of(parameters, x.shape[1]):
        half = x.shape[1] // 2
        for block in blocks:
            x = settled(block, "", x, least)[:, ::-1]
            hidden, least = x[:, :half], ROUNDING
            for layer in "12":
                weight = block[f"weight{layer}"]
                weight[:] = random.normal(scale=INITIAL, size=weight.shape)
                hidden = np.maximum(settled(block, layer, hidden @ weight, least), 0)
        x = x[:, :half]  # the third layer adds 0


def settled(block: Block, layer: str, x: Float64, least: float) -> Float64:
    """Set shift and scale of an ActNorm by its input (n, k); return its output.

    A number with a deviation below `least`, which is due to rounding, is shifted to 0 and not scaled.
    """
    mean, deviation = x.mean(axis=0), x.std(axis=0)
    deviation = np.where(deviation > least, deviation, 1.0)
    block[f"shift{layer}"][:] = -mean
    block[f"scale{layer}"][:] = -np.log(deviation) / SCALE
    normed: Float64 = (x - mean) / deviation
    return normed


def loss(parameters: Float64, x: Float64, gradient: Float64 | None = None) -> float:
    """The mean loss of (n, d) vectors in bits per number: -(log p(z) + log |det dz/dx|) / (d ln 2).

    If `gradient` is given, it is overwritten by the gradient of the parameters.
    """
    count, width = x.shape
    bit = 1 / (width * np.log(2))
    passes, z = run(parameters, x)
    log_determinant = SCALE * sum(float(each.block["scale"].sum()) for each in passes)
    square = float(np.square(z).sum()) / count
    if gradient is not None:
        back = np.empty((count, 0))  # of the first half of a level, from the level after it
        for blocks in reversed(blocks_of(gradient, width)):
            left = passes[-1].result[:, back.shape[1] :]
            back = np.concatenate([back, left * (bit / count)], axis=1)
            for block in reversed(blocks):
                back = passes.pop().backward(back, block)
                block["scale"][:] -= bit * SCALE
    return float(bit * (0.5 * square + 0.5 * width * np.log(2 * np.pi) - log_determinant))
