"""Rows that are nearly the same: in one table, or between a stream of rows and other tables."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from sentkit.arrays import Float64, Indices
from sentkit.digits import significant
from sentkit.formats.files import readable
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.rows import Inputs, blocks
from sentkit.formats.vectors.table import read_table
from sentkit.formats.vectors.vectors import VectorReader, VectorRow, expect_one, without_vectors
from sentkit.metrics.neighbours.closest_pairs import ROWS_PER_SEARCH, pairs_reaching
from sentkit.metrics.neighbours.corpus import SearchCorpus, shown_fields
from sentkit.metrics.neighbours.search import Searcher

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


class Duplicates:
    """The rows of one file, and the pairs of them that reach a threshold."""

    several = False

    def __init__(
        self, inputs: Inputs, threshold: float, metric: str, show: Sequence[str], new: Sequence[str] = ()
    ) -> None:
        """`new` are fields that a row must not have."""

        def check(row: VectorRow) -> None:
            expect_one(row)
            row.row.check_absent(new, replace=False)

        self.corpus = SearchCorpus(read_table(inputs, check), show)
        self.corpus.refuse_unknown(show)
        self.threshold, self.metric = threshold, metric
        self.compared: Callable[[int], None] = lambda rows: None  # gets the number of compared rows

    def __len__(self) -> int:
        return len(self.corpus.vectors)

    @property
    def corpora(self) -> list[SearchCorpus]:
        return [self.corpus]

    def share(self, rows: int) -> float:
        """The share of all pairs after so many rows were compared with all later rows."""
        return 1.0 - (1.0 - rows / len(self)) ** 2

    def near(self) -> Iterator[Near]:
        """Each row that has later rows near it, with these."""
        for place, pairs in enumerate(pairs_reaching(self.corpus.vectors, self.threshold, self.metric)):
            self.compared(1)
            if len(pairs):
                shown, number = self.corpus.shown(place), self.corpus.numbers[place]
                yield Near(number, shown, self.corpus, pairs.right, pairs.similarities)

    def rows(self) -> Iterator[tuple[Row, int]]:
        """Each row, in order, with the number of the first row of its group."""
        table, kept = self.corpus.table, self.corpus.places
        groups, places = Groups(len(table)), np.arange(len(table)) if kept is None else kept
        for place, pairs in enumerate(pairs_reaching(self.corpus.vectors, self.threshold, self.metric)):
            self.compared(1)
            if len(pairs):
                groups.join(int(places[place]), places[pairs.right])
        for place, first in enumerate(groups.first().tolist()):
            yield table.row(place), table.numbers[first]

    def first_rows(self) -> Iterator[Row]:
        """The first row of each group."""
        return (row for row, first in self.rows() if row.number == first)


class Comparison:
    """A stream of rows, and the rows of other files that are near them."""

    def __init__(
        self, inputs: Inputs, against: Sequence[Inputs], threshold: float, metric: str, show: Sequence[str]
    ) -> None:
        self.inputs, self.show, self.threshold = inputs, show, threshold
        self.corpora = [SearchCorpus(read_table(other, expect_one), show) for other in against]
        self.searchers = [Searcher(corpus.vectors, metric) for corpus in self.corpora]
        self.several = len(against) > 1
        self.compared: Callable[[int], None] = lambda rows: None
        self.share = inputs.meter.share

    def _answered(self) -> Iterator[tuple[VectorRow, list[Near]]]:
        """Each row with the near rows of each file that has some."""
        reader = VectorReader(self.inputs)

        def check(row: VectorRow) -> VectorRow:
            expect_one(row)
            for corpus in self.corpora:
                corpus.table.check_space(row, reader.emb, "row")
            return row

        for block in blocks(reader.read(check), ROWS_PER_SEARCH):
            vectors = np.concatenate([row.vectors for row in block])
            found = [searcher.reaching(vectors, self.threshold) for searcher in self.searchers]
            for row, *reached in zip(block, *found, strict=True):
                self.compared(1)
                if not row.vectors.any():
                    yield row, []
                    continue
                hidden, fields = {*row.names, "_emb"}, self.corpora[0].table.fields
                shown = shown_fields(row.row, hidden, self.show, fields) if any(map(len, reached)) else {}
                yield (
                    row,
                    [
                        Near(row.row.number, shown, corpus, each.rows, each.similarities)
                        for corpus, each in zip(self.corpora, reached, strict=True)
                        if len(each)
                    ],
                )

    def near(self) -> Iterator[Near]:
        for _, found in self._answered():
            yield from found

    def first_rows(self) -> Iterator[Row]:
        """The rows without a near row."""
        return (without_vectors(row.row, row.names) for row, found in self._answered() if not found)


def levels(found: Duplicates | Comparison) -> list[dict[str, Any]]:
    """At each level the numbers of pairs and of their rows (of a Comparison: its own), and the least pair."""
    counts = [0] * len(LEVELS)
    rows: list[set[int]] = [set() for _ in LEVELS]
    least: list[tuple[float, Near, int] | None] = [None] * len(LEVELS)
    for near in found.near():
        for number, level in enumerate(LEVELS):
            reached = np.flatnonzero(near.similarities >= level)
            if not len(reached):
                break
            counts[number] += len(reached)
            rows[number].add(near.number)
            if isinstance(found, Duplicates):
                rows[number].update(near.corpus.numbers[place] for place in near.places[reached].tolist())
            place = int(reached[near.similarities[reached].argmin()])
            before = least[number]
            if before is None or near.similarities[place] < before[0]:
                least[number] = (float(near.similarities[place]), near, place)
    return [
        {"threshold": level, "pairs": count, "rows": len(own)} | example_of(pair, several=found.several)
        for level, count, own, pair in zip(LEVELS, counts, rows, least, strict=True)
    ]


def example_of(least: tuple[float, Near, int] | None, *, several: bool) -> dict[str, Any]:
    if least is None:
        return {"example": None}
    _, near, place = least
    fields = near.pair(place, several=several)
    return {"example": {name: orjson.loads(value) for name, value in fields.items()}}


def pairs(found: Duplicates | Comparison) -> Iterable[Fields]:
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
