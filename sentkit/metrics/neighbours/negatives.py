"""Hard negatives: for each pair, texts of a corpus near its anchor, but not as near as its positive."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import orjson

from sentkit.arrays import Float32, Float64, Rows
from sentkit.formats.rows.block import Row, append_fields, rename_fields
from sentkit.formats.rows.kinds import KINDS, NEGATIVES, PAIR, SENTENCE, TRIPLET, string_in
from sentkit.formats.rows.rows import FIRST_BLOCK, Inputs
from sentkit.formats.vectors.arrays import SelectedVectors, every_vector, places_of_texts
from sentkit.formats.vectors.store import common_fields
from sentkit.formats.vectors.vectors import VectorBlock, VectorReader, joined, resized
from sentkit.metrics.neighbours.corpus import NAMING, VectorTable, left_out, read_table
from sentkit.metrics.neighbours.search import Best, Searcher
from sentkit.metrics.similarity import SIMILARITIES, exact

if TYPE_CHECKING:
    from sentkit.metrics.device import Device


class Pair(NamedTuple):
    """The line of a pair, with its texts in "anchor" and "positive" and without vectors, and these texts."""

    line: bytes
    anchor: str
    positive: str


def pair_blocks(inputs: Inputs, corpus: VectorTable, size: int, *, replace: bool) -> Iterator[VectorBlock]:
    """The rows of all files in blocks, with a Pair as text; rows with negatives are bad without `replace`."""
    reader, fields = VectorReader(inputs), common_fields(inputs)

    def check(block: VectorBlock) -> VectorBlock:
        kind = next((kind for kind in (PAIR, TRIPLET) if kind.vectors[0] in reader.names), PAIR)
        if kind.vectors[0] not in reader.names:
            advice = 'sentkit encode adds 2 vectors to a row with "text_a" and "text_b"'
            block.rows.refuse_all("this row has 1 vector, expected 2", advice)
        corpus.refuse_others(block, reader.emb, "pair")
        names = [fields.get(name, name) for name in kind.texts[:2]]
        written = {*NEGATIVES.texts, TRIPLET.texts[2]}
        taken = sorted((written | {fields.get(name, name) for name in written}) - {*names})
        ours = dict(zip(names, NEGATIVES.texts, strict=False))

        def parse(row: Row) -> Pair:
            anchor, positive = (string_in(row, name) for name in names)
            row.check_absent(taken, replace=replace)
            left = row.without({*block.names, "_emb", *taken})
            return Pair(rename_fields(left.line, ours, left.spans()), anchor, positive)

        block.rows.parse(parse)
        return block

    first = size if all(Path(path).is_file() for path in inputs.paths) else min(size, FIRST_BLOCK)
    yield from resized(reader.blocks(check), joined, size, first)


def lines(pair: Pair, negatives: Sequence[str], *, triplets: bool) -> Iterator[bytes]:
    """The row with a list of its negatives, or one row for each negative."""
    if triplets:
        fields = [(b"negative", orjson.dumps(text)) for text in negatives]
    else:
        fields = [(b"negatives", orjson.dumps(negatives))]
    for field in fields:
        yield append_fields(pair.line, [field], empty=False) + b"\n"


OWN_TEXTS = 2  # corpus texts that can be those of a pair
JUDGED = 4  # candidates that a judge scores, for each negative
Judge = Callable[[Sequence[tuple[str, str]]], Float64]  # the scores of pairs of texts


class Candidates:
    """The different texts of a corpus. The texts stay in the file; memory has a hash for each of them."""

    def __init__(self, inputs: Inputs) -> None:
        self.table = table = read_table(inputs)
        self.kind = next(kind for kind in KINDS if kind.vectors == table.names)
        vectors, columns = every_vector(table.vectors), range(len(table.names))
        texts = (self._text(row, column) for row in table.every_row() for column in columns)
        hashes = np.fromiter(map(hash_of, texts), np.uint64, len(vectors))
        kept = places_of_texts(vectors)
        used = np.arange(len(hashes)) if kept is None else kept
        self.left_out = left_out(table.path, len(hashes) - len(used), len(hashes))
        self.hashes, first = np.unique(hashes[used], return_index=True)
        first = used[first]
        self.places = np.sort(first)  # in the vectors of the table
        self.number = np.searchsorted(self.places, first)  # of each hash
        all_used = len(self.places) == len(vectors)
        self.vectors: Rows = vectors if all_used else SelectedVectors(vectors, self.places)

    def find(self, *texts: str) -> set[int]:
        """The numbers of the candidates with these texts."""
        hashed = np.array([*map(hash_of, texts)], np.uint64)
        places = np.minimum(np.searchsorted(self.hashes, hashed), len(self.hashes) - 1)
        return {*self.number[places[self.hashes[places] == hashed]].tolist()} if len(self.hashes) else set()

    def text(self, number: int) -> str:
        place, column = divmod(int(self.places[number]), len(self.table.names))
        return self._text(self.table.row(place), column)

    def _text(self, row: Row, column: int) -> str:
        fields = self.table.fields
        names = [fields.get(name, name) for name in (NAMING if self.kind is SENTENCE else self.kind.texts)]
        if self.kind is not SENTENCE:
            return string_in(row, names[column])
        return string_in(row, next((name for name in names if name in row.values), names[0]))


@dataclass(kw_only=True)
class Miner:
    """Selects negatives for the pairs of blocks, and counts them and the texts that it does not use."""

    candidates: Candidates
    top: int
    skip: int
    margin: float
    metric: str
    judge: Judge | None
    device: "Device | None"
    rows: int = 0
    negatives: int = 0
    own_texts: int = 0  # corpus texts equal to the anchor or the positive of a pair
    above: int = 0  # other corpus texts that reach the limit of a pair
    judged: int = 0  # candidates that reach it in the scores of the judge
    short: int = 0  # rows with fewer negatives than wanted, but at least one
    without: int = 0  # rows without a negative

    def __post_init__(self) -> None:
        self.searcher = Searcher(self.candidates.vectors, self.metric, self.device)
        self.pool = self.top if self.judge is None else JUDGED * self.top  # without those of --skip
        self.depth = self.skip + self.pool + OWN_TEXTS
        self.at_once = self.searcher.at_once(self.depth)

    def limits(self, own: Float64) -> Float64:
        """A negative has a similarity below this limit; `own` are the similarities of the positives.

        A margin below 0 is a difference.
        """
        return own + self.margin if self.margin < 0 else own - (1.0 - self.margin) * np.abs(own)

    def mine(self, block: VectorBlock) -> Iterator[tuple[Pair, list[str]]]:
        """Each pair with the texts of its negatives, best first."""
        pairs = [pair for (pair,) in block.rows.texts]
        anchors: Float32 = np.ascontiguousarray(block.vectors[:, 0])
        limits = self.limits(SIMILARITIES[self.metric](anchors, block.vectors[:, 1]))
        filled = np.asarray(anchors.any(axis=1))  # a blank anchor has no negatives
        nearest = Best(self.searcher, anchors[filled], self.depth, limits[filled])
        own = [self.candidates.find(pair.anchor, pair.positive) for pair in pairs]
        queries = np.repeat(np.arange(len(pairs)), [*map(len, own)])
        numbers = np.array([number for each in own for number in each], np.intp)
        reached = exact(self.metric, anchors, self.searcher.corpus, (queries, numbers)) >= limits[queries]
        reached &= filled[queries]
        self.own_texts += len(numbers)
        self.above += nearest.above - int(np.count_nonzero(reached))
        texts, found = [], iter(nearest.rows())
        for excluded, is_filled in zip(own, filled.tolist(), strict=True):
            rows = next(found).tolist() if is_filled else ()
            left = [row for row in rows if row not in excluded]
            texts.append([self.candidates.text(row) for row in left[self.skip :][: self.pool]])
        for pair, candidates in zip(pairs, self._judged(pairs, texts), strict=True):
            chosen = candidates[: self.top]
            self.rows += 1
            self.negatives += len(chosen)
            self.short += 0 < len(chosen) < self.top
            self.without += not chosen
            yield pair, chosen

    def _judged(self, pairs: Sequence[Pair], texts: Sequence[list[str]]) -> Iterator[list[str]]:
        """The texts that the judge scores below the limit of the positive; without a judge, all."""
        if self.judge is None:
            yield from texts
            return
        both = [
            (pair.anchor, text)
            for pair, own in zip(pairs, texts, strict=True)
            for text in (pair.positive, *own)
        ]
        scores, start = self.judge(both), 0
        for own in texts:
            positive, others = scores[start], scores[start + 1 : start + 1 + len(own)]
            below = others < self.limits(positive)
            self.judged += len(own) - int(np.count_nonzero(below))
            start += 1 + len(own)
            yield [text for text, kept in zip(own, below.tolist(), strict=True) if kept]


def hash_of(text: str) -> int:
    """64 bits: in a corpus of a billion texts, two have the same hash with a probability of 3 %."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
