"""Reads word vectors: text (word2vec, GloVe, fastText; a word and its numbers per line), or an array.

An array file FILE.npy has its words beside it, in FILE.txt or FILE.parquet.
"""

import codecs
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import orjson
from numpy.typing import NDArray

from sentkit.errors import DataError, NoInputError
from sentkit.formats.files import is_there, open_input
from sentkit.formats.rows.lines import BOM
from sentkit.formats.rows.parquet import open_parquet
from sentkit.formats.vectors.vectors import read_array_file

EXPECTED = 'expected word vectors as text: "the 0.418 0.24968 ..." on each line, separated by spaces'
FROM_BINARY = (
    "unzip an archive; for fastText, use the .vec file; for a model, use its folder; for word2vec, use "
    "gensim: KeyedVectors.load_word2vec_format(FILE, binary=True).save_word2vec_format(TEXT)"
)
CONTROL = bytes({*range(32)} - set(b"\t\n\r"))

ARRAY = ".npy"  # suffix of word vectors that are not text
BLOCK = 1 << 17  # bytes of lines per read; the results fit into a CPU cache
LONGEST = 1 << 20  # maximum bytes of the first line
OF_NUMBERS = b"0123456789+-.eE"
ENDS = b" \r\n"


@dataclass(frozen=True, slots=True)
class WordVectors:
    words: dict[str, int]  # word -> row
    rows: NDArray[np.float32]
    repeated: int = 0  # lines with a duplicate word, which are ignored
    unreadable: int = 0  # lines with a word that is not UTF-8, which are ignored


def read_word_vectors(path: str) -> WordVectors:
    """Read a file, also .gz or .zst. For duplicate words, the first vector is used."""
    with open_input(path) as file:
        first = file.readline(LONGEST).removeprefix(codecs.BOM_UTF8)
        counted = header(first)
        line = file.readline(LONGEST) if counted else first
        width = counted[1] if counted else width_of(line)
        plain = width > 1 or counted is not None  # `Chapter 5` is not a vector
        binary = len((first + line).translate(None, CONTROL)) < len(first + line)
        if not 0 < width <= width_of(line) or not plain or binary:
            advice = FROM_BINARY if binary or not is_utf8(first + line) else None
            raise DataError(EXPECTED, source=path, line=1 if line is first else 2, advice=advice)
        start, words, rows, unreadable = 1 + bool(counted), dict[str, int](), bytearray(), 0

        def refuse(problem: str, place: int) -> NoReturn:
            raise DataError(problem, source=path, line=start + place)

        lines = [line]
        while lines:
            parts = [word_and_numbers(line, width) for line in lines]
            if None in parts:
                refuse(f"expected a word and {width} numbers", parts.index(None))
            block = parsed_numbers([numbers for _, numbers in filter(None, parts)], width, refuse)
            kept, others = new_words([word for word, _ in filter(None, parts)], words)
            rows += block[kept].data  # it grows in place
            start, unreadable = start + len(lines), unreadable + others
            lines = file.readlines(BLOCK)
    count = start - 1 - bool(counted)
    if counted and count != counted[0]:
        problem = f"the first line declares {counted[0]:,} words, but the file has {count:,}"
        raise DataError(problem, source=path, line=1)
    array = np.frombuffer(rows, np.float32).reshape(-1, width)
    return WordVectors(words, array, count - unreadable - len(words), unreadable)


def word_and_numbers(line: bytes, width: int) -> tuple[bytes, bytes] | None:
    """The word of a line, which can contain blanks, and its numbers; None if there are too few or many."""
    line = line.rstrip(ENDS)
    word, _, numbers = line.partition(b" ")
    if (blanks := line.count(b" ")) != width:
        parts = line.rsplit(b" ", width)
        word, numbers = parts[0], b" ".join(parts[1:])
    # A number before the vector means one number too many, unless it is the whole word.
    many = number(word.partition(b" ")[2].split(b" ")[-1]) is not None
    return None if blanks < width or not word.strip() or many else (word.strip(), numbers)


