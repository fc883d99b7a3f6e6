"""Read JSONL, text, TSV, CSV and Parquet as blocks of rows: JSON objects with their original bytes.

A parser (`kinds.py`, `vectors.py`) checks the fields of rows. `Inputs` calls it, so all invalid
rows are handled in the same way.
"""

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import orjson
import pybase64

from sentkit.errors import DataError, NoRowsError, UsageError
from sentkit.formats.files import bare_suffix, json_line, local_path, open_input, shown_path
from sentkit.formats.rows import lines, parquet, tables
from sentkit.formats.rows.block import Row, RowBlock, Texts
from sentkit.formats.rows.input_formats import FORMATS
from sentkit.formats.rows.kinds import FIELDS

T = TypeVar("T")
Block = TypeVar("Block", bound=Sized)  # of rows

# Readers of formats in which each line is a row.
LINES: Mapping[str, Callable[[str, Iterator[lines.LineBlock]], Iterator[RowBlock]]] = {
    **{name: entry.read for name, entry in FORMATS.items() if entry.layout == "lines"},
    "": lines.sniffed_blocks,
    "detected text": lines.detected_text_blocks,
}
SUFFIXES = {suffix: name for name, entry in FORMATS.items() for suffix in entry.suffixes}
MARKDOWN = (".md", ".markdown")  # suffixes
PARAGRAPHS = "paragraphs"  # a format with rows of several lines
FIRST_BLOCK = 16  # items


