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

from sentkit.arrays import Float32, Indices
from sentkit.errors import DataError
from sentkit.formats.checkpoints.folders import Checkpoint, is_adapter
from sentkit.formats.checkpoints.readout import POOLED, Readout
from sentkit.formats.vectors.tensors import NUMPY, Entry, read_header
from sentkit.model.checkpoint_reading import (
    Reading,
    hash_of_weights,
    space_of_readout,
    steps_of_checkpoint,
)
from sentkit.model.encoding import TokenEncoder
from sentkit.model.groups import Arrays
from sentkit.model.reading import width_after_steps
from sentkit.model.text.tokens import TokenBlock, check_ids
from sentkit.model.transformer.architecture import (
    BUCKETS,
    POOLER,
    Architecture,
    UnsupportedArchitecture,
    architecture_of,
    canonical_names,
    has_pooler,
    stored_tensors,
    tensor_shapes,
)
from sentkit.process import threads_of_command
from sentkit.transforms.steps import Step

FLOATS = {kind: NUMPY[kind] for kind in ("F16", "F32", "F64")} | {"BF16": "<u2"}


def read_arrays(checkpoint: Checkpoint, architecture: Architecture) -> dict[str, Float32] | None:
    """Return the encoder and its pooler under the plain names of the family.

    None if the files are not complete safetensors, do not fit the architecture or have a LoRA
    adapter.
    """
    # The headers of the files.
    files = checkpoint.weight_paths()
    if is_adapter(checkpoint.transformer_folder) or any(
        path.suffix != ".safetensors" for path in files
    ):
        return None
    try:
        entries: dict[str, tuple[Path, Entry]] = {}
        for path in files:
            for stored_name, entry in read_header(path).entries.items():
                entries[stored_name] = (path, entry)
    except DataError:
        return None

    # The tensors of the encoder, with the shapes and types that it can compute.
    stored_names = canonical_names(entries, architecture)  # by the plain names of the family
    shapes: dict[str, tuple[int, ...]] = {}
    for name, stored_name in stored_names.items():
        _, entry = entries[stored_name]
        shapes[name] = entry.shape
        if entry.dtype not in FLOATS:
            return None
    if shapes != tensor_shapes(architecture, pooler=has_pooler(stored_names)):
        return None

    # Their numbers, mapped into memory.
    contents = {path: np.memmap(path, np.uint8, "r") for path in files}
    arrays: dict[str, Float32] = {}
    for name, stored_name in stored_names.items():
        path, entry = entries[stored_name]
        arrays[name] = as_float32(contents[path], entry)
    return arrays


def as_float32(content: "np.memmap[tuple[int], np.dtype[np.uint8]]", entry: Entry) -> Float32:
    """Return a tensor of a file: a view of the file if it has this type."""
    raw = np.asarray(content[entry.start : entry.end])
    stored = raw.view(FLOATS[entry.dtype]).reshape(entry.shape)
    if entry.dtype == "BF16":  # the upper half of a float32
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32, copy=False)


STEPS_OF_UNIT = 2048  # of the table of `normal`
LARGEST = 6  # above it, the distribution function is 1 in float32


@cache
def normal() -> tuple[Float32, Float32]:
    """The distribution function of the normal distribution and its slope, from -LARGEST to
    LARGEST.
    """
    points = [
        step / STEPS_OF_UNIT
        for step in range(-LARGEST * STEPS_OF_UNIT, LARGEST * STEPS_OF_UNIT + 1)
    ]
    values = np.array([math.erf(point / math.sqrt(2)) for point in points])
    slopes = np.exp(-0.5 * np.square(points)) / math.sqrt(2 * math.pi) / STEPS_OF_UNIT
    return (0.5 + 0.5 * values).astype(np.float32), slopes.astype(np.float32)


def gelu(values: Float32) -> Float32:
    """Return x * normal(x), with an error below 1e-8 * x and the rounding of float32."""
    table, slopes = normal()
    # The table at the nearest step, and its slope for the distance from there, in one array.
    steps = values * np.float32(STEPS_OF_UNIT)
    nearest = np.rint(steps)
    indices = (nearest + np.float32(LARGEST * STEPS_OF_UNIT)).astype(np.intp)
    result = steps
    result -= nearest
    result *= slopes.take(indices, mode="clip")
    result += table.take(indices, mode="clip")
    result *= values
    return result


