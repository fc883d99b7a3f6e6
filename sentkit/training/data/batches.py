"""The rows and the random draws of each step, computed from the seed and the step number.

The position of a run in its data is therefore one number. No other state of the data is saved.
"""

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]


def stream(seed: int, step: int, purpose: str) -> np.random.Generator:
    """Return an independent generator for each seed, step and purpose."""
    sequence = np.random.SeedSequence([seed, step, zlib.crc32(purpose.encode())])
    return np.random.Generator(np.random.Philox(sequence))


@dataclass(frozen=True, slots=True)
class Batch:
    texts: tuple[Sequence[Ids], ...]  # for each text of a row: one sequence of token ids per row
    targets: NDArray[np.float64] | None = None  # one per row: the number of a label, or a score
    draws: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # name -> one value per row
    vectors: NDArray[np.float32] | None = None  # (b, d): those of a teacher

    def __len__(self) -> int:
        return len(self.texts[0])

    @property
    def tokens(self) -> int:
        return sum(self.row_tokens)

    @property
    def row_tokens(self) -> list[int]:
        """The number of tokens of each row."""
        return [sum(map(len, texts)) for texts in zip(*self.texts, strict=True)]

    def part(self, rows: slice) -> "Batch":
        targets = None if self.targets is None else self.targets[rows]
        draws = {name: values[rows] for name, values in self.draws.items()}
        vectors = None if self.vectors is None else self.vectors[rows]
        return Batch(tuple(texts[rows] for texts in self.texts), targets, draws, vectors)


@dataclass(slots=True)
class Order:
    """The rows of each step. Each epoch is a new permutation, and its last batch can be smaller."""

    rows: int
    batch: int
    epochs: int
    seed: int
    least: int = 2  # omit a smaller last batch: a contrast needs two rows
    most: int | None = None  # steps
    _epoch: int = field(default=-1, init=False)
    _permutation: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64), init=False)

    @property
    def epoch_steps(self) -> int:
        whole, rest = divmod(self.rows, self.batch)
        return whole + (rest >= self.least)

    @property
    def steps(self) -> int:
        every = self.epoch_steps * self.epochs
        return every if self.most is None else min(every, self.most)

    def at(self, step: int) -> NDArray[np.int64]:
        """Return the rows of a step. The first step is 0."""
        epoch, place = divmod(step, self.epoch_steps)
        if epoch != self._epoch:
            self._permutation = stream(self.seed, epoch, "order").permutation(self.rows)
            self._epoch = epoch
        return self._permutation[place * self.batch : (place + 1) * self.batch]


def shares(rows: int, parts: int) -> list[slice]:
    """Divide the rows of a batch into parts of nearly equal size."""
    ends = [rows * part // parts for part in range(parts + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]


def chunks(rows: int, size: int) -> list[slice]:
    """Divide the rows of a batch into chunks of at most `size` rows. 0 means one chunk."""
    count = math.ceil(rows / size) if size else 1
    return shares(rows, max(count, 1))


def chunks_of_tokens(row_tokens: Sequence[int], most: int) -> list[slice]:
    """Divide the rows of a batch into chunks of at most `most` tokens. A longer row is a chunk of its own."""
    starts, room = [0], most
    for row, tokens in enumerate(row_tokens):
        if tokens > room and row > starts[-1]:
            starts.append(row)
            room = most
        room -= tokens
    return [slice(start, end) for start, end in pairwise([*starts, len(row_tokens)])]
