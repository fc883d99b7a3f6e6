"""Which rows make a step, and the random draws of a step: all from the seed and the number of the step.

So the position of a run is one number, and nothing else about its data has to be saved.
"""

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]


def stream(seed: int, step: int, purpose: str) -> np.random.Generator:
    """A generator of its own for each purpose at each step."""
    sequence = np.random.SeedSequence([seed, step, zlib.crc32(purpose.encode())])
    return np.random.Generator(np.random.Philox(sequence))


@dataclass(frozen=True, slots=True)
class Batch:
    texts: tuple[Sequence[Ids], ...]  # one sequence of token ids a row, for each of a row's texts
    targets: NDArray[np.float64] | None = None  # one a row: a label's number, or a score
    draws: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # one value a row under each name

    def __len__(self) -> int:
        return len(self.texts[0])

    @property
    def tokens(self) -> int:
        return sum(len(text) for texts in self.texts for text in texts)

    def part(self, rows: slice) -> "Batch":
        targets = None if self.targets is None else self.targets[rows]
        draws = {name: values[rows] for name, values in self.draws.items()}
        return Batch(tuple(texts[rows] for texts in self.texts), targets, draws)

    def drawn(self, draws: Mapping[str, Sequence[Any]]) -> "Batch":
        return replace(self, draws=draws)


@dataclass(slots=True)
class Order:
    """The rows of every step: each epoch a new permutation, its last batch as large as what is left."""

    rows: int
    batch: int
    epochs: int
    seed: int
    least: int = 2  # a contrast needs a row to contrast with: a last batch of fewer is left out
    _epoch: int = field(default=-1, init=False)
    _permutation: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64), init=False)

    @property
    def epoch_steps(self) -> int:
        whole, rest = divmod(self.rows, self.batch)
        return whole + (rest >= self.least)

    @property
    def steps(self) -> int:
        return self.epoch_steps * self.epochs

    def at(self, step: int) -> NDArray[np.int64]:
        """The rows of a step, counted from 0."""
        epoch, place = divmod(step, self.epoch_steps)
        if epoch != self._epoch:
            self._permutation = stream(self.seed, epoch, "order").permutation(self.rows)
            self._epoch = epoch
        return self._permutation[place * self.batch : (place + 1) * self.batch]


def shares(rows: int, parts: int) -> list[slice]:
    """The rows of a batch cut into that many parts, as even as can be."""
    ends = [rows * part // parts for part in range(parts + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]


def chunks(rows: int, size: int) -> list[slice]:
    """The rows of a batch in chunks of at most `size`; 0: all at once."""
    count = math.ceil(rows / size) if size else 1
    return shares(rows, max(count, 1))
