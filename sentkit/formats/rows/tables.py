"""Read TSV and CSV as rows of strings, and write rows as TSV and CSV.

Quoting is "none" (a quote is a normal character) or "csv" (RFC 4180: a quoted field can contain delimiters
and newlines). The default for TSV is "none", because the STS Benchmark contains unpaired quotes.
"""

import csv
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import BinaryIO

from sentkit.formats.rows.block import Row, RowBlock, Span, kept_line, made_block
from sentkit.formats.rows.lines import (
    BOM,
    EXCERPT,
    BadLine,
    LineBlock,
    LongLine,
    ParsedLine,
    decoded,
    parsed_block,
    plain_texts,
    too_long,
)

DELIMITERS = {"tsv": "\t", "csv": ",;\t|"}  # several: the first line of the file decides
NAMES = {";": "semicolon", "\t": "tab", "|": "vertical bar"}
QUOTING = {"tsv": "none", "csv": "csv"}
csv.field_size_limit(sys.maxsize)  # `csv_records` limits the size before parsing

QUOTED = re.compile('"[^"]*"?')
Records = tuple[Sequence[int], list[bytes]]  # numbers of the first lines, and the bytes of records


def table_blocks(
    source: str,
    blocks: Iterator[LineBlock],
    format: str,
    quoting: str | None = None,
    columns: Sequence[str] = (),
    *,
    longest: int,
    warn: Callable[[int, str], None],
    note: Callable[[str], None] = lambda message: None,
) -> Iterator[RowBlock]:
    """Yield the rows. Raise a DataError for the header, because without it no line can be read.

    With `columns`, there is no header line. A blank line is a row only in a table of one column, where it is
    an empty text. Without `quoting`, `warn` is called once for a TSV line with a quoted field.
    `note` is called for a CSV file with another delimiter than a comma.
    """
    delimiter, blocks = detected(blocks, DELIMITERS[format], len(columns), note)
    header = list(columns)
    quoted = (quoting or QUOTING[format]) == "csv"
    named = "--columns" if columns else "the header"
    records: Iterable[Records] = ((range(first, first + len(lines)), lines) for first, lines in blocks)
    if quoted:
        records = csv_records(blocks, delimiter.encode(), longest)
    elif quoting is None:
        records = watched(records, delimiter, warn)

    def cells_of(raw: bytes) -> list[str]:
        return csv_cells([decoded(raw)], delimiter)[0] if quoted else decoded(raw).split(delimiter)

    def to_object(raw: bytes) -> ParsedLine:
        cells = cells_of(raw)
        if len(cells) != len(header):
            raise BadLine(f"{len(cells)} fields, {named} has {len(header)}")
        values = dict(zip(header, cells, strict=True))
        return kept_line(values), values

    for numbers, raws in records:
        if not header and raws:
            header = header_of(raws[0], cells_of, source, numbers[0], longest)
            numbers, raws = numbers[1:], raws[1:]
        if len(header) > 1 and not all(raw.strip(b"\r\n") for raw in raws):
            filled = [place for place, raw in enumerate(raws) if raw.strip(b"\r\n")]
            numbers, raws = [numbers[place] for place in filled], [raws[place] for place in filled]
        rows = table_cells(raws, delimiter, quoted=quoted)
        if rows is not None and {*map(len, rows)} <= {len(header)}:
            values = [dict(zip(header, cells, strict=True)) for cells in rows]
            yield made_block(values, source, [*numbers], raws)
        else:
            block = parsed_block(source, zip(numbers, raws, strict=True), to_object, longest)
            block.made = True
            yield block


def detected(
    blocks: Iterator[LineBlock], delimiters: str, columns: int, note: Callable[[str], None]
) -> tuple[str, Iterator[LineBlock]]:
    """The delimiter and the same lines. It is the most frequent one outside quotes in the first line.

    If this is not a header, it has as many cells as there are `columns`. In doubt, take the first delimiter.
    """
    start = list(islice(blocks, 1))
    line = start[0][1][0].decode(errors="replace") if start and columns != 1 else ""
    counts = Counter(QUOTED.sub("", line))
    found = max(delimiters, key=lambda each: counts[each] + 1 == columns if columns else counts[each])
    if found != delimiters[0]:
        note(f"the delimiter is a {NAMES[found]}")
    return found, chain(start, blocks)


def table_cells(raws: list[bytes], delimiter: str, *, quoted: bool) -> list[list[str]] | None:
    """The cells of all records; None if one of them is not valid."""
    if quoted and any(b'"' in raw or b"\r" in raw.removesuffix(b"\n").removesuffix(b"\r") for raw in raws):
        try:
            rows = csv_cells([decoded(raw) for raw in raws if not isinstance(raw, LongLine)], delimiter)
        except BadLine:
            return None
        return rows if len(rows) == len(raws) else None
    texts = plain_texts(raws)
    return None if texts is None else [text.split(delimiter) for text in texts]


def csv_cells(records: list[str], delimiter: str) -> list[list[str]]:
    try:
        rows = list(csv.reader(records, strict=True, delimiter=delimiter))
    except csv.Error as error:  # an unclosed quote, or text after a closing quote
        problem = "a quote is not closed" if "end of data" in str(error) else error
        raise BadLine(f"not CSV: {problem} (sentkit cat --quoting none reads quotes as text)") from error
    return [row or [""] for row in rows]  # an empty line is one empty field


