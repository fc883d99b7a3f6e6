"""Steps: vectors -> vectors, and the files of transforms. Each step has a hash, which identifies
its space.

The `suffix` of a step is added to the label of the space, or replaces it if it begins with "=". Its
`hash` is combined with the hash of the space. A transform in a file is affine or a flow. An affine
file has a kernel and a bias, applied as (x + bias) @ kernel, and a note about the fitted space. A
map to another space also has an offset, which is added.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import orjson

from sentkit.arrays import Float32, Float64
from sentkit.errors import DataError, UsageError
from sentkit.formats.vectors.fingerprint import (
    MAPPED,
    digest,
    edition_advice,
    emb_problem,
    short_label,
    space_of,
)
from sentkit.formats.vectors.tensors import read_array, read_header, read_note

if TYPE_CHECKING:
    from sentkit.transforms.flow import Flow

NORM_EPSILON = 1e-5  # the default of torch; checkpoints of sentence-transformers do not change it


class Step(Protocol):
    @property
    def suffix(self) -> str: ...

    @property
    def hash(self) -> str: ...

    def output_width(self, before: int) -> int:
        """The vector width after the step; raises UsageError if the step cannot be applied."""

    def __call__(self, vectors: Float32) -> Float32: ...  # (n, d) -> (n, k)


def apply_step(step: Step, vectors: Float32) -> Float32:
    """Apply a step. A zero vector, of a text without tokens, remains zero in every space."""
    results = step(vectors)
    zero_rows = np.flatnonzero(~vectors.any(axis=1))
    if len(zero_rows):
        results = results.copy()
        results[zero_rows] = 0
    return results


SHORTEST = 1e-12  # the squares of numbers of shorter vectors can be zero in float32


@dataclass(frozen=True)
class Normalize:
    """Scaling to unit length; a zero vector remains zero."""

    suffix: str = "/n"
    hash: str = digest("normalise")

    def output_width(self, before: int) -> int:
        return before

    def __call__(self, vectors: Float32) -> Float32:
        with np.errstate(over="ignore"):
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        units = vectors / np.maximum(lengths, np.float32(SHORTEST))
        # Squares of huge and of tiny numbers leave the range of float32.
        is_extreme = ~np.isfinite(lengths[:, 0]) | (lengths[:, 0] < SHORTEST)
        if is_extreme.any():
            exact = vectors[is_extreme].astype(np.float64)
            exact_lengths = np.linalg.norm(exact, axis=1, keepdims=True)
            units[is_extreme] = exact / np.where(exact_lengths == 0, 1.0, exact_lengths)
        return units


@dataclass(frozen=True)
class Truncate:
    """Truncation to the first numbers, for models trained for it (Matryoshka)."""

    dim: int

    @property
    def suffix(self) -> str:
        return f"/{self.dim}"

    @property
    def hash(self) -> str:
        return digest(["truncate", self.dim])

    def output_width(self, before: int) -> int:
        if not 1 <= self.dim <= before:
            raise UsageError(f"--dim {self.dim}: the vectors have only {before} numbers")
        return self.dim

    def __call__(self, vectors: Float32) -> Float32:
        return vectors[:, : self.dim]


@dataclass(frozen=True)
class Linear:
    """A dense layer: x W' + b, followed by an activation."""

    weight: Float32  # (k, d)
    bias: Float32  # (k,)
    activation: str = "identity"
    kind: str = "dense"
    target: str | None = None  # the `_emb` of the space that a map leads to

    @property
    def input_width(self) -> int:
        """The number of numbers of an input vector."""
        return self.weight.shape[1]

    @property
    def suffix(self) -> str:
        if self.target is not None:
            return f"={self.target}{MAPPED}"
        return f"+{self.kind}"

    @cached_property
    def hash(self) -> str:
        """The hash of the layer only: a whitening has the same hash in its file and in a
        checkpoint.
        """
        activation: str | bool = self.activation
        if activation == "identity":
            activation = False  # these two are hashed as the flag for tanh that they once were
        elif activation == "tanh":
            activation = True
        return digest(
            ["linear", *self.weight.shape, in_hex(self.weight), in_hex(self.bias), activation]
        )

    def output_width(self, before: int) -> int:
        if self.input_width != before:
            raise UsageError(
                f"{self.kind} takes vectors of {self.input_width} numbers, these have {before}"
            )
        return self.weight.shape[0]

    def __call__(self, vectors: Float32) -> Float32:
        return activated(vectors @ self.weight.T + self.bias, self.activation)


def in_hex(array: Float32) -> str:
    """The bytes of an array, for a hash; the same on machines of both byte orders."""
    return array.astype("<f4").tobytes().hex()


def activated(values: Float32, name: str) -> Float32:
    """Apply the activation of this name; "gelu" is the exact function, not the tanh
    approximation.
    """
    if name == "identity":
        return values
    if name == "tanh":
        return np.tanh(values)
    from scipy.special import erf, expit

    functions: dict[str, Callable[[Float32], Float32]] = {
        "relu": lambda x: np.maximum(x, np.float32(0)),
        "gelu": lambda x: np.float32(0.5) * x * (np.float32(1) + erf(x * np.float32(0.5**0.5))),
        "silu": lambda x: x * expit(x),
        "sigmoid": expit,
    }
    return functions[name](values)


