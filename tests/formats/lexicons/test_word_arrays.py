"""Word vectors in an array file, with the words beside it."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sentkit.errors import DataError, NoInputError, UnavailableError
from sentkit.formats.lexicons.word_vectors import holds_word_vectors, read_word_array

ROWS = np.array([[0.25, -1, 3], [1, 2.5, -0.125]], np.float32)


@pytest.fixture
def array(tmp_path: Path) -> Any:
    """Writes w.npy and w.txt; returns the path of the array."""

    def write(rows: Any = ROWS, words: bytes | None = b"the\ncat\n") -> str:
        np.save(tmp_path / "w.npy", rows)
        if words is not None:
            (tmp_path / "w.txt").write_bytes(words)
        return str(tmp_path / "w.npy")

    return write


@pytest.mark.parametrize("words", [b"the\ncat\n", b"\xef\xbb\xbfthe\ncat", b"the\r\ncat\r\n"])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f2", "<f8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_word_has_a_row(array: Any, words: bytes, dtype: str, order: Any) -> None:
    path = array(np.asarray(ROWS, dtype, order=order), words)
    vectors = read_word_array(path)

    assert holds_word_vectors(path)
    assert vectors.words == {"the": 0, "cat": 1}
    assert (vectors.rows.dtype, vectors.rows.tolist()) == (np.float32, ROWS.tolist())
    assert vectors.rows.flags.c_contiguous


def test_the_array_is_mapped_and_not_read(array: Any) -> None:
    rows = read_word_array(array()).rows

    assert isinstance(rows if isinstance(rows, np.memmap) else rows.base, np.memmap)


def test_the_first_vector_of_a_repeated_word_is_used(array: Any) -> None:
    rows = np.arange(10, dtype=np.float32).reshape(5, 2)
    vectors = read_word_array(array(rows, b"a\nb\na\n\xff\nc\n"))

    assert vectors.words == {"a": 0, "b": 1, "c": 2}
    assert vectors.rows.tolist() == [[0, 1], [2, 3], [8, 9]]
    assert (vectors.repeated, vectors.unreadable) == (1, 1)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (ROWS[0], "an array of float32 and shape (3,), expected numbers (rows, width)"),
        (np.empty((2, 0), np.float32), "an array of float32 and shape (2, 0), "),
        (ROWS.astype("c8"), "an array of complex64 and shape (2, 3), "),
        (np.array([[1, np.nan], [1, 1]]), "the array contains NaN or a number too large for float32"),
        (np.array([[1, None], [1, 1]]), "not an array of numbers in the format of numpy"),
    ],
)
def test_another_array_is_bad_data(array: Any, rows: Any, problem: str) -> None:
    path = array(rows)
    with pytest.raises(DataError) as caught:
        read_word_array(path)

    assert str(caught.value).startswith(f"{path}: {problem}")


@pytest.mark.parametrize(
    "content",
    [b"", b"the 0.5 1\n", b"\x93NUMPY\x01\x00\xff", b"\x93NUMPY\x01\x00\x02\x00'\n", None],
    ids=["empty", "text", "version", "header", "cut"],
)
def test_a_file_that_is_no_array_is_bad_data(array: Any, content: bytes | None) -> None:
    path = Path(array())
    path.write_bytes(path.read_bytes()[:-1] if content is None else content)
    with pytest.raises(DataError, match="not an array of numbers"):
        read_word_array(str(path))


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (b"the\n", "w.txt: 1 words, and "),
        (b"the\ncat\ndog\n", "w.txt: 3 words, and "),
        (b"", "w.txt: 1 words, and "),
        (b"the\n \n", "w.txt:2: expected a word"),
    ],
)
def test_words_that_do_not_fit_are_bad_data(array: Any, words: bytes, problem: str) -> None:
    with pytest.raises(DataError) as caught:
        read_word_array(array(words=words))

    assert problem in str(caught.value)


def test_an_array_without_words_is_refused(array: Any) -> None:
    path = array(words=None)
    with pytest.raises(NoInputError) as caught:
        read_word_array(path)

    base = path.removesuffix(".npy")
    assert str(caught.value) == f"{path}: the file with the words is missing: {base}.txt or {base}.parquet"


def test_words_in_parquet_without_pyarrow(array: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = array(words=None)
    Path(path).with_suffix(".parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UnavailableError) as caught:
        read_word_array(path)

    assert str(caught.value) == "Parquet files need the package pyarrow"


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"w": ["the", "caf\u00e9"]}, None),
        ({"w": ["a"]}, "1 words, and"),
        ({"w": [1, 2]}, "expected one column of words"),
        ({"w": ["a", None]}, "expected one column of words"),
        ({"a": ["b"], "w": ["a"]}, "expected one column of words"),
        (None, "not a Parquet file"),
    ],
)
def test_words_in_parquet(array: Any, columns: Any, problem: str | None) -> None:
    parquet, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    path = array(words=None)
    place = Path(path).with_suffix(".parquet")
    place.write_bytes(b"PAR1")
    if columns is not None:
        parquet.write_table(pa.table(columns), place)

    if problem is None:
        assert read_word_array(path).words == {"the": 0, "caf\u00e9": 1}
    else:
        with pytest.raises(DataError, match=problem):
            read_word_array(path)
