"""Hard negatives: for each pair, texts of a corpus near its anchor, but not as near as its positive."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from sentkit.arrays import Float32, Float64, Indices, Rows
from sentkit.formats.rows.kinds import KINDS, SENTENCE
from sentkit.formats.rows.rows import Inputs, Row
from sentkit.formats.vectors.storage import every_vector
from sentkit.formats.vectors.table import read_table
from sentkit.metrics.neighbours.below import NearestBelow
from sentkit.metrics.neighbours.corpus import NAMING
from sentkit.metrics.neighbours.pair_rows import PairRow, text_of
from sentkit.metrics.neighbours.search import Searcher
from sentkit.metrics.rounding import exact
from sentkit.metrics.similarity import SIMILARITIES

OWN_TEXTS = 2  # corpus texts that can be those of a pair


@dataclass(frozen=True, slots=True)
class MiningOptions:
    top: int = 3
    skip: int = 0
    margin: float = 0.95
    relative: bool = True
    metric: str = "cosine"

    def limits(self, own: Float64) -> Float64:
        """A negative has a similarity below this limit; `own` are the similarities of the positives."""
        return own - (1.0 - self.margin) * np.abs(own) if self.relative else own - self.margin


@dataclass(slots=True)
class MiningCounts:
    rows: int = 0
    negatives: int = 0
    own_texts: int = 0  # corpus texts equal to the anchor or the positive of a pair
    above: int = 0  # other corpus texts that reach the limit of a pair
    short: int = 0  # rows with fewer negatives than wanted, but at least one
    without: int = 0  # rows without a negative


class Candidates:
    """The different texts of a corpus. The texts stay in the file; memory has a hash for each of them."""

    def __init__(self, inputs: Inputs) -> None:
        self.table = table = read_table(inputs, lambda row: None)
        self.kind = next(kind for kind in KINDS if kind.vectors == table.names)
        hashes = np.empty(len(table) * len(table.names), np.uint64)
        for place in range(len(table)):
            row = table.row(place)
            for column in range(len(table.names)):
                hashes[place * len(table.names) + column] = hash_of(self._text(row, column))
        self.hashes, first = np.unique(hashes, return_index=True)
        self.repeated = len(hashes) - len(first)  # texts that an earlier row has
        self.places = np.sort(first)  # in the vectors of the table
        self.number = np.searchsorted(self.places, first)  # of each hash

    def vectors(self) -> Rows:
        vectors = every_vector(self.table.vectors)
        return DistinctRows(vectors, self.places) if self.repeated else vectors

    def find(self, text: str) -> int | None:
        """The number of a candidate with this text."""
        hashed = np.uint64(hash_of(text))
        place = int(np.searchsorted(self.hashes, hashed))
        found = place < len(self.hashes) and self.hashes[place] == hashed
        return int(self.number[place]) if found else None

    def text(self, number: int) -> str:
        place, column = divmod(int(self.places[number]), len(self.table.names))
        return self._text(self.table.row(place), column)

    def _text(self, row: Row, column: int) -> str:
        fields = self.table.fields
        names = [fields.get(name, name) for name in (NAMING if self.kind is SENTENCE else self.kind.texts)]
        if self.kind is not SENTENCE:
            return text_of(row, names[column])
        return text_of(row, next((name for name in names if name in row.values), names[0]))


class DistinctRows:
    """The rows of vectors at some places, without a copy of all of them."""

    def __init__(self, vectors: Rows, places: Indices) -> None:
        self.vectors, self.places = vectors, places
        self.shape = len(places), vectors.shape[1]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, places: slice | Indices, /) -> Float32:
        return self.vectors[self.places[places]]


class Miner:
    """A corpus and a selection of negatives. It answers blocks of pairs and counts unused texts."""

    def __init__(self, candidates: Candidates, options: MiningOptions) -> None:
        self.candidates, self.options = candidates, options
        self.searcher = Searcher(candidates.vectors(), options.metric)
        self.depth = options.skip + options.top + OWN_TEXTS
        self.at_once = self.searcher.at_once(self.depth)
        self.counts = MiningCounts()

    def mine(self, pairs: Sequence[PairRow]) -> Iterator[tuple[PairRow, list[str]]]:
        """Each pair with the texts of its negatives, best first."""
        vectors = np.stack([pair.vectors for pair in pairs])
        anchors = np.ascontiguousarray(vectors[:, 0])
        limits = self.options.limits(SIMILARITIES[self.options.metric](anchors, vectors[:, 1]))
        nearest = NearestBelow(self.searcher, anchors, self.depth, limits)
        own = [self._own(pair) for pair in pairs]
        self._count_above(nearest, own, limits)
        for pair, rows, excluded in zip(pairs, nearest.rows(), own, strict=True):
            left = [row for row in rows.tolist() if row not in excluded]
            chosen = left[self.options.skip :][: self.options.top]
            self.counts.rows += 1
            self.counts.negatives += len(chosen)
            self.counts.short += 0 < len(chosen) < self.options.top
            self.counts.without += not chosen
            yield pair, [self.candidates.text(row) for row in chosen]

    def _own(self, pair: PairRow) -> set[int]:
        """The candidates with the text of the anchor or the positive."""
        found = {self.candidates.find(text) for text in (pair.anchor, pair.positive)}
        return {number for number in found if number is not None}

    def _count_above(self, nearest: NearestBelow, own: Sequence[set[int]], limits: Float64) -> None:
        """Count the candidates that reach the limit, without the texts of the pair itself."""
        queries = np.array([query for query, numbers in enumerate(own) for _ in numbers], np.intp)
        numbers = np.array([number for each in own for number in each], np.intp)
        pairs = queries, numbers
        similarities = exact(self.options.metric, nearest.queries, self.searcher.corpus, pairs)
        self.counts.own_texts += len(numbers)
        self.counts.above += nearest.above - int(np.count_nonzero(similarities >= limits[queries]))


def hash_of(text: str) -> int:
    """64 bits: in a corpus of a billion texts, two have the same hash with a probability of 3 %."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
