"""Read TSV and CSV as rows of strings.

Quoting is "none" (a quote is a normal character) or "csv" (RFC 4180: a quoted field can contain
delimiters and newlines). The default for TSV is "none", because the STS Benchmark contains unpaired
quotes.
"""

import csv
import io
import re
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from shlex import quote
from typing import Any

from sentkit.errors import DataError
from sentkit.formats.counted import counted
from sentkit.formats.rows.block import BadLine, RowBlock, block_of_values
from sentkit.formats.rows.input_formats import input_format
from sentkit.formats.rows.lines import LineBlock, LongLine, is_too_long, text_of, texts_of, too_long

DELIMITERS = {"tsv": "\t", "csv": ",;\t|"}  # several: the first line of the file decides
NAMES = {";": "semicolon", "\t": "tab", "|": "vertical bar"}
QUOTING = {"tsv": "none", "csv": "csv"}
csv.field_size_limit(sys.maxsize)  # `CsvReader` limits the size of a record

OPEN_QUOTE = "because a quote is not closed in the first line"
QUOTED = re.compile('"[^"]*"?')
Cells = list[str] | BadLine
# numbers of the first lines, bytes and cells
Records = tuple[Sequence[int], list[bytes], list[Cells]]


@dataclass(frozen=True, slots=True)
class TableOptions:
    """How a command reads its tables."""

    columns: Sequence[str]  # the names, if the file has no header
    quoting: str | None  # none or csv; None: by format
    format_is_given: bool  # by --from, and not by the suffix
    warn: Callable[[str], None]
    note: Callable[[str], None]  # for messages of -v


@input_format("tsv", "table", ".tsv")
def tsv_blocks(
    source: str, blocks: Iterator[LineBlock], options: TableOptions
) -> Iterator[RowBlock]:
    """Fields with a tab between them; the first line has their names."""
    return table_blocks(source, blocks, "tsv", options)


@input_format("csv", "table", ".csv")
def csv_blocks(
    source: str, blocks: Iterator[LineBlock], options: TableOptions
) -> Iterator[RowBlock]:
    """Fields, also in quotes, with commas between them; the first line has their names."""
    return table_blocks(source, blocks, "csv", options)


def table_blocks(
    source: str, blocks: Iterator[LineBlock], format: str, options: TableOptions
) -> Iterator[RowBlock]:
    """Yield the rows. Raise a DataError for the header, because without it no line can be read.

    With `columns`, there is no header line. Below the header, a blank line is a row only in a table
    of one column, where it is an empty text. Without `quoting`, a warning names the first TSV line
    with a quoted field.
    """
    header = list(options.columns)
    quoting = options.quoting or QUOTING[format]
    delimiter, blocks = detected(blocks, DELIMITERS[format], len(header), quoting)
    if delimiter != DELIMITERS[format][0]:
        options.note(f"{source}: the delimiter is a {NAMES[delimiter]}")
    origin_of_header = "--columns" if header else "the header"
    advice = advice_on_width(format, delimiter, options)

    if quoting == "csv":
        records = CsvReader(source, blocks, delimiter, len(header), options).records()
    else:
        warn = None
        if options.quoting is None:
            warn = options.warn
        records = plain_records(source, blocks, delimiter, warn)

    has_header = bool(header)  # otherwise it is the first record
    for numbers, raws, cells_of_records in records:
        if not has_header and cells_of_records:
            header = header_of(cells_of_records[0], source, numbers[0])
            has_header = True
            numbers = numbers[1:]
            raws = raws[1:]
            cells_of_records = cells_of_records[1:]
        if len(header) > 1:
            numbers, raws, cells_of_records = filled_records(numbers, raws, cells_of_records)

        values: list[dict[str, Any] | BadLine] = []
        for index, cells in enumerate(cells_of_records):
            if isinstance(cells, BadLine):
                values.append(cells)
            elif len(cells) == len(header):
                values.append(dict(zip(header, cells, strict=True)))
            else:
                problem = f"{counted(len(cells), 'field')}, {origin_of_header} has {len(header)}"
                line_count = raws[index].removesuffix(b"\n").count(b"\n") + 1
                if line_count > 1:
                    problem += f"; {lines_of_record(numbers[index], line_count)}, {OPEN_QUOTE}"
                values.append(BadLine(problem, advice))
        yield block_of_values(values, source, [*numbers], raws)


def without_blank_start(blocks: Iterator[LineBlock]) -> Iterator[LineBlock]:
    """The lines from the first one that is not blank."""
    for first, lines in blocks:
        for index, line in enumerate(lines):
            if line.strip(b"\r\n"):
                return chain([(first + index, lines[index:])], blocks)
    return blocks


