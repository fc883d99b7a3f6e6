"""Encodes a few texts without torch: the encoder of `transformer/bert.py` in numpy.

The states are equal up to rounding, in float32, without dropout.
Axes: n tokens, t tokens of a sentence, d the width, h heads, e = d / h.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sentkit.arrays import Float32
from sentkit.errors import DataError
from sentkit.formats.checkpoints.folders import Checkpoint, is_adapter
from sentkit.formats.checkpoints.readout import POOLED, Readout
from sentkit.formats.vectors.tensors import NUMPY, Entry, read_header
from sentkit.model.checkpoint_reading import Reading, hash_of_weights, spec_of_readout, steps_of_checkpoint
from sentkit.model.encoding import Arrays, TokenEncoder
from sentkit.model.reading import width_behind
from sentkit.model.text.tokens import TokenBlock, check_ids
from sentkit.model.transformer.architecture import (
    BUCKETS,
    POOLER,
    Architecture,
    UnsupportedArchitecture,
    architecture_of,
    canonical_names,
    stored_tensors,
    wanted_shapes,
)
from sentkit.process import threads_of_command
from sentkit.transforms.steps import Normalize

FLOATS = {kind: NUMPY[kind] for kind in ("F16", "F32", "F64")} | {"BF16": "<u2"}


def read_arrays(checkpoint: Checkpoint, architecture: Architecture) -> dict[str, Float32] | None:
    """Return the encoder and its pooler under the plain names of the family.

    None if the files are not complete safetensors, do not fit the architecture or have a LoRA adapter.
    """
    files = checkpoint.weights()
    if is_adapter(checkpoint.transformer) or any(path.suffix != ".safetensors" for path in files):
        return None
    try:
        entries = {name: (path, entry) for path in files for name, entry in read_header(path).entries.items()}
    except DataError:
        return None
    names = canonical_names(entries, architecture)
    shapes = {plain: entries[stored][1].shape for plain, stored in names.items()}
    floats = all(entries[stored][1].dtype in FLOATS for stored in names.values())
    if shapes != wanted_shapes(architecture, names) or not floats:
        return None
    contents = {path: np.memmap(path, np.uint8, "r") for path in files}
    return {plain: as_float32(contents, *entries[stored]) for plain, stored in names.items()}


def as_float32(
    contents: dict[Path, "np.memmap[tuple[int], np.dtype[np.uint8]]"], path: Path, entry: Entry
) -> Float32:
    """Return a tensor of a file: a view of the file if it has this type."""
    raw = np.asarray(contents[path][entry.start : entry.end])
    stored = raw.view(FLOATS[entry.dtype]).reshape(entry.shape)
    if entry.dtype == "BF16":  # the upper half of a float32
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32, copy=False)


STEPS = 2048  # of the table of `normal`, for each unit
LARGEST = 6  # above it, the distribution function is 1 in float32


@cache
def normal() -> tuple[Float32, Float32]:
    """The distribution function of the normal distribution and its slope, from -LARGEST to LARGEST."""
    places = [step / STEPS for step in range(-LARGEST * STEPS, LARGEST * STEPS + 1)]
    values = np.array([math.erf(place / math.sqrt(2)) for place in places])
    slopes = np.exp(-0.5 * np.square(places)) / math.sqrt(2 * math.pi) / STEPS
    return (0.5 + 0.5 * values).astype(np.float32), slopes.astype(np.float32)


def gelu(values: Float32) -> Float32:
    """Return x * normal(x), with an error below 1e-8 * x and the rounding of float32."""
    table, slopes = normal()
    steps = values * np.float32(STEPS)
    nearest = np.rint(steps)
    places = (nearest + np.float32(LARGEST * STEPS)).astype(np.intp)
    steps -= nearest
    steps *= slopes.take(places, mode="clip")
    steps += table.take(places, mode="clip")
    steps *= values
    return steps


def gelu_tanh(values: Float32) -> Float32:
    inner = np.float32(math.sqrt(2 / math.pi)) * (values + np.float32(0.044715) * values * values * values)
    return np.float32(0.5) * values * (1 + np.tanh(inner))


ACTIVATIONS: dict[str, Callable[[Float32], Float32]] = {
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": lambda values: np.maximum(values, np.float32(0)),
    "silu": lambda values: values / (1 + np.exp(-values)),
    "tanh": np.tanh,  # for poolers
}


class SmallBert:
    def __init__(self, arrays: Mapping[str, Float32], architecture: Architecture) -> None:
        """`arrays` has the tensors of `stored_tensors`, by their names in the checkpoint."""
        self.architecture, self.has_pooler = architecture, f"{POOLER}.weight" in arrays
        self.layers: dict[str, list[Float32]] = {}  # weight and bias
        for ours, (theirs, _) in stored_tensors(architecture, pooler=self.has_pooler).items():
            self.layers.setdefault(ours.rpartition(".")[0], []).append(arrays[theirs])

    def states(self, batch: TokenBlock) -> Iterator[Float32]:
        """Yield X(0), X(1) .. of the concatenated sentences, each (n, d)."""
        architecture, lengths = self.architecture, batch.lengths
        sentences = [*map(slice, batch.starts, batch.starts + lengths)]
        places = np.arange(len(batch.ids)) - np.repeat(batch.starts, lengths) + architecture.position_offset
        bias = None
        if "relative" in self.layers:
            rows = buckets_of(int(lengths.max()))
            bias = self.layers["relative"][0][rows].transpose(2, 0, 1)  # (h, t, t)
        states = self.layers["words"][0][batch.ids]
        if "positions" in self.layers:
            states = states + self.layers["positions"][0][places]
        if architecture.types:
            states += self.layers["types"][0][0]  # every token belongs to the first segment
        states = self.norm("norm", states)
        if "projection" in self.layers:
            states = self.linear("projection", states)
        yield states
        for block in range(architecture.depth):
            states = self.block(block, states, sentences, places, bias)
            yield states

    def block(
        self,
        number: int,
        states: Float32,
        sentences: Sequence[slice],
        places: NDArray[np.int64],
        bias: Float32 | None,
    ) -> Float32:
        name, architecture = f"blocks.{number}", self.architecture
        inputs = self.norm(f"{name}.input_norm", states)
        query, key, value = (
            each.reshape(len(each), -1, architecture.head_size) for each in self.parts(name, "qkv", inputs)
        )
        if architecture.bases:
            query, key = (
                rotated(self.norm(f"{name}.{part}_norm", each), places, architecture.bases[number])
                for part, each in (("query", query), ("key", key))
            )
        window = architecture.windows[number] if architecture.windows else 0
        parts = [self.attend(query[own], key[own], value[own], bias, window) for own in sentences]
        mixed = self.linear(f"{name}.mix", np.concatenate(parts))
        states = self.norm(f"{name}.mix_norm", mixed + states)
        inner, *gates = self.parts(name, "up", self.norm(f"{name}.inner_norm", states))
        inner = ACTIVATIONS[architecture.activation](inner)
        for gate in gates:
            inner = inner * gate
        return self.norm(f"{name}.norm", self.linear(f"{name}.down", inner) + states)

    def parts(self, block: str, module: str, values: Float32) -> list[Float32]:
        """The outputs of the matrices of a module, which the checkpoint has joined or apart."""
        rows = self.architecture.joined[module]
        if f"{block}.{module}" not in self.layers:
            return [self.linear(f"{block}.{part}", values) for part in rows]
        return np.split(self.linear(f"{block}.{module}", values), np.cumsum([*rows.values()])[:-1], 1)

    def attend(
        self, query: Float32, key: Float32, value: Float32, bias: Float32 | None, window: int
    ) -> Float32:
        tokens, shared = len(query), self.architecture.heads // self.architecture.key_heads
        query, key, value = (
            each.swapaxes(0, 1).repeat(count, 0)
            for each, count in ((query, 1), (key, shared), (value, shared))
        )  # (h, t, e)
        scores = query @ key.swapaxes(1, 2) * np.float32(query.shape[2] ** -0.5)
        if bias is not None:
            scores += bias[:, :tokens, :tokens]
        behind = np.arange(tokens)[:, None] - np.arange(tokens)
        if window:
            scores[:, np.abs(behind) > window] = -np.inf
        if self.architecture.causal:
            scores[:, behind < 0] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return (weights @ value).swapaxes(0, 1).reshape(tokens, -1)

    def linear(self, name: str, values: Float32) -> Float32:
        weight, *bias = self.layers[name]
        return sum(bias, values @ weight.T)

    def norm(self, name: str, values: Float32) -> Float32:
        if name not in self.layers:
            return values
        weight, *bias = self.layers[name]
        centred = values if self.architecture.kind.squares else values - values.mean(-1, keepdims=True)
        variance = np.square(centred).mean(-1, keepdims=True)
        scale = np.sqrt(variance + np.float32(self.architecture.norm_epsilon))
        return sum(bias, centred / scale * weight)

    def pooled(self, vectors: Float32) -> Float32:
        return ACTIVATIONS[self.architecture.pooler_activation](self.linear("pooler", vectors))


FARTHEST = 128  # tokens; all tokens at this distance or farther have the same bias


def buckets_of(longest: int) -> NDArray[np.int64]:
    """Return the row of each query and key, (t, t), in a table of relative positions.

    Half of the rows are for keys behind the query. In each half, half of the rows are for one distance each,
    and the others for logarithms of distances.
    """
    half = BUCKETS // 2
    exact = half // 2
    behind = np.arange(longest) - np.arange(longest)[:, None]
    far = np.abs(behind)
    logarithm = np.log2(np.maximum(far, exact) / exact) / np.log2(FARTHEST / exact)
    rows = np.minimum(exact + (logarithm * (half - exact)).astype(np.int64), half - 1)
    return np.where(far < exact, far, rows) + half * (behind > 0)


def rotated(values: Float32, places: NDArray[np.int64], base: float) -> Float32:
    """Rotate the two halves of each head (n, h, e) by rotary positions, as `turned` of `bert.py`."""
    size = values.shape[2]
    speeds = np.float32(1) / np.float32(base) ** (np.arange(0, size, 2, dtype=np.float32) / np.float32(size))
    angles = places[:, None].astype(np.float32) * speeds
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    left, right = np.split(values, 2, 2)
    return np.concatenate([left * cos - right * sin, right * cos + left * sin], 2)


MOST_WORK = 1 << 34  # multiplications in the blocks; for more, torch is faster in spite of its import
MOST_WINDOWED = 4096  # tokens; for more, the windows of local attention would be wasted
BUDGET = 512  # tokens in a batch: larger arrays do not fit into the caches of a CPU
REDUCTIONS: Mapping[str, Callable[[Float32, int], Float32]] = {  # of states (t, d) and their first position
    "cls": lambda states, first: states[0],
    "mean": lambda states, first: states.mean(0, np.float64),
    "max": lambda states, first: states.max(0),
    "mean-sqrt": lambda states, first: states.sum(0, np.float64) / np.sqrt(len(states)),
    "weighted-mean": lambda states, first: np.average(
        states, 0, np.arange(first + 1, first + len(states) + 1)
    ),
    "last": lambda states, first: states[-1],
}


def open_small_encoder(checkpoint: Checkpoint, reading: Reading, tokens: int) -> "SmallEncoder | None":
    """Return an encoder for an input of so many tokens; None: torch is faster, needed, or has the error."""
    try:
        architecture = architecture_of(checkpoint)
    except UnsupportedArchitecture:
        return None
    shape, parts = architecture, [part for readout in reading.readouts for part in readout.parts]
    weights = [math.prod(shape.shapes[name]) for name in ("qkv", "mix", "up", "down")]
    products = shape.depth * sum(weights)  # of a token
    known = all(part.reduction in (*REDUCTIONS, *POOLED, "token") for part in parts)
    if (
        tokens * products > MOST_WORK
        or not known
        or (architecture.windows and tokens > MOST_WINDOWED)
        or set(reading.steps) - {"normalise"}
    ):
        return None
    arrays = read_arrays(checkpoint, architecture)
    if arrays is None:
        return None
    body = SmallBert(arrays, architecture)
    if any(part.pooled for part in parts) and not body.has_pooler:
        return None
    return SmallEncoder(checkpoint, reading, body, arrays)


class SmallEncoder(TokenEncoder):
    budget = BUDGET

    def __init__(
        self, checkpoint: Checkpoint, reading: Reading, body: SmallBert, arrays: Mapping[str, Float32]
    ) -> None:
        self.checkpoint, self.reading, self.body, self.notes = checkpoint, reading, body, []
        before = body.architecture.width * len(reading.readouts[0].parts)
        self.steps = steps_of_checkpoint(checkpoint, reading, before, lambda folder: Normalize())
        self.width = width_behind(self.steps, before)
        threads = threads_of_command() or 1
        weights = {
            pooled: hash_of_weights(arrays, np.asarray, with_pooler=pooled, threads=threads)
            for pooled in {readout.pooled for readout in reading.readouts}
        }
        self.specs, shape, machine = [], body.architecture, {"precision": self.precision}
        for readout in reading.readouts:
            hashed = weights[readout.pooled], shape.rules, self.steps
            layers = readout.resolved(shape.depth)
            spec = spec_of_readout(checkpoint, reading, readout, *hashed, layers=layers, machine=machine)
            self.specs.append(spec)

    def encode(self, batches: Iterable[TokenBlock]) -> Iterator[Arrays]:
        return map(self.vectors, batches)

    def vectors(self, batch: TokenBlock) -> Arrays:
        check_ids(batch, self.body.architecture.vocabulary, self.checkpoint.name)
        with np.errstate(all="ignore"):  # as torch does; infinite vectors are refused later
            layers = list(self.body.states(batch))
            return [
                np.stack([self.vector(layers, batch, place, readout) for place in range(len(batch))])
                for readout in self.reading.readouts
            ]

    def vector(self, layers: Sequence[Float32], batch: TokenBlock, place: int, readout: Readout) -> Float32:
        """Reduce the states (n, d) of each layer to the vector of one text."""
        skip = 0 if batch.skip is None else int(batch.skip[place])
        at = 0 if batch.at is None else int(batch.at[place])
        start, end = batch.starts[place], batch.starts[place] + batch.lengths[place]

        def reduced(layer: int, reduction: str) -> Float32:
            if reduction == "token":
                return layers[layer][start + at]
            own = layers[layer][start + skip : end]
            vector = REDUCTIONS[POOLED.get(reduction, reduction)](own, skip)
            return self.body.pooled(vector.astype(np.float32)) if reduction in POOLED else vector

        depth = self.body.architecture.depth
        joined = [
            np.mean([reduced(layer, part.reduction) for layer in part.resolved(depth)], 0)
            for part in readout.parts
        ]
        return np.concatenate(joined).astype(np.float32)
