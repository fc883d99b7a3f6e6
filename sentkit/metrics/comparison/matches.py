"""The vectors of the same rows in two encodings, A and B: of two files, or of a file and a model.

Letters in shapes: m vectors of a block, d and e dimensions of both sides.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentkit.arrays import Float32, Indices
from sentkit.errors import DataError, UsageError
from sentkit.formats.rows.block import Row, RowBlock, Texts, block_of_rows
from sentkit.formats.rows.kinds import (
    FIELDS,
    KINDS,
    VECTORS,
    TextParser,
    class_value,
    missing_field,
    string_value,
)
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.store import field_names_of
from sentkit.formats.vectors.vectors import (
    VectorBlock,
    VectorReader,
    in_blocks_of_size,
    is_array,
    joined_vector_blocks,
)
from sentkit.metrics.comparison.misread import find_format, is_missing, read_as
from sentkit.metrics.neighbours.corpus import read_table

VECTORS_PER_BLOCK = 1024
ENCODED_ROWS = 8192  # of a block that the model of `SidesOfModel` encodes
TEXT_OF = {
    vector: text
    for kind in KINDS
    for vector, text in zip(kind.vector_names, kind.text_names, strict=True)
}

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Matches:
    """Vectors of A, and the vectors of the same rows of B."""

    labels: NDArray[np.object_]  # (m,): records with the row of A, its key and its text
    a: Float32  # (m, d)
    b: Float32  # (m, e)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: slice | Indices) -> "Matches":
        return Matches(self.labels[rows], self.a[rows], self.b[rows])


def joined_matches(blocks: Sequence[Matches]) -> Matches:
    return Matches(
        labels=np.concatenate([block.labels for block in blocks]),
        a=np.concatenate([block.a for block in blocks]),
        b=np.concatenate([block.b for block in blocks]),
    )


class Sides:
    """The rows of two files, A and B, which are matched by their order or by a field."""

    def __init__(self, a: Inputs, b: Inputs) -> None:
        self.inputs = [without_vector_fields(a), without_vector_fields(b)]
        self.paths = [inputs.paths[0] for inputs in self.inputs]
        self.fields = [field_names_of(inputs, inputs.paths[0]) for inputs in self.inputs]
        self.readers = [VectorReader(inputs) for inputs in self.inputs]
        self.only = [0, 0]  # rows of A and of B without a match

    def matches(self, key: str | None) -> Iterator[Matches]:
        if key is not None:
            yield from self.by_key(key)
            return
        streams = [
            in_blocks_of_size(reader.blocks(), joined_vector_blocks, VECTORS_PER_BLOCK)
            for reader in self.readers
        ]
        rows = 0
        for a, b in zip_longest(*streams, fillvalue=()):
            size = min(len(a), len(b))
            rows += size
            if size:
                yield self.match(a[:size], b[:size])
            if len(a) != len(b):
                longer = int(len(b) > size)
                problem = f"{rows} rows, but {self.paths[longer]} has more"
                advice = "--key FIELD matches rows by a field"
                raise DataError(problem, source=self.paths[1 - longer], advice=advice)

    def by_key(self, key: str) -> Iterator[Matches]:
        """Read A as a stream. The vectors of B are in memory, unless B is a vector file."""
        if any(map(is_array, self.paths)):
            raise UsageError("--key needs rows with fields; .npy has only numbers")
        table_b = read_table(self.inputs[1])
        index_of_key: dict[str, int] = {}
        for index, row in enumerate(table_b.every_row()):
            if index_of_key.setdefault(class_value(row, key), index) != index:
                raise duplicate_key(row, key)

        has_match = np.zeros(len(table_b), bool)
        for a in self.readers[0].blocks():
            indices_a = list[int]()
            indices_b = list[int]()
            for index_a, row in enumerate(a.rows):
                index_b = index_of_key.get(class_value(row, key))
                if index_b is None:
                    self.only[0] += 1
                    continue
                if has_match[index_b]:
                    raise duplicate_key(row, key)
                has_match[index_b] = True
                indices_a.append(index_a)
                indices_b.append(index_b)
            if indices_a:
                rows = block_of_rows(map(table_b.row, indices_b))
                b = VectorBlock(rows, table_b.vectors[np.array(indices_b)], table_b.names)
                yield self.match(a.take(indices_a), b, key)
        self.only[1] = len(table_b) - int(has_match.sum())
        if not has_match.any():
            raise DataError(f'no row has a "{key}" of {self.paths[1]}', source=self.paths[0])
        self.readers[1].space_name = table_b.space_name
        self.readers[1].width = table_b.vectors.shape[-1]

    def match(self, a: VectorBlock, b: VectorBlock, key: str | None = None) -> Matches:
        """The vectors of the same rows, whose texts must be equal on both sides."""
        count_a = a.vectors.shape[1]
        count_b = b.vectors.shape[1]
        if count_a != count_b:
            problem = (
                f"this row has {count_b} vectors, row {a.rows.numbers[0]} of {self.paths[0]} has"
            )
            raise b.rows.row(0).error(f"{problem} {count_a}")
        texts = {name: self.common_texts(a.rows, b.rows, name) for name in (*FIELDS, "entry")}

        # A label for each vector of a row: the row, its key and the text of the vector.
        labels = list[Record]()
        for i, (number, values) in enumerate(zip(a.rows.numbers, a.rows.values, strict=True)):
            row_label: Record = {"row": number}
            if key is not None:
                row_label[key] = values[key]
            for vector_name in self.readers[0].names:
                text = texts[TEXT_OF[vector_name]][i]
                if text is None:
                    text = texts["entry"][i]
                labels.append(row_label if text is None else {**row_label, "text": text})
        return Matches(
            labels=np.array(labels, object),
            a=a.vectors.reshape(-1, a.vectors.shape[2]),
            b=b.vectors.reshape(-1, b.vectors.shape[2]),
        )

    def common_texts(self, a: RowBlock, b: RowBlock, name: str) -> list[str | None]:
        """The values of a field in the rows of A, or in those of B; an error if both have it and
        differ.
        """
        fields_a, fields_b = self.fields
        column_a = [values.get(fields_a.get(name, name)) for values in a.values]
        column_b = [values.get(fields_b.get(name, name)) for values in b.values]
        texts = list[str | None]()
        for i, (value_a, value_b) in enumerate(zip(column_a, column_b, strict=True)):
            if value_a is not None and value_b is not None and value_a != value_b:
                problem = f'"{name}" differs from row {a.numbers[i]} of {self.paths[0]}'
                advice = "compare encodings of the same texts, or use --key FIELD"
                raise b.row(i).error(problem, advice=advice)
            value = value_b if value_a is None else value_a
            texts.append(None if value is None else str(value))
        return texts


def without_vector_fields(inputs: Inputs) -> Inputs:
    """The inputs; without names of vector fields if they are a file of vectors, which has none to
    map.
    """
    path = inputs.paths[0]
    if inputs.open_vector_file(path) is None and not is_array(path):
        return inputs
    fields = {standard: name for standard, name in inputs.fields.items() if standard not in VECTORS}
    return replace(inputs, fields=fields)


class SidesOfModel(Sides):
    """The rows of a file, A, and the vectors that a model computes of their texts, B."""

    def __init__(
        self,
        a: Inputs,
        name: str,
        encode: Callable[[RowBlock], Float32],
        texts: Inputs | None = None,
    ) -> None:
        """`encode` gets rows with their texts and returns the vectors (n, k, e).

        `texts` are rows with the texts of A in the same order; without them, the rows of A have
        their texts.
        """
        super().__init__(a, a)
        self.readers[0] = VectorReader(self.inputs[0], finite=False)
        self.paths[1] = name
        self.encode = encode
        self.texts = texts
        self.blank = 0  # rows with a blank text, which are left out
        self.number_format: str | None = None  # of the vectors of A, if it is not float32
        self.compared = 0  # rows with a text that is not blank
        self.missing = list[int]()  # of these, the rows that are left out: A has no vector
        self.has_not_finite = False  # whether a vector of A has NaN or infinity

    @property
    def record(self) -> Mapping[str, Any]:
        """How the vectors of A were made, if they are in a vector file or folder; else {}."""
        if type(self.readers[0]) is not VectorReader:  # a model encodes them
            return {}
        store = self.inputs[0].open_vector_file(self.paths[0])
        if store is None:
            return {}
        return store.metadata

    def matches(self, key: str | None) -> Iterator[Matches]:
        text_rows = iter(()) if self.texts is None else rows_with_texts(self.texts)
        for a in in_blocks_of_size(self.readers[0].blocks(), joined_vector_blocks, ENCODED_ROWS):
            names = [TEXT_OF[name] for name in self.readers[0].names]
            if self.texts is None:
                a.rows.texts = [tuple(self.text_of(row, name) for name in names) for row in a.rows]
            else:
                a = replace(a, rows=self.rows_of_texts(a.rows, names, text_rows))
            filled = [i for i, texts in enumerate(a.rows.texts) if all(map(str.strip, texts))]
            self.blank += len(a) - len(filled)
            if filled:
                a = a.take(filled)
                yield from self.matches_of_block(a, replace(a, vectors=self.encode(a.rows)))
        if next(text_rows, None) is not None:
            assert self.texts is not None
            raise DataError(f"fewer rows than {self.texts.paths[0]}", source=self.paths[0])

    def matches_of_block(self, a: VectorBlock, b: VectorBlock) -> Iterator[Matches]:
        """The vectors of the rows for which A has one, as numbers in the right format."""
        if not self.compared:
            self.number_format = find_format(a.vectors, b.vectors.shape[-1])
        self.compared += len(a)
        if self.number_format is not None:
            a = replace(a, vectors=read_as(self.number_format, a.vectors))
        misses = is_missing(a.vectors) & ~is_missing(b.vectors)
        self.missing += [a.rows.numbers[index] for index in np.flatnonzero(misses)]
        self.has_not_finite |= not np.isfinite(a.vectors).all()
        present = np.flatnonzero(~misses).tolist()
        if present:
            yield self.match(a.take(present), b.take(present))

    def rows_of_texts(
        self, rows: RowBlock, names: Sequence[str], text_rows: Iterator[tuple[Row, Texts]]
    ) -> RowBlock:
        """The rows of A with the next texts, of which each vector needs one."""
        assert self.texts is not None
        names_in_rows = [self.fields[0].get(name, name) for name in names]
        new_rows = list[Row]()
        texts_of_rows = list[Texts]()
        for row in rows:
            text_row, texts_of_row = next(text_rows, (None, ()))
            if text_row is None:
                problem = f"fewer rows than {self.paths[0]}"
                raise DataError(problem, source=self.texts.paths[0])
            if len(texts_of_row) != len(names):
                problem = (
                    f"this row has {len(texts_of_row)} texts, row {row.number} of {row.source} has"
                )
                raise text_row.error(f"{problem} {len(names)} vectors")
            texts_by_name = dict(zip(names_in_rows, texts_of_row, strict=True))
            for name, text in texts_by_name.items():
                own_text = row.values.get(name)
                if isinstance(own_text, str) and own_text != text:
                    problem = f'"{name}" differs from row {row.number} of {self.paths[0]}'
                    raise text_row.error(problem, advice="leave out --texts: A has the texts")
            values = row.values | texts_by_name
            new_rows.append(Row(row.line, values, row.source, row.number, row.raw))
            texts_of_rows.append(texts_of_row)
        block = block_of_rows(new_rows)
        block.texts = texts_of_rows
        return block

    def text_of(self, row: Row, name: str) -> str:
        """The text of a vector, or the entry of the row."""
        text_field = self.fields[0].get(name, name)
        entry_field = self.fields[0].get("entry", "entry")
        for field in (text_field, entry_field):
            if row.values.get(field) is not None:
                return string_value(row, field)
        if not any(isinstance(value, str) for name, value in row.values.items() if name != "_emb"):
            advice = "name a file with the texts of these rows: --texts FILE"
            raise row.error("this row has no text, which the model needs", advice=advice)
        raise missing_field(row, text_field, name)


def rows_with_texts(inputs: Inputs) -> Iterator[tuple[Row, Texts]]:
    """The rows of the inputs, each with its texts."""
    for block in inputs.blocks(TextParser(inputs.fields)):
        yield from zip(block, block.texts, strict=True)


def duplicate_key(row: Row, key: str) -> DataError:
    return row.error(f'"{key}" has the value of an earlier row: {class_value(row, key)}')
