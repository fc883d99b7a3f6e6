"""A search from rows to rows: each query with the rows of the corpus that are most like it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import orjson

from sentkit.formats.blocks import growing
from sentkit.formats.rows import Inputs, Row
from sentkit.formats.vectors import VectorReader, VectorRow, without_vectors
from sentkit.metrics.corpus import NAMING, Answers, answer, expect_one, read_corpus
from sentkit.metrics.search import Nearest, Searcher


@dataclass(frozen=True, slots=True)
class Found:
    query: Row  # without its vector
    hits: list[tuple[int, float]]  # rows of the corpus, from 0, and their similarities; the best first


class AnsweredQueries:
    """A corpus, read at once, and a stream of queries, answered when iterated."""

    def __init__(
        self, inputs: Inputs, corpus: str, *, top: int, metric: str, show: Sequence[str], gold: str | None
    ) -> None:
        self.top, self.metric, self.show, self.fields = top, metric, show, inputs.fields
        self.gold, _, theirs = (gold or "").partition("=")
        self.answers = Answers(theirs or self.gold) if self.gold else None
        self.corpus = read_corpus(Inputs([corpus], fields=inputs.fields), show, self.answers)
        self.queries = VectorReader(inputs)
        self.count = 0  # queries answered

    def __iter__(self) -> Iterator[Found]:
        for window in self.windows():
            yield from window

    def windows(self) -> Iterator[Iterator[Found]]:
        """Those that are answered at once, each to be taken before the next; few at first."""
        searcher = Searcher(self.corpus.vectors, self.metric)
        for block in growing(self.queries.read(self._take), searcher.at_once(self.top)):
            if not self.count:
                self.corpus.check(block[0], self.queries.emb)
            found = searcher.nearest(np.concatenate([row.vectors for row in block]), self.top)
            yield self._answered(block, found)

    def _answered(self, block: Sequence[VectorRow], found: Nearest) -> Iterator[Found]:
        lists = zip(block, found.rows.tolist(), found.similarities.tolist(), strict=True)
        for row, rows, similarities in lists:
            self.count += 1
            yield Found(row.row, list(zip(rows, similarities, strict=True)))

    def _take(self, row: VectorRow) -> VectorRow:
        expect_one(row)
        if self.gold:
            answer(row.row, self.gold)  # a query without one is a bad row
        return VectorRow(without_vectors(row.row, row.names), row.vectors, row.names)

    def called(self, query: Row) -> str:
        """What a person knows the last query by: its text, its entry, or its number."""
        names = (self.fields.get(name, name) for name in NAMING)
        return next((str(query.values[name]) for name in names if name in query.values), f"row {self.count}")

    def cells(self, row: int) -> list[str]:
        """What is shown of a hit, in columns."""
        members = orjson.loads(b"{%b}" % self.corpus.members[row])
        if self.show:
            return [str(members.get(name, "")) for name in self.show]
        return [str(next(iter(members.values()), f"row {row + 1}"))]
