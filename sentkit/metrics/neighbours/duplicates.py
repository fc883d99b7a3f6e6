"""Rows of one table that are nearly the same: their pairs, and the groups that the pairs form."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from sentkit.arrays import Indices
from sentkit.digits import significant
from sentkit.formats.rows.rows import Inputs, Row
from sentkit.formats.vectors.table import read_table
from sentkit.formats.vectors.vectors import VectorRow
from sentkit.metrics.neighbours.closest_pairs import ClosestPairs, pairs_reaching
from sentkit.metrics.neighbours.corpus import SearchCorpus

Fields = dict[str, bytes]  # JSON values by name


class Duplicates:
    """The rows of one file, and the pairs of them that reach a threshold."""

    def __init__(
        self, inputs: Inputs, threshold: float, metric: str, show: Sequence[str], new: Sequence[str] = ()
    ) -> None:
        """`new` are fields that a row must not have."""

        def check(row: VectorRow) -> None:
            if len(row.vectors) != 1:
                raise row.row.error(f"expected 1 vector, this row has {len(row.vectors)}")
            row.row.check_absent(new, replace=False)

        self.corpus = SearchCorpus(read_table(inputs, check), show)
        self.corpus.refuse_unknown(show)
        self.threshold, self.metric = threshold, metric
        self.compared: Callable[[int], None] = lambda rows: None  # gets the number of compared rows

    def __len__(self) -> int:
        return len(self.corpus.vectors)

    def share(self, rows: int) -> float:
        """The share of all pairs after so many rows were compared with all later rows."""
        return 1.0 - (1.0 - rows / len(self)) ** 2

    def _pairs(self) -> Iterator[ClosestPairs]:
        """For each row, its pairs with later rows."""
        for pairs in pairs_reaching(self.corpus.vectors, self.threshold, self.metric):
            self.compared(1)
            yield pairs

    def pairs(self) -> Iterator[Fields]:
        """The fields of each pair, in the order of the rows."""
        for pairs in self._pairs():
            for left, right, similarity in zip(
                pairs.left.tolist(), pairs.right.tolist(), pairs.similarities.tolist(), strict=True
            ):
                sides = {"_a": self.corpus.shown(left), "_b": self.corpus.shown(right)}
                shown = {f"{name}{side}": value for side, row in sides.items() for name, value in row.items()}
                numbers = self.corpus.numbers
                rows = {"row_a": b"%d" % numbers[left], "row_b": b"%d" % numbers[right]}
                yield {**shown, **rows, "similarity": b"%a" % significant(similarity)}

    def rows(self) -> Iterator[tuple[Row, int]]:
        """Each row, in order, with the number of the first row of its group."""
        groups = Groups(len(self))
        for pairs in self._pairs():
            if len(pairs):
                groups.join(int(pairs.left[0]), pairs.right)
        for place, first in enumerate(groups.first().tolist()):
            yield self.corpus.row(place), self.corpus.numbers[first]


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
