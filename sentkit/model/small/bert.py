"""The encoder of `transformer/bert.py` in numpy: equal states up to rounding, in float32, without dropout.

Axes: n tokens, t tokens of a sentence, d the width, h heads, e = d / h.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache

import numpy as np

from sentkit.arrays import Float32
from sentkit.model.transformer.architecture import Architecture
from sentkit.model.transformer.weight_names import POOLER, stored_layers

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
        """`arrays` has the tensors of `stored_layers`."""
        self.architecture, self.has_pooler = architecture, f"{POOLER}.weight" in arrays
        self.layers = {
            layer.ours: [arrays[name] for name in layer.shapes()]
            for layer in stored_layers(architecture, pooler=self.has_pooler)
        }

    def states(self, sequences: Sequence[Sequence[int]]) -> Iterator[Float32]:
        """Yield X(0), X(1) .. of the concatenated sentences, each (n, d)."""
        architecture, lengths = self.architecture, [len(ids) for ids in sequences]
        ends = np.cumsum(lengths)
        sentences = [slice(end - length, end) for end, length in zip(ends, lengths, strict=True)]
        places = np.concatenate([np.arange(length) for length in lengths]) + architecture.position_offset
        [words], [positions] = self.layers["words"], self.layers["positions"]
        states = words[np.concatenate(sequences)] + positions[places]
        if architecture.types:
            states += self.layers["types"][0][0]  # every token belongs to the first segment
        states = self.norm("norm", states)
        if "projection" in self.layers:
            states = self.linear("projection", states)
        yield states
        for block in range(architecture.depth):
            states = self.block(f"blocks.{block}", states, sentences)
            yield states

    def block(self, name: str, states: Float32, sentences: Sequence[slice]) -> Float32:
        query, key, value = (self.linear(f"{name}.{part}", states) for part in ("query", "key", "value"))
        mixed = np.concatenate([self.attend(query[own], key[own], value[own]) for own in sentences])
        states = self.norm(f"{name}.mix_norm", self.linear(f"{name}.mix", mixed) + states)
        inner = ACTIVATIONS[self.architecture.activation](self.linear(f"{name}.up", states))
        return self.norm(f"{name}.norm", self.linear(f"{name}.down", inner) + states)

    def attend(self, query: Float32, key: Float32, value: Float32) -> Float32:
        """Attention in one sentence, (t, d)."""
        shape = len(query), self.architecture.heads, -1
        query, key, value = (each.reshape(shape).swapaxes(0, 1) for each in (query, key, value))  # (h, t, e)
        scores = query @ key.swapaxes(1, 2) * np.float32(query.shape[2] ** -0.5)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return (weights @ value).swapaxes(0, 1).reshape(len(scores[0]), -1)

    def linear(self, name: str, values: Float32) -> Float32:
        weight, bias = self.layers[name]
        return values @ weight.T + bias

    def norm(self, name: str, values: Float32) -> Float32:
        weight, bias = self.layers[name]
        centred = values - values.mean(-1, keepdims=True)
        variance = np.square(centred).mean(-1, keepdims=True)
        return centred / np.sqrt(variance + np.float32(self.architecture.norm_epsilon)) * weight + bias

    def pooled(self, vectors: Float32) -> Float32:
        return ACTIVATIONS[self.architecture.pooler_activation](self.linear("pooler", vectors))
