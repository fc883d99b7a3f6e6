"""Search: for each query, the most similar rows of a corpus; the union of the hits of its parts."""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from sentkit.arrays import Float32
from sentkit.digits import significant
from sentkit.errors import DataError, UsageError
from sentkit.formats.files import readable
from sentkit.formats.rows.block import Row, RowBlock, items_of
from sentkit.formats.rows.rows import FIRST_BLOCK, Inputs
from sentkit.formats.vectors.fingerprint import space_of
from sentkit.formats.vectors.store import fields_of
from sentkit.formats.vectors.vectors import VectorBlock, VectorReader, joined, one_vector, resized
from sentkit.formats.vectors.writers import refuse_existing_fields
from sentkit.metrics.neighbours.corpus import (
    NAMING,
    SearchCorpus,
    Source,
    bytes_of,
    json_of,
    our_names,
    read_search_corpus,
)
from sentkit.metrics.neighbours.search import Searcher, SignSearcher

if TYPE_CHECKING:
    from sentkit.metrics.device import Device

Hits = list[tuple[int, float]]  # corpus rows, from 0, and their similarities; best first


@dataclass(kw_only=True)
class Search:
    """A corpus, which is read immediately, and a stream of queries, which are answered during iteration."""

    queries: Source
    corpus: SearchCorpus
    inputs: Inputs  # the files of the queries; other files are read with the same flags
    source: str  # the file of the queries
    metric: str = "cosine"
    top: int | None = None  # None: all rows that reach the threshold
    threshold: float | None = None
    exact: str | None = None  # a file: exact vectors of the same rows, for a corpus of sign bits
    candidates: int | None = None  # of a corpus of sign bits
    new: Sequence[str] = ()  # fields that a query must not have
    part: tuple[int, int] | None = None  # number of a part of the corpus, and number of parts
    device: "Device | None" = None  # that compares vectors; None: the CPU
    report: Callable[[int], None] = lambda queries: None
    missed: Callable[[float], None] | None = None  # gets the best similarity of a query without a hit

    def __post_init__(self) -> None:
        corpus, self.fields = self.corpus, fields_of(self.inputs, self.source)
        self.rescore: SearchCorpus | None = None
        if corpus.signs is not None and self.part is not None:
            advice = "search it as a whole, or store float16 or int8"
            raise UsageError("--shard does not work with a binary corpus", advice=advice)
        if corpus.signs is None and (self.exact is not None or self.candidates is not None):
            flag = "--candidates" if self.exact is None else "--rescore"
            problem = f"{flag} needs a corpus of encode --store binary, {corpus.path} has other vectors"
            raise UsageError(problem)
        has_products = self.metric in ("cosine", "dot") and corpus.signs is None  # which a device can compute
        if self.device is not None and isinstance(self.queries, VectorReader) and not has_products:
            problem = "--device without TEXT needs --metric cosine or dot, and vectors that are not sign bits"
            raise UsageError(problem)
        if self.exact is not None:
            self.rescore = exact = read_search_corpus(self.inputs.other(self.exact))
            if not corpus.is_signs_of(exact.emb) or exact.stored.shape != corpus.stored.shape:
                raise DataError(f"not the exact vectors of the rows of {corpus.path}", source=exact.path)
            exact.keep(corpus.places)
        vectors = (self.rescore or corpus).vectors
        self.searcher = Searcher(vectors, self.metric, self.device if has_products else None)
        self.by_signs: SignSearcher | None = None  # selects candidates for the `top` rows
        if corpus.signs is not None and len(corpus.signs) and self.top is not None:
            self.by_signs = SignSearcher(corpus.signs, vectors, self.metric, self.candidates)

    def blocks(self) -> Iterator[tuple[RowBlock, Iterator[Hits]]]:
        """Blocks of queries without vectors, and the hits of each, to be read before the next block."""
        most, begun = (self.by_signs or self.searcher).at_once(self.top or 1), False
        first = most if Path(self.source).is_file() else min(FIRST_BLOCK, most)

        def check(block: VectorBlock) -> VectorBlock:
            refuse_existing_fields(one_vector(block).rows, self.new, replace=False)
            return block

        for block in resized(self.queries.blocks(check), joined, most, first):
            if not begun:
                begun, query = True, block[:1]
                corpus, emb = self.rescore or self.corpus, self.queries.emb
                # A corpus of signs accepts queries of the space before the signs.
                corpus.table.refuse_others(query, emb, "query", fits=corpus.is_signs_of(emb))
                if query.rows.bad:
                    raise query.rows.bad[0]
            rows = block.rows.without({*block.names, "_emb"})
            yield rows, self._hits(block.vectors[:, 0])
            self.report(len(block))

    def _hits(self, vectors: Float32) -> Iterator[Hits]:
        """The hits of each query, best first; ties in row order. A vector of zeros has none."""
        least, asked = -math.inf if self.threshold is None else self.threshold, vectors[vectors.any(axis=1)]
        if self.top is None:
            reached = self.searcher.reaching(asked, least)
            best = ((each, np.argsort(-each[1], kind="stable")) for each in reached)
            found = ((rows[order], similarities[order]) for (rows, similarities), order in best)
        else:
            nearest = (self.by_signs or self.searcher).nearest(asked, self.top)
            enough = np.count_nonzero(nearest[1] >= least, axis=1).tolist()
            every = zip(*nearest, enough, strict=True)
            found = ((rows[:count], similarities[:count]) for rows, similarities, count in every)
        for vector in vectors:
            if not vector.any():
                yield []
                continue
            rows, similarities = next(found)
            if self.missed is not None and not len(rows):
                self.missed(float(self.searcher.nearest(vector[None], 1).similarities[0, 0]))
            places = self.corpus.in_table(rows).tolist()
            if self.rescore is not None:
                for place in places:
                    if self.corpus.shown(place) != self.rescore.shown(place):
                        row, number = self.rescore.table.row(place), self.corpus.table.numbers[place]
                        raise row.error(f"this row differs from row {number} of {self.corpus.path}")
            yield list(zip(places, similarities.tolist(), strict=True))

    def called(self, query: Row) -> str:
        """A name of a query for people: its text, its entry, or its number."""
        names = (*(self.fields.get(name, name) for name in NAMING), *NAMING)
        found = (str(query.values[name]) for name in names if name in query.values)
        return next(found, f"row {query.number}")

    def nested(self, query: Row, hits: Hits) -> list[bytes]:
        """The query with its hits, and for a part of the corpus with what `union` needs to join them."""
        new = [(b"hits", b"[%b]" % b",".join(self.corpus.hit(*each) for each in hits))]
        emb = self.queries.emb
        if self.part is not None:
            record = {
                **dict(zip(("number", "count"), self.part, strict=True)),
                "space": emb and space_of(emb),
                "corpus": self.corpus.table.digest,
                "metric": self.metric,
                "top": None if self.top is None else min(self.top, sys.maxsize),
                "threshold": self.threshold,
                "similarities": [similarity for _, similarity in hits],  # all digits decide the order
            }
            new.append((b"part", orjson.dumps(record)))
        return [query.add(new, replace=True) + b"\n"]

    def flat(self, query: Row, hits: Hits) -> Iterator[bytes]:
        """One row for each hit: the fields of the query with _a, those of the hit with _b, and the rank."""
        asked, table = bytes_of(query, our_names(query, self.fields, ())), self.corpus.table
        own = {f"{name}_a": value for name, value in asked.items()}
        for rank, (place, similarity) in enumerate(hits, start=1):
            file = {"file_b": orjson.dumps(readable(table.files[place]))} if table.files else {}
            numbers = {**file, "row_b": b"%d" % table.numbers[place], "rank": b"%d" % rank}
            hit = {f"{name}_b": value for name, value in self.corpus.every_field(place).items()}
            yield json_of({**own, **numbers, **hit, "similarity": b"%a" % significant(similarity)}) + b"\n"

    def cells(self, place: int) -> list[str]:
        """The cells of a hit in a table: its row number, maybe with its file, and its fields."""
        table = self.corpus.table
        file = f"{readable(table.files[place])}:" if table.files else ""
        shown = [orjson.loads(value) for value in self.corpus.shown(place).values()]
        return [f"{file}{table.numbers[place]}", str((shown or [""])[0])]


