"""The augmented views of ConSERT (arXiv 2105.11741): random draws for a batch and their application.

The host draws one array for each sentence of the whole batch, so that a process can apply the arrays of its
sentences. A shuffle changes the positions. A cut changes X(0), after the norm and dropout of the embeddings.
The attention mask does not change: attention and averages still include cut tokens. A window removes tokens.

Axes: b sentences, n tokens, l tokens of one sentence, d the width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

import numpy as np
from numpy.random import Generator
from torch import Tensor

from sentkit.model.transformer.packed import Packed, first_tokens
from sentkit.model.transformer.readouts import Disturb
from sentkit.training.method import share

Drawn = Sequence[np.ndarray]  # the drawn numbers of each sentence


class View:
    """The base class is the view without a change. A new view overrides `draw` and `apply`."""

    def draw(self, random: Generator, lengths: Sequence[int], width: int, rate: float) -> list[np.ndarray]:
        """Return one array for each sentence. `lengths` are in tokens; only cuts use `rate`."""
        return [np.empty(0, dtype=np.int64) for _ in lengths]

    def apply(self, packed: Packed, drawn: Drawn) -> tuple[Packed, Disturb | None]:
        """Return the changed batch and its `disturb` function, or None if X(0) does not change."""
        assert len(drawn) == len(packed.lengths), "a draw for other sentences"
        return packed, None


class Shuffle(View):
    """Permutes the positions of each sentence, including special tokens; the order of its tokens stays."""

    def draw(self, random: Generator, lengths: Sequence[int], width: int, rate: float) -> list[np.ndarray]:
        return [random.permutation(length) for length in lengths]

    def apply(self, packed: Packed, drawn: Drawn) -> tuple[Packed, Disturb | None]:
        assert len(drawn) == len(packed.lengths), "a draw for other sentences"
        rows = np.concatenate(drawn) + np.repeat(first_tokens(packed.lengths), packed.lengths)
        return replace(packed, positions=packed.positions[packed.to_device(rows)]), None


@dataclass(frozen=True, slots=True)
class Cut(View):
    """Sets a share of X(0) to 0: rows (`tokens`), columns (`features`), or single entries if both are true.

    The paper drops each entry with a probability. Its code drops an exact number, as this class does.
    """

    tokens: bool = False
    features: bool = False

    def shape(self, length: int, width: int) -> tuple[int, int]:
        """Return the number of rows and columns that are cut independently in a sentence."""
        return length if self.tokens else 1, width if self.features else 1

    def draw(self, random: Generator, lengths: Sequence[int], width: int, rate: float) -> list[np.ndarray]:
        """Return indexes into the flattened `shape` of each sentence."""
        counts = [rows * columns for rows, columns in (self.shape(length, width) for length in lengths)]
        return [random.choice(n, share(rate, n), replace=False, shuffle=False) for n in counts]

    def apply(self, packed: Packed, drawn: Drawn) -> tuple[Packed, Disturb | None]:
        assert len(drawn) == len(packed.lengths), "a draw for other sentences"

        def disturb(states: Tensor) -> Tensor:  # (n, d) -> (n, d)
            masks = []
            for indexes, length in zip(drawn, packed.lengths, strict=True):
                mask = np.zeros(self.shape(length, states.shape[-1]), dtype=bool)  # (l or 1, d or 1)
                mask.flat[indexes] = True
                masks.append(np.broadcast_to(mask, (length, mask.shape[1])))
            # Unlike a product, a fill keeps the bits of the other entries. Unlike dropout, it does not scale.
            return states.masked_fill(packed.to_device(np.concatenate(masks)), 0.0)

        return packed, disturb


class Window(View):
    """Keeps a window of consecutive tokens with their positions; it is not in the paper.

    The window has floor(length * (1 - rate)) tokens, and at least one.
    """

    def draw(self, random: Generator, lengths: Sequence[int], width: int, rate: float) -> list[np.ndarray]:
        sizes = [max(int((1 - Decimal(str(rate))) * length), 1) for length in lengths]
        return [
            random.integers(0, length - size + 1) + np.arange(size)
            for length, size in zip(lengths, sizes, strict=True)
        ]

    def apply(self, packed: Packed, drawn: Drawn) -> tuple[Packed, Disturb | None]:
        assert len(drawn) == len(packed.lengths), "a draw for other sentences"
        lengths = tuple(map(len, drawn))
        rows = packed.to_device(np.concatenate(drawn) + np.repeat(first_tokens(packed.lengths), lengths))
        return replace(packed, ids=packed.ids[rows], positions=packed.positions[rows], lengths=lengths), None


VIEWS = {
    "none": View(),
    "shuffle": Shuffle(),
    "token-cutoff": Cut(tokens=True),
    "feature-cutoff": Cut(features=True),
    "span-cutoff": Window(),
    "dropout": Cut(tokens=True, features=True),
}
