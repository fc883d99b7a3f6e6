"""Write rows as TSV or CSV."""

import re
from collections.abc import Mapping, Sequence
from typing import BinaryIO

from sentkit.formats.rows import splice
from sentkit.formats.rows.lines import BadLine
from sentkit.formats.rows.rows import Row
from sentkit.formats.rows.tables import DELIMITERS

IN_QUOTES = re.compile('[",\r\n\ufeff]')  # characters of a cell that needs quotes; also a byte order mark


class TableWriter:
    """Writes rows to TSV or CSV. The fields of the first row are the columns.

    A text is written as it is, null as an empty cell, and any other value as its JSON. If a row does not have
    a column, its cell is empty.
    """

    def __init__(self, out: BinaryIO, suffix: str) -> None:
        self.out, self.delimiter = out, DELIMITERS[suffix.removeprefix(".")]
        self.columns: list[str] = []

    def line(self, cells: Sequence[str]) -> bytes:
        """A record, which `table_rows` reads back. Raises BadLine if there is none."""
        if any("\0" in cell for cell in cells):
            raise BadLine("a NUL character: a table cannot contain it")
        if self.delimiter == "\t":
            if any(not {"\t", "\n", "\r"}.isdisjoint(cell) for cell in cells):
                raise BadLine("a tab or newline: TSV cannot contain it, CSV can")
            return "\t".join(cells).encode() + b"\n"
        # The module csv does not quote a carriage return in all versions of Python.
        quoted = ['"' + cell.replace('"', '""') + '"' if IN_QUOTES.search(cell) else cell for cell in cells]
        return (",".join(quoted) or '""').encode() + b"\n"

    def write(self, row: Row) -> None:
        values, new = row.values, not self.columns
        columns = self.columns or list(values)
        if extra := next((name for name in values if name not in columns), None):
            raise row.error(f'"{extra}" is not a column of the first row')
        simple = all(isinstance(value, str) or value is None for value in values.values())
        spans: Mapping[str, splice.Span] = {} if simple else row.spans()

        def cell(name: str) -> str:
            value = values.get(name)
            if value is None or isinstance(value, str):
                return value or ""
            return row.line[spans[name].value : spans[name].end].decode()

        row.refuse_duplicates()
        try:
            if new and (not values or "" in values):
                raise BadLine("a column needs a name")
            record = self.line(columns) * new + self.line([cell(name) for name in columns])
        except BadLine as error:
            raise row.error(str(error)) from error
        self.columns = columns
        self.out.write(record)
