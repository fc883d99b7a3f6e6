"""The normalizing flow of BERT-flow (arXiv:2011.05864, named l3_d3_w32 there), and its fit.

A vector passes 3 levels of 3 steps. A step shifts and scales each number (ActNorm), reverses the order of the
numbers, and adds a function of the first half to the second half (additive coupling). After each of the first
two levels the second half leaves the flow. All numbers that leave, together, are the result.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from sentkit.arrays import Float32, Float64
from sentkit.errors import DataError, UsageError
from sentkit.formats.vectors.fingerprint import digest
from sentkit.formats.vectors.tensors import read_array
from sentkit.transforms.kinds import FitOptions

LEVELS, DEPTH, HIDDEN = 3, 3, 32
SCALE = 3.0  # factor of the logarithm of each scale, which multiplies its learning rate
PARAMETERS = "parameters"  # the name of the tensor in the file

Block = Mapping[str, Any]  # the parameters of one step, by name: views of one array


def shapes(width: int) -> dict[str, tuple[int, ...]]:
    """The parameters of one step: of its ActNorm, and of the three layers of the added function."""
    half = width // 2
    return {
        **{"shift": (width,), "scale": (width,)},
        **{"weight1": (half, HIDDEN), "shift1": (HIDDEN,), "scale1": (HIDDEN,)},
        **{"weight2": (HIDDEN, HIDDEN), "shift2": (HIDDEN,), "scale2": (HIDDEN,)},
        **{"weight3": (HIDDEN, width - half), "shift3": (width - half,), "scale3": (width - half,)},
    }


def widths_of(width: int) -> list[int]:
    """The widths of the steps."""
    return [width >> level for level in range(LEVELS) for _ in range(DEPTH)]


def parameter_count(width: int) -> int:
    return sum(math.prod(shape) for each in widths_of(width) for shape in shapes(each).values())


def blocks_of(parameters: Any, width: int) -> list[Block]:
    """The parameters of each step."""
    blocks, place = list[Block](), 0
    for each in widths_of(width):
        block = {}
        for name, shape in shapes(each).items():
            size = math.prod(shape)
            block[name] = parameters[place : place + size].reshape(shape)
            place += size
        blocks.append(block)
    return blocks


class Pass:
    """One step applied to (n, d) numbers, with all that its gradient needs."""

    def __init__(self, block: Block, x: Any) -> None:
        self.block, self.half = block, x.shape[1] // 2
        self.normed = self._norm("", x)
        y = self.normed[:, ::-1]
        self.inputs, self.outputs = list[Any](), list[Any]()  # of the three layers
        hidden = y[:, : self.half]
        for layer in "123":
            self.inputs.append(hidden)
            self.outputs.append(self._norm(layer, hidden @ block[f"weight{layer}"]))
            hidden = np.maximum(self.outputs[-1], 0)
        second = y[:, self.half :] + self.outputs[-1]
        self.result = np.concatenate([y[:, : self.half], second], axis=1)

    def _norm(self, layer: str, x: Any) -> Any:
        return (x + self.block[f"shift{layer}"]) * np.exp(SCALE * self.block[f"scale{layer}"])

    def backward(self, back: Any, gradient: Block) -> Any:
        """Receive the gradient of the result; write that of the parameters and return that of the input."""
        through = back[:, self.half :]
        for layer, given, output in zip("321", self.inputs[::-1], self.outputs[::-1], strict=True):
            if layer != "3":
                through = through * (output > 0)
            through = self._norm_backward(layer, output, through, gradient)
            gradient[f"weight{layer}"][:] = given.T @ through
            through = through @ self.block[f"weight{layer}"].T
        back = np.concatenate([back[:, : self.half] + through, back[:, self.half :]], axis=1)
        return self._norm_backward("", self.normed, back[:, ::-1], gradient)

    def _norm_backward(self, layer: str, output: Any, back: Any, gradient: Block) -> Any:
        gradient[f"scale{layer}"][:] = SCALE * (back * output).sum(axis=0)
        through = back * np.exp(SCALE * self.block[f"scale{layer}"])
        gradient[f"shift{layer}"][:] = through.sum(axis=0)
        return through


def run(parameters: Any, x: Any) -> tuple[list[Pass], Any]:
    """Apply the flow to (n, d) vectors. Return its steps, and the result (n, d)."""
    passes, left = list[Pass](), list[Any]()
    for number, block in enumerate(blocks_of(parameters, x.shape[1])):
        if number and number % DEPTH == 0:
            half = x.shape[1] // 2
            left.append(x[:, half:])
            x = x[:, :half]
        passes.append(Pass(block, x))
        x = passes[-1].result
    return passes, np.concatenate([*left, x], axis=1)


@dataclass(frozen=True)
class Flow:
    parameters: Float32
    takes: int  # numbers of a vector, before and after
    suffix: str = "+flow"

    @cached_property
    def hash(self) -> str:
        return digest(["flow", self.takes, self.parameters.astype("<f4").tobytes().hex()])

    def width(self, before: int) -> int:
        if before != self.takes:
            raise UsageError(f"flow takes vectors of {self.takes} numbers, these have {before}")
        return before

    def __call__(self, vectors: Float32) -> Float32:
        result: Float32 = run(self.parameters, vectors)[1]
        return result


def read_flow(path: str, width: object) -> Flow:
    """Read a flow; `width` is that of its note."""
    parameters = read_array(path, PARAMETERS).astype(np.float64).ravel()
    if type(width) is not int or width < 1 or parameters.size != parameter_count(width):
        raise DataError("the parameters and the metadata of the flow do not match", source=path)
    with np.errstate(over="ignore"):  # refused below
        flow = Flow(parameters.astype(np.float32), width)
    if not np.isfinite(flow.parameters).all():
        raise DataError("the parameters hold NaN or infinity", source=path)
    return flow


DECAY, CLIP = 0.01, 1.0
BETAS, EPSILON = (0.9, 0.999), 1e-6
INITIAL = 0.05  # standard deviation of the weights of the first two layers; the third begins at 0
ROUNDING = 1e-6  # relative to the numbers that vary most
CHUNK = 1024  # vectors at once, where no gradient is needed


@dataclass(frozen=True, slots=True)
class FlowFit:
    parameters: Float64  # (n,)
    record: Mapping[str, Any] = field(default_factory=dict)  # fields for the note in the file
    warnings: tuple[str, ...] = ()


def fit_parameters(vectors: Float32, options: FitOptions, source: str) -> FlowFit:
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
                raise diverged(source)
            gradient *= min(1.0, CLIP / max(norm, EPSILON))
            first += (1 - BETAS[0]) * (gradient - first)
            second += (1 - BETAS[1]) * (gradient**2 - second)
            parameters -= options.lr * (first / (np.sqrt(second) + EPSILON) + DECAY * parameters)
    with np.errstate(all="ignore"):  # refused below
        flow, bits = Flow(parameters.astype(np.float32), width), 0.0
        for part in (vectors[place : place + CHUNK] for place in range(0, count, CHUNK)):
            bits += loss(parameters, part.astype(np.float64)) * len(part) / count
            if not (np.isfinite(bits) and np.isfinite(flow(part)).all()):
                raise diverged(source)
    record = {name: getattr(options, name) for name in ("epochs", "batch", "lr", "seed")}
    return FlowFit(parameters, {**record, "bits": bits})


def diverged(source: str) -> DataError:
    return DataError("the fit of the flow diverged", source=source, advice="a lower --lr may help")


def initialise(parameters: Float64, x: Float64, random: np.random.Generator) -> None:
    """Draw the weights. Each ActNorm gives the numbers of the first batch mean 0 and variance 1."""
    least = ROUNDING * x.std(axis=0).max()  # of the vectors; all later numbers vary by about 1
    for number, block in enumerate(blocks_of(parameters, x.shape[1])):
        x = x[:, : x.shape[1] // 2] if number and number % DEPTH == 0 else x
        x = settled(block, "", x, least)[:, ::-1]
        hidden, least = x[:, : x.shape[1] // 2], ROUNDING
        for layer in "12":
            weight = block[f"weight{layer}"]
            weight[:] = random.normal(scale=INITIAL, size=weight.shape)
            hidden = np.maximum(settled(block, layer, hidden @ weight, least), 0)
        # The third layer adds 0.


def settled(block: Block, layer: str, x: Float64, least: float) -> Float64:
    """Set shift and scale of an ActNorm by its input (n, k), no scale below `least`; return its output."""
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
        for step, block in zip(passes[::-1], blocks_of(gradient, width)[::-1], strict=True):
            if step.result.shape[1] > back.shape[1]:  # the end of a level
                left = step.result[:, back.shape[1] :]
                back = np.concatenate([back, left * (bit / count)], axis=1)
            back = step.backward(back, block)
            block["scale"][:] -= bit * SCALE
    return float(bit * (0.5 * square + 0.5 * width * np.log(2 * np.pi) - log_determinant))
