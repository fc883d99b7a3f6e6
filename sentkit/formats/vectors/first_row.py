"""Finds the first good row of an input, to decide whether its rows have vectors or texts to
encode.
"""

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import chain

from sentkit.errors import DataError, NoRowsError
from sentkit.formats.rows.block import Row, RowBlock
from sentkit.formats.rows.kinds import FIELDS, ROWS_OF_ADVICE, VECTOR_NAMES, TextParser
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.vectors import is_array


@contextmanager
def from_first_row(inputs: Inputs) -> Iterator[tuple[Inputs, bool]]:
    """Yield the inputs from their first good row on, and whether this row has vectors.

    A row before it has neither vectors nor texts, and goes to the rejects. Only the block of the
    first good row stays in memory, so that an input can have any number of bad rows, and a pipe is
    not read further.
    """
    fields = inputs.fields
    for i, path in enumerate(inputs.paths):
        remaining_paths = inputs.paths[i:]
        if inputs.open_vector_file(path) is not None or is_array(path):
            yield replace(inputs, paths=remaining_paths), True
            return
        with closing(blocks_of(inputs, path)) as blocks:
            for block in blocks:
                first_row = refuse_unreadable(block, fields)
                if first_row is None:
                    inputs.reject(block)
                    continue
                # The first path is already open, and its blocks from this one on are read.
                opened: list[Iterator[RowBlock]] = [chain([block], blocks)]
                remaining = replace(inputs, paths=remaining_paths, opened=opened)
                yield remaining, has_vectors(first_row, fields)
                return
    raise NoRowsError(inputs.paths, inputs.rejects.count)


def blocks_of(inputs: Inputs, path: str) -> Generator[RowBlock]:
    """The rows of a file before parsing. The file is closed after its last row."""
    with inputs.raw_blocks(path) as blocks:
        yield from blocks


def refuse_unreadable(block: RowBlock, fields: Mapping[str, str]) -> Row | None:
    """Mark the rows before the first one with vectors or texts as bad, and return this row."""
    parse = TextParser(fields)
    for i, row in enumerate(block):
        if i in block.error_of_row:
            continue
        if has_vectors(row, fields):
            return row
        try:
            parse(row, block.values[i : i + ROWS_OF_ADVICE])
        except DataError as error:
            names_a_text = any(fields.get(name, name) in row.values for name in FIELDS)
            problem = error.problem if names_a_text else f"this row has no vector, {error.problem}"
            block.refuse(i, problem, advice=error.advice)
        else:
            return row
    return None


def has_vectors(row: Row, fields: Mapping[str, str]) -> bool:
    """Whether a row has all vector fields of one of the kinds, valid or not."""
    return any(
        all(fields.get(name, name) in row.values for name in names) for names in VECTOR_NAMES
    )
