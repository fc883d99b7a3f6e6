"""Read TSV and CSV as rows of strings.

Quoting is "none" (a quote is a normal character) or "csv" (RFC 4180: a quoted field can contain delimiters
and newlines). The default for TSV is "none", because the STS Benchmark contains unpaired quotes.
"""

import csv
import re
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING

from sentkit.formats.rows.block import BadLine, RowBlock, made_block
from sentkit.formats.rows.lines import LineBlock, LongLine, is_too_long, text_of, texts_of, too_long

if TYPE_CHECKING:
    from sentkit.formats.rows.rows import Inputs

DELIMITERS = {"tsv": "\t", "csv": ",;\t|"}  # several: the first line of the file decides
NAMES = {";": "semicolon", "\t": "tab", "|": "vertical bar"}
QUOTING = {"tsv": "none", "csv": "csv"}
csv.field_size_limit(sys.maxsize)  # `csv_records` limits the size of a record

QUOTED = re.compile('"[^"]*"?')
Cells = list[str] | BadLine
Records = tuple[Sequence[int], list[bytes], list[Cells]]  # numbers of the first lines, bytes and cells


def table_blocks(
    source: str, blocks: Iterator[LineBlock], format: str, inputs: "Inputs"
) -> Iterator[RowBlock]:
    """Yield the rows. Raise a DataError for the header, because without it no line can be read.

    With columns of the inputs, there is no header line. A blank line is a row only in a table of one column,
    where it is an empty text. Without `quoting`, a warning names the first TSV line with a quoted field.
    """
    header = list(inputs.columns)
    delimiter, blocks = detected(blocks, DELIMITERS[format], len(header))
    if delimiter != DELIMITERS[format][0]:
        inputs.rejects.note(f"{source}: the delimiter is a {NAMES[delimiter]}")
    named = "--columns" if header else "the header"
    if (inputs.quoting or QUOTING[format]) == "csv":
        records = csv_records(source, blocks, delimiter)
    else:
        warn = inputs.rejects.warn if inputs.quoting is None else None
        records = plain_records(source, blocks, delimiter, warn)
    for numbers, raws, rows in records:
        if not header and rows:
            header = header_of(rows[0], source, numbers[0])
            numbers, raws, rows = numbers[1:], raws[1:], rows[1:]
        if len(header) > 1 and not all(raw.strip(b"\r\n") for raw in raws):
            filled = [place for place, raw in enumerate(raws) if raw.strip(b"\r\n")]
            numbers, raws = [numbers[place] for place in filled], [raws[place] for place in filled]
            rows = [rows[place] for place in filled]
        values = [
            cells
            if isinstance(cells, BadLine)
            else dict(zip(header, cells, strict=True))
            if len(cells) == len(header)
            else BadLine(f"{len(cells)} fields, {named} has {len(header)}")
            for cells in rows
        ]
        yield made_block(values, source, [*numbers], raws)


def detected(blocks: Iterator[LineBlock], delimiters: str, columns: int) -> tuple[str, Iterator[LineBlock]]:
    """The delimiter and the same lines. It is the most frequent one outside quotes in the first line.

    If this is not a header, it has as many cells as there are `columns`. In doubt, take the first delimiter.
    """
    start = list(islice(blocks, 1))
    line = start[0][1][0].decode(errors="replace") if start and columns != 1 else ""
    counts = Counter(QUOTED.sub("", line))
    found = max(delimiters, key=lambda each: counts[each] + 1 == columns if columns else counts[each])
    return found, chain(start, blocks)


def plain_records(
    source: str, blocks: Iterator[LineBlock], delimiter: str, warn: Callable[[str], None] | None
) -> Iterator[Records]:
    """Each line is a record. `warn` is called for the first line with a quoted field."""
    for first, lines in blocks:
        numbers = range(first, first + len(lines))
        yield numbers, lines, cells_of(texts_of(lines), delimiter)
        for number, line in zip(numbers, lines, strict=True) if warn is not None else ():
            if b'"' in line and any(map(in_quotes, line.strip(b"\r\n").split(delimiter.encode()))):
                ways = (
                    "sentkit cat --quoting csv removes them, --quoting none keeps them without this warning"
                )
                assert warn is not None
                warn(f"{source}:{number}: a field is in quotes; the quotes are read as text ({ways})")
                warn = None
                break


def cells_of(texts: Sequence[str | BadLine], delimiter: str) -> list[Cells]:
    return [text if isinstance(text, BadLine) else text.split(delimiter) for text in texts]


def in_quotes(cell: bytes) -> bool:
    """Whether a cell is quoted as in CSV: quotes at both ends, and only doubled quotes inside."""
    inner = cell[1:-1]
    return len(cell) > 1 and cell[:1] == cell[-1:] == b'"' and b'"' not in inner.replace(b'""', b"")


def header_of(names: Cells, source: str, number: int) -> list[str]:
    if isinstance(names, BadLine):
        raise names.at(source, number) from names
    if not all(names):
        advice = "give each column a name; with pandas, use to_csv(index=False)"
        raise BadLine("the header has a column without a name", advice).at(source, number)
    if len(set(names)) < len(names):
        raise BadLine("duplicate column name in the header").at(source, number)
    return names


def csv_records(source: str, blocks: Iterator[LineBlock], delimiter: str) -> Iterator[Records]:
    """The records of one block after the other. A quoted field can have lines of several blocks.

    A record over the limit is an error also with --rejects, because its last lines could pass for rows.
    """
    waiting, taken = deque[tuple[int, bytes]](), list[tuple[int, bytes]]()

    def taken_texts() -> Iterator[str]:
        """The waiting lines, and those of the next blocks. Each is added to the lines that are taken."""
        size = 0
        while waiting or (block := next(blocks, (0, list[bytes]())))[1]:
            if not waiting:
                waiting.extend(enumerate(block[1], block[0]))
            number, line = waiting.popleft()
            size = len(line) + (size if taken else 0)
            taken.append((number, line))
            if isinstance(line, LongLine) or is_too_long(size - 1):
                raise too_long().at(source, taken[0][0])
            yield line.decode(errors="replace")

    reader = csv.reader(taken_texts(), strict=True, delimiter=delimiter)
    for first, lines in blocks:
        together = b"".join(lines)
        quoted = b'"' in together or b"\r" in together.replace(b"\r\n", b"")
        if not quoted and LongLine not in map(type, lines):
            yield range(first, first + len(lines)), lines, cells_of(texts_of(lines), delimiter)
            continue
        waiting.extend(enumerate(lines, first))
        numbers, raws, rows = list[int](), list[bytes](), list[Cells]()
        while waiting:
            taken.clear()
            cells: Cells
            try:
                cells = next(reader) or [""]  # an empty line is one empty field
            except csv.Error as error:  # an unclosed quote, or text after a closing quote
                problem = str(error).replace("unexpected end of data", "a quote is not closed")
                cells = BadLine(f"not CSV: {problem} (sentkit cat --quoting none reads quotes as text)")
            numbers.append(taken[0][0])
            raws.append(b"".join([line for _, line in taken]))
            text = text_of(raws[-1])
            rows.append(cells if isinstance(text, str) else text)
        yield numbers, raws, rows