def gelu_tanh(values: Float32) -> Float32:
    inner = np.float32(math.sqrt(2 / math.pi)) * (
        values + np.float32(0.044715) * values * values * values
    )
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
        self.architecture = architecture
        self.has_pooler = f"{POOLER}.weight" in arrays
        self.layers: dict[str, list[Float32]] = {}  # weight and bias, by the name of the layer
        for name, (stored_name, _) in stored_tensors(architecture, pooler=self.has_pooler).items():
            layer, _, _ = name.rpartition(".")
            self.layers.setdefault(layer, []).append(arrays[stored_name])

    def position_rows(self, ids: NDArray[np.integer], positions: Indices) -> Indices:
        """The row (n,) of each token in the table of positions; `positions` count from 0 in each
        sentence.
        """
        architecture = self.architecture
        if not architecture.family_traits.skips_padding:
            return positions + architecture.position_offset
        # A padding token within a sentence has the row before the first one, and is not counted.
        is_padding = ids == architecture.padding_id
        count_before = np.cumsum(is_padding) - is_padding
        starts = np.arange(len(ids)) - positions
        rows = positions + architecture.position_offset - (count_before - count_before[starts])
        return np.where(is_padding, architecture.position_offset - 1, rows)

    def states(self, batch: TokenBlock) -> Iterator[Float32]:
        """Yield X(0), X(1) .. of the concatenated sentences, each (n, d)."""
        architecture = self.architecture
        lengths = batch.lengths
        sentences = [*map(slice, batch.starts, batch.starts + lengths)]
        positions = np.arange(len(batch.ids)) - np.repeat(batch.starts, lengths)
        bias = None
        if "relative" in self.layers:
            buckets = buckets_of(int(lengths.max()))
            bias = self.layers["relative"][0][buckets].transpose(2, 0, 1)  # (h, t, t)
        states = self.layers["words"][0][batch.ids]
        if "positions" in self.layers:
            rows = self.position_rows(batch.ids, positions)
            states = states + self.layers["positions"][0][rows]
        if architecture.types:
            states += self.layers["types"][0][0]  # every token belongs to the first segment
        states = self.norm("norm", states)
        if "projection" in self.layers:
            states = self.linear("projection", states)
        yield states
        for block in range(architecture.depth):
            states = self.block(block, states, sentences, positions, bias)
            yield states

    def block(
        self,
        number: int,
        states: Float32,
        sentences: Sequence[slice],
        positions: Indices,
        bias: Float32 | None,
    ) -> Float32:
        """Return X(k) from X(k - 1), (n, d)."""
        name = f"blocks.{number}"
        architecture = self.architecture

        # Attention, in each sentence by itself.
        inputs = self.norm(f"{name}.input_norm", states)
        query, key, value = (  # (n, h, e); with fewer heads of keys and values in some families
            values.reshape(len(values), -1, architecture.head_size)
            for values in self.joined_outputs(name, "qkv", inputs)
        )
        if architecture.rotary_bases:
            base = architecture.rotary_bases[number]
            query = rotated(self.norm(f"{name}.query_norm", query), positions, base)
            key = rotated(self.norm(f"{name}.key_norm", key), positions, base)
        window = architecture.attention_windows[number] if architecture.attention_windows else 0
        attended = [
            self.attend(query[rows], key[rows], value[rows], bias, window) for rows in sentences
        ]
        mixed = self.linear(f"{name}.mix", np.concatenate(attended))
        states = self.norm(f"{name}.mix_norm", mixed + states)

        # The two dense layers.
        inner, *gates = self.joined_outputs(name, "up", self.norm(f"{name}.inner_norm", states))
        inner = ACTIVATIONS[architecture.activation](inner)
        for gate in gates:
            inner = inner * gate
        return self.norm(f"{name}.norm", self.linear(f"{name}.down", inner) + states)

    def joined_outputs(self, block: str, joined_module: str, values: Float32) -> list[Float32]:
        """The outputs of each matrix of a module, which the checkpoint has joined or apart."""
        rows_of_modules = self.architecture.joined_matrices[joined_module]
        if f"{block}.{joined_module}" not in self.layers:
            return [self.linear(f"{block}.{module}", values) for module in rows_of_modules]
        outputs = self.linear(f"{block}.{joined_module}", values)
        return np.split(outputs, np.cumsum([*rows_of_modules.values()])[:-1], 1)

    def attend(
        self, query: Float32, key: Float32, value: Float32, bias: Float32 | None, window: int
    ) -> Float32:
        """Attention in one sentence: (t, h, e) -> (t, h e).

        `bias` are those of the longest sentence of the batch. `window` is the largest distance of
        a query and a key; 0: all tokens attend to each other.
        """
        tokens = len(query)
        # Several heads of queries share a head of keys and values (grouped-query attention).
        queries_of_key = self.architecture.heads // self.architecture.key_heads
        # (h, t, e), all of them copies: the layout of an array can change the rounding of a
        # product.
        query = query.swapaxes(0, 1).repeat(1, 0)
        key = key.swapaxes(0, 1).repeat(queries_of_key, 0)
        value = value.swapaxes(0, 1).repeat(queries_of_key, 0)
        scores = query @ key.swapaxes(1, 2) * np.float32(query.shape[2] ** -0.5)
        if bias is not None:
            scores += bias[:, :tokens, :tokens]
        distances = np.arange(tokens)[:, None] - np.arange(tokens)  # from a query back to a key
        if window:
            scores[:, np.abs(distances) > window] = -np.inf
        if self.architecture.causal:
            scores[:, distances < 0] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return (weights @ value).swapaxes(0, 1).reshape(tokens, -1)

    def linear(self, name: str, values: Float32) -> Float32:
        weight, *bias = self.layers[name]  # some layers have no bias, so `bias` is [] or [b]
        return sum(bias, values @ weight.T)

    def norm(self, name: str, values: Float32) -> Float32:
        if name not in self.layers:
            return values
        weight, *bias = self.layers[name]
        centred = values  # as they are, for RMSNorm
        if not self.architecture.family_traits.squares:
            centred = values - values.mean(-1, keepdims=True)
        variance = np.square(centred).mean(-1, keepdims=True)
        scale = np.sqrt(variance + np.float32(self.architecture.norm_epsilon))
        return sum(bias, centred / scale * weight)

    def pooled(self, vectors: Float32) -> Float32:
        return ACTIVATIONS[self.architecture.pooler_activation](self.linear("pooler", vectors))


