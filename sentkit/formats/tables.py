"""TSV and CSV with a header line, read as rows whose members are strings.

TSV has no quoting (the STS Benchmark holds unpaired quotes); CSV has RFC 4180's, so a field may span lines.
"""

import csv
from collections.abc import Callable, Iterator, Sequence

import orjson

from sentkit.formats.lines import BadLine, Made, Numbered, RawRow, readable

LARGEST_RECORD = 1 << 26  # bytes; a quote open for longer was never meant to be one
csv.field_size_limit(LARGEST_RECORD)  # the library's own limit is 128 KB


def tsv_rows(lines: Iterator[Numbered]) -> Iterator[RawRow]:
    return _table_rows(lines, lambda raw: readable(raw).split("\t"))


def csv_rows(lines: Iterator[Numbered]) -> Iterator[RawRow]:
    return _table_rows(_csv_records(lines), _csv_cells)


def _table_rows(records: Iterator[Numbered], cells: Callable[[bytes], list[str]]) -> Iterator[RawRow]:
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


def _csv_cells(raw: bytes) -> list[str]:
    try:
        return next(csv.reader([readable(raw)], strict=True)) or [""]  # an empty line has one field
    except csv.Error as error:  # a quote that is never closed, or a field that goes on behind one
        raise BadLine(f"not CSV: {error}") from error


def _csv_records(lines: Iterator[Numbered]) -> Iterator[Numbered]:
    """Lines joined while a quoted field goes on."""
    first, inside = 0, False
    held: list[bytes] = []
    size = 0
    for number, line in lines:
        first, size = (first, size + len(line)) if held else (number, len(line))
        held.append(line)
        inside = _ends_inside(line, inside)
        if not inside or size > LARGEST_RECORD:
            yield first, b"".join(held)
            held, inside = [], False
    if held:
        yield first, b"".join(held)


def _ends_inside(line: bytes, inside: bool) -> bool:
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
        place = line.find(b",", place) + 1
        if place == 0:
            return False