def filled_records(
    numbers: Sequence[int], raws: list[bytes], cells_of_records: list[Cells]
) -> Records:
    """The records that are not blank lines."""
    filled = [index for index, raw in enumerate(raws) if raw.strip(b"\r\n")]
    if len(filled) == len(raws):
        return numbers, raws, cells_of_records
    return (
        [numbers[index] for index in filled],
        [raws[index] for index in filled],
        [cells_of_records[index] for index in filled],
    )


def lines_of_record(first: int, count: int) -> str:
    return f"lines {first} to {first + count - 1} are one record"


def advice_on_width(format: str, delimiter: str, options: TableOptions) -> str:
    """What to do about a record that has another number of fields than the header."""
    advice = "continue without this row: --rejects FILE"
    if format != "csv":
        return advice
    if options.quoting == "none":
        reason = "without --quoting none, a field in quotes"
    else:
        reason = "only a field in quotes"
    return f"{reason} can have a {NAMES.get(delimiter, 'comma')}; to {advice}"


def detected(
    blocks: Iterator[LineBlock], delimiters: str, columns: int, quoting: str
) -> tuple[str, Iterator[LineBlock]]:
    """The most frequent delimiter in the first line, with quoting outside quotes, and the same
    lines.

    If this is not a header, it has as many cells as there are `columns`. Blank lines before a
    header are left out. In doubt, take the first delimiter.
    """
    if not columns:
        blocks = without_blank_start(blocks)
    first_block = next(blocks, None)
    if first_block is None:
        return delimiters[0], blocks
    first_line = ""
    if columns != 1:
        first_line = first_block[1][0].decode(errors="replace")
    if quoting == "csv":
        first_line = QUOTED.sub("", first_line)
    counts = Counter(first_line)
    if columns:
        delimiter = max(delimiters, key=lambda character: counts[character] + 1 == columns)
    else:
        delimiter = max(delimiters, key=lambda character: counts[character])
    return delimiter, chain([first_block], blocks)


def plain_records(
    source: str, blocks: Iterator[LineBlock], delimiter: str, warn: Callable[[str], None] | None
) -> Iterator[Records]:
    """Each line is a record. `warn` is called for the first line with a quoted field."""
    for first, lines in blocks:
        numbers = range(first, first + len(lines))
        yield numbers, lines, cells_of(texts_of(lines), delimiter)
        if warn is None:
            continue
        for number, line in zip(numbers, lines, strict=True):
            if has_quoted_field(line, delimiter):
                removes = "sentkit cat --quoting csv removes them"
                keeps = "--quoting none keeps them without this warning"
                problem = "a field is in quotes; the quotes are read as text"
                warn(f"{source}:{number}: {problem} ({removes}, {keeps})")
                warn = None
                break


def cells_of(texts: Sequence[str | BadLine], delimiter: str) -> list[Cells]:
    return [text if isinstance(text, BadLine) else text.split(delimiter) for text in texts]


def has_quoted_field(line: bytes, delimiter: str) -> bool:
    """Whether a cell is quoted as in CSV: quotes at both ends, and only doubled quotes inside."""
    if b'"' not in line:
        return False
    for cell in line.strip(b"\r\n").split(delimiter.encode()):
        if (
            len(cell) > 1
            and cell[:1] == cell[-1:] == b'"'
            and b'"' not in cell[1:-1].replace(b'""', b"")
        ):
            return True
    return False


def header_of(names: Cells, source: str, number: int) -> list[str]:
    if isinstance(names, BadLine):
        raise names.at(source, number) from names
    if names == ["sep=", ""]:
        problem = "the first line gives Excel the separator, expected the header"
        raise BadLine(problem, "leave it out: tail -n +2 FILE").at(source, number)
    if not all(names):
        advice = "give each column a name; with pandas, use to_csv(index=False)"
        raise BadLine("the header has a column without a name", advice).at(source, number)
    if len(set(names)) < len(names):
        raise BadLine("duplicate column name in the header").at(source, number)
    return names


class CsvLines:
    """The lines of blocks, one after the other, for csv.reader. Knows the record that is read."""

    def __init__(self, source: str, blocks: Iterator[LineBlock]) -> None:
        self.source = source
        self.blocks = blocks
        self.waiting = deque[tuple[int, bytes]]()  # lines that were read, with their numbers
        self.start_record()

    def start_record(self) -> None:
        """The next line is the first one of a record."""
        self.first_number = 0
        self.first_line = b""
        self.line_count = 0
        self.record = bytearray()  # an object for each line would need much memory

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        if not self.waiting:
            first, lines = next(self.blocks)
            self.waiting.extend(enumerate(lines, first))
        number, line = self.waiting.popleft()
        if self.line_count == 0:
            self.first_number = number
            self.first_line = line
        self.line_count += 1
        self.record += line
        if isinstance(line, LongLine) or is_too_long(len(self.record) - 1):
            raise long_record(lines=self.line_count).at(self.source, self.first_number)
        return line.decode(errors="replace")


