"""Concatenate inputs and convert between JSONL and vector files. All rows are checked as one stream."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import numpy as np
import orjson

from sentkit.errors import DataError
from sentkit.formats.files import bare_suffix, readable
from sentkit.formats.outputs.outputs import open_output
from sentkit.formats.rows.block import Row, RowBlock
from sentkit.formats.rows.kinds import VECTORS
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.rows.tables import TableWriter
from sentkit.formats.vectors import store
from sentkit.formats.vectors.sinks import VectorOutput, open_sinks, refuse_kind
from sentkit.formats.vectors.vectors import ENCODINGS, VectorBlock, VectorReader, VectorRow

TABLES = (".csv", ".tsv")
NO_VECTORS = np.empty((0, 0), dtype=np.float32)


class JoinedReader(VectorReader):
    """Reads rows that all have vectors of one space, or rows that all have no vectors."""

    def parsed(self, rows: RowBlock) -> VectorBlock:
        theirs = {self.inputs.fields.get(name, name) for name in VECTORS}
        if self.names or not all(map(theirs.isdisjoint, rows.values)):
            return super().parsed(rows)
        return VectorBlock(rows, np.zeros((len(rows), 0, 0), np.float32), ())

    def parse(self, row: Row) -> VectorRow:
        theirs = {self.inputs.fields.get(name, name) for name in VECTORS}
        if self.names or theirs & row.values.keys():
            return super().parse(row)
        return VectorRow(row, NO_VECTORS, ())

    def admit(self, row: Row, *rest: Any) -> VectorRow:
        if self.begun and not self.names:
            raise row.error("this row has a vector, the first row has none")
        return super().admit(row, *rest)


def convert(
    inputs: Inputs,
    output: str,
    form: VectorOutput,
    *,
    head: int | None,
    encoding: str | None,
    name_field: str | None = None,
) -> int:
    """Write the rows to `output`, with our names for the fields of `inputs`. Returns the number of rows.

    Without an `encoding`, vectors in JSONL are written as in the input. `name_field` gets the file.
    """
    suffix = bare_suffix(output)
    if suffix not in TABLES or form.store is not None:
        form.check(output)
    reader = JoinedReader(inputs)
    reader.verifies = head is None  # the first rows alone are read without a look at the whole file
    count = 0

    def ours(block: VectorBlock) -> VectorBlock:
        refuse_kind(block.rows, block.vectors, form.store)
        return renamed(inputs.fields, name_field, block)

    if suffix in TABLES:
        return write_table(reader, ours, output, suffix, head, force=form.force)
    blocks = reader.blocks(ours, head)
    if not store.is_store(output):
        with open_output(output, force=form.force) as out:
            for block in blocks:
                out.write(b"\n".join([*as_jsonl(block, reader.emb, encoding), b""]))
                count += len(block)
        return count
    first = list(islice(blocks, 1))
    if first and not first[0].names:
        problem = "this row has no vector; in a vector file every row needs a vector"
        raise first[0].rows.row(0).error(problem)
    spec = {**common_spec(inputs, form.store), **({"_emb": reader.emb} if reader.emb else {})}
    names = reader.names or ("embedding",)
    kept = recorded(inputs)
    spec |= {"fields": kept} if kept else {}
    with open_sinks([output], [spec], names, reader.width, form) as [sink]:
        for block in chain(first, blocks):
            sink.put(block.rows.without(block.names), block.vectors)
            count += len(block)
    return count


def renamed(fields: Mapping[str, str], name_field: str | None, block: VectorBlock) -> VectorBlock:
    """The rows with our names for their fields, and with the field `name_field` for their files."""
    rows, ours = block.rows, {theirs: name for name, theirs in fields.items()}
    for place, row in enumerate(rows) if fields or name_field is not None else ():
        try:
            row = row.renamed(fields) if fields else row
            if name_field is not None:
                file = readable(row.source)
                line = row.add([(name_field.encode(), orjson.dumps(file))], replace=False)
                row = Row(line, {**row.values, name_field: file}, row.source, row.number)
        except DataError as error:
            rows.bad.setdefault(place, error)
        else:
            rows.lines[place], rows.values[place] = row.line, row.values
    return replace(block, names=tuple(ours.get(name, name) for name in block.names))


def recorded(inputs: Inputs) -> dict[str, str]:
    """The field names that the vector files record, without those that `cat` replaces by ours."""
    names = store.recorded_fields(store.common_fields(inputs))
    return {ours: theirs for ours, theirs in names.items() if ours not in inputs.fields}


def write_table(
    reader: JoinedReader,
    ours: Callable[[VectorBlock], VectorBlock],
    output: str,
    suffix: str,
    head: int | None,
    *,
    force: bool,
) -> int:
    """Write TSV or CSV, without vectors. Returns the number of rows."""
    count = vectors = 0
    with open_output(output, force=force) as out:
        table = TableWriter(out, suffix)

        def write(block: VectorBlock) -> VectorBlock:
            block = ours(block)
            for place, row in enumerate(block.rows.without({*block.names, "_emb"} if block.names else ())):
                try:
                    if place not in block.rows.bad:
                        table.write(row)
                except DataError as error:
                    block.rows.bad[place] = error
            return block

        for block in reader.blocks(write, head):
            count, vectors = count + len(block), vectors + len(block) * bool(block.names)
    if vectors:
        reader.inputs.rejects.warn(f"{output}: a table has no vectors; those of {vectors} rows are left out")
    return count


def as_jsonl(block: VectorBlock, emb: str | None, encoding: str | None) -> list[bytes]:
    """The lines with their vectors in `encoding`. With None, vectors in the lines are unchanged."""
    rows = block.rows
    if not block.names or (encoding is None and all(block.names[0] in values for values in rows.values)):
        return rows.lines
    encode = ENCODINGS[encoding or "list"]
    space = [] if emb is None else [(b"_emb", orjson.dumps(emb))]
    lines = rows.lines.copy()
    for place, (row, vectors) in enumerate(zip(rows, block.vectors, strict=True)):
        if encoding is not None or block.names[0] not in row.values:
            new = [(name.encode(), encode(each)) for name, each in zip(block.names, vectors, strict=True)]
            lines[place] = row.add([*([] if "_emb" in row.values else space), *new], replace=True)
    return lines


def common_spec(inputs: Inputs, kind: str | None = None) -> dict[str, Any]:
    """The part of the spec that is equal in all input files. Empty if one input is not a vector file.

    "rounded" has the kind of an input whose numbers an output of this kind stores in another form.
    """
    if not all(store.is_store(path) for path in inputs.paths):
        return {}
    stores = [store.Store(path) for path in inputs.paths]
    first, *others = (each.spec for each in stores)
    common = {n: value for n, value in first.items() if all(other.get(n) == value for other in others)}
    common.pop("fields", None)
    common.pop("rounded", None)
    kinds = {each.kind for each in stores} | {str(each.spec.get("rounded")) for each in stores}
    rounded = kinds & {"float16", "int8"} - {kind}
    return {**common, "rounded": min(rounded)} if rounded else common


def with_fields(spec: Mapping[str, Any], inputs: Inputs) -> dict[str, Any]:
    """The spec with the recorded field names of the inputs, which must agree."""
    fields = store.recorded_fields(store.common_fields(inputs))
    return {**spec, "fields": fields} if fields else dict(spec)
