"""TSV and CSV with a header line, read as rows whose fields are strings.

Quoting is none (a quote is a character of its field) or that of RFC 4180, where a field in quotes may hold
delimiters and span lines. TSV has none by default: the STS Benchmark holds unpaired quotes.
"""

import csv
import sys
from collections.abc import Callable, Iterator, Sequence

import orjson

from sentkit.formats.rows.lines import EXCERPT, MAX_LINE, BadLine, LongLine, Made, Numbered, RawRow, readable

DELIMITERS = {"tsv": "\t", "csv": ","}
QUOTING = {"tsv": "none", "csv": "csv"}
csv.field_size_limit(sys.maxsize)  # records are limited before they are parsed


def table_rows(
    lines: Iterator[Numbered],
    format: str,
    quoting: str | None = None,
    *,
    longest: int = MAX_LINE,
    warn: Callable[[int, str], None] = lambda number, problem: None,
) -> Iterator[RawRow]:
    """`warn` is called with the first line that looks quoted, unless the quoting is given."""
    delimiter = DELIMITERS[format]
    if (quoting or QUOTING[format]) == "csv":
        records = _csv_records(lines, delimiter.encode(), longest)
        return _rows_of(records, lambda raw: _csv_cells(raw, delimiter))
    if quoting is None:
        lines = _watched(lines, delimiter, warn)
    return _rows_of(lines, lambda raw: readable(raw).split(delimiter))


def _watched(
    lines: Iterator[Numbered], delimiter: str, warn: Callable[[int, str], None]
) -> Iterator[Numbered]:
    """The same lines. The first that has a field in quotes is reported."""
    for number, line in lines:
        yield number, line
        if b'"' in line and any(map(_in_quotes, line.strip(b"\r\n").split(delimiter.encode()))):
            problem = "a field begins and ends with a quote, and both are read as text"
            warn(number, f"{problem} (--quoting csv removes them, --quoting none is silent)")
            break
    yield from lines


def _in_quotes(cell: bytes) -> bool:
    """Whether a writer of CSV may have quoted it: every quote within is doubled."""
    inner = cell[1:-1]
    return len(cell) > 1 and cell[:1] == cell[-1:] == b'"' and b'"' not in inner.replace(b'""', b"")


def _rows_of(records: Iterator[Numbered], cells: Callable[[bytes], list[str]]) -> Iterator[RawRow]:
    header: list[str] = []

    def make(raw: bytes) -> Made:
        found = cells(raw)
        if len(found) != len(header):
            raise BadLine(f"{len(found)} fields, the header has {len(header)}")
        values = dict(zip(header, found, strict=True))
        return orjson.dumps(values), values

    def refuse(raw: bytes) -> Made:
        _check_header(cells(raw))
        raise AssertionError("a header is refused for a reason")

    for number, raw in records:
        if header:
            yield number, raw, make
            continue
        if isinstance(raw, LongLine):
            yield number, raw, make
            return
        try:
            header = _check_header(cells(raw))
        except BadLine:
            yield number, raw, refuse  # the reason comes up again where it gets its place
            return


def _check_header(names: Sequence[str]) -> list[str]:
    if not all(names):
        raise BadLine("the header has a column without a name")
    if len(set(names)) < len(names):
        raise BadLine("the header names a column twice")
    return list(names)


def _csv_cells(raw: bytes, delimiter: str) -> list[str]:
    try:
        reader = csv.reader([readable(raw)], strict=True, delimiter=delimiter)
        return next(reader) or [""]  # an empty line has one field
    except csv.Error as error:  # a quote that is never closed, or a field that goes on behind one
        raise BadLine(f"not CSV: {error}") from error


def _csv_records(lines: Iterator[Numbered], delimiter: bytes, longest: int) -> Iterator[Numbered]:
    """Lines joined while a quoted field continues.

    A record over the limit ends where its quotes end, maybe at the end of the file: its last lines alone
    could pass for rows. Of a line over the limit only the number of its quotes is known, and decides.
    """
    first, size, inside = 0, 0, False
    held: list[bytes] = []
    for number, line in lines:
        first, size = (first, size + len(line)) if held else (number, len(line))
        held.append(line)
        if isinstance(line, LongLine) or size > longest + 1:
            held = [LongLine(held[0][:EXCERPT])]
        inside = (
            inside != line.odd_quotes if isinstance(line, LongLine) else _ends_inside(line, inside, delimiter)
        )
        if not inside:
            yield first, held[0] if len(held) == 1 else b"".join(held)
            held = []
    if held:
        yield first, held[0] if len(held) == 1 else b"".join(held)


def _ends_inside(line: bytes, inside: bool, delimiter: bytes) -> bool:
    """Whether the line ends within quotes. They open only where a field begins: 5" in a field is an inch."""
    place = 0
    while True:
        if not inside and line[place : place + 1] == b'"':
            inside, place = True, place + 1
        while inside:
            quote = line.find(b'"', place)
            if quote < 0:
                return True
            inside = line[quote + 1 : quote + 2] == b'"'  # two are one, and the field goes on
            place = quote + 2 if inside else quote + 1
        place = line.find(delimiter, place) + 1
        if place == 0:
            return False
