"""Read word vectors from an array file FILE.npy, with the words in FILE.txt or FILE.parquet beside it."""

from collections.abc import Sequence
from pathlib import Path
from tokenize import TokenError

import numpy as np
from numpy.typing import NDArray

from sentkit.errors import DataError, NoInputError
from sentkit.formats.files import import_pyarrow, open_input
from sentkit.formats.json_files import is_there
from sentkit.formats.lexicons.word_vectors import ARRAY, WordVectors
from sentkit.formats.rows.lines import BOM

AXES = 2


def read_word_array(path: str) -> WordVectors:
    """Map the array into memory. Only an array of another order or type than float32 by rows is copied."""
    rows, place = read_rows(path), words_beside(path)
    if place is None:
        name = path.removesuffix(ARRAY)
        advice = "the .txt file has one word per line, in the order of the rows"
        raise NoInputError(
            f"{path}: the file with the words is missing: {name}.txt or {name}.parquet", advice=advice
        )
    listed = read_lines(place) if place.suffix == ".txt" else read_column(place)
    if len(listed) != len(rows):
        problem = f"{len(listed):,} words, and {path} has {len(rows):,} rows"
        raise DataError(problem, source=str(place))
    words, unreadable = dict[str, int](), 0
    for number, word in enumerate(listed):
        if not word.strip():
            raise DataError("expected a word", source=str(place), line=number + 1)
        try:
            words.setdefault(word.strip().decode(), number)
        except UnicodeDecodeError:  # such a word does not occur in any text
            unreadable += 1
    repeated = len(listed) - unreadable - len(words)
    if len(words) < len(listed):  # as in text, so that the space is the same
        rows = rows[list(words.values())]
        words = {word: number for number, word in enumerate(words)}
    return WordVectors(words, rows, repeated, unreadable)


def read_rows(path: str) -> NDArray[np.float32]:
    try:
        array = np.lib.format.open_memmap(path, mode="r")  # refuses pickled objects
    except OSError as error:
        raise NoInputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, TypeError, SyntaxError, OverflowError, MemoryError, TokenError) as error:
        raise DataError(f"not an array of numpy: {error}", source=path) from error
    if array.ndim != AXES or 0 in array.shape or array.dtype.kind != "f":
        form = f"{' x '.join(map(str, array.shape)) or 'one number'} of {array.dtype}"
        raise DataError(
            f"the array is {form}, expected 2 dimensions of floating-point numbers, one row per word",
            source=path,
        )
    with np.errstate(over="ignore"):
        rows: NDArray[np.float32] = np.ascontiguousarray(array, dtype=np.float32)
    if not np.isfinite(rows).all():
        raise DataError("the array contains NaN or a number too large for float32", source=path)
    return rows


def words_beside(path: str) -> Path | None:
    """The file with the words: the name of the array with another suffix."""
    return next(filter(is_there, map(Path(path).with_suffix, (".txt", ".parquet"))), None)


def read_lines(place: Path) -> Sequence[bytes]:
    with open_input(str(place)) as file:
        return file.read().removeprefix(BOM).removesuffix(b"\n").split(b"\n")


def read_column(place: Path) -> Sequence[bytes]:
    """The only column of a Parquet file."""
    import_pyarrow("pip install 'sentkit[parquet]', or write the words to a .txt file")
    from pyarrow import ArrowException, parquet

    try:
        columns = parquet.read_table(place).columns
    except (ArrowException, OSError) as error:
        raise DataError(f"not a Parquet file: {error}", source=str(place)) from error
    words = columns[0].to_pylist() if len(columns) == 1 else []
    if not words or not all(isinstance(word, str) for word in words):
        raise DataError("expected one column of words", source=str(place))
    return [word.encode(errors="surrogatepass") for word in words]
