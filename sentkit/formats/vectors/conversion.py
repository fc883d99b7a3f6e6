"""Write the rows of all inputs to one output of any format, as `sentkit cat` does."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from shlex import quote

import orjson

from sentkit.errors import DataError
from sentkit.formats.files import is_safetensors, shown_path
from sentkit.formats.outputs.outputs import open_output
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.store import common_field_names, common_metadata, recorded_fields
from sentkit.formats.vectors.vectors import VectorBlock, VectorReader
from sentkit.formats.vectors.writers import (
    VectorOutput,
    as_jsonl,
    open_writers,
    refuse_beyond_float16,
)


def convert(
    inputs: Inputs,
    output: str,
    vector_output: VectorOutput,
    *,
    head: int | None,
    encoding_in_jsonl: str | None,
    name_field: str | None = None,
) -> int:
    """Write the rows to `output`, with standard names for the fields of `inputs`. Returns their
    number.

    `head` is the largest number of rows; None: all. `encoding_in_jsonl` is that of the vectors:
    list or base64; None: those of rows stay as they are. `name_field` is a new field with the file
    of each row.
    """
    vector_output.check(output)
    refuse_other_fields(inputs)
    # The digest of a vector file is of all its bytes, which the first rows alone are not worth.
    verify = head is None
    reader = VectorReader(inputs, vectors_optional=True, verify=verify)

    def with_standard_names(block: VectorBlock) -> VectorBlock:
        refuse_beyond_float16(block.rows, block.vectors, vector_output.store)
        return renamed(inputs.fields, name_field, block)

    # `reader.space_name`, the space, is known from the first block on.
    blocks = reader.blocks(with_standard_names, head)
    if is_safetensors(output):
        return write_vectors(reader, blocks, output, vector_output)
    count = 0
    with open_output(output, force=vector_output.force) as out:
        for block in blocks:
            lines = as_jsonl(block, reader.space_name, encoding_in_jsonl)
            out.write(b"\n".join([*lines, b""]))
            count += len(block)
    return count


def refuse_other_fields(inputs: Inputs) -> None:
    """Refuse a --field that names other texts than those of the vectors of a file."""
    for path in inputs.paths:
        source = inputs.open_vector_file(path)
        if source is None:
            continue
        for standard, encoded in source.fields.items():
            name = inputs.fields.get(standard, encoded)
            if name != encoded:
                problem = f'its vectors are those of the field "{encoded}", not of "{name}"'
                advice = f"leave out --field {quote(f'{standard}={name}')}"
                raise DataError(problem, source=path, advice=advice)


def write_vectors(
    reader: VectorReader, blocks: Iterator[VectorBlock], output: str, vector_output: VectorOutput
) -> int:
    """Write a vector file. Returns the number of rows."""
    inputs = reader.inputs

    # The first block, after which `reader` has the names, the width and the space of the vectors.
    first = next(blocks, None)
    if first is not None:
        if not first.names:
            problem = "this row has no vector; in a vector file every row needs a vector"
            raise first.rows.row(0).error(problem)
        blocks = chain([first], blocks)

    # What the file records of all inputs: the settings that they have in common, and the names of
    # fields that --field does not rename.
    spec = common_metadata(inputs, vector_output.store)
    if reader.space_name:  # the name of the space
        spec["_emb"] = reader.space_name
    # Standard name -> name in the rows, of the fields that keep their names in the output: --field
    # renames only the others.
    kept_names = {
        standard: name
        for standard, name in recorded_fields(common_field_names(inputs)).items()
        if standard not in inputs.fields
    }
    if kept_names:
        spec["fields"] = kept_names

    # The rows, whose vectors move from their fields to the array.
    count = 0
    standard_names = reader.names or ("embedding",)
    with open_writers([output], [spec], standard_names, reader.width, vector_output) as [writer]:
        for block in blocks:
            writer.put(block.rows.without(block.names), block.vectors)
            count += len(block)
    return count


def renamed(fields: Mapping[str, str], name_field: str | None, block: VectorBlock) -> VectorBlock:
    """The rows with standard names for their fields, and with the field `name_field` for their
    files. `fields`: standard name -> name in the rows (--field). A row that has both is bad.
    """
    rows = block.rows
    if fields or name_field is not None:
        for index, row in enumerate(rows):
            try:
                if fields:
                    row = row.with_standard_names(fields)
                if name_field is not None:
                    row = with_name_of_file(row, name_field)
            except DataError as error:
                rows.error_of_row.setdefault(index, error)
            else:
                rows.lines[index] = row.line
                rows.values[index] = row.values
    standard_names = {name: standard for standard, name in fields.items()}
    return replace(block, names=tuple(standard_names.get(name, name) for name in block.names))


def with_name_of_file(row: Row, field: str) -> Row:
    if field in row.values:
        problem = f'field "{field}" already exists'
        raise row.error(problem, advice="use another --name-field")
    name = shown_path(row.source)
    line = row.add([(field.encode(), orjson.dumps(name))], replace=False)
    return Row(line, {**row.values, field: name}, row.source, row.number)
