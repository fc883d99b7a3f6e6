"""Steps: vectors -> vectors, each with a hash, so that the space it leads to has a name.

A step's `suffix` is what it adds to the label of a space; its `hash` is chained onto the space's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sentkit.errors import UsageError
from sentkit.formats.vectors.fingerprint import digest

Matrix = NDArray[np.float32]
NORM_EPSILON = 1e-5  # torch's, which checkpoints of sentence-transformers do not change


class Step(Protocol):
    @property
    def suffix(self) -> str: ...

    @property
    def hash(self) -> str: ...

    def width(self, before: int) -> int:
        """How many numbers a vector has after the step; refused here if it cannot be applied."""
        ...

    def __call__(self, vectors: Matrix) -> Matrix: ...  # (n, d) -> (n, k)


@dataclass(frozen=True)
class Normalise:
    """Unit length; a zero vector stays zero."""

    suffix: str = "/n"
    hash: str = digest("normalise")

    def width(self, before: int) -> int:
        return before

    def __call__(self, vectors: Matrix) -> Matrix:
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors / np.maximum(lengths, np.float32(1e-12))


@dataclass(frozen=True)
class Truncate:
    """The first numbers of each vector, for models trained to be cut (Matryoshka)."""

    kept: int

    @property
    def suffix(self) -> str:
        return f"/{self.kept}"

    @property
    def hash(self) -> str:
        return digest(["truncate", self.kept])

    def width(self, before: int) -> int:
        if not 1 <= self.kept <= before:
            raise UsageError(f"--dim {self.kept}: the vectors have {before} numbers")
        return self.kept

    def __call__(self, vectors: Matrix) -> Matrix:
        return vectors[:, : self.kept]


@dataclass(frozen=True)
class Linear:
    """A dense layer: x W' + b, through an activation."""

    weight: Matrix  # (k, d)
    bias: Matrix  # (k,)
    activation: str = "identity"
    kind: str = "dense"

    @property
    def suffix(self) -> str:
        return f"+{self.kind}"

    @cached_property
    def hash(self) -> str:
        """Of the layer alone: a whitening has one hash in its own file and as a checkpoint's dense layer."""
        parts = [part.astype("<f4").tobytes().hex() for part in (self.weight, self.bias)]
        activation = {"identity": False, "tanh": True}.get(self.activation, self.activation)
        return digest(["linear", *self.weight.shape, *parts, activation])

    def width(self, before: int) -> int:
        if self.weight.shape[1] != before:
            raise UsageError(
                f"{self.kind} takes vectors of {self.weight.shape[1]} numbers, these have {before}"
            )
        return self.weight.shape[0]

    def __call__(self, vectors: Matrix) -> Matrix:
        return activated(vectors @ self.weight.T + self.bias, self.activation)


def activated(values: Matrix, name: str) -> Matrix:
    """The values through an activation of that name; "gelu" is the exact one."""
    if name == "identity":
        return values
    if name == "tanh":
        return np.tanh(values)
    from scipy.special import erf, expit

    functions: dict[str, Callable[[Matrix], Matrix]] = {
        "relu": lambda x: np.maximum(x, np.float32(0)),
        "gelu": lambda x: np.float32(0.5) * x * (np.float32(1) + erf(x * np.float32(0.5**0.5))),
        "silu": lambda x: x * expit(x),
        "sigmoid": expit,
    }
    return functions[name](values)


@dataclass(frozen=True)
class Norm:
    """Layer normalisation: mean 0 and variance 1 over a vector's numbers, then x * weight + bias."""

    weight: Matrix  # (d,)
    bias: Matrix  # (d,)
    suffix: str = "+norm"

    @cached_property
    def hash(self) -> str:
        return digest(["norm", *(part.astype("<f4").tobytes().hex() for part in (self.weight, self.bias))])

    def width(self, before: int) -> int:
        if len(self.weight) != before:
            raise UsageError(f"norm takes vectors of {len(self.weight)} numbers, these have {before}")
        return before

    def __call__(self, vectors: Matrix) -> Matrix:
        centred = vectors - vectors.mean(axis=1, keepdims=True)
        variance = np.square(centred).mean(axis=1, keepdims=True)
        return centred / np.sqrt(variance + np.float32(NORM_EPSILON)) * self.weight + self.bias
