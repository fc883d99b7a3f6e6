"""Word vectors in text: a word and its numbers on each line, as word2vec, GloVe and fastText write them."""

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, NoReturn

import numpy as np
import orjson
from numpy.typing import NDArray

from sentkit.errors import DataError
from sentkit.formats.files import open_input
from sentkit.formats.lexicons.wrong_file_hints import has_control, refuse_foreign

BLOCK = 1 << 17  # bytes of lines taken at once: what is made of them stays in a cache
FIRST_ROWS, GROWTH = 4096, 1.25
LONGEST = 1 << 20  # bytes of a first line
OF_NUMBERS = b"0123456789+-.eE"
ENDS = b" \r\n"


@dataclass(frozen=True, slots=True)
class WordVectors:
    words: dict[str, int]  # -> its row
    rows: NDArray[np.float32]
    repeated: int = 0  # lines of a word that had one before, which counts
    unreadable: int = 0  # lines of a word that is no UTF-8, which are left out


@dataclass(slots=True)
class Matrix:
    """Rows that come in blocks, in one array that grows in place."""

    width: int
    rows: NDArray[np.float32] = field(init=False)
    count: int = 0

    def __post_init__(self) -> None:
        self.rows = np.empty((FIRST_ROWS, self.width), np.float32)

    def add(self, block: NDArray[np.float32]) -> None:
        needed = self.count + len(block)
        if needed > len(self.rows):
            size = max(needed, int(GROWTH * len(self.rows)))
            self.rows.resize((size, self.width), refcheck=False)
        self.rows[self.count : needed] = block
        self.count = needed

    def whole(self) -> NDArray[np.float32]:
        self.rows.resize((self.count, self.width), refcheck=False)
        return self.rows


def read_word_vectors(path: str) -> WordVectors:
    """All of a file, also .gz or .zst. Of a word that stands twice the first vector is taken."""
    with open_input(path) as file:
        first = file.readline(LONGEST).removeprefix(codecs.BOM_UTF8)
        counted = header(first)
        line = file.readline(LONGEST) if counted else first
        width = counted[1] if counted else width_of(line)
        plain = width > 1 or counted is not None  # `Chapter 5` is no vector
        if not 0 < width <= width_of(line) or not plain or has_control(first + line):
            refuse_foreign(path, first, line)
        reader = Reader(path, width, 1 if counted else 0)
        for lines in blocks(line, file):
            reader.take(lines)
    if counted and reader.lines != counted[0]:
        problem = f"the first line says {counted[0]:,} words, and {reader.lines:,} follow"
        raise DataError(problem, source=path, line=1)
    return WordVectors(reader.words, reader.matrix.whole(), reader.repeated, reader.unreadable)


def holds_word_vectors(path: str) -> bool:
    """Whether a file begins as word vectors do."""
    with open_input(path) as file:
        first = file.readline(LONGEST).removeprefix(codecs.BOM_UTF8)
        return header(first) is not None or width_of(first) > 1


def blocks(line: bytes, file: BinaryIO) -> Iterator[list[bytes]]:
    yield [line]
    while lines := file.readlines(BLOCK):
        yield lines


def header(line: bytes) -> tuple[int, int] | None:
    """How many words of how many numbers, where a first line says it."""
    parts = line.split()
    if len(parts) != 2 or not all(part.isdigit() and len(part) < 12 for part in parts) or parts[1] == b"0":
        return None
    return int(parts[0]), int(parts[1])


def width_of(line: bytes) -> int:
    """The numbers at the end of a line; what stands before them is a word, be it a number itself."""
    parts = line.rstrip(ENDS).split(b" ")
    count = next((i for i, part in enumerate(reversed(parts)) if number(part) is None), len(parts))
    return min(count, len(parts) - 1)


def number(part: bytes) -> float | None:
    if not part or part.translate(None, OF_NUMBERS):  # what Python takes beside: 1_000, infinity
        return None
    try:
        return float(part)
    except ValueError:
        return None


class Reader:
    """Lines in, words and rows kept."""

    def __init__(self, path: str, width: int, before: int) -> None:
        self.path, self.width, self.before = path, width, before
        self.matrix = Matrix(width)
        self.words: dict[str, int] = {}
        self.lines = self.repeated = self.unreadable = 0

    def take(self, lines: Sequence[bytes]) -> None:
        parts = [self._split(line, number) for number, line in enumerate(lines, self.lines + self.before + 1)]
        rows = self._numbers([numbers for _, numbers in parts])
        kept = [self._is_new(word) for word, _ in parts]
        self.matrix.add(rows if all(kept) else rows[kept])
        self.lines += len(lines)

    def _split(self, line: bytes, place: int) -> tuple[bytes, bytes]:
        """The word, which may hold blanks, and its numbers."""
        line = line.rstrip(ENDS)
        blanks = line.count(b" ")
        if blanks == self.width:
            word, _, numbers = line.partition(b" ")
        else:
            parts = line.rsplit(b" ", self.width)
            word, numbers = parts[0], b" ".join(parts[1:])
        # A number before the numbers is one too many, unless it is all of the word.
        if (
            blanks < self.width
            or not word.strip()
            or number(word.partition(b" ")[2].split(b" ")[-1]) is not None
        ):
            problem = f"expected a word and {self.width} numbers"
            raise DataError(problem, source=self.path, line=place)
        return word.strip(), numbers

    def _numbers(self, parts: Sequence[bytes]) -> NDArray[np.float32]:
        """By a reader of JSON, which is four times as fast as any other; where it fails, one by one."""
        text = b" ".join(parts)
        try:
            if text.translate(None, OF_NUMBERS + b" "):
                raise ValueError("JSON has other words than numbers")
            values = orjson.loads(b"[" + text.replace(b" ", b",") + b"]")
        except ValueError:
            values = [self._one(part, place) for place, row in enumerate(parts) for part in row.split(b" ")]
        with np.errstate(over="ignore"):
            rows = np.fromiter(values, np.float32, len(values)).reshape(len(parts), self.width)
        finite = np.isfinite(rows).all(axis=1)
        if not finite.all():
            self._refuse("a number is too large for float32", int(finite.argmin()))
        return rows

    def _one(self, part: bytes, place: int) -> float:
        found = number(part)
        if found is None:
            self._refuse(f'"{part[:40].decode(errors="replace")}" is no number', place)
        return found

    def _refuse(self, problem: str, place: int) -> NoReturn:
        raise DataError(problem, source=self.path, line=self.before + self.lines + place + 1)

    def _is_new(self, word: bytes) -> bool:
        try:
            name = word.decode()
        except UnicodeDecodeError:  # it can stand in no text
            self.unreadable += 1
            return False
        if name in self.words:
            self.repeated += 1
            return False
        self.words[name] = len(self.words)
        return True
