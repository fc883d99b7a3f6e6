"""Concatenate inputs and convert between JSONL and vector files. All rows are checked as one stream."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain, islice
from typing import Any

import numpy as np
import orjson

from sentkit.formats.files import bare_suffix, readable
from sentkit.formats.outputs.outputs import open_output
from sentkit.formats.rows.kinds import VECTORS
from sentkit.formats.rows.rows import Inputs, Row
from sentkit.formats.rows.tables import TableWriter
from sentkit.formats.vectors import store
from sentkit.formats.vectors.sinks import VectorOutput, check_kind, open_sinks
from sentkit.formats.vectors.vectors import ENCODINGS, VectorReader, VectorRow, without_vectors

TABLES = (".csv", ".tsv")
NO_VECTORS = np.empty((0, 0), dtype=np.float32)


class JoinedReader(VectorReader):
    """Reads rows that all have vectors of one space, or rows that all have no vectors."""

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

    def ours(row: VectorRow) -> VectorRow:
        check_kind(row.row, row.vectors, form.store)
        return renamed(inputs.fields, name_field, row)

    if suffix in TABLES:
        return write_table(reader, ours, output, suffix, head, force=form.force)
    rows, count = islice(reader.read(ours), head), 0
    if not store.is_store(output):
        with open_output(output, force=form.force) as out:
            for count, row in enumerate(rows, start=1):  # noqa: B007
                out.write(as_jsonl(row, reader.emb, encoding) + b"\n")
        return count
    first = list(islice(rows, 1))
    if first and not first[0].names:
        raise first[0].row.error("this row has no vector; in a vector file every row needs a vector")
    spec = {**common_spec(inputs, form.store), **({"_emb": reader.emb} if reader.emb else {})}
    names = reader.names or ("embedding",)
    kept = recorded(inputs)
    spec |= {"fields": kept} if kept else {}
    with open_sinks([output], [spec], names, reader.width, form) as [sink]:
        for count, row in enumerate(chain(first, rows), start=1):  # noqa: B007
            sink.write(row.row.without(row.names), row.vectors)
    return count


def renamed(fields: Mapping[str, str], name_field: str | None, row: VectorRow) -> VectorRow:
    if fields:
        ours = {theirs: name for name, theirs in fields.items()}
        names = tuple(ours.get(name, name) for name in row.names)
        row = replace(row, row=row.row.renamed(fields), names=names)
    if name_field is None:
        return row
    old, file = row.row, readable(row.row.source)
    line = old.add([(name_field.encode(), orjson.dumps(file))], replace=False)
    named = Row(line, {**old.values, name_field: file}, old.source, old.number, old.input_line)
    return replace(row, row=named)


def recorded(inputs: Inputs) -> dict[str, str]:
    """The field names that the vector files record, without those that `cat` replaces by ours."""
    names = store.recorded_fields(store.common_fields(inputs))
    return {ours: theirs for ours, theirs in names.items() if ours not in inputs.fields}


def write_table(
    reader: JoinedReader,
    ours: Callable[[VectorRow], VectorRow],
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

        def write(row: VectorRow) -> bool:
            row = ours(row)
            table.write(without_vectors(row.row, row.names))
            return bool(row.names)

        for has_vectors in islice(reader.read(write), head):
            count, vectors = count + 1, vectors + has_vectors
    if vectors:
        reader.inputs.rejects.warn(f"{output}: a table has no vectors; those of {vectors} rows are left out")
    return count


def as_jsonl(row: VectorRow, emb: str | None, encoding: str | None) -> bytes:
    """The line with its vectors in `encoding`. With None, vectors in the line are unchanged."""
    line, values = row.row.line, row.row.values
    if not row.names or (encoding is None and row.names[0] in values):
        return line
    encode = ENCODINGS[encoding or "list"]
    space = [] if emb is None or "_emb" in values else [(b"_emb", orjson.dumps(emb))]
    vectors = [(name.encode(), encode(vector)) for name, vector in zip(row.names, row.vectors, strict=True)]
    return row.row.add([*space, *vectors], replace=True)


def with_vectors(row: VectorRow, emb: str | None) -> Row:
    """The row with its vectors as fields. A vector file stores them separately."""
    names = [*row.names, *(["_emb"] if emb else [])]
    values = {**dict.fromkeys(names), **row.row.values}
    return Row(as_jsonl(row, emb, None), values, row.row.source, row.row.number)


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
