"""Hard negatives: for each pair, texts of a corpus near its anchor, but not as near as its
positive.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import orjson

from sentkit.arrays import Float32, Float64, Indices, Rows
from sentkit.formats.rows.block import Row, append_fields, rename_fields
from sentkit.formats.rows.kinds import KINDS, NEGATIVES, PAIR, SENTENCE, TRIPLET, string_value
from sentkit.formats.rows.rows import FIRST_BLOCK, Inputs
from sentkit.formats.vectors.arrays import SelectedVectors, every_vector, places_of_texts
from sentkit.formats.vectors.store import common_field_names
from sentkit.formats.vectors.vectors import (
    VectorBlock,
    VectorReader,
    in_blocks_of_size,
    joined_vector_blocks,
)
from sentkit.metrics.neighbours.corpus import NAMING, VectorTable, left_out, read_table
from sentkit.metrics.neighbours.search import Best, Searcher
from sentkit.metrics.similarity import SIMILARITIES, exact_similarities
from sentkit.metrics.zero_vectors import rows_with_zero_vector

if TYPE_CHECKING:
    from sentkit.metrics.device import Device


class Pair(NamedTuple):
    """The line of a pair, with its texts in "anchor" and "positive" and without vectors, and these
    texts.
    """

    line: bytes
    anchor: str
    positive: str


def pair_blocks(
    inputs: Inputs, corpus: VectorTable, size: int, *, replace: bool
) -> Iterator[VectorBlock]:
    """The rows of all files in blocks, with a Pair as text; rows with negatives are bad without
    `replace`.
    """
    reader = VectorReader(inputs)
    fields = common_field_names(inputs)

    def check(block: VectorBlock) -> VectorBlock:
        """Set the `Pair` of each row as its text; bad rows have other vectors or texts."""
        # Two vectors are those of a pair, or of the anchor and the positive of a triplet.
        has_pairs = PAIR.vector_names[0] in reader.names
        has_triplets = not has_pairs and TRIPLET.vector_names[0] in reader.names
        kind = TRIPLET if has_triplets else PAIR
        if kind.vector_names[0] not in reader.names:
            advice = 'sentkit encode adds 2 vectors to a row with "text_a" and "text_b"'
            block.rows.refuse_all("this row has 1 vector, expected 2", advice)
        corpus.refuse_other_space(block, reader.space_name, "pair")

        # The two texts get the names "anchor" and "positive". No row may have the fields that are
        # written, by their names or by those of --field.
        text_names = [fields.get(name, name) for name in kind.text_names[:2]]
        standard_names = dict(zip(text_names, NEGATIVES.text_names[:2], strict=True))
        names_to_write = {*NEGATIVES.text_names, TRIPLET.text_names[2]}
        names_to_write |= {fields.get(name, name) for name in names_to_write}
        names_that_must_be_absent = sorted(names_to_write.difference(text_names))

        def parse(row: Row) -> Pair:
            anchor, positive = (string_value(row, name) for name in text_names)
            row.check_absent(names_that_must_be_absent, replace=replace)
            stripped = row.without({*block.names, "_emb", *names_that_must_be_absent})
            line = rename_fields(stripped.line, standard_names, stripped.field_spans())
            return Pair(line, anchor, positive)

        block.rows.parse(parse)
        return block

    # From a pipe, a small first block lets the results of its rows appear early.
    is_files = all(Path(path).is_file() for path in inputs.paths)
    first_size = size if is_files else min(size, FIRST_BLOCK)
    yield from in_blocks_of_size(reader.blocks(check), joined_vector_blocks, size, first_size)


def lines(pair: Pair, negatives: Sequence[str], *, as_triplets: bool) -> Iterator[bytes]:
    """The row with a list of its negatives, or one row for each negative."""
    if as_triplets:
        fields = [(b"negative", orjson.dumps(text)) for text in negatives]
    else:
        fields = [(b"negatives", orjson.dumps(negatives))]
    for field in fields:
        yield append_fields(pair.line, [field], empty=False) + b"\n"


OWN_TEXTS = 2  # corpus texts that can be those of a pair
JUDGED = 4  # candidates that a judge scores, for each negative
Judge = Callable[[Sequence[tuple[str, str]]], Float64]  # the scores of pairs of texts


class Candidates:
    """The different texts of a corpus. The texts stay in the file; memory has a hash for each of
    them.
    """

    def __init__(self, inputs: Inputs) -> None:
        self.table = read_table(inputs)
        self.kind = next(kind for kind in KINDS if kind.vector_names == self.table.names)

        # A text of the corpus has the index of its vector. Those with a zero vector are left out.
        vectors = every_vector(self.table.vectors)
        columns = range(len(self.table.names))
        texts = (self._text(row, column) for row in self.table.every_row() for column in columns)
        hashes = np.fromiter(map(hash_of, texts), np.uint64, len(vectors))
        filled = places_of_texts(vectors)
        if filled is None:
            filled = np.arange(len(hashes))
        self.left_out = left_out(self.table.path, len(hashes) - len(filled), len(hashes))

        # Of equal texts, the first one is the candidate.
        # `np.unique` sorts the hashes, as the search in `find` needs it.
        self.hashes, first_indices = np.unique(hashes[filled], return_index=True)
        first_indices = filled[first_indices]
        self.vector_indices = np.sort(first_indices)  # of each candidate
        self.number_of_hash = np.searchsorted(self.vector_indices, first_indices)
        self.vectors: Rows = vectors  # of the candidates
        if len(self.vector_indices) < len(vectors):
            self.vectors = SelectedVectors(vectors, self.vector_indices)

    def find(self, *texts: str) -> set[int]:
        """The numbers of the candidates with these texts."""
        if not len(self.hashes):
            return set()
        hashes = np.array([hash_of(text) for text in texts], np.uint64)
        indices = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        is_equal = self.hashes[indices] == hashes
        return set(self.number_of_hash[indices[is_equal]].tolist())

    def text(self, number: int) -> str:
        row_index, column = divmod(int(self.vector_indices[number]), len(self.table.names))
        return self._text(self.table.row(row_index), column)

    def _text(self, row: Row, column: int) -> str:
        """The text of a vector of a row."""
        fields = self.table.fields
        if self.kind is not SENTENCE:
            name = self.kind.text_names[column]
            return string_value(row, fields.get(name, name))
        names = [fields.get(name, name) for name in NAMING]
        for name in names:
            if row.values.get(name) is not None:
                return string_value(row, name)
        return string_value(row, names[0])  # an error


@dataclass(kw_only=True)
class Miner:
    """Selects negatives for the pairs of blocks, and counts them and the texts that it does not
    use.
    """

    candidates: Candidates
    top: int
    skip: int
    margin: float
    metric: str
    judge: Judge | None
    device: "Device | None"
    rows: int = 0
    negatives: int = 0
    texts_of_pairs: int = 0  # corpus texts equal to the anchor or the positive of a pair
    above: int = 0  # other corpus texts that reach the limit of a pair
    judged: int = 0  # candidates that reach it in the scores of the judge
    with_zero: int = 0  # rows with a zero vector, which are not counted below
    short: int = 0  # rows with fewer negatives than requested, but at least one
    without: int = 0  # rows without a negative

    def __post_init__(self) -> None:
        self.searcher = Searcher(self.candidates.vectors, self.metric, self.device)
        # Candidates of a pair, without those of --skip.
        self.pool_size = self.top
        if self.judge is not None:
            self.pool_size = JUDGED * self.top
        depth = self.skip + self.pool_size + OWN_TEXTS
        self.depth = min(depth, len(self.candidates.vectors))  # nearest rows of an anchor
        self.at_once = self.searcher.queries_at_once(self.depth)

    def limits(self, positives: Float64) -> Float64:
        """A negative has a similarity below this limit; `positives` are the similarities of the
        positives.

        A margin below 0 is a difference.
        """
        if self.margin < 0:
            return positives + self.margin
        return positives - (1.0 - self.margin) * np.abs(positives)

    def mine(self, block: VectorBlock) -> Iterator[tuple[Pair, list[str]]]:
        """Each pair with the texts of its negatives, best first."""
        pairs: list[Pair] = block.rows.parsed
        anchors: Float32 = np.ascontiguousarray(block.vectors[:, 0])  # (n, d)
        limits = self.limits(SIMILARITIES[self.metric](anchors, block.vectors[:, 1]))  # (n,)

        # The nearest texts of the corpus below the limit. A blank anchor has none.
        is_filled = np.asarray(anchors.any(axis=1))
        nearest = Best(self.searcher, anchors[is_filled], self.depth, limits[is_filled])

        # The texts of a pair are not its negatives. `nearest` counts them if they reach the limit.
        excluded_numbers = [self.candidates.find(pair.anchor, pair.positive) for pair in pairs]
        self.texts_of_pairs += sum(map(len, excluded_numbers))
        counts_reaching_limit = self._counts_reaching_limit(anchors, limits, excluded_numbers)
        excluded_count = int(counts_reaching_limit[is_filled].sum())
        self.above += nearest.count_reaching_limit - excluded_count

        # The texts of the others, without those of --skip.
        candidates_of_pairs: list[list[str]] = [[] for _ in pairs]
        filled_indices = np.flatnonzero(is_filled).tolist()
        for index, near_rows in zip(filled_indices, nearest.rows(), strict=True):
            excluded = excluded_numbers[index]
            numbers = [number for number in near_rows.tolist() if number not in excluded]
            pool = numbers[self.skip :][: self.pool_size]
            candidates_of_pairs[index] = [self.candidates.text(number) for number in pool]

        # The best ones that the judge accepts.
        has_zero_vector = ~is_filled
        if self.metric == "cosine":  # the similarity of the positive is undefined, too
            has_zero_vector[rows_with_zero_vector(block.vectors[:, :2])] = True
        accepted_of_pairs = self._below_limit(pairs, candidates_of_pairs)
        for pair, accepted, has_zero in zip(
            pairs, accepted_of_pairs, has_zero_vector.tolist(), strict=True
        ):
            negatives = accepted[: self.top]
            self.rows += 1
            self.negatives += len(negatives)
            if has_zero:
                self.with_zero += 1
            elif not negatives:
                self.without += 1
            elif len(negatives) < self.top:
                self.short += 1
            yield pair, negatives

    def _counts_reaching_limit(
        self, anchors: Float32, limits: Float64, numbers_of_pairs: Sequence[set[int]]
    ) -> Indices:
        """How many of these candidates of each pair reach its limit, (n,)."""
        pair_count = len(numbers_of_pairs)
        counts = [len(numbers) for numbers in numbers_of_pairs]
        pair_indices = np.repeat(np.arange(pair_count), counts)
        numbers = np.array([*chain.from_iterable(numbers_of_pairs)], np.intp)
        similarities = exact_similarities(
            self.metric, anchors, self.searcher.corpus, (pair_indices, numbers)
        )
        is_reaching = similarities >= limits[pair_indices]
        return np.bincount(pair_indices[is_reaching], minlength=pair_count)

    def _below_limit(
        self, pairs: Sequence[Pair], candidates_of_pairs: Sequence[list[str]]
    ) -> Iterator[list[str]]:
        """The candidates of each pair that the judge scores below the limit of the positive;
        without a judge, all of them.
        """
        if self.judge is None:
            yield from candidates_of_pairs
            return

        # The anchor of each pair with its positive, and then with each candidate, in one call.
        judged_pairs = list[tuple[str, str]]()
        for pair, candidates in zip(pairs, candidates_of_pairs, strict=True):
            for text in [pair.positive, *candidates]:
                judged_pairs.append((pair.anchor, text))
        scores = self.judge(judged_pairs)

        start = 0
        for candidates in candidates_of_pairs:
            end = start + 1 + len(candidates)
            limit = self.limits(scores[start])  # by the score of the positive
            is_below = (scores[start + 1 : end] < limit).tolist()
            accepted = [text for text, below in zip(candidates, is_below, strict=True) if below]
            self.judged += len(candidates) - len(accepted)
            start = end
            yield accepted


def hash_of(text: str) -> int:
    """64 bits: in a corpus of a billion texts, two have the same hash with a probability of 3 %."""
    digest = blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