class CsvReader:
    """Reads the records of blocks of lines. A quoted field can have lines of several blocks."""

    def __init__(
        self,
        source: str,
        blocks: Iterator[LineBlock],
        delimiter: str,
        width: int,
        options: TableOptions,
    ) -> None:
        """`width` is the number of columns; 0: as in the first record."""
        self.source = source
        self.blocks = blocks
        self.delimiter = delimiter
        self.width = width
        self.options = options
        # a quoted field of an earlier record has a delimiter or a newline
        self.needs_quotes = False
        self.lines = CsvLines(source, blocks)
        self.reader = csv.reader(self.lines, strict=True, delimiter=delimiter)

    def records(self) -> Iterator[Records]:
        """The records of one block after the other.

        A record over the limit is an error also with --rejects, because its last lines could pass
        for rows. All records before it are yielded.
        """
        for first, lines in self.blocks:
            all_lines = b"".join(lines)
            quoted = b'"' in all_lines or b"\r" in all_lines.replace(b"\r\n", b"")
            if quoted or LongLine in map(type, lines):
                self.lines.waiting.extend(enumerate(lines, first))
                yield from self.waiting_records()
            else:
                rows = cells_of(texts_of(lines), self.delimiter)
                self.width = self.width or field_count_of(rows)
                yield range(first, first + len(lines)), lines, rows

    def waiting_records(self) -> Iterator[Records]:
        """The records that begin in the waiting lines."""
        numbers = list[int]()
        raws = list[bytes]()
        rows = list[Cells]()
        while self.lines.waiting:
            self.lines.start_record()
            try:
                cells = self.next_record()
            except DataError:  # a record over the limit
                yield numbers, raws, rows
                raise
            numbers.append(self.lines.first_number)
            raws.append(bytes(self.lines.record))
            text = text_of(raws[-1])
            if isinstance(text, BadLine):
                cells = text
            rows.append(cells)
            self.width = self.width or field_count_of(rows)
        yield numbers, raws, rows

    def next_record(self) -> Cells:
        try:
            cells = next(self.reader) or [""]  # an empty line is one empty field
        except csv.Error as error:  # an unclosed quote, or text after a closing quote
            return self.bad_record(str(error))
        without_quotes = fields_without_quotes(self.lines.first_line, self.delimiter)
        if self.lines.line_count > 1 or without_quotes != len(cells):
            self.needs_quotes = True
        return cells

    def bad_record(self, problem: str) -> BadLine:
        """The error for a record, with the advice that fits the lines around it."""
        if "new-line character" in problem:
            advice = "if its lines end with a carriage return alone, use: tr '\\r' '\\n' < FILE"
            return BadLine("not CSV: a carriage return outside of quotes", advice)
        is_open = "unexpected end of data" in problem
        waiting_lines = [line for _, line in self.lines.waiting]
        seems_text = not self.needs_quotes and all(
            fields_without_quotes(line, self.delimiter) == self.width
            for line in chain(io.BytesIO(self.lines.record), waiting_lines)
            if line.strip(b"\r\n")
        )
        advice = advice_on_quotes(self.source, self.options, seems_text=seems_text, is_open=is_open)
        if is_open:
            problem = "a quote is not closed"
        if self.lines.line_count > 1:
            record = lines_of_record(self.lines.first_number, self.lines.line_count)
            if is_open:
                problem += f", so {record}"
            else:
                problem += f"; {record}, {OPEN_QUOTE}"
        return BadLine(f"not CSV: {problem}", advice)


def field_count_of(rows: Sequence[Cells]) -> int:
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


def advice_on_quotes(source: str, options: TableOptions, *, seems_text: bool, is_open: bool) -> str:
    """How to read a record whose quotes are not those of CSV.

    `seems_text`: with quotes as text, this record and those around it have as many fields as the
    header.
    `is_open`: the record has all lines up to the end of the file.
    """
    if seems_text:
        words = ["sentkit", "cat"]
        if options.format_is_given:
            words += ["--from", "csv"]
        words += ["--quoting", "none"]
        if source != "-":
            words.append(quote(source))
        return f"the quotes seem to be text: {' '.join(words)} | ..."
    if is_open:
        return "close the quote; --rejects FILE continues without this row and all rows below it"
    return "correct the quotes, or continue without this row: --rejects FILE"
