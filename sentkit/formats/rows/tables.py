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
from shlex import quote
from typing import TYPE_CHECKING

from sentkit.errors import DataError
from sentkit.formats.rows.block import BadLine, RowBlock, made_block
from sentkit.formats.rows.lines import LineBlock, LongLine, is_too_long, text_of, texts_of, too_long

if TYPE_CHECKING:
    from sentkit.formats.rows.rows import Inputs

DELIMITERS = {"tsv": "\t", "csv": ",;\t|"}  # several: the first line of the file decides
NAMES = {";": "semicolon", "\t": "tab", "|": "vertical bar"}
QUOTING = {"tsv": "none", "csv": "csv"}
csv.field_size_limit(sys.maxsize)  # `CsvReader` limits the size of a record

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
    advice = "continue without this row: --rejects FILE"
    if format == "csv":
        is_text = inputs.quoting == "none"
        cure = "without --quoting none, a field in quotes" if is_text else "only a field in quotes"
        advice = f"{cure} can have a {NAMES.get(delimiter, 'comma')}; to {advice}"
    if (inputs.quoting or QUOTING[format]) == "csv":
        records = CsvReader(source, blocks, delimiter, len(header), inputs).records()
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
            else BadLine(f"{len(cells)} fields, {named} has {len(header)}", advice)
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


class CsvReader:
    """Reads the records of blocks of lines. A quoted field can have lines of several blocks."""

    def __init__(
        self, source: str, blocks: Iterator[LineBlock], delimiter: str, width: int, inputs: "Inputs"
    ) -> None:
        """`width` is the number of columns; 0: as in the first record."""
        self.source = source
        self.blocks = blocks
        self.delimiter = delimiter
        self.width = width
        self.inputs = inputs
        self.waiting = deque[tuple[int, bytes]]()  # lines that were read, with their numbers
        self.taken = list[tuple[int, bytes]]()  # the lines of the record
        self.needs_quotes = False  # a quoted field of an earlier record has a delimiter or a newline
        self.reader = csv.reader(self.texts(), strict=True, delimiter=delimiter)

    def records(self) -> Iterator[Records]:
        """The records of one block after the other.

        A record over the limit is an error also with --rejects, because its last lines could pass for rows.
        All records before it are yielded.
        """
        for first, lines in self.blocks:
            together = b"".join(lines)
            quoted = b'"' in together or b"\r" in together.replace(b"\r\n", b"")
            if quoted or LongLine in map(type, lines):
                self.waiting.extend(enumerate(lines, first))
                yield from self.waiting_records()
            else:
                rows = cells_of(texts_of(lines), self.delimiter)
                self.width = self.width or width_of(rows)
                yield range(first, first + len(lines)), lines, rows

    def waiting_records(self) -> Iterator[Records]:
        """The records that begin in the waiting lines."""
        numbers = list[int]()
        raws = list[bytes]()
        rows = list[Cells]()
        while self.waiting:
            try:
                cells = self.next_record()
            except DataError:  # a record over the limit
                yield numbers, raws, rows
                raise
            numbers.append(self.taken[0][0])
            raws.append(b"".join([line for _, line in self.taken]))
            text = text_of(raws[-1])
            rows.append(cells if isinstance(text, str) else text)
            self.width = self.width or width_of(rows)
        yield numbers, raws, rows

    def next_record(self) -> Cells:
        self.taken.clear()
        try:
            cells = next(self.reader) or [""]  # an empty line is one empty field
        except csv.Error as error:  # an unclosed quote, or text after a closing quote
            return self.bad_record(str(error))
        without_quotes = fields_without_quotes(self.taken[0][1], self.delimiter)
        self.needs_quotes = self.needs_quotes or len(self.taken) > 1 or without_quotes != len(cells)
        return cells

    def texts(self) -> Iterator[str]:
        """The waiting lines, and those of the next blocks. Each is added to the lines that are taken."""
        size = 0
        while self.waiting or (block := next(self.blocks, (0, list[bytes]())))[1]:
            if not self.waiting:
                self.waiting.extend(enumerate(block[1], block[0]))
            number, line = self.waiting.popleft()
            size = len(line) + (size if self.taken else 0)
            self.taken.append((number, line))
            if isinstance(line, LongLine) or is_too_long(size - 1):
                raise long_record(lines=len(self.taken)).at(self.source, self.taken[0][0])
            yield line.decode(errors="replace")

    def bad_record(self, problem: str) -> BadLine:
        """The error for a record, with the advice that fits the lines around it."""
        is_open = "unexpected end of data" in problem
        of_text = not self.needs_quotes and all(
            fields_without_quotes(line, self.delimiter) == self.width
            for _, line in [*self.taken, *self.waiting]
            if line.strip(b"\r\n")
        )
        advice = advice_on_quotes(self.source, self.inputs, of_text=of_text, is_open=is_open)
        return BadLine("not CSV: a quote is not closed" if is_open else f"not CSV: {problem}", advice)


def width_of(rows: Sequence[Cells]) -> int:
    """The number of fields of the first record; 0 if there is none, or a bad one."""
    if not rows or isinstance(rows[0], BadLine):
        return 0
    return len(rows[0])


def fields_without_quotes(line: bytes, delimiter: str) -> int:
    """The number of fields of a line if quotes are text."""
    return line.count(delimiter.encode()) + 1


def long_record(*, lines: int) -> BadLine:
    error = too_long()
    if lines > 1:
        words = ["is a quote in this line not closed?", error.advice or ""]
        error.advice = " ".join(words).strip()
    return error


def advice_on_quotes(source: str, inputs: "Inputs", *, of_text: bool, is_open: bool) -> str:
    """How to read a record whose quotes are not those of CSV.

    `of_text`: with quotes as text, this record and those around it have as many fields as the header.
    `is_open`: the record has all lines up to the end of the file.
    """
    if of_text:
        words = ["sentkit cat", *(["--from csv"] if inputs.format else []), "--quoting none"]
        words += [] if source == "-" else [quote(source)]
        return f"the quotes seem to be text: {' '.join(words)} | ..."
    if is_open:
        return "close the quote; --rejects FILE continues without this row and all rows below it"
    return "correct the quotes, or continue without this row: --rejects FILE"
