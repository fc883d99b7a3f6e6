"""Steps: vectors -> vectors, each with a hash, so that the space it leads to has a name.

A step's `suffix` is what it adds to the label of a space; its `hash` is chained onto the space's.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sentkit.errors import UsageError
from sentkit.formats.fingerprint import digest

Matrix = NDArray[np.float32]


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
    """A dense layer: x W' + b, through tanh where `tanh`."""

    weight: Matrix  # (k, d)
    bias: Matrix  # (k,)
    tanh: bool = False
    kind: str = "dense"

    @property
    def suffix(self) -> str:
        return f"+{self.kind}"

    @cached_property
    def hash(self) -> str:
        """Of the layer alone: a whitening has one hash in its own file and as a checkpoint's dense layer."""
        parts = [part.astype("<f4").tobytes().hex() for part in (self.weight, self.bias)]
        return digest(["linear", *self.weight.shape, *parts, self.tanh])

    def width(self, before: int) -> int:
        if self.weight.shape[1] != before:
            raise UsageError(
                f"{self.kind} takes vectors of {self.weight.shape[1]} numbers, these have {before}"
            )
        return self.weight.shape[0]

    def __call__(self, vectors: Matrix) -> Matrix:
        found = vectors @ self.weight.T + self.bias
        return np.tanh(found) if self.tanh else found