def parsed_numbers(
    parts: Sequence[bytes], width: int, refuse: Callable[[str, int], NoReturn]
) -> NDArray[np.float32]:
    """Parse numbers with a JSON parser, which is four times as fast; if it fails, parse each number."""
    text, values = b" ".join(parts), list[float | None]()
    with suppress(ValueError):
        if not text.translate(None, OF_NUMBERS + b" "):  # JSON has other words than numbers
            values = orjson.loads(b"[" + text.replace(b" ", b",") + b"]")
    if not values:
        single = text.split(b" ")
        values = list(map(number, single))
        if None in values:
            place = values.index(None)
            refuse(f'"{single[place][:40].decode(errors="replace")}" is not a number', place // width)
    with np.errstate(over="ignore"):
        rows = np.fromiter(values, np.float32, len(values)).reshape(len(parts), width)
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        refuse("a number is too large for float32", int(finite.argmin()))
    return rows


def new_words(listed: Sequence[bytes], words: dict[str, int]) -> tuple[list[int], int]:
    """Number the new words; return their places, and how many are not UTF-8, so that no text has them."""
    kept, unreadable = list[int](), 0
    for place, word in enumerate(listed):
        if not is_utf8(word):
            unreadable += 1
        elif (name := word.decode()) not in words:
            words[name] = len(words)
            kept.append(place)
    return kept, unreadable


def is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def holds_word_vectors(path: str) -> bool:
    """Whether the suffix or the first line of a file has the form of word vectors."""
    if path.endswith(ARRAY):
        return True
    with open_input(path) as file:
        first = file.readline(LONGEST).removeprefix(codecs.BOM_UTF8)
        return header(first) is not None or width_of(first) > 1


def header(line: bytes) -> tuple[int, int] | None:
    """The number of words and the vector length in a header line; None for other lines."""
    parts = line.split()
    if len(parts) != 2 or not all(part.isdigit() and len(part) < 12 for part in parts) or parts[1] == b"0":
        return None
    return int(parts[0]), int(parts[1])


def width_of(line: bytes) -> int:
    """The count of numbers at the end of a line. The first part is always a word, even if it is a number."""
    parts = line.rstrip(ENDS).split(b" ")
    count = next((i for i, part in enumerate(reversed(parts)) if number(part) is None), len(parts))
    return min(count, len(parts) - 1)


def number(part: bytes) -> float | None:
    if not part or part.translate(None, OF_NUMBERS):  # Python also accepts 1_000 and infinity
        return None
    try:
        return float(part)
    except ValueError:
        return None


def read_word_array(path: str) -> WordVectors:
    """Map the array into memory. Only an array of another order or type than float32 by rows is copied."""
    with np.errstate(over="ignore"):
        rows: NDArray[np.float32] = np.ascontiguousarray(read_array_file(path), dtype=np.float32)
    if not np.isfinite(rows).all():
        raise DataError("the array contains NaN or a number too large for float32", source=path)
    place = words_beside(path)
    if place is None:
        name = path.removesuffix(ARRAY)
        advice = "the .txt file has one word per line, in the order of the rows"
        problem = f"{path}: the file with the words is missing: {name}.txt or {name}.parquet"
        raise NoInputError(problem, advice=advice)
    if place.suffix == ".txt":
        with open_input(str(place)) as file:
            listed = file.read().removeprefix(BOM).removesuffix(b"\n").split(b"\n")
    else:
        listed = read_column(place)
    if len(listed) != len(rows):
        problem = f"{len(listed):,} words, and {path} has {len(rows):,} rows"
        raise DataError(problem, source=str(place))
    words = dict[str, int]()
    stripped = [word.strip() for word in listed]
    if b"" in stripped:
        raise DataError("expected a word", source=str(place), line=stripped.index(b"") + 1)
    kept, unreadable = new_words(stripped, words)
    if len(kept) < len(listed):  # as in text, so that the space is the same
        rows = rows[kept]
    return WordVectors(words, rows, len(listed) - unreadable - len(words), unreadable)


def words_beside(path: str) -> Path | None:
    """The file with the words: the name of the array with another suffix."""
    return next(filter(is_there, map(Path(path).with_suffix, (".txt", ".parquet"))), None)


def read_column(place: Path) -> list[bytes]:
    """The only column of a Parquet file."""
    with open_parquet(str(place)) as table:
        try:
            words = table.file.read().columns[0].to_pylist() if len(table.names) == 1 else []
        except table.errors as error:
            raise DataError(f"damaged Parquet file: {error}", source=str(place)) from error
    if not words or not all(isinstance(word, str) for word in words):
        raise DataError("expected one column of words", source=str(place))
    return [word.encode(errors="surrogatepass") for word in words]