@dataclass(frozen=True)
class Norm:
    """Layer normalization: mean 0 and variance 1 over the numbers of a vector, then x * weight +
    bias.
    """

    weight: Float32  # (d,)
    bias: Float32  # (d,)
    epsilon: float = NORM_EPSILON
    suffix: str = "+norm"

    @cached_property
    def hash(self) -> str:
        content: list[object] = ["norm", in_hex(self.weight), in_hex(self.bias)]
        if self.epsilon != NORM_EPSILON:
            content.append(self.epsilon)
        return digest(content)

    def output_width(self, before: int) -> int:
        if len(self.weight) != before:
            raise UsageError(
                f"norm takes vectors of {len(self.weight)} numbers, these have {before}"
            )
        return before

    def __call__(self, vectors: Float32) -> Float32:
        centred = vectors - vectors.mean(axis=1, keepdims=True)
        variance = np.square(centred).mean(axis=1, keepdims=True)
        return centred / np.sqrt(variance + np.float32(self.epsilon)) * self.weight + self.bias


def read_transform(path: str) -> "Linear | Flow":
    """A flow, or an affine transform as a dense layer."""
    note = read_fit_note(path)
    kind = note.get("kind")
    if kind == "flow":
        from sentkit.transforms.flow import read_flow

        return read_flow(path, note.get("width"))
    tensor_names = read_header(path).entries.keys()
    if not tensor_names >= {"kernel", "bias"}:
        advice = "make one with sentkit whiten fit"
        raise DataError("not a transform", source=path, advice=advice)
    kernel = read_array(path, "kernel").astype(np.float64)
    bias = read_array(path, "bias").astype(np.float64)
    if kernel.ndim != 2 or bias.size != kernel.shape[0] or 0 in kernel.shape:
        raise DataError("the shapes of kernel and bias do not match", source=path)
    if not (isinstance(kind, str) and kind.isascii() and kind.isidentifier()):
        kind = "affine"  # the kind becomes a part of the label of a space
    if kind != "map":
        if "offset" in tensor_names:
            problem = 'damaged: it has an offset, as only a map has, but its "kind" is not "map"'
            raise DataError(problem, source=path)
        return dense_layer(kernel, bias.ravel(), kind=kind, source=path)
    offset = read_array(path, "offset").astype(np.float64).ravel()
    target = note.get("target")
    if offset.size != kernel.shape[1]:
        raise DataError("the shapes of kernel and offset do not match", source=path)
    if target is None or emb_problem(target) is not None:
        raise DataError("the space that this map leads to is not recorded", source=path)
    actual_digest = digest_of_map(kernel, bias, offset, note.get("_emb"), target)
    if note.get("digest", actual_digest) != actual_digest:
        raise DataError("damaged: its digest is wrong", source=path)
    layer = dense_layer(kernel, bias.ravel(), kind=kind, source=path, offset=offset)
    return replace(layer, target=target)


def digest_of_map(
    kernel: Float64, bias: Float64, offset: Float64, emb: str | None, target: str
) -> str:
    """Hash of all that a map changes vectors by, and of both spaces. It does not depend on how the
    metadata are written.
    """
    names = orjson.dumps([emb, target, kernel.shape])
    hash_of_map = hashlib.blake2b(names, digest_size=16)
    for values in (kernel, bias, offset):
        hash_of_map.update(values.astype("<f8").tobytes())
    return hash_of_map.hexdigest()


def read_fit_note(path: str) -> dict[str, Any]:
    """The note of a transform; raises DataError if its `_emb` is malformed."""
    note = read_note(path)
    if problem := emb_problem(note.get("_emb")):
        raise DataError(problem, source=path)
    return note


def dense_layer(
    kernel: Float64, bias: Float64, *, kind: str, source: str, offset: Float64 | None = None
) -> Linear:
    """Convert (x + bias) @ kernel + offset to a float32 dense layer; kernel (d, k), bias (d,),
    offset (k,), by default 0.
    """
    with np.errstate(all="ignore"):  # overflow is refused below
        total_offset = bias @ kernel  # in float64: a large mean would lose precision
        if offset is not None:
            total_offset = total_offset + offset
        weight = np.ascontiguousarray(kernel.T, dtype=np.float32)
        layer = Linear(weight, total_offset.astype(np.float32), kind=kind)
    if not (np.isfinite(layer.weight).all() and np.isfinite(layer.bias).all()):
        raise DataError("the kernel or the bias contains NaN or infinity", source=source)
    return layer


def check_fitted(path: str, emb: str | None) -> None:
    """Refuse a transform of another space. No `_emb` in the file fits all, null only vectors
    without.
    """
    note = read_fit_note(path)
    fitted = note.get("_emb")
    if "_emb" not in note or fitted == emb:
        return
    if fitted is None or emb is None or space_of(fitted) != space_of(emb):
        problem = f"fitted on {named(fitted)}, but the vectors are {short_label(emb)}"
        advice = edition_advice(emb, fitted)
        if advice is None and fitted is not None:
            advice = f"encode the rows with the model and readout of {fitted.rpartition(':')[0]}"
        raise DataError(problem, source=path, advice=advice)


def named(emb: str | None) -> str:
    return "vectors without _emb" if emb is None else short_label(emb)