HITS, PART = "hits", "part"  # fields of a row of a part
AGAIN = "join only outputs of one search: the same queries, corpus and flags; write others again with --shard"
ALIKE = ("count", "space", "corpus", "metric", "top", "threshold")  # fields that are equal in all parts


def union(inputs: Inputs) -> Iterator[bytes]:
    """The rows that one search of the whole corpus writes, from the files of all its parts."""
    blocks = [inputs.other(path).blocks(lambda row: (row, ())) for path in inputs.paths]
    for rows in zip_longest(*map(chain.from_iterable, blocks)):
        for path, row in zip(inputs.paths, rows, strict=True):
            if row is None:
                raise DataError("it has fewer rows than another part", source=path)
        yield united(rows)


def united(rows: Sequence[Row]) -> bytes:
    """One query with the hits of all its parts, best first; ties in the order of the corpus."""
    query, records = rows[0].without((HITS, PART)), list(map(record_of, rows))
    first, numbers = records[0], sorted(record["number"] for record in records)
    if len(rows) != first["count"] or numbers != list(range(1, len(rows) + 1)):
        given = ", ".join(map(str, numbers))
        raise rows[0].error(f"the files are the parts {given}, expected each of 1 to {first['count']} once")
    found: list[tuple[float, int, bytes]] = []
    for row, record in zip(rows, records, strict=True):
        if row.without((HITS, PART)).line != query.line:
            raise row.error(f"another query than in line {rows[0].number} of {rows[0].source}")
        if name := next((name for name in ALIKE if record[name] != first[name]), None):
            raise row.error(f'"{name}" of this part is not that of {rows[0].source}', advice=AGAIN)
        hits = items_of(row.line, row.spans()[HITS].value)
        places = [hit["row"] for hit in row.values[HITS]]
        found += zip(record["similarities"], places, hits, strict=True)
    best = sorted(found, key=lambda hit: (-hit[0], hit[1]))[: first["top"]]
    return query.add([(HITS.encode(), b"[%b]" % b",".join(hit for *_, hit in best))], replace=False)


def record_of(row: Row) -> dict[str, Any]:
    """The record of the part in a row; a DataError if it or the hits are not those that `search` writes."""
    row.refuse_duplicates()
    record: Any = row.values.get(PART)
    hits: Any = row.values.get(HITS)
    try:
        numbers = [record["number"], record["count"], record["top"] or 0, *(hit["row"] for hit in hits)]
        exact = [hit["similarity"] for hit in hits] == [*map(significant, record["similarities"])]
        if exact and {*map(type, numbers)} == {int} and record.keys() >= {*ALIKE}:
            return record
    except (AttributeError, KeyError, TypeError, ValueError):
        pass
    raise row.error("not a row of sentkit search --shard", advice=AGAIN)
