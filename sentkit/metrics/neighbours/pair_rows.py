"""Rows with an anchor and a positive, read with their vectors and written with their negatives."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from sentkit.arrays import Float32
from sentkit.formats.rows import splice
from sentkit.formats.rows.kinds import NEGATIVES, PAIR, TRIPLET, wrong_field
from sentkit.formats.rows.rows import FIRST_BLOCK, Inputs, Row, growing
from sentkit.formats.vectors.store import common_fields
from sentkit.formats.vectors.table import VectorTable
from sentkit.formats.vectors.vectors import VectorReader, VectorRow, without_vectors


@dataclass(frozen=True, slots=True)
class PairRow:
    row: Row  # without vectors, with the texts in "anchor" and "positive"
    anchor: str
    positive: str
    vectors: Float32  # (2, d)


def pair_blocks(inputs: Inputs, corpus: VectorTable, size: int, *, replace: bool) -> Iterator[list[PairRow]]:
    """The pairs of all files in blocks. The first blocks of a pipe are small."""
    reader = VectorReader(inputs)
    parse = PairParser(reader, common_fields(inputs), corpus, replace=replace)
    first = size if all(Path(path).is_file() for path in inputs.paths) else FIRST_BLOCK
    yield from growing(reader.read(parse), size, first)


class PairParser:
    """Converts rows with vectors to pairs. A row that has negatives is an error without `replace`."""

    def __init__(
        self, reader: VectorReader, fields: Mapping[str, str], corpus: VectorTable, *, replace: bool
    ) -> None:
        self.reader, self.fields, self.corpus, self.replace = reader, fields, corpus, replace

    def __call__(self, row: VectorRow) -> PairRow:
        kind = next((kind for kind in (PAIR, TRIPLET) if kind.vectors[0] in self.reader.names), None)
        if kind is None:
            advice = 'sentkit encode adds 2 vectors to a row with "text_a" and "text_b"'
            raise row.row.error("this row has 1 vector, expected 2", advice=advice)
        self.corpus.check_space(row, self.reader.emb, "pair")
        names = [self.fields.get(name, name) for name in kind.texts[:2]]
        anchor, positive = (text_of(row.row, name) for name in names)
        left = without_vectors(row.row, row.names)
        written = {*NEGATIVES.texts, TRIPLET.texts[2]}
        taken = sorted((written | {self.fields.get(name, name) for name in written}) - {*names})
        left.check_absent(taken, replace=self.replace)
        if left.values.keys() & taken:
            left = left.without(taken)
        line = splice.rename(left.line, dict(zip(names, NEGATIVES.texts, strict=False)), left.spans())
        return PairRow(Row(line, {}, row.row.source, row.row.number), anchor, positive, row.vectors[:2])


def text_of(row: Row, name: str) -> str:
    value = row.values.get(name)
    if not isinstance(value, str):
        raise wrong_field(row, name, "a string")
    return value


def lines(pair: PairRow, negatives: Sequence[str], *, triplets: bool) -> Iterator[bytes]:
    """The row with a list of its negatives, or one row for each negative."""
    if triplets:
        fields = [(b"negative", orjson.dumps(text)) for text in negatives]
    else:
        fields = [(b"negatives", orjson.dumps(negatives))]
    for field in fields:
        yield splice.append(pair.row.line, [field], empty=False) + b"\n"