class ReadCounter:
    """Counts bytes and rows that were read. Commands read ahead: `share` needs finished rows.

    At the end of the last file, a NoRowsError is raised if no row was valid.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        # in bytes; None if it is not a regular file
        self.sizes = {path: size_of(path) for path in paths}
        self.total: int | None = None  # without paths, or if a size is None
        if paths and None not in self.sizes.values():
            self.total = sum(self.sizes[path] or 0 for path in paths)
        self.paths = paths
        self.rows = 0  # valid rows read so far
        self.bad_count = 0  # rows that the reader rejected
        self.watch: Callable[[int], None] | None = None  # called for each row
        self._finished_bytes = 0
        self._finished_files = 0
        self._file: BinaryIO | None = None  # the current one, if its bytes are read in order
        self._offset = 0  # in the current file, if they are not

    @classmethod
    def accepting_no_rows(cls) -> "ReadCounter":
        """A counter without paths, of which none is the last one: inputs can have no rows."""
        return cls(())

    @contextmanager
    def file(self, raw: BinaryIO) -> Iterator[None]:
        """Count the bytes of a file, as they are compressed, while the block reads it."""
        if self.total is None:
            yield
            self._end(0)
        else:
            self._file = raw
            yield
            self._end(raw.tell())

    def count_blocks(self, path: str, blocks: Iterable[Block], count: int) -> Iterator[Block]:
        """Yield blocks of a vector file or of Parquet, which has `count` rows. Their bytes are not
        read in order, so the position is that of the rows.
        """
        size = self.sizes.get(path) or 0
        rows_before = 0
        for block in blocks:
            self._offset = size * rows_before // max(count, 1)
            yield block
            rows_before += len(block)
        self._end(size)

    def _end(self, size: int) -> None:
        self._finished_bytes += size
        self._file = None
        self._offset = 0
        self._finished_files += 1
        if self._finished_files == len(self.paths) and not self.rows:
            raise NoRowsError(self.paths, self.bad_count)

    def add_rows(self, rows: int) -> None:
        self.rows += rows
        if self.watch is not None:
            self.watch(rows)

    def share(self, done: int) -> float | None:
        """The share of the input in the finished rows; None if the size is unknown."""
        if not self.total:
            return None
        position = self._offset
        file = self._file
        try:
            if file is not None:
                position = file.tell()
        except (OSError, ValueError):  # the thread that reads the file closes it at this moment
            return None
        share_read = (self._finished_bytes + position) / self.total
        return min(1.0, share_read * min(1.0, done / max(self.rows, 1)))


def size_of(path: str) -> int | None:
    try:
        status = os.fstat(sys.stdin.fileno()) if path == "-" else Path(local_path(path)).stat()
        if stat.S_ISDIR(status.st_mode):
            with os.scandir(path) as entries:
                return sum(entry.stat().st_size for entry in entries)
        if stat.S_ISREG(status.st_mode):
            return status.st_size
        return None
    except (OSError, ValueError, AttributeError):  # no such file, or standard input is not a file
        return None


BEGIN_OF_RECORD = b'{"file":'


@dataclass(slots=True)
class Rejects:
    """Receives the bad rows of the reader, the tokenizer and the writer.

    Raises the error of the first one, or with `skip` counts all and writes them to `file`, in the
    format that sentkit-rows(5) describes.
    """

    skip: bool = False
    file: BinaryIO | None = None
    warn: Callable[[str], None] = lambda message: None
    note: Callable[[str], None] = lambda message: None  # for messages of -v
    count: int = 0
    first_error: DataError | None = None

    def good_indices(self, block: RowBlock) -> Iterator[Sequence[int] | slice]:
        """Yield the indices of the good rows. Those before an error come first."""
        if not block.error_of_row:
            yield slice(None)
            return
        bad_indices = sorted(block.error_of_row)
        if not self.skip:
            first_bad = bad_indices[0]
            if first_bad > 0:
                yield slice(0, first_bad)
            raise block.error_of_row[first_bad]
        for index in bad_indices:
            self.add(block.raws[index], block.error_of_row[index])
        if len(bad_indices) < len(block):
            yield [index for index in range(len(block)) if index not in block.error_of_row]

    def add(self, raw: bytes, error: DataError) -> None:
        if not self.skip:
            raise error
        self.count += 1
        # A later step can refuse a row before one that the reader has refused.
        first = self.first_error
        if first is None:
            self.first_error = error
        elif error.line and first.line:
            is_above = error.source == first.source and error.line < first.line
            self.first_error = error if is_above else first
        if self.file is not None:
            record = {"file": shown_path(error.source), "line": error.line, "reason": error.problem}
            if not isinstance(raw, lines.LongLine):
                record |= record_of_row(raw.rstrip(b"\r\n"))
            self.file.write(json_line(record))

    def written_lines(self) -> set[bytes]:
        """The lines that the file has now; none if it cannot be read, as a pipe.

        A part of a record at its end, as after a full disk, is removed. Another last line without a
        newline gets one.
        """
        if self.file is None or not self.file.readable():
            return set()
        self.file.seek(0)
        content = self.file.read()
        *complete_lines, end = content.split(b"\n")
        has_grown = os.fstat(self.file.fileno()).st_size > len(content)  # by another process
        if end and not has_grown:
            if is_part_of_record(end):
                self.file.truncate(len(content) - len(end))
            else:
                self.file.write(b"\n")
                self.file.flush()
                complete_lines.append(end)
        return {line + b"\n" for line in complete_lines}

    def add_all(self, rejects: "Rejects", earlier: Set[bytes]) -> None:
        """Add the rejects of a block of the input, which has its file in memory.

        `earlier` are the lines of the file when the command began, which are not written again.
        """
        self.count += rejects.count
        self.first_error = self.first_error or rejects.first_error
        if self.file is None or not isinstance(rejects.file, BytesIO):
            return
        lines_of_block = rejects.file.getvalue().splitlines(keepends=True)
        new_lines = [line for line in lines_of_block if line not in earlier]
        try:
            self.file.write(b"".join(new_lines))
            self.file.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.file.name) from error


def record_of_row(row: bytes) -> dict[str, str]:
    """The field of `Rejects.add` with a row. A JSON string cannot have bytes that are not UTF-8."""
    try:
        return {"row": row.decode()}
    except UnicodeDecodeError:
        return {"row_base64": pybase64.b64encode(row + b"\n").decode()}


def is_part_of_record(line: bytes) -> bool:
    """Whether a line is the beginning of a record of `Rejects.add`, which is JSON."""
    length = min(len(line), len(BEGIN_OF_RECORD))
    if line[:length] != BEGIN_OF_RECORD[:length]:
        return False
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return True
    return False


TextsOfRow = Callable[[Row], Texts]  # finds the texts of a row, or raises a DataError


@dataclass(frozen=True, slots=True)
class Inputs:
    """The files of one command as one stream of rows."""

    paths: Sequence[str] = ("-",)
    # of FORMATS; None: by suffix, then by the first line
    format: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)  # standard name -> name in the input
    rejects: Rejects = field(default_factory=Rejects)
    counter: ReadCounter = field(default=None)  # type: ignore[assignment]  # by default, that of the paths
    quoting: str | None = None  # of TSV and CSV: none or csv; None: by format
    columns: Sequence[str] = ()  # of TSV and CSV without a header
    by_paragraph: bool = False  # of Markdown
    # vectors that were mapped to a space are compared with its vectors
    accepts_mapped: bool = False
    # Opens a vector file or folder as a `Store`, which `rows` cannot import; None for other files.
    open_vector_file: Callable[[str], Any] = lambda path: None
    # the blocks of the first file, until read
    opened: list[Iterator[RowBlock]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.counter is None:
            object.__setattr__(self, "counter", ReadCounter(self.paths))

    def with_paths(self, *paths: str) -> "Inputs":
        """The same options for other files, in which every bad row is an error."""
        return replace(
            self,
            paths=paths,
            rejects=Rejects(warn=self.rejects.warn, note=self.rejects.note),
            counter=ReadCounter(paths),
        )

    def place_of(self, row: Row) -> dict[str, Any]:
        """Where a row comes from, as fields of a record: its number, and its file among several."""
        if len(self.paths) > 1:
            return {"file": shown_path(row.source), "row": row.number}
        return {"row": row.number}

    def format_of(self, path: str) -> str:
        """Format of a path; empty if the first line decides."""
        if self.by_paragraph and bare_suffix(path) in MARKDOWN:
            return PARAGRAPHS
        return self.format or SUFFIXES.get(bare_suffix(path), "")

    def blocks(self, parse: TextsOfRow) -> Iterator[RowBlock]:
        """Yield the rows of all files with the texts from `parse`. Bad rows go to the rejects."""
        for path in self.paths:
            with self.raw_blocks(path) as blocks:
                for block in blocks:
                    yield from self.parse_block(block, parse)

    def parse_block(self, block: RowBlock, parse: TextsOfRow) -> Iterator[RowBlock]:
        """Yield the rows of a block with their texts. Bad rows go to the rejects."""
        of_block: Callable[[RowBlock], None] | None = getattr(parse, "of_block", None)
        if of_block is not None:
            of_block(block)
        else:
            block.texts = [texts or () for texts in block.results_of(parse)]
        yield from self.good_rows(block)

    def good_rows(self, block: RowBlock) -> Iterator[RowBlock]:
        self.counter.bad_count += len(block.error_of_row)
        for indices in self.rejects.good_indices(block):
            good = block.take(indices) if block.error_of_row else block
            self.counter.add_rows(len(good))
            yield good

    def reject(self, block: RowBlock) -> None:
        """Pass a block without a good row to the rejects."""
        for _ in self.good_rows(block):
            assert not block, "a block with a good row"

    def parsed_blocks(self, parse: Callable[[Row], Any], *paths: str) -> Iterator[RowBlock]:
        """Yield the rows of these files, or of all, with the results of `parse`. Bad rows go to the
        rejects.
        """
        for path in paths or self.paths:
            with self.raw_blocks(path) as blocks:
                for block in blocks:
                    block.parse(parse)
                    yield from self.good_rows(block)

    def read(self, parse: Callable[[Row], T], *paths: str) -> Iterator[T]:
        """Yield `parse(row)` for each row of these files, or of all. Bad rows go to the rejects."""
        for block in self.parsed_blocks(parse, *paths):
            yield from block.parsed

    @contextmanager
    def raw_blocks(self, path: str) -> Iterator[Iterator[RowBlock]]:
        """The rows of a file before parsing."""
        if self.opened:
            yield self.opened.pop()
        elif (stored := self.open_vector_file(path)) is not None:
            yield self.counter.count_blocks(path, stored.row_blocks(), stored.count)
        elif self.format_of(path) == "parquet":
            with parquet.open_parquet(path) as records:
                self.warn_of_binary_texts(path, records.binary_names())
                yield self.counter.count_blocks(path, records.blocks(), records.count)
        else:
            with open_input(path, self.counter.file) as file:
                yield self.blocks_of_lines(path, lines.line_blocks(file))

    def warn_of_binary_texts(self, path: str, binary_names: Sequence[str]) -> None:
        """Warn if a column of bytes, which is read as base64, has the name of a text."""
        for name in FIELDS:
            name_in_file = self.fields.get(name, name)
            if name_in_file in binary_names:
                problem = f'the column "{name_in_file}" has bytes, which are read as base64'
                self.rejects.warn(f"{path}: {problem}; convert it to strings")

    def blocks_of_lines(self, path: str, blocks: Iterator[lines.LineBlock]) -> Iterator[RowBlock]:
        """The rows of a file of lines, before parsing."""
        name = self.format_of(path)
        if name in LINES:
            return LINES[name](path, blocks)
        rows: Iterator[RowBlock]
        if FORMATS[name].layout == "table":
            rows = FORMATS[name].read(path, blocks, self.table_options)
        else:
            rows = FORMATS[name].read(path, blocks)
        return rows

    @property
    def table_options(self) -> tables.TableOptions:
        return tables.TableOptions(
            columns=self.columns,
            quoting=self.quoting,
            format_is_given=self.format is not None,
            warn=self.rejects.warn,
            note=self.rejects.note,
        )


def parse_fields(pairs: Sequence[str], standard_names: Sequence[str]) -> dict[str, str]:
    """Parse values of --field such as `text=title`. Returns standard name -> name in the input.

    `standard_names` are those that the command reads. A command that reads none has no --field.
    """
    fields: dict[str, str] = {}
    for pair in pairs:
        standard, equals, name = pair.partition("=")
        if not equals or not name:
            raise UsageError(f'--field "{pair}": expected name=theirs, for example text=title')
        if standard not in standard_names:
            advice = f"this command reads: {', '.join(standard_names)}"
            raise UsageError(f'--field "{pair}": unknown field "{standard}"', advice=advice)
        if standard in fields:
            raise UsageError(f'--field "{pair}": "{standard}" is given twice')
        if name in fields.values():
            raise UsageError(f'--field "{pair}": another --field already reads "{name}"')
        fields[standard] = name
    return fields


def lists_of_size(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of `size` items; the last one can be shorter."""
    remaining = iter(items)
    while block := list(islice(remaining, size)):
        yield block
