"""Reads word vectors: text (word2vec, GloVe, fastText; a word and its numbers per line), or an
array.

An array file FILE.npy has its words beside it, in FILE.txt or FILE.parquet.
"""

import codecs
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from sentkit.errors import DataError, NoInputError
from sentkit.formats.files import is_there, open_input
from sentkit.formats.rows.lines import BOM
from sentkit.formats.rows.parquet import open_parquet
from sentkit.formats.vectors.vectors import read_array_file

EXPECTED = (
    'expected word vectors as text: "the 0.418 0.24968 ..." on each line, separated by spaces'
)
FROM_BINARY = (
    "unzip an archive; for fastText, use the .vec file; for a model, use its folder; for word2vec, "
    "use gensim: KeyedVectors.load_word2vec_format(FILE, binary=True).save_word2vec_format(TEXT)"
)
CONTROL = bytes({*range(32)} - set(b"\t\n\r"))

ARRAY = ".npy"  # suffix of word vectors that are not text
BYTES_PER_READ = 1 << 17  # of whole lines; the results fit into a CPU cache
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
        # The header, if there is one, and the first vector.
        first_line = file.readline(LONGEST).removeprefix(codecs.BOM_UTF8)
        declared = header(first_line)  # count of words and length of vectors
        if declared is None:
            line = first_line
            line_number = 1
            width = width_of(line)
        else:
            line = file.readline(LONGEST)
            line_number = 2
            width = declared[1]
        start_of_file = first_line + line
        is_binary = len(start_of_file.translate(None, CONTROL)) < len(start_of_file)
        is_word_and_number = declared is None and width == 1  # `Chapter 5` is not a vector
        if not 0 < width <= width_of(line) or is_word_and_number or is_binary:
            advice = FROM_BINARY if is_binary or not is_utf8(start_of_file) else None
            raise DataError(EXPECTED, source=path, line=line_number, advice=advice)

        # Blocks of lines.
        words: dict[str, int] = {}
        rows = bytearray()
        line_count = 0
        unreadable_count = 0
        lines = [line]
        while lines:
            first_number = line_number + line_count
            lines_words, vectors = parsed_lines(lines, width, path, first_number)
            new_indices, block_unreadable = add_words(lines_words, words)
            rows += vectors[new_indices].data  # it grows in place
            unreadable_count += block_unreadable
            line_count += len(lines)
            lines = file.readlines(BYTES_PER_READ)
    if declared is not None and line_count != declared[0]:
        problem = f"the first line declares {declared[0]:,} words, but the file has {line_count:,}"
        raise DataError(problem, source=path, line=1)
    array = np.frombuffer(rows, np.float32).reshape(-1, width)
    repeated_count = line_count - unreadable_count - len(words)
    return WordVectors(words, array, repeated_count, unreadable_count)


def parsed_lines(
    lines: Sequence[bytes], width: int, path: str, first_number: int
) -> tuple[list[bytes], NDArray[np.float32]]:
    """The words of lines and their vectors (lines, width). `first_number` is that of the first
    line.
    """
    words = []
    number_texts = []
    for line_number, line in enumerate(lines, start=first_number):
        word_and_numbers = split_line(line, width)
        if word_and_numbers is None:
            raise DataError(f"expected a word and {width} numbers", source=path, line=line_number)
        word, numbers = word_and_numbers
        words.append(word)
        number_texts.append(numbers)
    return words, parsed_numbers(number_texts, width, path, first_number)


def split_line(line: bytes, width: int) -> tuple[bytes, bytes] | None:
    """The word of a line, which can contain blanks, and its numbers; None if there are too few or
    many.
    """
    line = line.rstrip(ENDS)
    blank_count = line.count(b" ")
    if blank_count < width:
        return None
    if blank_count == width:
        word, _, numbers = line.partition(b" ")
    else:
        word, *number_texts = line.rsplit(b" ", width)
        numbers = b" ".join(number_texts)
        # A number before the vector means one number too many, unless it is the whole word.
        _, _, after_first_blank = word.partition(b" ")
        if number(after_first_blank.split(b" ")[-1]) is not None:
            return None
    word = word.strip()
    if not word:
        return None
    return word, numbers


def parsed_numbers(
    texts: Sequence[bytes], width: int, path: str, first_number: int
) -> NDArray[np.float32]:
    """The vectors (n, width) of lines whose numbers are texts with blanks between them.

    A JSON parser is four times as fast as Python's; if it fails, each number is parsed by itself.
    """
    joined = b" ".join(texts)
    values: list[float | None] = []
    with suppress(ValueError):
        if not joined.translate(None, OF_NUMBERS + b" "):  # JSON has other words than numbers
            values = orjson.loads(b"[" + joined.replace(b" ", b",") + b"]")
    if not values:
        single_texts = joined.split(b" ")
        values = [number(text) for text in single_texts]
        if None in values:
            index = values.index(None)
            shown = single_texts[index][:40].decode(errors="replace")
            raise DataError(
                f'"{shown}" is not a number', source=path, line=first_number + index // width
            )
    with np.errstate(over="ignore"):
        rows = np.fromiter(values, np.float32, len(values)).reshape(len(texts), width)
    is_finite = np.isfinite(rows).all(axis=1)
    if not is_finite.all():
        line_number = first_number + int(is_finite.argmin())
        raise DataError("a number is too large for float32", source=path, line=line_number)
    return rows