FARTHEST = 128  # tokens; all tokens at this distance or farther have the same bias


def buckets_of(longest: int) -> NDArray[np.int64]:
    """Return the row of each query and key, (t, t), in a table of relative positions.

    Half of the rows are for keys behind the query. In each half, half of the rows are for one
    distance each, and the others for logarithms of distances.
    """
    half = BUCKETS // 2
    exact = half // 2
    offsets = np.arange(longest) - np.arange(longest)[:, None]  # from a query to a key
    distances = np.abs(offsets)
    logarithms = np.log2(np.maximum(distances, exact) / exact) / np.log2(FARTHEST / exact)
    rows_of_far = np.minimum(exact + (logarithms * (half - exact)).astype(np.int64), half - 1)
    rows = np.where(distances < exact, distances, rows_of_far)
    return rows + half * (offsets > 0)


def rotated(values: Float32, positions: NDArray[np.int64], base: float) -> Float32:
    """Rotate the two halves of each head (n, h, e) by rotary positions, as `norm_and_rotate` of
    `attention.py`.
    """
    size = values.shape[2]
    exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    speeds = np.float32(1) / np.float32(base) ** exponents
    angles = positions[:, None].astype(np.float32) * speeds
    cos = np.cos(angles)[:, None]
    sin = np.sin(angles)[:, None]
    first, second = np.split(values, 2, 2)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], 2)


# Multiplications in the blocks; for more, torch is faster in spite of its import.
LARGEST_WORK = 1 << 34
LARGEST_WINDOWED = 4096  # tokens; for more, the windows of local attention would be wasted
BATCH_TOKENS = 512  # larger arrays do not fit into the caches of a CPU
# Of states (t, d) and their first position. A readout that is not here needs torch.
REDUCTIONS: Mapping[str, Callable[[Float32, int], Float32]] = {
    "cls": lambda states, first: states[0],
    "mean": lambda states, first: states.mean(0, np.float64),
    "max": lambda states, first: states.max(0),
    "mean-sqrt": lambda states, first: states.sum(0, np.float64) / np.sqrt(len(states)),
    "weighted-mean": lambda states, first: np.average(
        states, 0, np.arange(first + 1, first + len(states) + 1)
    ),
    "last": lambda states, first: states[-1],
}


