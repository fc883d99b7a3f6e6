"""Search: for each query, the most similar rows of a corpus."""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import orjson

from sentkit.arrays import Float32
from sentkit.digits import significant
from sentkit.errors import DataError, UsageError
from sentkit.formats.files import digest_of, is_input_file, open_file, shown_path
from sentkit.formats.rows.block import Row, RowBlock
from sentkit.formats.rows.rows import FIRST_BLOCK, Inputs
from sentkit.formats.vectors.fingerprint import MAPPED_NOTE, digest, space_of
from sentkit.formats.vectors.store import VectorFolder, field_names_of
from sentkit.formats.vectors.vectors import (
    VectorBlock,
    VectorReader,
    in_blocks_of_size,
    joined_vector_blocks,
    one_vector,
)
from sentkit.formats.vectors.writers import refuse_existing_fields
from sentkit.metrics.neighbours.corpus import (
    NAMING,
    RowsWithVectors,
    SearchCorpus,
    bytes_of,
    json_of,
    output_names,
    read_search_corpus,
)
from sentkit.metrics.neighbours.search import NearRows, Searcher
from sentkit.metrics.neighbours.sign_search import SignSearcher

if TYPE_CHECKING:
    from sentkit.metrics.device import Device

Hits = list[tuple[int, float]]  # corpus rows, from 0, and their similarities; best first