def add_words(words_of_rows: Sequence[bytes], words: dict[str, int]) -> tuple[list[int], int]:
    """Add the new words to `words`, which has the row of each.

    Returns their indices in the list, and how many words are not UTF-8, so that no text has them.
    """
    new_indices = []
    unreadable_count = 0
    for index, word in enumerate(words_of_rows):
        if not is_utf8(word):
            unreadable_count += 1
            continue
        text = word.decode()
        if text not in words:
            words[text] = len(words)
            new_indices.append(index)
    return new_indices, unreadable_count


def is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def holds_word_vectors(path: str) -> bool:
    """Whether the first line of a file has the form of word vectors; of an array, whether there is
    a file with the words.
    """
    if path.endswith(ARRAY):
        return words_beside(path) is not None
    with open_input(path) as file:
        first_line = file.readline(LONGEST).removeprefix(codecs.BOM_UTF8)
    return header(first_line) is not None or width_of(first_line) > 1


def header(line: bytes) -> tuple[int, int] | None:
    """The number of words and the vector length in a header line; None for other lines."""
    fields = line.split()
    if len(fields) != 2 or not all(field.isdigit() and len(field) < 12 for field in fields):
        return None
    count, width = fields
    if width == b"0":
        return None
    return int(count), int(width)


def width_of(line: bytes) -> int:
    """The count of numbers at the end of a line. The first field is always a word, even if it is a
    number.
    """
    _, *fields = line.rstrip(ENDS).split(b" ")
    count = 0
    for field in reversed(fields):
        if number(field) is None:
            break
        count += 1
    return count


def number(text: bytes) -> float | None:
    """The value of a text; None if it is not a number."""
    if not text or text.translate(None, OF_NUMBERS):  # Python also accepts 1_000 and infinity
        return None
    try:
        return float(text)
    except ValueError:
        return None


def read_word_array(path: str) -> WordVectors:
    """The word vectors of a .npy file and of the file with the words beside it.

    The array is mapped into memory. Only one of another order or type than float32 by rows is
    copied.
    """
    with np.errstate(over="ignore"):
        rows: NDArray[np.float32] = np.ascontiguousarray(read_array_file(path), dtype=np.float32)
    if not np.isfinite(rows).all():
        raise DataError("the array contains NaN or a number too large for float32", source=path)

    # The words, one for each row.
    words_path = words_beside(path)
    if words_path is None:
        name = path.removesuffix(ARRAY)
        advice = "the .txt file has one word per line, in the order of the rows"
        problem = f"{path}: the file with the words is missing: {name}.txt or {name}.parquet"
        raise NoInputError(problem, advice=advice)
    if words_path.suffix == ".txt":
        with open_input(str(words_path)) as file:
            content = file.read().removeprefix(BOM).removesuffix(b"\n")
        words_of_rows = content.split(b"\n")
    else:
        words_of_rows = read_column(words_path)
    if len(words_of_rows) != len(rows):
        problem = f"{len(words_of_rows):,} words, and {path} has {len(rows):,} rows"
        raise DataError(problem, source=str(words_path))
    words_of_rows = [word.strip() for word in words_of_rows]
    if b"" in words_of_rows:
        raise DataError(
            "expected a word", source=str(words_path), line=words_of_rows.index(b"") + 1
        )

    # As in a text file of word vectors, so that both give the same space: the first row of a word
    # counts, and words that are not UTF-8 are left out.
    words: dict[str, int] = {}
    new_indices, unreadable_count = add_words(words_of_rows, words)
    if len(new_indices) < len(words_of_rows):
        rows = rows[new_indices]
    repeated_count = len(words_of_rows) - unreadable_count - len(words)
    return WordVectors(words, rows, repeated_count, unreadable_count)


def words_beside(path: str) -> Path | None:
    """The file with the words: the name of the array with another suffix."""
    for suffix in (".txt", ".parquet"):
        words_path = Path(path).with_suffix(suffix)
        if is_there(words_path):
            return words_path
    return None


def read_column(path: Path) -> list[bytes]:
    """The only column of a Parquet file."""
    words: list[Any] = []
    with open_parquet(str(path)) as table:
        try:
            if len(table.names) == 1:
                words = table.file.read().columns[0].to_pylist()
        except table.errors as error:
            raise DataError(f"damaged Parquet file: {error}", source=str(path)) from error
    if not words or not all(isinstance(word, str) for word in words):
        raise DataError("expected one column of words", source=str(path))
    return [word.encode(errors="surrogatepass") for word in words]
