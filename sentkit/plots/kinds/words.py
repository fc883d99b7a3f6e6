"""The word vectors of a model by the frequency of their tokens (a table of ConSERT and BERT-flow)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sentkit.arrays import Float32, Float64, Indices
from sentkit.plots.picture import Axis, Panel, Picture, Series

FREQUENT = 500  # ranks that are all drawn
EDGES = (1, 100, 500, 5000)  # first ranks of the bins
AT_ONCE = 256  # tokens whose distances are computed at once


@dataclass(frozen=True, slots=True)
class WordOptions:
    neighbours: int = 3
    most: int = 2000  # tokens
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Words:
    """The tokens of a model that occur in the texts, from the most frequent one."""

    vectors: Float32  # (v, d)
    counts: Indices  # (v,)
    names: Sequence[str]


def words(found: Words, options: WordOptions) -> Picture:
    count = len(found.names)
    places = drawn(count, options)
    wide = found.vectors[places].astype(np.float64)
    norms: Float64 = np.sqrt(np.vecdot(wide, wide))
    neighbours = min(options.neighbours, count - 1)
    distances = mean_distances(found.vectors, places, neighbours)
    fields = {
        "token": [found.names[place] for place in places],
        "count": found.counts[places].tolist(),
    }
    ranks = places.astype(np.float64) + 1
    panels = []
    for name, label, values in (
        ("norm", "length of the vector", norms),
        ("distance", f"distance of {neighbours} nearest tokens", distances),
    ):
        points = Series("", ranks, values, faint=True, fields=fields)
        panels.append(
            Panel(
                Axis("rank", "rank of the token", log=True), Axis(name, label), (points, means(ranks, values))
            )
        )
    return Picture(tuple(panels))


def drawn(count: int, options: WordOptions) -> Indices:
    """The most frequent tokens, and a random sample of the others; in order."""
    frequent = min(count, FREQUENT, options.most)
    rest = np.arange(frequent, count)
    chosen = min(len(rest), options.most - frequent)
    random = np.random.Generator(np.random.Philox(options.seed))
    return np.concatenate([np.arange(frequent), np.sort(random.choice(rest, chosen, replace=False))])


def mean_distances(vectors: Float32, places: Indices, neighbours: int) -> Float64:
    """The mean distance of each of these tokens to its nearest tokens."""
    wide = vectors.astype(np.float64)
    squares = np.vecdot(wide, wide)
    means = np.empty(len(places))
    for start in range(0, len(places), AT_ONCE):
        own = places[start : start + AT_ONCE]
        block = squares[own, np.newaxis] + squares - 2 * wide[own] @ wide.T
        block[np.arange(len(own)), own] = np.inf  # not the token itself
        nearest = np.partition(block, neighbours - 1, axis=1)[:, :neighbours]
        means[start : start + len(own)] = np.sqrt(np.maximum(nearest, 0)).mean(axis=1)
    return means


def means(ranks: Float64, values: Float64) -> Series:
    """The mean of each bin of ranks, at the geometric centre of the bin."""
    bins = np.searchsorted(EDGES, ranks, side="right") - 1
    present = np.unique(bins)
    last = [min(edge - 1, ranks.max()) for edge in (*EDGES[1:], np.inf)]
    centres = np.array([np.sqrt(EDGES[each] * last[each]) for each in present])
    return Series("mean", centres, np.array([values[bins == each].mean() for each in present]), "line")
