"""The disturbed views of ConSERT (arXiv 2105.11741): what is drawn for a batch, and what the draw does to it.

A draw is made on the host for the whole batch, one array a sentence, so that a process can apply the slice of
its sentences. Views act at two places: a shuffle on the positions, a cut on X(0), after the embeddings' norm
and dropout. The attention mask stays: a cut token is still attended to, and still averaged.

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

Drawn = Sequence[np.ndarray]  # for each sentence the numbers that were drawn
Choose = Callable[[np.random.Generator, int, int, float], np.ndarray]  # of one sentence: length, width, rate
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
        """One array for each sentence of so many tokens; only the cuts have a use for the rate."""
        return [self.choose(random, length, width, rate) for length in lengths]

    def apply(self, packed: Packed, drawn: Drawn) -> tuple[Packed, Disturb | None]:
        """The batch to run, and the `disturb` to run it with."""
        assert len(drawn) == len(packed.lengths), "a draw for other sentences"
        moved = packed if self.move is None else self.move(packed, drawn)
        return moved, None if self.cut is None else partial(filled, self.cut, packed, drawn)


def filled(cut: Cut, packed: Packed, drawn: Drawn, states: Tensor) -> Tensor:
    """The states with 0 where they are cut, (n, d) -> (n, d)."""
    # Filled and not multiplied: what survives keeps its bits, and nothing is scaled up.
    return states.masked_fill(packed.to_device(cut(packed, drawn, states.shape[-1])), 0.0)


def share(rate: float, count: int) -> int:
    """floor(rate * count) of the rate as it is written: 0.29 of 100 is 29, where floats make it 28."""
    return int(Decimal(str(rate)) * count)


def choose(random: np.random.Generator, count: int, rate: float) -> np.ndarray:
    return random.choice(count, share(rate, count), replace=False, shuffle=False)


def no_choice(random: np.random.Generator, length: int, width: int, rate: float) -> np.ndarray:
    return np.empty(0, dtype=np.int64)


def choose_order(random: np.random.Generator, length: int, width: int, rate: float) -> np.ndarray:
    """A permutation of the places of all tokens, the special ones included."""
    return random.permutation(length)


def choose_tokens(random: np.random.Generator, length: int, width: int, rate: float) -> np.ndarray:
    """Places of tokens, which may be special ones."""
    return choose(random, length, rate)


def choose_features(random: np.random.Generator, length: int, width: int, rate: float) -> np.ndarray:
    return choose(random, width, rate)


def choose_entries(random: np.random.Generator, length: int, width: int, rate: float) -> np.ndarray:
    """Places in the sentence's rows of X(0) end to end.

    The paper drops each entry by a probability; its code, which we follow, drops an exact number.
    """
    return choose(random, length * width, rate)


def shuffled(packed: Packed, drawn: Drawn) -> Packed:
    """Each sentence's positions in the drawn order; its tokens stay where they lie."""
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
    """(count,): true at these places."""
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