def watched(
    records: Iterable[Records], delimiter: str, warn: Callable[[int, str], None]
) -> Iterator[Records]:
    """Yield the lines unchanged. Call `warn` for the first line with a quoted field."""
    warned = False
    for numbers, lines in records:
        yield numbers, lines
        for number, line in zip(numbers, lines, strict=True) if not warned else ():
            if b'"' in line and any(map(in_quotes, line.strip(b"\r\n").split(delimiter.encode()))):
                ways = (
                    "sentkit cat --quoting csv removes them, --quoting none keeps them without this warning"
                )
                warn(number, f"a field is in quotes; the quotes are read as text ({ways})")
                warned = True
                break


def in_quotes(cell: bytes) -> bool:
    """Whether a cell is quoted as in CSV: quotes at both ends, and only doubled quotes inside."""
    inner = cell[1:-1]
    return len(cell) > 1 and cell[:1] == cell[-1:] == b'"' and b'"' not in inner.replace(b'""', b"")


def header_of(
    raw: bytes, cells: Callable[[bytes], list[str]], source: str, number: int, longest: int
) -> list[str]:
    try:
        if isinstance(raw, LongLine):
            raise too_long(longest)
        names = cells(raw)
        if not all(names):
            advice = "give each column a name; with pandas, use to_csv(index=False)"
            raise BadLine("the header has a column without a name", advice)
        if len(set(names)) < len(names):
            raise BadLine("duplicate column name in the header")
    except BadLine as error:
        raise error.at(source, number) from error
    return names


def csv_records(blocks: Iterable[LineBlock], delimiter: bytes, longest: int) -> Iterator[Records]:
    """Join the lines of a record with newlines in a quoted field.

    A record over the limit is read to its closing quote, possibly to the end of the file. Otherwise its last
    lines could be read as rows. For a line over the limit, the parity of its quotes decides.
    """
    start, size, inside = 0, 0, False
    held: list[bytes] = []  # the lines of a record that is not complete
    for first, lines in blocks:
        numbers, raws = list[int](), list[bytes]()
        for number, line in enumerate(lines, start=first):
            if not held and b'"' not in line and not isinstance(line, LongLine):
                numbers.append(number)
                raws.append(line)
                continue
            start, size = (start, size + len(line)) if held else (number, len(line))
            held.append(line)
            if isinstance(line, LongLine) or size > longest + 1:
                held = [LongLine(held[0][:EXCERPT])]
            inside = (
                inside != line.odd_quotes
                if isinstance(line, LongLine)
                else ends_inside(line, inside, delimiter)
            )
            if not inside:
                numbers.append(start)
                raws.append(held[0] if len(held) == 1 else b"".join(held))
                held = []
        yield numbers, raws
    if held:
        yield [start], [held[0] if len(held) == 1 else b"".join(held)]


def ends_inside(line: bytes, inside: bool, delimiter: bytes) -> bool:
    """Whether the line ends inside a quoted field. A quote opens only at the start of a field, not in 5"."""
    place = 0
    while True:
        if not inside and line[place : place + 1] == b'"':
            inside, place = True, place + 1
        while inside:
            quote = line.find(b'"', place)
            if quote < 0:
                return True
            inside = line[quote + 1 : quote + 2] == b'"'  # a doubled quote does not close the field
            place = quote + 2 if inside else quote + 1
        place = line.find(delimiter, place) + 1
        if place == 0:
            return False


IN_QUOTES = re.compile('[",\r\n\ufeff]')  # characters of a cell that needs quotes; also a byte order mark
IN_QUOTES_OF_HEADER = re.compile('[",;|\t\r\n\ufeff]')  # so that readers find the delimiter


class TableWriter:
    """Writes rows to TSV or CSV. The fields of the first row are the columns.

    A text is written as it is, null as an empty cell, and any other value as its JSON. If a row does not have
    a column, its cell is empty.
    """

    def __init__(self, out: BinaryIO, suffix: str) -> None:
        self.out, self.delimiter = out, DELIMITERS[suffix.removeprefix(".")][0]
        self.columns: list[str] = []

    def line(self, cells: Sequence[str]) -> bytes:
        """A record, which `table_blocks` reads back. Raises BadLine if there is none."""
        if any("\0" in cell for cell in cells):
            raise BadLine("a NUL character: a table cannot contain it")
        if self.delimiter == "\t":
            if any(not {"\t", "\n", "\r"}.isdisjoint(cell) for cell in cells):
                raise BadLine("a tab or newline: TSV cannot contain it, CSV can")
            return "\t".join(cells).encode() + b"\n"
        # The module csv does not quote a carriage return in all versions of Python.
        special = IN_QUOTES if self.columns else IN_QUOTES_OF_HEADER
        quoted = ['"' + cell.replace('"', '""') + '"' if special.search(cell) else cell for cell in cells]
        return (",".join(quoted) or '""').encode() + b"\n"

    def write(self, row: Row) -> None:
        values, new = row.values, not self.columns
        columns = self.columns or list(values)
        if extra := next((name for name in values if name not in columns), None):
            raise row.error(f'"{extra}" is not a column of the first row')
        simple = all(isinstance(value, str) or value is None for value in values.values())
        spans: Mapping[str, Span] = {} if simple else row.spans()

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
            if new and record.startswith(BOM):  # of a name in TSV: readers remove the first one
                record = BOM + record
        except BadLine as error:
            raise row.error(str(error)) from error
        self.columns = columns
        self.out.write(record)
