"""Rows of a file that are near each other, or near rows of other files, and the groups that they
form.

Letters in shapes: n rows, k near rows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import orjson

from sentkit.arrays import Float64, Indices
from sentkit.digits import significant
from sentkit.errors import DataError
from sentkit.formats.files import is_safetensors, shown_path
from sentkit.formats.outputs.outputs import open_output
from sentkit.formats.rows.block import block_of_rows
from sentkit.formats.rows.kinds import SENTENCE
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.store import (
    common_metadata,
    field_names_of,
    with_field_names,
)
from sentkit.formats.vectors.vectors import (
    VectorBlock,
    VectorReader,
    in_blocks_of_size,
    joined_vector_blocks,
    one_vector,
)
from sentkit.formats.vectors.writers import (
    VectorOutput,
    open_writers,
    refuse_existing_fields,
    refuse_names_of_vectors,
)
from sentkit.metrics.neighbours.corpus import SearchCorpus, read_table, shown_fields
from sentkit.metrics.neighbours.pairs import Pairs, pairs_reaching
from sentkit.metrics.neighbours.search import NearRows, Searcher

if TYPE_CHECKING:
    from sentkit.metrics.device import Device

ROWS_PER_BLOCK = 1024  # rows that are read at a time

Fields = dict[str, bytes]  # JSON values by name


def advice_on_fields(corpus: SearchCorpus) -> str:
    """The fields that the rows of a corpus have, without those of vectors."""
    names: dict[str, None] = {}  # in the order of the rows
    for row in corpus.table.every_row():
        names |= dict.fromkeys(row.values)
    shown = [name for name in names if name not in corpus.hidden]
    if not shown:
        return "the rows have only vectors"
    return f"the rows have: {', '.join(shown)}"


@dataclass(frozen=True, slots=True)
class RowNeighbours:
    """A row, and rows of one table that are near it, in their order."""

    number: int  # of the row in its file
    shown: Mapping[str, bytes]  # fields of the row
    corpus: SearchCorpus
    indices: Indices  # of the near rows in the table, (k,)
    similarities: Float64  # (k,)

    def pair(self, i: int, *, with_file: bool) -> Fields:
        """The fields of the pair of the row and its i-th near row."""
        index_b = int(self.indices[i])
        fields = {f"{name}_a": value for name, value in self.shown.items()}
        fields |= {f"{name}_b": value for name, value in self.corpus.shown(index_b).items()}
        if with_file:
            fields["file_b"] = orjson.dumps(shown_path(self.corpus.path))
        fields["row_a"] = b"%d" % self.number
        fields["row_b"] = b"%d" % self.corpus.table.numbers[index_b]
        fields["similarity"] = b"%a" % significant(float(self.similarities[i]))
        return fields


@dataclass
class Duplicates:
    """The rows of a file, and those near them: later rows of this file, or rows of other files."""

    inputs: Inputs
    threshold: float
    metric: str
    device: "Device | None"
    show: Sequence[str]
    against: Sequence[Inputs] = ()  # the other files
    forbidden_fields: Sequence[str] = ()  # fields that a row must not have
    compared: Callable[[int], None] = lambda rows: None  # gets the number of compared rows

    def __post_init__(self) -> None:
        tables = [read_table(inputs, self._check) for inputs in self.against or [self.inputs]]
        self.corpora = [SearchCorpus(table, self.show) for table in tables]
        self.corpus = self.corpora[0]
        self.has_several_files = len(tables) > 1
        self.unseen_fields = set(self.show)  # that no row of a pair had until now
        self.has_pairs = False
        if not self.against:
            self._refuse_unknown_fields()

    def _check(self, block: VectorBlock) -> VectorBlock:
        refuse_existing_fields(one_vector(block).rows, self.forbidden_fields, replace=False)
        return block

    def _refuse_unknown_fields(self) -> None:
        """Raise an error if no row has one of the fields in `show`."""
        for index in range(len(self.corpus.table)):
            if not self.unseen_fields:  # most corpora have all of them in the first row
                return
            self.unseen_fields -= self.corpus.shown(index).keys()
        if self.unseen_fields:
            problem = f'no row has "{min(self.unseen_fields)}"'
            raise DataError(problem, source=self.corpus.path, advice=advice_on_fields(self.corpus))

    def near(self) -> Iterator[RowNeighbours]:
        """Each row that has rows near it, with those of one file."""
        return self._near_others() if self.against else self._near_later()

    def unique(self) -> Iterator[VectorBlock]:
        """The first row of each group, or the rows without a near row; the vectors are not in the
        lines.
        """
        return self._far_rows() if self.against else self._first_rows()

    def _near_later(self) -> Iterator[RowNeighbours]:
        """Each row that has later rows near it, with these."""
        for pairs in self._pairs():
            rows, begins = np.unique(pairs.rows_a, return_index=True)
            later_rows = np.split(pairs.rows_b, begins[1:])
            similarities = np.split(pairs.similarities, begins[1:])
            for row, later_rows_of_row, similarities_of_row in zip(
                rows.tolist(), later_rows, similarities, strict=True
            ):
                yield RowNeighbours(
                    number=self.corpus.table.numbers[row],
                    shown=self.corpus.shown(row),
                    corpus=self.corpus,
                    indices=later_rows_of_row,
                    similarities=similarities_of_row,
                )

    def _pairs(self) -> Iterator[Pairs]:
        """Some pairs at a time, at least one, by their indices in the table."""
        done = 0
        for pairs in pairs_reaching(self.corpus.vectors, self.threshold, self.metric, self.device):
            if len(pairs.rows_a):
                rows_a = self.corpus.in_table(pairs.rows_a)
                rows_b = self.corpus.in_table(pairs.rows_b)
                yield Pairs(rows_a, rows_b, pairs.similarities)
                compared = int(pairs.rows_a[-1]) + 1
                self.compared(compared - done)
                done = compared
        self.compared(len(self.corpus.vectors) - done)

    def groups(self) -> Indices:
        """The first row of the group of each row of the table, (n,)."""
        first_rows = np.arange(len(self.corpus.table))
        for pairs in self._pairs():
            first_rows = connected(first_rows, pairs.rows_a, pairs.rows_b)
        return first_rows

    def grouped(self, *, replace: bool) -> Iterator[bytes]:
        """Each row with the number of the first row of its group."""
        table = self.corpus.table
        for row, first_row in zip(table.every_row(), self.groups().tolist(), strict=True):
            yield row.add([(b"group", b"%d" % table.numbers[first_row])], replace=replace)

    def _first_rows(self) -> Iterator[VectorBlock]:
        """The first row of each group."""
        table = self.corpus.table
        first_rows = np.unique(self.groups())
        for start in range(0, len(first_rows), ROWS_PER_BLOCK):
            indices = first_rows[start : start + ROWS_PER_BLOCK]
            rows = block_of_rows(map(table.row, indices.tolist()))
            yield VectorBlock(rows, table.vectors[indices], table.names, table.space_name)

    def _blocks(self) -> Iterator[VectorBlock]:
        """The rows of the file, to be compared with the other files before the next block."""
        reader = VectorReader(self.inputs)

        def check(block: VectorBlock) -> VectorBlock:
            one_vector(block)
            for corpus in self.corpora:
                corpus.table.refuse_other_space(block, reader.space_name, "row")
            return block

        for block in in_blocks_of_size(reader.blocks(check), joined_vector_blocks, ROWS_PER_BLOCK):
            yield block
            self.compared(len(block))

    @cached_property
    def _searchers(self) -> list[Searcher]:
        return [Searcher(corpus.vectors, self.metric, self.device) for corpus in self.corpora]

    def _near_rows(self, block: VectorBlock) -> Iterator[list[NearRows]]:
        """For each row of the block, its near rows in each other file. A zero vector has none."""
        vectors = block.vectors[:, 0]
        is_filled = np.any(vectors != 0, axis=1)
        results = [
            searcher.reaching(vectors[is_filled], self.threshold) for searcher in self._searchers
        ]
        no_rows = NearRows(np.empty(0, np.intp), np.empty(0))
        for has_vector in is_filled.tolist():
            if has_vector:
                yield [next(near_rows) for near_rows in results]
            else:
                yield [no_rows] * len(self.corpora)

    def _near_others(self) -> Iterator[RowNeighbours]:
        """Each row that has near rows in another file, once for each of these files."""
        fields = field_names_of(self.inputs, self.inputs.paths[0])
        for block in self._blocks():
            hidden = (*block.names, "_emb")
            for index, near_rows in enumerate(self._near_rows(block)):
                for corpus, (rows, similarities) in zip(self.corpora, near_rows, strict=True):
                    if len(rows):
                        row = block.rows.row(index)
                        shown = shown_fields(row, hidden, self.show, fields)
                        indices = corpus.in_table(rows)
                        self._note_fields(shown, corpus, indices)
                        yield RowNeighbours(row.number, shown, corpus, indices, similarities)

    def _note_fields(
        self, shown: Mapping[str, bytes], corpus: SearchCorpus, indices: Indices
    ) -> None:
        self.has_pairs = True
        self.unseen_fields -= shown.keys()
        for index in indices.tolist():
            if not self.unseen_fields:
                return
            self.unseen_fields -= corpus.shown(index).keys()

    def _far_rows(self) -> Iterator[VectorBlock]:
        """The rows without a near row in the other files."""
        for block in self._blocks():
            far_indices = list[int]()
            for index, near_rows in enumerate(self._near_rows(block)):
                if not any(len(rows) for rows, _ in near_rows):
                    far_indices.append(index)
            far_block = block.take(far_indices)
            yield replace(far_block, rows=far_block.rows.without({*block.names, "_emb"}))


def connected(first_rows: Indices, rows_a: Indices, rows_b: Indices) -> Indices:
    """The first row of the group of each row, (n,), after these pairs join groups."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    count = len(first_rows)
    edges = (np.ones(len(rows_a), bool), (first_rows[rows_a], first_rows[rows_b]))
    _, groups = connected_components(coo_array(edges, (count, count)), directed=False)
    first_of_group = np.empty(count, np.intp)
    # In reversed order: of the rows of a group, the first one is set last.
    first_of_group[groups[::-1]] = np.arange(count)[::-1]
    return first_of_group[groups][first_rows]


def write_unique(duplicates: Duplicates, inputs: Inputs, output: str, *, force: bool) -> None:
    """Write the rows of `unique` as JSONL, or as a vector file with their vectors."""
    blocks = duplicates.unique()
    if not is_safetensors(output):
        with open_output(output, force=force) as out:
            for block in blocks:
                out.writelines(line + b"\n" for line in block.rows.lines)
        return
    first = next(blocks)
    spec = dict(common_metadata(inputs))
    if first.space_name:
        spec["_emb"] = first.space_name
    spec = with_field_names(spec, inputs)
    form = VectorOutput(force=force, replace=True)
    width = first.vectors.shape[2]
    # The vector of a vector file has its standard name, also after --field.
    with open_writers([output], [spec], SENTENCE.vector_names, width, form) as [sink]:
        for block in chain([first], blocks):
            refuse_names_of_vectors(block.rows, SENTENCE.vector_names)
            sink.put(block.rows, block.vectors)


def fields_of_pairs(duplicates: Duplicates) -> Iterator[Fields]:
    """The fields of each pair, in the order of the rows."""
    for neighbours in duplicates.near():
        for i in range(len(neighbours.indices)):
            yield neighbours.pair(i, with_file=duplicates.has_several_files)
