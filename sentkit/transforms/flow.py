"""The normalizing flow of BERT-flow (arXiv:2011.05864, named l3_d3_w32 there), and its fit.

A vector passes 3 levels of 3 steps. A step shifts and scales each number (ActNorm), reverses the
order of the numbers, and adds a function of the first half to the second half (additive coupling).
After each of the first two levels the second half leaves the flow. All numbers that leave,
together, are the result.
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

LEVELS = 3
DEPTH = 3  # steps of a level
HIDDEN = 32  # width of the hidden layers of the added function
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
    return sum(
        math.prod(shape) for step_width in widths_of(width) for shape in shapes(step_width).values()
    )


def blocks_of(parameters: Any, width: int) -> list[Block]:
    """The parameters of each step."""
    blocks: list[Block] = []
    offset = 0
    for step_width in widths_of(width):
        block = {}
        for name, shape in shapes(step_width).items():
            size = math.prod(shape)
            block[name] = parameters[offset : offset + size].reshape(shape)
            offset += size
        blocks.append(block)
    return blocks


class Pass:
    """One step applied to (n, d) numbers, with all that its gradient needs."""

    def __init__(self, block: Block, x: Any) -> None:
        self.block = block
        self.half = x.shape[1] // 2
        self.normed = self._norm("", x)
        y = self.normed[:, ::-1]
        # The three layers of the added function.
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        hidden = y[:, : self.half]
        for layer in "123":
            self.inputs.append(hidden)
            self.outputs.append(self._norm(layer, hidden @ block[f"weight{layer}"]))
            hidden = np.maximum(self.outputs[-1], 0)
        second = y[:, self.half :] + self.outputs[-1]
        self.result = np.concatenate([y[:, : self.half], second], axis=1)

    def _norm(self, layer: str, x: Any) -> Any:
        return (x + self.block[f"shift{layer}"]) * np.exp(SCALE * self.block[f"scale{layer}"])

    def backward(self, d_result: Any, gradient: Block) -> Any:
        """Receive the gradient of the result; write that of the parameters and return that of the
        input.
        """
        d_first = d_result[:, : self.half]
        d_second = d_result[:, self.half :]
        d_hidden = d_second  # of the output of a layer, from the last to the first
        for layer, x, output in zip("321", self.inputs[::-1], self.outputs[::-1], strict=True):
            if layer != "3":  # the rectifier
                d_hidden = d_hidden * (output > 0)
            d_hidden = self._norm_backward(layer, output, d_hidden, gradient)
            gradient[f"weight{layer}"][:] = x.T @ d_hidden
            d_hidden = d_hidden @ self.block[f"weight{layer}"].T
        d_reversed = np.concatenate([d_first + d_hidden, d_second], axis=1)
        return self._norm_backward("", self.normed, d_reversed[:, ::-1], gradient)

    def _norm_backward(self, layer: str, output: Any, d_output: Any, gradient: Block) -> Any:
        gradient[f"scale{layer}"][:] = SCALE * (d_output * output).sum(axis=0)
        d_input = d_output * np.exp(SCALE * self.block[f"scale{layer}"])
        gradient[f"shift{layer}"][:] = d_input.sum(axis=0)
        return d_input


def run(parameters: Any, x: Any) -> tuple[list[Pass], Any]:
    """Apply the flow to (n, d) vectors. Return its steps, and the result (n, d)."""
    passes: list[Pass] = []
    results: list[Any] = []  # the numbers that left the flow
    for index, block in enumerate(blocks_of(parameters, x.shape[1])):
        if is_new_level(index):
            half = x.shape[1] // 2
            results.append(x[:, half:])
            x = x[:, :half]
        passes.append(Pass(block, x))
        x = passes[-1].result
    results.append(x)
    return passes, np.concatenate(results, axis=1)


def is_new_level(step_index: int) -> bool:
    """Whether numbers leave the flow before this step."""
    return step_index > 0 and step_index % DEPTH == 0


@dataclass(frozen=True)
class Flow:
    parameters: Float32
    input_width: int  # numbers of a vector, before and after
    suffix: str = "+flow"

    @cached_property
    def hash(self) -> str:
        content = self.parameters.astype("<f4").tobytes()
        return digest(["flow", self.input_width, content.hex()])

    def output_width(self, before: int) -> int:
        if before != self.input_width:
            raise UsageError(
                f"flow takes vectors of {self.input_width} numbers, these have {before}"
            )
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


DECAY = 0.01  # of the parameters, with AdamW
CLIP = 1.0  # the largest norm of a gradient
BETAS = (0.9, 0.999)
EPSILON = 1e-6
INITIAL = 0.05  # standard deviation of the weights of the first two layers; the third begins at 0
ROUNDING = 1e-6  # relative to the numbers that vary most
CHUNK = 1024  # vectors at once, where no gradient is needed


@dataclass(frozen=True, slots=True)
class FlowFit:
    parameters: Float64  # (n,)
    record: Mapping[str, Any] = field(default_factory=dict)  # fields for the note in the file
    warnings: tuple[str, ...] = ()


def fit_parameters(vectors: Float32, options: FitOptions, source: str) -> FlowFit:
    """Fit by AdamW without correction of the bias, as BERT-flow does."""
    count, width = vectors.shape
    parameters = np.zeros(parameter_count(width))
    gradient = np.zeros_like(parameters)
    first_moment = np.zeros_like(parameters)
    second_moment = np.zeros_like(parameters)
    random = np.random.default_rng(options.seed)
    is_initialised = False
    for _ in range(options.epochs):
        order = random.permutation(count)
        for start in range(0, count, options.batch):
            x = vectors[order[start : start + options.batch]].astype(np.float64)
            if not is_initialised:
                initialise(parameters, x, random)
                is_initialised = True

            # The gradient.
            with np.errstate(over="ignore", invalid="ignore"):  # refused below
                loss(parameters, x, gradient)
                norm = float(np.linalg.norm(gradient))
            if not np.isfinite(norm):
                raise diverged(source)
            gradient *= min(1.0, CLIP / max(norm, EPSILON))

            # The step.
            first_moment += (1 - BETAS[0]) * (gradient - first_moment)
            second_moment += (1 - BETAS[1]) * (gradient**2 - second_moment)
            direction = first_moment / (np.sqrt(second_moment) + EPSILON) + DECAY * parameters
            parameters -= options.lr * direction

    # The loss of all vectors; and the float32 flow, as it is applied, must be finite for them.
    flow_bits = 0.0
    with np.errstate(all="ignore"):  # refused below
        flow = Flow(parameters.astype(np.float32), width)
        for start in range(0, count, CHUNK):
            chunk = vectors[start : start + CHUNK]
            flow_bits += loss(parameters, chunk.astype(np.float64)) * len(chunk) / count
            if not (np.isfinite(flow_bits) and np.isfinite(flow(chunk)).all()):
                raise diverged(source)
    record = {name: getattr(options, name) for name in ("epochs", "batch", "lr", "seed")}
    return FlowFit(parameters, {**record, "bits": flow_bits})


def diverged(source: str) -> DataError:
    return DataError("the fit of the flow diverged", source=source, advice="a lower --lr may help")


def initialise(parameters: Float64, x: Float64, random: np.random.Generator) -> None:
    """Draw the weights. Each ActNorm gives the numbers of the first batch mean 0 and variance 1."""
    # deviation of the vectors; all later numbers vary by about 1
    smallest = ROUNDING * x.std(axis=0).max()
    for index, block in enumerate(blocks_of(parameters, x.shape[1])):
        if is_new_level(index):
            x = x[:, : x.shape[1] // 2]
        x = initialise_norm(block, "", x, smallest)[:, ::-1]
        smallest = ROUNDING
        hidden = x[:, : x.shape[1] // 2]
        for layer in "12":
            weight = block[f"weight{layer}"]
            weight[:] = random.normal(scale=INITIAL, size=weight.shape)
            output = initialise_norm(block, layer, hidden @ weight, smallest)
            hidden = np.maximum(output, 0)
        # The weights of the third layer are 0, so `x` remains what it is.


def initialise_norm(block: Block, layer: str, x: Float64, smallest: float) -> Float64:
    """Set shift and scale of an ActNorm by its input (n, k); return its output.

    A number whose deviation is `smallest` or less counts as constant, and has scale 1.
    """
    mean = x.mean(axis=0)
    deviation = x.std(axis=0)
    deviation = np.where(deviation > smallest, deviation, 1.0)
    block[f"shift{layer}"][:] = -mean
    block[f"scale{layer}"][:] = -np.log(deviation) / SCALE
    normed: Float64 = (x - mean) / deviation
    return normed


def loss(parameters: Float64, x: Float64, gradient: Float64 | None = None) -> float:
    """The mean loss of (n, d) vectors in bits per number: -(log p(z) + log |det dz/dx|) / (d ln 2).

    z is the result of the flow, and p the standard normal density. If `gradient` is given, it is
    overwritten by the gradient of the loss with respect to the parameters.
    """
    count, width = x.shape
    bit = 1 / (width * np.log(2))  # a natural logarithm of a vector in bits per number
    passes, z = run(parameters, x)
    # Of a step, only the scales of its ActNorm change a volume.
    log_determinant = SCALE * sum(float(step.block["scale"].sum()) for step in passes)
    mean_square = float(np.square(z).sum()) / count

    # The gradient, from the last step to the first.
    if gradient is not None:
        # Of the numbers that the next step gets, which is none after the last step.
        d_result = np.empty((count, 0))
        for step, block in zip(passes[::-1], blocks_of(gradient, width)[::-1], strict=True):
            passed_on = d_result.shape[1]
            if step.result.shape[1] > passed_on:
                # The other numbers leave the flow here. The gradient of -log p(z) is z.
                leaving = step.result[:, passed_on:]
                d_result = np.concatenate([d_result, leaving * (bit / count)], axis=1)
            d_result = step.backward(d_result, block)
            block["scale"][:] -= bit * SCALE  # of the determinant
    negative_log_density = 0.5 * mean_square + 0.5 * width * np.log(2 * np.pi)
    return float(bit * (negative_log_density - log_determinant))
