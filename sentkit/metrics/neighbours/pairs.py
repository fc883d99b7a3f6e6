"""Pairs of similar rows: the closest ones of a table, those that reach a threshold, and what they connect.

Letters in shapes: n rows, d dimensions, b rows of a block, k pairs found.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import orjson

from sentkit.arrays import Float32, Float64, Indices, Rows
from sentkit.digits import significant
from sentkit.errors import DataError, UsageError
from sentkit.formats.files import is_safetensors, readable
from sentkit.formats.outputs.outputs import open_output
from sentkit.formats.rows.block import Row, RowBlock, block_of, empty_block
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.store import common_fields, common_spec, with_fields
from sentkit.formats.vectors.vectors import VectorBlock, VectorReader, joined, one_vector, resized
from sentkit.formats.vectors.writers import VectorOutput, open_writers, refuse_existing_fields
from sentkit.metrics.neighbours.corpus import SearchCorpus, naming_field, read_table, shown_fields
from sentkit.metrics.neighbours.search import MAX_CANDIDATES, Found, Searcher
from sentkit.metrics.similarity import BLOCKS

if TYPE_CHECKING:
    from sentkit.metrics.device import Device

FIRST_ROWS = 32  # rows whose nearest rows give the first limit of `closest_pairs`
ROWS_PER_SEARCH = 1024  # rows that are compared at once with all later rows
MATRIX_ELEMENTS = 4_194_304  # elements of a block of the matrix
LARGEST_MATRIX = 20_000  # rows
CEILING = {"cosine": 1.0, "dot": math.inf, "euclidean": 0.0, "manhattan": 0.0}  # the maximum similarity

Fields = dict[str, bytes]  # JSON values by name


class Pairs(NamedTuple):
    """Row numbers left < right, and similarities."""

    left: Indices  # (k,)
    right: Indices  # (k,)
    similarities: Float64  # (k,)


def closest_pairs(vectors: Float32, top: int, metric: str = "cosine") -> Pairs:
    """The `top` most similar pairs of rows, or all if there are fewer; best first, ties in row order.

    The nearest rows of the first rows give a limit. Pairs of later rows must exceed it, and it rises.
    """
    searcher = Searcher(vectors, metric)
    first = min(FIRST_ROWS, len(vectors), searcher.at_once(top + FIRST_ROWS))
    rows, similarities = searcher.nearest(
        vectors[:first], top + first
    )  # among them the `top` best later rows
    left = np.repeat(np.arange(first), rows.shape[1])
    later = left < rows.ravel()
    best = best_of([Pairs(left[later], rows.ravel()[later], similarities.ravel()[later])], top)
    for start in range(first, len(vectors), ROWS_PER_SEARCH) if top > 0 else ():
        least = -math.inf if len(best.left) < top else math.nextafter(best.similarities[-1], math.inf)
        if least > CEILING[metric]:
            break
        parts, count = [best], 0
        for pairs in later_pairs(searcher, start, least):
            parts.append(pairs)
            count += len(pairs.left)
            if count > max(top, MAX_CANDIDATES):
                parts, count = [best_of(parts, top)], 0
        best = best_of(parts, top)
    return best


def best_of(parts: list[Pairs], count: int) -> Pairs:
    left, right, similarities = map(np.concatenate, zip(*parts, strict=True))
    order = np.lexsort((right, left, -similarities))[: max(0, count)]
    return Pairs(left[order], right[order], similarities[order])


def pairs_reaching(
    vectors: Rows, threshold: float, metric: str = "cosine", device: "Device | None" = None
) -> Iterator[Pairs]:
    """The pairs that reach the threshold, in the order of (left, right), some left rows at a time."""
    searcher = Searcher(vectors, metric, device)
    for start in range(0, len(vectors), ROWS_PER_SEARCH):
        yield from later_pairs(searcher, start, threshold)


def later_pairs(searcher: Searcher, start: int, threshold: float) -> Iterator[Pairs]:
    """The pairs of the block of rows that begins at `start` with later rows."""
    queries = searcher.corpus[start : start + ROWS_PER_SEARCH]
    for _, left, right, similarities in searcher.pairs(queries, threshold, start, start):
        later = left < right
        yield Pairs(left[later], right[later], similarities[later])


def records(inputs: Inputs, rows: RowBlock, pairs: Pairs) -> Iterator[dict[str, Any]]:
    """The names and numbers of the rows of each pair, and its similarity."""
    fields = common_fields(inputs)
    for left, right, similarity in zip(*pairs, strict=True):
        names, places = dict[str, Any](), dict[str, Any]()
        for side, row in (("_a", rows.row(left)), ("_b", rows.row(right))):
            names |= {f"{ours}{side}": row.values[name] for ours, name in naming_field(row, fields).items()}
            places |= {f"{name}{side}": value for name, value in inputs.place_of(row).items()}
        yield {**names, **places, "similarity": float(similarity)}


def whole(blocks: Iterable[VectorBlock], most: int | None = None) -> tuple[RowBlock, Float32]:
    """All rows without their vectors, and the first vectors (n, d)."""
    kept, parts = empty_block(), [np.empty((0, 1), np.float32)]
    for block in blocks:
        kept.extend(block.rows.without({*block.names, "_emb"}))
        parts.append(block.vectors[:, 0])
        if most is not None and len(kept) > most:
            raise UsageError(f"--matrix accepts up to {most} rows; the input has more")
    return kept, np.concatenate(parts[1:] or parts)


def matrix(blocks: Iterable[VectorBlock], *, metric: str) -> Iterator[tuple[Row, Float32]]:
    """Each row with its similarities to all rows."""
    rows, vectors = whole(blocks, most=LARGEST_MATRIX)
    metric_of_blocks = BLOCKS[metric]
    prepared = metric_of_blocks.prepare(vectors)
    size = max(1, MATRIX_ELEMENTS // max(1, len(vectors)))
    for start in range(0, len(vectors), size):
        lines = metric_of_blocks.compare(prepared[start : start + size], prepared)
        for place, line in enumerate(lines, start):
            yield rows.row(place), line


@dataclass(frozen=True, slots=True)
class Near:
    """A row, and rows of one table that are near it, in their order."""

    number: int  # of the row in its file
    shown: Mapping[str, bytes]  # fields of the row
    corpus: SearchCorpus
    places: Indices  # in the table, (k,)
    similarities: Float64  # (k,)

    def pair(self, place: int, *, several: bool) -> Fields:
        """The fields of the pair with the row at this index of `places`; `several`: with the file."""
        other = int(self.places[place])
        sides = {"_a": self.shown, "_b": self.corpus.shown(other)}
        fields = {f"{name}{side}": value for side, row in sides.items() for name, value in row.items()}
        if several:
            fields["file_b"] = orjson.dumps(readable(self.corpus.path))
        rows = {"row_a": b"%d" % self.number, "row_b": b"%d" % self.corpus.table.numbers[other]}
        return {**fields, **rows, "similarity": b"%a" % significant(float(self.similarities[place]))}


@dataclass
class Duplicates:
    """The rows of a file, and those near them: later rows of this file, or rows of other files."""

    inputs: Inputs
    threshold: float
    metric: str
    device: "Device | None"
    show: Sequence[str]
    against: Sequence[Inputs] = ()  # the other files
    new: Sequence[str] = ()  # fields that a row must not have
    compared: Callable[[int], None] = lambda rows: None  # gets the number of compared rows

    def __post_init__(self) -> None:
        def check(block: VectorBlock) -> VectorBlock:
            refuse_existing_fields(one_vector(block).rows, self.new, replace=False)
            return block

        tables = [read_table(each, check) for each in self.against or [self.inputs]]
        self.corpora = [SearchCorpus(table, self.show) for table in tables]
        self.corpus, self.several = self.corpora[0], len(tables) > 1
        unseen, rows = set() if self.against else {*self.show}, iter(range(len(tables[0])))
        while unseen and (place := next(rows, None)) is not None:  # most corpora have them in the first row
            unseen -= self.corpus.shown(place).keys()
        if unseen:
            raise DataError(f'no row has "{min(unseen)}"', source=self.corpus.path)

    def near(self) -> Iterator[Near]:
        """Each row that has rows near it, with those of one file."""
        return self._near_others() if self.against else self._near_later()

    def unique(self) -> Iterator[VectorBlock]:
        """The first row of each group, or the rows without a near row; the vectors are not in the lines."""
        return self._far_rows() if self.against else self._first_rows()

    def _near_later(self) -> Iterator[Near]:
        for left, right, similarities in self._pairs():
            places, begins = np.unique(left, return_index=True)
            found = (np.split(each, begins[1:]) for each in (right, similarities))
            for place, *others in zip(places.tolist(), *found, strict=True):
                number = self.corpus.table.numbers[place]
                yield Near(number, self.corpus.shown(place), self.corpus, *others)

    def _pairs(self) -> Iterator[Pairs]:
        """Some pairs at a time, at least one."""
        done, in_table = 0, self.corpus.in_table
        for left, right, similarities in pairs_reaching(
            self.corpus.vectors, self.threshold, self.metric, self.device
        ):
            if len(left):
                yield Pairs(in_table(left), in_table(right), similarities)
                self.compared(int(left[-1]) + 1 - done)
                done = int(left[-1]) + 1
        self.compared(len(self.corpus.vectors) - done)

    def groups(self) -> Indices:
        """The place in the table of the first row of the group of each row."""
        first = np.arange(len(self.corpus.table))
        for left, right, _ in self._pairs():
            first = connected(first, left, right)
        return first

    def grouped(self, *, replace: bool) -> Iterator[bytes]:
        """Each row with the number of the first row of its group."""
        table = self.corpus.table
        for row, first in zip(table.every_row(), self.groups().tolist(), strict=True):
            yield row.add([(b"group", b"%d" % table.numbers[first])], replace=replace)

    def _first_rows(self) -> Iterator[VectorBlock]:
        table, firsts = self.corpus.table, np.unique(self.groups())
        for start in range(0, len(firsts), ROWS_PER_SEARCH):
            places = firsts[start : start + ROWS_PER_SEARCH]
            rows = block_of(map(table.row, places.tolist()))
            yield VectorBlock(rows, table.vectors[places], table.names, table.emb)

    def _blocks(self) -> Iterator[tuple[VectorBlock, Iterator[Sequence[Found]]]]:
        """Blocks of rows, and for each row the near rows of each file, to be read before the next block."""
        reader = VectorReader(self.inputs)
        searchers = [Searcher(corpus.vectors, self.metric, self.device) for corpus in self.corpora]

        def check(block: VectorBlock) -> VectorBlock:
            one_vector(block)
            for corpus in self.corpora:
                corpus.table.refuse_others(block, reader.emb, "row")
            return block

        none = [Found(np.empty(0, np.intp), np.empty(0))] * len(self.corpora)
        for block in resized(reader.blocks(check), joined, ROWS_PER_SEARCH):
            vectors = block.vectors[:, 0]
            filled = vectors.any(axis=1)
            found = [searcher.reaching(vectors[filled], self.threshold) for searcher in searchers]
            reached = zip(*found, strict=True)
            yield block, (next(reached) if is_filled else none for is_filled in filled)
            self.compared(len(block))

    def _near_others(self) -> Iterator[Near]:
        fields = self.corpora[0].table.fields
        for block, found in self._blocks():
            for place, reached in enumerate(found):
                for corpus, (rows, similarities) in zip(self.corpora, reached, strict=True):
                    if len(rows):
                        row = block.rows.row(place)
                        shown = shown_fields(row, (*block.names, "_emb"), self.show, fields)
                        yield Near(row.number, shown, corpus, corpus.in_table(rows), similarities)

    def _far_rows(self) -> Iterator[VectorBlock]:
        for block, found in self._blocks():
            new = [place for place, near in enumerate(found) if not any(len(rows) for rows, _ in near)]
            left = block.take(new)
            yield replace(left, rows=left.rows.without({*block.names, "_emb"}))


def connected(first: Indices, left: Indices, right: Indices) -> Indices:
    """The first row of the group of each row, (n,), after these pairs join groups."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    edges = np.ones(len(left), bool), (first[left], first[right])
    _, groups = connected_components(coo_array(edges, (len(first), len(first))), directed=False)
    least = np.empty(len(first), np.intp)
    least[groups[::-1]] = np.arange(len(first))[::-1]  # of the rows of a group, the first one is set last
    return least[groups][first]


def write_unique(found: Duplicates, inputs: Inputs, output: str, *, force: bool) -> None:
    """Write the rows of `unique` as JSONL, or as a vector file with their vectors."""
    if not is_safetensors(output):
        with open_output(output, force=force) as out:
            for block in found.unique():
                out.writelines(line + b"\n" for line in block.rows.lines)
        return
    blocks = found.unique()
    first = next(blocks)
    spec = with_fields({**common_spec(inputs), **({"_emb": first.emb} if first.emb else {})}, inputs)
    form = VectorOutput(force=force, replace=True)
    with open_writers([output], [spec], first.names, first.vectors.shape[2], form) as [sink]:
        for block in chain([first], blocks):
            sink.put(block.rows, block.vectors)


def fields_of_pairs(found: Duplicates) -> Iterator[Fields]:
    """The fields of each pair, in the order of the rows."""
    for near in found.near():
        for place in range(len(near.places)):
            yield near.pair(place, several=found.several)
