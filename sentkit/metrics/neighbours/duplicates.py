"""Rows that are nearly the same: in one table, or between a stream of rows and other tables."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from sentkit.arrays import Float64, Indices
from sentkit.digits import significant
from sentkit.formats.files import readable
from sentkit.formats.outputs.outputs import open_output
from sentkit.formats.rows.block import block_of
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.sinks import VectorOutput, open_sinks, refuse_existing_fields
from sentkit.formats.vectors.store import common_spec, is_store, with_fields
from sentkit.formats.vectors.vectors import VectorBlock, VectorReader, joined, one_vector, resized
from sentkit.metrics.neighbours.closest_pairs import ROWS_PER_SEARCH, pairs_reaching
from sentkit.metrics.neighbours.corpus import SearchCorpus, read_table, shown_fields
from sentkit.metrics.neighbours.search import Reached, Searcher

if TYPE_CHECKING:
    from sentkit.metrics.device import Device

Fields = dict[str, bytes]  # JSON values by name
LEVELS = (0.8, 0.85, 0.9, 0.95, 0.99)  # similarities at which pairs are counted


@dataclass(frozen=True, slots=True)
class Near:
    """A row, and rows of one table that are near it, in their order."""

    number: int  # of the row in its file
    shown: Mapping[str, bytes]  # fields of the row
    corpus: SearchCorpus
    places: Indices  # (k,)
    similarities: Float64  # (k,)

    def pair(self, place: int, *, several: bool) -> Fields:
        """The fields of the pair with the row at this index of `places`; `several`: with the file."""
        other = int(self.places[place])
        sides = {"_a": self.shown, "_b": self.corpus.shown(other)}
        fields = {f"{name}{side}": value for side, row in sides.items() for name, value in row.items()}
        if several:
            fields["file_b"] = orjson.dumps(readable(self.corpus.path))
        rows = {"row_a": b"%d" % self.number, "row_b": b"%d" % self.corpus.numbers[other]}
        return {**fields, **rows, "similarity": b"%a" % significant(float(self.similarities[place]))}

    @property
    def numbers(self) -> list[int]:
        return [self.corpus.numbers[place] for place in self.places.tolist()]


class Duplicates:
    """The rows of one file, and the pairs of them that reach a threshold."""

    several = False

    def __init__(
        self,
        inputs: Inputs,
        threshold: float,
        metric: str,
        device: "Device | None",
        show: Sequence[str],
        new: Sequence[str] = (),
    ) -> None:
        """`new` are fields that a row must not have."""

        def check(block: VectorBlock) -> VectorBlock:
            refuse_existing_fields(one_vector(block).rows, new, replace=False)
            return block

        self.corpus = SearchCorpus(read_table(inputs, check), show)
        self.corpus.refuse_unknown()
        self.corpora = [self.corpus]
        self.threshold, self.metric, self.device = threshold, metric, device
        self.compared: Callable[[int], None] = lambda rows: None  # gets the number of compared rows

    def share(self, rows: int) -> float:
        """The share of all pairs after so many rows were compared with all later rows."""
        return 1.0 - (1.0 - rows / len(self.corpus.vectors)) ** 2

    def near(self) -> Iterator[Near]:
        """Each row that has later rows near it, with these."""
        for place, right, similarities in self._pairs():
            shown, number = self.corpus.shown(place), self.corpus.numbers[place]
            yield Near(number, shown, self.corpus, right, similarities)

    def _pairs(self) -> Iterator[tuple[int, Indices, Float64]]:
        """The place of each row that has later rows near it, and their places and similarities."""
        done = 0
        for pairs in pairs_reaching(self.corpus.vectors, self.threshold, self.metric, self.device):
            places, begins = np.unique(pairs.left, return_index=True)
            if len(places):
                rights, alike = (np.split(each, begins[1:]) for each in (pairs.right, pairs.similarities))
                yield from zip(places.tolist(), rights, alike, strict=True)
                self.compared(int(places[-1]) + 1 - done)
                done = int(places[-1]) + 1
        self.compared(len(self.corpus.vectors) - done)

    def groups(self) -> Indices:
        """The place in the table of the first row of the group of each row."""
        table, kept = self.corpus.table, self.corpus.places
        groups, places = Groups(len(table)), np.arange(len(table)) if kept is None else kept
        for place, right, _ in self._pairs():
            groups.join(int(places[place]), places[right])
        return groups.first()

    def grouped(self, *, replace: bool) -> Iterator[bytes]:
        """Each row with the number of the first row of its group."""
        table = self.corpus.table
        for place, first in enumerate(self.groups().tolist()):
            yield table.row(place).add([(b"group", b"%d" % table.numbers[first])], replace=replace)

    def unique(self) -> Iterator[VectorBlock]:
        """The first row of each group; the vectors are not in the lines."""
        table, firsts = self.corpus.table, np.unique(self.groups())
        for start in range(0, len(firsts), ROWS_PER_SEARCH):
            places = firsts[start : start + ROWS_PER_SEARCH]
            rows = block_of(map(table.row, places.tolist()))
            yield VectorBlock(rows, table.vectors[places], table.names, table.emb)


class Comparison:
    """A stream of rows, and the rows of other files that are near them."""

    def __init__(
        self,
        inputs: Inputs,
        against: Sequence[Inputs],
        threshold: float,
        metric: str,
        device: "Device | None",
        show: Sequence[str],
    ) -> None:
        self.inputs, self.show, self.threshold = inputs, show, threshold
        self.corpora = [SearchCorpus(read_table(other, one_vector), show) for other in against]
        self.searchers = [Searcher(corpus.vectors, metric, device) for corpus in self.corpora]
        self.several = len(against) > 1
        self.compared: Callable[[int], None] = lambda rows: None
        self.share = inputs.meter.share

    def _blocks(self) -> Iterator[tuple[VectorBlock, Iterator[Sequence[Reached]]]]:
        """Blocks of rows, and for each row the near rows of each file, to be read before the next block."""
        reader = VectorReader(self.inputs)

        def check(block: VectorBlock) -> VectorBlock:
            one_vector(block)
            for corpus in self.corpora:
                corpus.table.refuse_others(block, reader.emb, "row")
            return block

        none = [Reached(np.empty(0, np.intp), np.empty(0))] * len(self.corpora)
        for block in resized(reader.blocks(check), joined, ROWS_PER_SEARCH):
            vectors = block.vectors[:, 0]
            found = [searcher.reaching(vectors, self.threshold) for searcher in self.searchers]
            rows = zip(vectors, zip(*found, strict=True), strict=True)
            yield block, (reached if vector.any() else none for vector, reached in rows)
            self.compared(len(block))

    def near(self) -> Iterator[Near]:
        """Each row with the near rows of each file that has some."""
        fields = self.corpora[0].table.fields
        for block, found in self._blocks():
            for place, reached in enumerate(found):
                row = block.rows.row(place) if any(map(len, reached)) else None
                for corpus, each in zip(self.corpora, reached, strict=True):
                    if row is not None and len(each):
                        shown = shown_fields(row, (*block.names, "_emb"), self.show, fields)
                        yield Near(row.number, shown, corpus, each.rows, each.similarities)

    def unique(self) -> Iterator[VectorBlock]:
        """The rows without a near row; the vectors are not in the lines."""
        for block, found in self._blocks():
            new = block.take([place for place, near in enumerate(found) if not any(map(len, near))])
            yield replace(new, rows=new.rows.without({*block.names, "_emb"}))


def write_unique(found: Duplicates | Comparison, inputs: Inputs, output: str, *, force: bool) -> None:
    """Write the rows of `unique` as JSONL, or as a vector file with their vectors."""
    if not is_store(output):
        with open_output(output, force=force) as out:
            for block in found.unique():
                out.writelines(line + b"\n" for line in block.rows.lines)
        return
    blocks = found.unique()
    first = next(blocks)
    spec = with_fields({**common_spec(inputs), **({"_emb": first.emb} if first.emb else {})}, inputs)
    form = VectorOutput(force=force, replace=True)
    with open_sinks([output], [spec], first.names, first.vectors.shape[2], form) as [sink]:
        for block in chain([first], blocks):
            sink.put(block.rows, block.vectors)


def levels(found: Duplicates | Comparison) -> Iterator[dict[str, Any]]:
    """At each level the numbers of pairs and of their rows (of a Comparison: its own), and the least pair."""
    counts, rows = [0] * len(LEVELS), [set[int]() for _ in LEVELS]
    least: list[tuple[float, Near, int] | None] = [None] * len(LEVELS)
    for near in found.near():
        numbers = near.numbers if isinstance(found, Duplicates) else []
        for number, level in enumerate(LEVELS):
            reached = np.flatnonzero(near.similarities >= level)
            if not len(reached):
                break
            counts[number] += len(reached)
            rows[number].add(near.number)
            rows[number].update(numbers[place] for place in reached.tolist() if numbers)
            place = int(reached[near.similarities[reached].argmin()])
            before = least[number]
            if before is None or near.similarities[place] < before[0]:
                least[number] = (float(near.similarities[place]), near, place)
    for level, count, own, pair in zip(LEVELS, counts, rows, least, strict=True):
        example = None
        if pair is not None:
            fields = pair[1].pair(pair[2], several=found.several)
            example = {name: orjson.loads(value) for name, value in fields.items()}
        yield {"threshold": level, "pairs": count, "rows": len(own), "example": example}


def pairs(found: Duplicates | Comparison) -> Iterator[Fields]:
    """The fields of each pair, in the order of the rows."""
    for near in found.near():
        for place in range(len(near.places)):
            yield near.pair(place, several=found.several)


class Groups:
    """Union-find. The representative of a group is its first row, so a parent never follows its child."""

    def __init__(self, count: int) -> None:
        self.parents = np.arange(count)

    def join(self, row: int, others: Indices) -> None:
        """Join the groups of a row and of other rows."""
        roots = {self._root(row), *map(self._root, np.unique(self.parents[others]).tolist())}
        first = min(roots)
        self.parents[others] = first  # shortens later paths; each old parent is joined below
        self.parents[[row, *roots]] = first

    def _root(self, row: int) -> int:
        parents = self.parents
        while parents[row] != row:
            parents[row] = parents[parents[row]]
            row = int(parents[row])
        return row

    def first(self) -> Indices:
        """The first row of the group of each row, (n,)."""
        while not np.array_equal(self.parents, nearer := self.parents[self.parents]):
            self.parents = nearer
        return self.parents
