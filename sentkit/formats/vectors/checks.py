"""Checks of rows with vectors. They mark bad rows of a block, which `VectorReader.blocks` then drops."""

from collections.abc import Callable
from typing import Any

from sentkit.errors import DataError
from sentkit.formats.rows.block import Row, RowBlock
from sentkit.formats.vectors.vectors import VectorBlock


def one_vector(block: VectorBlock) -> VectorBlock:
    """Refuse pairs and triplets."""
    if block.vectors.shape[1] != 1:
        refuse_all(block.rows, f"expected 1 vector, this row has {block.vectors.shape[1]}")
    return block


def refuse_all(rows: RowBlock, problem: str, advice: str | None = None) -> None:
    for place in range(len(rows)):
        rows.refuse(place, problem, advice=advice)


def parse_rows(rows: RowBlock, parse: Callable[[Row], Any]) -> None:
    """Set the texts of each row to the result of `parse`; a row with a DataError is bad."""
    rows.texts = []
    for place, row in enumerate(rows):
        result = None
        if place not in rows.bad:
            try:
                result = parse(row)
            except DataError as error:
                rows.bad[place] = error
        rows.texts.append((result,))
