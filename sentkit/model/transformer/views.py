"""The augmented views of ConSERT (arXiv 2105.11741): random draws for a batch and their application.

The host draws one array for each sentence of the whole batch, so that a process can apply the arrays of its
sentences. A shuffle changes the positions. A cut changes X(0), after the norm and dropout of the embeddings.
The attention mask does not change: attention and averages still include cut tokens.

Axes: b sentences, n tokens, d the width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial

import numpy as np
from torch import Tensor

from sentkit.model.transformer.packed import Packed, first_tokens
from sentkit.model.transformer.readouts import Disturb

Drawn = Sequence[np.ndarray]  # the drawn numbers of each sentence
Choose = Callable[[np.random.Generator, int, int, float], np.ndarray]  # generator, length, width, rate
Move = Callable[[Packed, Drawn], Packed]
Cut = Callable[[Packed, Drawn, int], np.ndarray]  # true where X(0) becomes 0, (n, d) or (n, 1)


@dataclass(frozen=True, slots=True)
class View:
    choose: Choose
    move: Move | None = None
    cut: Cut | None = None

    def draw(
        self, random: np.random.Generator, lengths: Sequence[int], width: int, rate: float
    ) -> list[np.ndarray]:
        """Return one array for each sentence. `lengths` are in tokens; only cuts use `rate`."""
        return [self.choose(random, length, width, rate) for length in lengths]

    def apply(self, packed: Packed, drawn: Drawn) -> tuple[Packed, Disturb | None]:
        """Return the changed batch and its `disturb` function, or None without a cut."""
        assert len(drawn) == len(packed.lengths), "a draw for other sentences"
        moved = packed if self.move is None else self.move(packed, drawn)
        return moved, None if self.cut is None else partial(filled, self.cut, packed, drawn)


def filled(cut: Cut, packed: Packed, drawn: Drawn, states: Tensor) -> Tensor:
    """Set the cut entries of the states to 0, (n, d) -> (n, d)."""
    # A fill, unlike a product, keeps the bits of the other entries. Unlike dropout, it does not scale.
    return states.masked_fill(packed.to_device(cut(packed, drawn, states.shape[-1])), 0.0)


def share(rate: float, count: int) -> int:
    """Return floor(rate * count) in decimal arithmetic: 0.29 * 100 is 29, but 28 with floats."""
    return int(Decimal(str(rate)) * count)


def choose(random: np.random.Generator, count: int, rate: float) -> np.ndarray:
    return random.choice(count, share(rate, count), replace=False, shuffle=False)


def no_choice(random: np.random.Generator, length: int, width: int, rate: float) -> np.ndarray:
    return np.empty(0, dtype=np.int64)


def choose_order(random: np.random.Generator, length: int, width: int, rate: float) -> np.ndarray:
    """Draw a permutation of all tokens, including special tokens."""
    return random.permutation(length)


def choose_tokens(random: np.random.Generator, length: int, width: int, rate: float) -> np.ndarray:
    """Draw indexes of tokens, including special tokens."""
    return choose(random, length, rate)


def choose_features(random: np.random.Generator, length: int, width: int, rate: float) -> np.ndarray:
    return choose(random, width, rate)


def choose_entries(random: np.random.Generator, length: int, width: int, rate: float) -> np.ndarray:
    """Draw indexes into the flattened rows of X(0) of the sentence.

    The paper drops each entry with a probability. Its code drops an exact number, as this function does.
    """
    return choose(random, length * width, rate)


def shuffled(packed: Packed, drawn: Drawn) -> Packed:
    """Permute the positions of each sentence; the order of its tokens does not change."""
    rows = np.concatenate(drawn) + np.repeat(first_tokens(packed.lengths), packed.lengths)
    return replace(packed, positions=packed.positions[packed.to_device(rows)])


def token_cut(packed: Packed, drawn: Drawn, width: int) -> np.ndarray:
    marks = [marked(places, length) for places, length in zip(drawn, packed.lengths, strict=True)]
    return np.concatenate(marks)[:, None]  # (n, 1)


def feature_cut(packed: Packed, drawn: Drawn, width: int) -> np.ndarray:
    marks = np.stack([marked(places, width) for places in drawn])  # (b, d)
    return marks.repeat(packed.lengths, axis=0)  # (n, d)


def entry_cut(packed: Packed, drawn: Drawn, width: int) -> np.ndarray:
    marks = [marked(places, length * width) for places, length in zip(drawn, packed.lengths, strict=True)]
    return np.concatenate(marks).reshape(-1, width)  # (n, d)


def marked(places: np.ndarray, count: int) -> np.ndarray:
    """Return a mask (count,) that is true at these indexes."""
    marks = np.zeros(count, dtype=bool)
    marks[places] = True
    return marks


VIEWS = {
    "none": View(no_choice),
    "shuffle": View(choose_order, move=shuffled),
    "token-cutoff": View(choose_tokens, cut=token_cut),
    "feature-cutoff": View(choose_features, cut=feature_cut),
    "dropout": View(choose_entries, cut=entry_cut),
}