def open_small_encoder(
    checkpoint: Checkpoint, reading: Reading, tokens: int
) -> "SmallEncoder | None":
    """Return an encoder for an input of so many tokens; None: torch is faster, needed, or has the
    error.
    """
    try:
        architecture = architecture_of(checkpoint)
    except UnsupportedArchitecture:
        return None
    readouts = [joined for readout in reading.readouts for joined in readout.joined_readouts]
    supported = (*REDUCTIONS, *POOLED, "token")
    is_supported = all(readout.reduction in supported for readout in readouts)
    has_layers = set(reading.declared_steps) - {"normalise"}
    if not is_supported or has_layers or not is_small(architecture, tokens):
        return None
    arrays = read_arrays(checkpoint, architecture)
    if arrays is None:
        return None
    body = SmallBert(arrays, architecture)
    if any(readout.pooled for readout in readouts) and not body.has_pooler:
        return None
    return SmallEncoder(checkpoint, reading, body, arrays)


def is_small(architecture: Architecture, tokens: int) -> bool:
    """Whether an input of so many tokens is encoded before torch is imported."""
    if architecture.attention_windows and tokens > LARGEST_WINDOWED:
        return False
    weights_of_block = [
        math.prod(architecture.weight_shapes[name]) for name in ("qkv", "mix", "up", "down")
    ]
    return tokens * architecture.depth * sum(weights_of_block) <= LARGEST_WORK


def layer_of_folder(folder: Path) -> Step:
    raise AssertionError(f"{folder}: open_small_encoder refuses dense layers")


class SmallEncoder(TokenEncoder):
    tokens_per_batch = BATCH_TOKENS

    def __init__(
        self,
        checkpoint: Checkpoint,
        reading: Reading,
        body: SmallBert,
        arrays: Mapping[str, Float32],
    ) -> None:
        """`arrays` are the weights of the body, for the hash."""
        self.checkpoint = checkpoint
        self.reading = reading
        self.body = body
        self.notes = []

        # The steps after the readout; several readouts have one width.
        architecture = body.architecture
        width_of_readout = architecture.width * len(reading.readouts[0].joined_readouts)
        self.steps = steps_of_checkpoint(checkpoint, reading, width_of_readout, layer_of_folder)
        self.width = width_after_steps(self.steps, width_of_readout)

        # The space of each readout.
        threads = threads_of_command() or 1
        hash_of_pooled = {  # of the weights with and without the pooler, as the readouts require
            pooled: hash_of_weights(arrays, np.asarray, with_pooler=pooled, threads=threads)
            for pooled in {readout.pooled for readout in reading.readouts}
        }
        self.spaces = []
        for readout in reading.readouts:
            space = space_of_readout(
                checkpoint,
                reading,
                readout,
                hash_of_pooled[readout.pooled],
                architecture.hashed_values,
                self.steps,
                layers=readout.layers_in(architecture.depth),
                machine={"precision": self.precision},
            )
            self.spaces.append(space)

    def encode(self, batches: Iterable[TokenBlock]) -> Iterator[Arrays]:
        return map(self.vectors, batches)

    def vectors(self, batch: TokenBlock) -> Arrays:
        check_ids(batch, self.body.architecture.vocabulary, self.checkpoint.name)
        with np.errstate(all="ignore"):  # as torch does; infinite vectors are refused later
            layers = list(self.body.states(batch))
            arrays = []
            for readout in self.reading.readouts:
                vectors = [self.vector(layers, batch, text, readout) for text in range(len(batch))]
                arrays.append(np.stack(vectors))
            return arrays

    def vector(
        self, layers: Sequence[Float32], batch: TokenBlock, text: int, readout: Readout
    ) -> Float32:
        """Reduce the states (n, d) of each layer to the vector of one text."""
        skip = 0 if batch.prompt_length is None else int(batch.prompt_length[text])
        token_index = (
            0 if batch.readout_token_index is None else int(batch.readout_token_index[text])
        )
        start = batch.starts[text]
        end = start + batch.lengths[text]

        def reduced(layer: int, reduction: str) -> Float32:
            if reduction == "token":
                return layers[layer][start + token_index]
            reduce = REDUCTIONS[POOLED.get(reduction, reduction)]
            vector = reduce(layers[layer][start + skip : end], skip)
            if reduction in POOLED:
                return self.body.pooled(vector.astype(np.float32))
            return vector

        vectors = []
        for joined in readout.joined_readouts:
            indices = joined.layers_in(self.body.architecture.depth)
            vectors.append(np.mean([reduced(layer, joined.reduction) for layer in indices], 0))
        return np.concatenate(vectors).astype(np.float32)
