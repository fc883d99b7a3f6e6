"""Search: for each query, the most similar rows of a corpus."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import orjson

from sentkit.arrays import Float64, Indices
from sentkit.digits import significant
from sentkit.errors import UsageError
from sentkit.formats.files import readable
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.rows import FIRST_BLOCK, Inputs, growing
from sentkit.formats.vectors.store import fields_of
from sentkit.formats.vectors.vectors import VectorRow, expect_one, without_vectors
from sentkit.metrics.neighbours.corpus import (
    NAMING,
    SearchCorpus,
    bytes_of,
    our_names,
    read_search_corpus,
)
from sentkit.metrics.neighbours.search import Searcher, SignSearcher

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class QueryHits:
    query: Row  # without its vector
    hits: list[tuple[int, float]]  # corpus rows, from 0, and their similarities; best first


class Queries(Protocol):
    """Rows with one vector each, read from files or encoded from texts."""

    emb: str | None  # known after the first row is read

    def read(self, then: Callable[[VectorRow], T]) -> Iterator[T]: ...


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """The selection of hits."""

    metric: str = "cosine"
    top: int | None = None  # None: all rows that reach the threshold
    threshold: float | None = None
    rescore: str | None = None  # exact vectors of the same rows, for a corpus of sign bits
    candidates: int | None = None  # of a corpus of sign bits
    new: Sequence[str] = ()  # fields that a query must not have
    part: tuple[int, int] | None = None  # number of a part of the corpus, and number of parts


class Search:
    """A corpus, read immediately, and a stream of queries, answered during iteration."""

    def __init__(
        self, queries: Queries, corpus: SearchCorpus, options: SearchOptions, inputs: Inputs, *, source: str
    ) -> None:
        """`inputs` are the files of the queries; other files are read with the same flags."""
        self.queries, self.options, self.source = queries, options, source
        self.fields = fields_of(inputs, source)
        self.in_file = Path(source).is_file()
        self.metric = options.metric
        self.corpus = corpus
        self.rescore: SearchCorpus | None = None
        if self.corpus.signs is not None and options.part is not None:
            advice = "search it as a whole, or store float16 or int8"
            raise UsageError("--shard does not work with a binary corpus", advice=advice)
        if self.corpus.signs is None and (options.rescore is not None or options.candidates is not None):
            flag = "--candidates" if options.rescore is None else "--rescore"
            raise UsageError(
                f"{flag} needs a corpus of encode --store binary, {corpus.path} has other vectors"
            )
        if options.rescore is not None:
            self.rescore = read_search_corpus(inputs.other(options.rescore))
            self.corpus.check_rescore(self.rescore)
        self.count = 0  # queries answered
        self.report: Callable[[int], None] = lambda queries: None

    def __iter__(self) -> Iterator[QueryHits]:
        for window in self.windows():
            yield from window

    def windows(self) -> Iterator[Iterator[QueryHits]]:
        """Blocks of answered queries; consume each before the next. The first blocks of a pipe are small."""
        most = self.searcher.at_once(self.options.top or 1)
        for block in growing(self.queries.read(self._take), most, most if self.in_file else FIRST_BLOCK):
            if not self.count:
                (self.rescore or self.corpus).check(block[0], self.queries.emb)
            yield self._answered(block)

    @cached_property
    def searcher(self) -> Searcher | SignSearcher:
        if (signs := self.corpus.signs) is not None and len(signs):
            vectors = (self.rescore or self.corpus).vectors
            return SignSearcher(signs, vectors, self.metric, self.options.candidates)
        return Searcher(self.corpus.vectors, self.metric)

    def _answered(self, block: Sequence[VectorRow]) -> Iterator[QueryHits]:
        for row, hits in zip(block, self._hits(block), strict=True):
            self.count += 1
            self.report(1)
            if self.rescore is not None:
                for place, _ in hits:
                    self.corpus.check_same_row(self.rescore, place)
            yield QueryHits(row.row, hits if row.vectors.any() else [])

    def _hits(self, block: Sequence[VectorRow]) -> Iterator[list[tuple[int, float]]]:
        """The hits of each query, best first; ties in row order."""
        vectors = np.concatenate([row.vectors for row in block])
        top, threshold = self.options.top, self.options.threshold
        if top is None:
            for reached in self.searcher.reaching(vectors, -math.inf if threshold is None else threshold):
                order = np.argsort(-reached.similarities, kind="stable")
                yield pairs(reached.rows[order], reached.similarities[order])
            return
        nearest = self.searcher.nearest(vectors, top)
        for rows, similarities in zip(nearest.rows, nearest.similarities, strict=True):
            enough = len(rows) if threshold is None else np.count_nonzero(similarities >= threshold)
            yield pairs(rows[:enough], similarities[:enough])

    def _take(self, row: VectorRow) -> VectorRow:
        expect_one(row)
        row.row.check_absent(self.options.new, replace=False)
        return VectorRow(without_vectors(row.row, row.names), row.vectors, row.names)

    def called(self, query: Row) -> str:
        """A name of a query for people: its text, its entry, or its number."""
        names = (*(self.fields.get(name, name) for name in NAMING), *NAMING)
        found = (str(query.values[name]) for name in names if name in query.values)
        return next(found, f"row {query.number}")

    def flat(self, query_hits: QueryHits) -> Iterator[bytes]:
        """One row for each hit: the fields of the query with _a, those of the hit with _b, and the rank."""
        query = query_hits.query
        own = renamed(bytes_of(query, our_names(query, self.fields, ())), "_a")
        for rank, (row, similarity) in enumerate(query_hits.hits, start=1):
            files = self.corpus.files
            file = {"file_b": orjson.dumps(readable(files[row]))} if files else {}
            numbers = {**file, "row_b": b"%d" % self.corpus.numbers[row], "rank": b"%d" % rank}
            hit = renamed(self.corpus.every_field(row), "_b")
            fields = {**own, **numbers, **hit, "similarity": b"%a" % significant(similarity)}
            yield b"{%b}\n" % b",".join(
                b"%b:%b" % (orjson.dumps(name), value) for name, value in fields.items()
            )

    def cells(self, row: int) -> list[str]:
        """The cells of a hit in a table: its row number, maybe with its file, and its fields."""
        file = f"{readable(self.corpus.files[row])}:" if self.corpus.files else ""
        number = f"{file}{self.corpus.numbers[row]}"
        shown = {name: orjson.loads(value) for name, value in self.corpus.shown(row).items()}
        return [number, str(next(iter(shown.values()), ""))]


def renamed(fields: dict[str, bytes], side: str) -> dict[str, bytes]:
    return {f"{name}{side}": value for name, value in fields.items()}


def pairs(rows: Indices, similarities: Float64) -> list[tuple[int, float]]:
    return list(zip(rows.tolist(), similarities.tolist(), strict=True))