@dataclass(kw_only=True)
class Search:
    """A corpus, which is read immediately, and a stream of queries, which are answered during
    iteration.
    """

    queries: RowsWithVectors
    corpus: SearchCorpus
    inputs: Inputs  # the files of the queries; other files are read with the same flags
    source: str  # the file of the queries
    # the queries are the rows of the corpus; then no query is a hit of itself
    is_corpus: bool = False
    metric: str = "cosine"
    top: int | None = None  # None: all rows that reach the threshold
    threshold: float | None = None
    exact: str | None = None  # a file: exact vectors of the same rows, for a corpus of sign bits
    # rows that sign bits choose for each query in a corpus of sign bits; None: by `top`
    candidates: int | None = None
    forbidden_fields: Sequence[str] = ()  # fields that a query must not have
    shard: tuple[int, int] | None = None  # number of a shard of the corpus, and number of shards
    device: "Device | None" = None  # that compares vectors; None: the CPU
    report: Callable[[int], None] = lambda queries: None  # gets the number of answered queries
    # gets the best similarity of a query without a hit
    missed: Callable[[float], None] | None = None

    def __post_init__(self) -> None:
        # standard name -> name in the queries
        self.fields = field_names_of(self.inputs, self.source)
        signs = self.corpus.binary_vectors  # of a binary corpus, whose `vectors` are +1 and -1
        can_use_device = self.metric in ("cosine", "dot") and signs is None
        self._refuse_flags(can_use_device=can_use_device)

        # The vectors that give the similarities: of the corpus, or exact ones of the same rows.
        vectors = self.corpus.vectors
        self.exact_corpus: SearchCorpus | None = None
        if self.exact is not None:
            self.exact_corpus = self._read_exact_corpus(self.exact)
            vectors = self.exact_corpus.vectors
        self.searcher = Searcher(vectors, self.metric, self.device if can_use_device else None)

        # Sign bits select candidates for the `top` rows. A row that is its own query is one more.
        self.with_query = int(self.is_corpus)
        self.sign_searcher: SignSearcher | None = None
        # `SignSearcher.queries_at_once` divides by the number of rows.
        if signs is not None and len(signs) > 0 and self.top is not None:
            candidates = None
            if self.candidates is not None:
                candidates = self.candidates + self.with_query
            self.sign_searcher = SignSearcher(signs, vectors, self.metric, candidates)

    def _refuse_flags(self, *, can_use_device: bool) -> None:
        """Refuse flags that this corpus and this metric do not allow."""
        is_binary = self.corpus.binary_vectors is not None
        if not is_binary and (self.exact is not None or self.candidates is not None):
            flag = "--candidates" if self.exact is None else "--rescore"
            problem = (
                f"{flag} needs a corpus of encode --store binary, {self.corpus.path} has "
                f"other vectors"
            )
            raise UsageError(problem)
        if (
            self.device is not None
            and isinstance(self.queries, VectorReader)
            and not can_use_device
        ):
            problem = (
                "--device without TEXT needs --metric cosine or dot, and vectors that are "
                "not sign bits"
            )
            raise UsageError(problem)

    def _read_exact_corpus(self, path: str) -> SearchCorpus:
        """The exact vectors of the rows of a corpus of sign bits."""
        exact_corpus = read_search_corpus(self.inputs.with_paths(path))
        has_same_shape = exact_corpus.all_vectors.shape == self.corpus.all_vectors.shape
        if not self.corpus.has_signs_of(exact_corpus.space_name) or not has_same_shape:
            problem = f"not the exact vectors of the rows of {self.corpus.path}"
            raise DataError(problem, source=exact_corpus.path)
        exact_corpus.search_only(self.corpus.row_indices)
        return exact_corpus

    def blocks(self) -> Iterator[tuple[RowBlock, Iterator[Hits]]]:
        """Blocks of queries without vectors, and the hits of each, to be read before the next
        block.
        """
        size = (self.sign_searcher or self.searcher).queries_at_once(
            (self.top or 1) + self.with_query
        )
        first_size = size if Path(self.source).is_file() else min(FIRST_BLOCK, size)

        def check(block: VectorBlock) -> VectorBlock:
            refuse_existing_fields(one_vector(block).rows, self.forbidden_fields, replace=False)
            return block

        is_first = True
        for block in in_blocks_of_size(
            self.queries.blocks(check), joined_vector_blocks, size, first_size
        ):
            if is_first:
                self._refuse_other_space(block[:1])
                is_first = False
            rows = block.rows.without({*block.names, "_emb"})
            yield rows, self._hits(block.vectors[:, 0], rows.numbers)
            self.report(len(block))

    def _refuse_other_space(self, query: VectorBlock) -> None:
        """Refuse the first query if its vector is of another space than the corpus."""
        corpus = self.exact_corpus or self.corpus
        emb = self.queries.space_name  # the name of the space
        # A corpus of signs accepts queries of the space before the signs.
        fits = corpus.fits(emb)
        fits_as_mapped = self.inputs.accepts_mapped and corpus.fits(emb, mapped=True)
        corpus.table.refuse_other_space(
            query, emb, "query", accepted=fits or fits_as_mapped, permits_mapped=True
        )
        if query.rows.error_of_row:
            raise query.rows.error_of_row[0]
        if not fits:
            self.inputs.rejects.note(MAPPED_NOTE)

    def _hits(self, vectors: Float32, numbers: Sequence[int]) -> Iterator[Hits]:
        """The hits of each query, best first; ties in row order. A vector of zeros has none.

        `numbers` are those of the queries in their file.
        """
        near_rows = self._near_rows(vectors[vectors.any(axis=1)])
        for vector, number in zip(vectors, numbers, strict=True):
            if not vector.any():
                yield []
                continue
            hits = self._other_rows(next(near_rows), number)[: self.top]
            if self.missed is not None and not hits:
                nearest = self.searcher.nearest(vector[None], 1 + self.with_query)
                nearest_rows = NearRows(nearest.rows[0], nearest.similarities[0])
                for _, similarity in self._other_rows(nearest_rows, number)[:1]:
                    self.missed(similarity)
            self._refuse_different_rows([index for index, _ in hits])
            yield hits

    def _other_rows(self, near_rows: NearRows, number: int) -> Hits:
        """Near rows as hits, without the query itself if it is a row of the corpus."""
        indices = self.corpus.in_table(near_rows.rows).tolist()
        hits: Hits = list(zip(indices, near_rows.similarities.tolist(), strict=True))
        if not self.is_corpus:
            return hits
        return [hit for hit in hits if self.corpus.table.numbers[hit[0]] != number]

    def _near_rows(self, queries: Float32) -> Iterator[NearRows]:
        """The near rows of each query, best first; ties in row order."""
        threshold = -math.inf if self.threshold is None else self.threshold
        if self.top is None:
            for rows, similarities in self.searcher.reaching(queries, threshold):
                order = np.argsort(-similarities, kind="stable")
                yield NearRows(rows[order], similarities[order])
            return
        nearest = (self.sign_searcher or self.searcher).nearest(queries, self.top + self.with_query)
        counts = np.count_nonzero(nearest.similarities >= threshold, axis=1)
        for rows, similarities, count in zip(*nearest, counts.tolist(), strict=True):
            yield NearRows(rows[:count], similarities[:count])

    def _refuse_different_rows(self, indices: Sequence[int]) -> None:
        """Refuse exact vectors of other rows than those of the corpus."""
        if self.exact_corpus is None:
            return
        for index in indices:
            if self.corpus.shown(index) != self.exact_corpus.shown(index):
                row = self.exact_corpus.table.row(index)
                number = self.corpus.table.numbers[index]
                raise row.error(f"this row differs from row {number} of {self.corpus.path}")

    def called(self, query: Row) -> str:
        """A name of a query for people: its text, its entry, or its number."""
        names_in_rows = [self.fields.get(name, name) for name in NAMING]
        for name in (*names_in_rows, *NAMING):
            if query.values.get(name) is not None:
                return str(query.values[name])
        return f"row {query.number}"

    def nested(self, query: Row, hits: Hits) -> list[bytes]:
        """The query with its hits, and for a shard of the corpus with what `union` needs to join
        them.
        """
        hit_objects = [self.corpus.hit(index, similarity) for index, similarity in hits]
        new = [(b"hits", b"[%b]" % b",".join(hit_objects))]
        if self.shard is not None:
            number, count = self.shard
            emb = self.queries.space_name  # None: the queries name no space
            record = {
                "number": number,
                "count": count,
                "queries": self.digest_of_queries,
                "space": emb and space_of(emb),
                "corpus": self.corpus.table.digest,
                "metric": self.metric,
                "top": None if self.top is None else min(self.top, sys.maxsize),
                "threshold": self.threshold,
                # with all digits, which decide the order
                "similarities": [similarity for _, similarity in hits],
            }
            new.append((b"part", orjson.dumps(record)))
        return [query.add(new, replace=True) + b"\n"]

    @cached_property
    def digest_of_queries(self) -> str | None:
        """The digest of the file or folder of the queries. None for a pipe and for texts: each part
        encodes these itself, and on another machine the last bits can differ.
        """
        if not isinstance(self.queries, VectorReader):
            return None
        source = self.inputs.open_vector_file(self.source)
        if isinstance(source, VectorFolder):
            return source.digest_of_blocks()
        if not is_input_file(self.source):
            return None
        with open_file(self.source) as file:
            return digest(digest_of(file))

    def flat(self, query: Row, hits: Hits) -> Iterator[bytes]:
        """One row for each hit: the fields of the query with _a, those of the hit with _b, and the
        rank.
        """
        table = self.corpus.table
        values = bytes_of(query, output_names(query, self.fields, ()))
        query_fields = {f"{name}_a": value for name, value in values.items()}
        for rank, (index, similarity) in enumerate(hits, start=1):
            fields = dict(query_fields)
            # a field "row" of the query has this name, too
            fields.setdefault("row_a", b"%d" % query.number)
            if table.files:
                fields["file_b"] = orjson.dumps(shown_path(table.files[index]))
            fields["row_b"] = b"%d" % table.numbers[index]
            fields["rank"] = b"%d" % rank
            fields |= {f"{name}_b": value for name, value in self.corpus.every_field(index).items()}
            fields["similarity"] = b"%a" % significant(similarity)
            yield json_of(fields) + b"\n"

    def cells(self, index: int) -> list[str]:
        """The cells of a hit in a table: its row number, maybe with its file, and its fields."""
        table = self.corpus.table
        position = str(table.numbers[index])
        if table.files:
            position = f"{shown_path(table.files[index])}:{position}"
        shown = [orjson.loads(value) for value in self.corpus.shown(index).values()]
        return [position, str(shown[0]) if shown else ""]
