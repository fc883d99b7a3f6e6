"""Hard negatives: for each pair, texts of a corpus near its anchor, but not as near as its positive.

Letters in shapes: b queries, w corpus rows of a block, m candidates.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
import orjson

from sentkit.arrays import Float32, Float64, Indices, Rows
from sentkit.formats.rows import splice
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.kinds import KINDS, NEGATIVES, PAIR, SENTENCE, TRIPLET, string_in
from sentkit.formats.rows.rows import FIRST_BLOCK, Inputs, growing
from sentkit.formats.vectors.storage import SelectedVectors, every_vector, places_of_texts
from sentkit.formats.vectors.store import common_fields
from sentkit.formats.vectors.table import VectorTable, read_table
from sentkit.formats.vectors.vectors import VectorReader, VectorRow, without_vectors
from sentkit.metrics.neighbours.corpus import NAMING, left_out
from sentkit.metrics.neighbours.search import Searcher, at_least
from sentkit.metrics.similarity import SIMILARITIES, exact


class NearestBelow:
    """The `top` best rows of each query with a similarity below its limit, best first; ties in row order.

    `above` counts the pairs of a query and a row that reach the limit. As in `Nominees`, a block only selects
    candidates, and the exact similarity decides, here also between the two sides of the limit.
    """

    def __init__(self, searcher: Searcher, queries: Float32, top: int, limits: Float64) -> None:
        self.searcher, self.queries, self.top, self.limits = searcher, queries, top, limits
        self.margins = searcher.margins_of(queries)
        self.surely_below = searcher.floors(queries, limits)  # smaller block values are below the limit
        self.surely_above = self.surely_below + 2 * self.margins
        self.floors = np.full(len(queries), -np.inf, np.float32)
        self.query = np.empty(0, np.intp)
        self.row = np.empty(0, np.intp)
        self.value = np.empty(0, np.float32)
        self.above = 0
        with np.errstate(over="ignore"):  # the exact similarity decides beyond float32
            for start, block in searcher.blocks(queries):
                self._add(block, start)
        self.similarities = self._decide()

    def rows(self) -> list[Indices]:
        """The rows of each query."""
        return np.split(self.row, np.searchsorted(self.query, np.arange(1, len(self.queries))))

    def _add(self, block: Float32, start: int) -> None:
        query, column = at_least(block, self.floors)
        value = block[query, column]
        open_ = value <= self.surely_above[query]
        self.above += len(value) - int(np.count_nonzero(open_))
        self.query = np.concatenate([self.query, query[open_]])
        self.row = np.concatenate([self.row, column[open_] + start])
        self.value = np.concatenate([self.value, value[open_]])
        wanted = len(self.queries) * self.top
        if len(self.query) > 2 * wanted:
            self._thin()
        if len(self.query) > 4 * wanted:  # many candidates so near to the limit or to each other
            self._decide()

    def _thin(self) -> None:
        """Remove the candidates that are certainly worse than the `top` best below the limit."""
        below = np.flatnonzero(self.value < self.surely_below[self.query])
        below = below[np.lexsort((-self.value[below], self.query[below]))]
        begins = np.searchsorted(self.query[below], np.arange(len(self.queries) + 1))
        full = np.flatnonzero(np.diff(begins) >= self.top)
        self.floors[full] = self.value[below[begins[full] + self.top - 1]] - self.margins[full]
        self._keep(np.flatnonzero(self.value >= self.floors[self.query]))

    def _decide(self) -> Float64:
        """Keep only the best candidates below the limit, in order; return their exact similarities."""
        pairs = self.query, self.row
        similarities = exact(self.searcher.metric, self.queries, self.searcher.corpus, pairs)
        below = np.flatnonzero(similarities < self.limits[self.query])
        self.above += len(similarities) - len(below)
        order = below[np.lexsort((self.row[below], -similarities[below], self.query[below]))]
        begins = np.searchsorted(self.query[order], np.arange(len(self.queries)))
        order = order[np.arange(len(order)) - begins[self.query[order]] < self.top]
        self._keep(order)
        return similarities[order]

    def _keep(self, places: Indices) -> None:
        self.query, self.row, self.value = self.query[places], self.row[places], self.value[places]


@dataclass(frozen=True, slots=True)
class PairRow:
    row: Row  # without vectors, with the texts in "anchor" and "positive"
    anchor: str
    positive: str
    vectors: Float32  # (2, d)


def pair_blocks(inputs: Inputs, corpus: VectorTable, size: int, *, replace: bool) -> Iterator[list[PairRow]]:
    """The pairs of all files in blocks. The first blocks of a pipe are small."""
    reader = VectorReader(inputs)
    parse = PairParser(reader, common_fields(inputs), corpus, replace=replace)
    first = size if all(Path(path).is_file() for path in inputs.paths) else FIRST_BLOCK
    yield from growing(reader.read(parse), size, first)


class PairParser:
    """Converts rows with vectors to pairs. A row that has negatives is an error without `replace`."""

    def __init__(
        self, reader: VectorReader, fields: Mapping[str, str], corpus: VectorTable, *, replace: bool
    ) -> None:
        self.reader, self.fields, self.corpus, self.replace = reader, fields, corpus, replace

    def __call__(self, row: VectorRow) -> PairRow:
        kind = next((kind for kind in (PAIR, TRIPLET) if kind.vectors[0] in self.reader.names), None)
        if kind is None:
            advice = 'sentkit encode adds 2 vectors to a row with "text_a" and "text_b"'
            raise row.row.error("this row has 1 vector, expected 2", advice=advice)
        self.corpus.check_space(row, self.reader.emb, "pair")
        names = [self.fields.get(name, name) for name in kind.texts[:2]]
        anchor, positive = (string_in(row.row, name) for name in names)
        left = without_vectors(row.row, row.names)
        written = {*NEGATIVES.texts, TRIPLET.texts[2]}
        taken = sorted((written | {self.fields.get(name, name) for name in written}) - {*names})
        left.check_absent(taken, replace=self.replace)
        if left.values.keys() & taken:
            left = left.without(taken)
        line = splice.rename(left.line, dict(zip(names, NEGATIVES.texts, strict=False)), left.spans())
        return PairRow(Row(line, {}, row.row.source, row.row.number), anchor, positive, row.vectors[:2])


def lines(pair: PairRow, negatives: Sequence[str], *, triplets: bool) -> Iterator[bytes]:
    """The row with a list of its negatives, or one row for each negative."""
    if triplets:
        fields = [(b"negative", orjson.dumps(text)) for text in negatives]
    else:
        fields = [(b"negatives", orjson.dumps(negatives))]
    for field in fields:
        yield splice.append(pair.row.line, [field], empty=False) + b"\n"


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
        kept = places_of_texts(every_vector(table.vectors))
        used = np.arange(len(hashes)) if kept is None else kept
        self.left_out = left_out(table.path, len(hashes) - len(used), len(hashes))
        self.hashes, first = np.unique(hashes[used], return_index=True)
        first = used[first]
        self.repeated = len(used) - len(first)  # texts that an earlier row has
        self.places = np.sort(first)  # in the vectors of the table
        self.number = np.searchsorted(self.places, first)  # of each hash

    def vectors(self) -> Rows:
        vectors = every_vector(self.table.vectors)
        return vectors if len(self.places) == len(vectors) else SelectedVectors(vectors, self.places)

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
            return string_in(row, names[column])
        return string_in(row, next((name for name in names if name in row.values), names[0]))


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
            left = [row for row in rows.tolist() if row not in excluded and pair.vectors[0].any()]
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
