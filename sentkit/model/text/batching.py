"""Computes the vectors of tokenized texts, in batches of texts of similar length.

Batches depend only on the texts. The windows of a long text can be in several batches.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice, pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sentkit.model.text.tokens import Tokens

BUDGETS = {"cpu": 4096, "cuda": 65536}  # tokens in a batch
Arrays = list[NDArray[np.float32]]  # one for each readout


class Reader(Protocol):
    """The part of an encoder that computes vectors."""

    @property
    def groups_at_once(self) -> int: ...  # 0: the caller encodes one group after the other

    def read(self, batches: Iterable[Sequence[Tokens]]) -> Iterator[Arrays]: ...  # (b, d), of all windows

    def finish(self, vectors: Arrays) -> Arrays: ...  # applies the operations after the readout: (b, width)


def encode_texts(tokens: Sequence[Tokens], encoder: Reader, budget: int) -> Arrays:
    """Return one (m, d) array for each readout, in the order of the texts and of their windows."""
    parts, plan = plan_batches(tokens, budget)
    rows = ranges([part.results for part in parts])
    averaged = any(each.windows is not None and each.windows.weights for each in tokens)
    arrays: Arrays = []
    unfinished: Arrays = []
    for batch, read in zip(plan, encoder.read([parts[k] for k in batch] for batch in plan), strict=True):
        chosen = [*chain.from_iterable(rows[place] for place in batch)]
        put(arrays, chosen, encoder.finish(read), rows[-1].stop)
        if averaged:
            put(unfinished, chosen, read, rows[-1].stop)
    return join_windows(tokens, rows, arrays, unfinished, encoder) if len(parts) > len(tokens) else arrays


def join_windows(
    tokens: Sequence[Tokens], rows: Sequence[range], arrays: Arrays, unfinished: Arrays, encoder: Reader
) -> Arrays:
    """Return the vectors in the order of the texts, with means of windows in place of the windows.

    The operations after the readout apply to the mean, so that it has unit length if the space requires it.
    """
    others = iter(rows[len(tokens) :])
    order: list[int] = []
    averaged: list[tuple[list[int], tuple[float, ...]]] = []
    for each, first in zip(tokens, rows, strict=False):
        own = [*first, *chain.from_iterable(islice(others, len(each.parts) - 1))]
        if each.windows is not None and each.windows.weights:
            averaged.append((own, each.windows.weights))
            own = own[:1]
        order += own
    if averaged:
        means = [
            np.stack([mean_of(values[own], np.array(weights)) for own, weights in averaged])
            for values in unfinished
        ]
        put(arrays, [own[0] for own, _ in averaged], encoder.finish(means), len(arrays[0]))
    return [values[order] for values in arrays]


def mean_of(vectors: NDArray[np.float32], weights: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the weighted mean of (k, d), computed in float64; zeros if all weights are 0."""
    mean: NDArray[np.float64] = weights @ vectors / (weights.sum() or 1.0)
    return mean.astype(np.float32)


def put(arrays: Arrays, rows: Sequence[int], vectors: Arrays, count: int) -> None:
    """Write rows of each array. Empty `arrays` are created first, with `count` rows."""
    if not arrays:
        arrays += [np.empty((count, values.shape[1]), np.float32) for values in vectors]
    for array, values in zip(arrays, vectors, strict=True):
        array[rows] = values


def ranges(sizes: Iterable[int]) -> list[range]:
    """Return consecutive ranges of these sizes, from 0."""
    ends = [0, *accumulate(sizes)]
    return [range(start, end) for start, end in pairwise(ends)]


def plan_batches(tokens: Sequence[Tokens], budget: int) -> tuple[list[Tokens], list[list[int]]]:
    """Return the sequences that the model reads, and batches of their indexes.

    The first windows are in the batches that the truncated texts would have. So, if the windows have the
    maximum length, long texts do not change the vectors of other texts, not even by rounding.
    """
    others = [*chain.from_iterable(each.parts[1:] for each in tokens)]
    plan = batches([len(each.ids) for each in tokens], budget)
    later = batches([len(each.ids) for each in others], budget)
    return [*tokens, *others], plan + [[place + len(tokens) for place in batch] for batch in later]


def batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Return batches of indexes, longest first, of at most `budget` tokens; a longer text is one batch."""
    order = sorted(range(len(lengths)), key=lambda place: -lengths[place])  # the sort is stable
    chosen, room = list[list[int]](), 0
    for place in order:
        if not chosen or lengths[place] > room:
            chosen.append([])
            room = budget
        chosen[-1].append(place)
        room -= lengths[place]
    return chosen


def default_budget(device: str) -> int:
    """Return the default number of tokens in a batch: it fits the caches of a CPU or fills a GPU."""
    return BUDGETS["cuda" if device.startswith("cuda") else "cpu"]
