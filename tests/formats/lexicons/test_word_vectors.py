"""Word vectors in text, in each format that tools write, and errors for other files."""

import gzip
import io
import struct
import zipfile
from collections.abc import Callable

import numpy as np
import pytest

from sentkit.errors import DataError
from sentkit.formats.lexicons import word_vectors
from sentkit.formats.lexicons.word_vectors import holds_word_vectors, read_word_vectors

Write = Callable[[str, bytes], str]
PLAIN = b"the 0.25 -1 3e-2\ncat 1 2.5 -0.125\n"
VALUES = [[0.25, -1, 0.03], [1, 2.5, -0.125]]


@pytest.mark.parametrize(
    "content",
    [
        PLAIN,
        b"2 3\n" + PLAIN,
        b"2 3 \n" + PLAIN.replace(b"\n", b" \n"),
        PLAIN.replace(b"\n", b"\r\n"),
        PLAIN.removesuffix(b"\n"),
        b"the +.25 -1. 00.03\ncat 1E0 25e-1 -.125\n",
    ],
    ids=["GloVe", "header", "blanks at the end", "CRLF", "no last newline", "numbers that are not JSON"],
)
@pytest.mark.parametrize(("name", "pack"), [("w.txt", bytes), ("w.vec.gz", gzip.compress)])
def test_a_line_contains_a_word_and_its_numbers(write: Write, name: str, pack, content: bytes) -> None:
    found = read_word_vectors(write(name, pack(content)))

    assert found.words == {"the": 0, "cat": 1}
    assert found.rows.dtype == np.float32
    assert np.array_equal(found.rows, np.array(VALUES, np.float32))


@pytest.mark.parametrize("block", [1, 100, 1 << 20])
def test_many_lines_agree_with_a_plain_loop(write: Write, monkeypatch, block: int) -> None:
    """Every number is the float32 nearest to the written one, for any blocks of lines."""
    monkeypatch.setattr(word_vectors, "BLOCK", block)
    numbers = np.random.default_rng(0).standard_normal((500, 7)) * 10.0 ** np.arange(-9, 5, 2)
    texts = [[f"{number:.6g}" for number in row] for row in numbers]
    lines = [" ".join([f"word{k}", *row]) for k, row in enumerate(texts)]
    found = read_word_vectors(write("w.txt", "\n".join(lines).encode()))

    assert list(found.words) == [f"word{k}" for k in range(500)]
    assert found.rows.tolist() == [[float(np.float32(float(number))) for number in row] for row in texts]


def test_a_word_may_contain_blanks(write: Write) -> None:
    """As some of GloVe's do; and a word may be a number."""
    found = read_word_vectors(write("w.txt", b"the 1 2\n. . . 3 4\nat name@domain.com 5 6\n1984 7 8\n"))

    assert found.words == {"the": 0, ". . .": 1, "at name@domain.com": 2, "1984": 3}
    assert found.rows.tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]


def test_words_of_any_script_are_unchanged(write: Write) -> None:
    """A line ends at its newline alone, and a word at a blank."""
    words = ["猫", "naïve", "a\u0085b", "\u00a0", "a\u2028b", "🐈"]
    content = "".join(f"{word} 1 2\n" for word in words)

    assert list(read_word_vectors(write("w.txt", content.encode())).words) == words


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        *(
            (b"the 1 2\n%b\n" % line, "w.txt:2: expected a word and 2 numbers")
            for line in (b"cat 1", b"cat 1 2 3", b"\ncat 1 2", b" 1 2")
        ),
        *(
            (b"the 1 2\ncat %b 2\n" % number.encode(), f'w.txt:2: "{number}" is not a number')
            for number in ("x", "true", "null", "nan", "1_0", "1,0")
        ),
        (b"the 1 2\ncat 1e60 2\n", "w.txt:2: a number is too large for float32"),
        (b"3 2\nthe 1 2\ncat 1 2\n", "w.txt:1: the first line declares 3 words, but the file has 2"),
        (b"1 2\nthe 1 2\ncat 1 2\n", "w.txt:1: the first line declares 1 words, but the file has 2"),
        (b"2 2\nthe 1 2\ncat 1 y\n", 'w.txt:3: "y" is not a number'),
        (b"2 3\nthe 1 2\ncat 1 2\n", "w.txt:2: expected word vectors as text: "),
        (b"Chapter 5\nIt was late.\n", "w.txt:1: expected word vectors as text: "),
    ],
)
def test_a_bad_line_is_reported_with_its_number(write: Write, content: bytes, problem: str) -> None:
    path = write("w.txt", content)
    with pytest.raises(DataError) as caught:
        read_word_vectors(path)

    assert str(caught.value).startswith(path.removesuffix("w.txt") + problem)


def test_a_bad_line_in_a_later_block_is_reported_with_its_number(write: Write) -> None:
    lines = [b"w%d 1.5 2.5" % k for k in range(50_000)]
    lines[31_415] = b"w31415 1.5 2.5.5"
    with pytest.raises(DataError, match=r'w\.txt:31416: "2\.5\.5" is not a number'):
        read_word_vectors(write("w.txt", b"\n".join(lines)))


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("w.txt", PLAIN)
    return file.getvalue()


BINARY = b"1 4\ncat " + struct.pack("<4f", 0.1, 0.2, 0.3, 0.4) + b"\n"


@pytest.mark.parametrize(
    ("content", "is_binary"),
    [
        (b"", False),
        (zipped(), True),
        (b'{"text":"a cat","embedding":[1,2]}\n', False),
        (BINARY, True),
        (struct.pack("<2i", 793712314, 12) + bytes(40), True),
        (struct.pack("<Q", 80) + b'{"embeddings":{' + bytes(80), True),
        (b"\x80\x04\x95\x01 1 2 3\n", True),
        (b"the\t1\t2\n", False),
    ],
)
def test_another_file_is_refused_and_a_binary_one_gets_advice(
    write: Write, content: bytes, is_binary: bool
) -> None:
    with pytest.raises(DataError, match=r":[12]: expected word vectors as text: ") as caught:
        read_word_vectors(write("w.bin", content))

    assert (caught.value.advice == word_vectors.FROM_BINARY) == is_binary


@pytest.mark.parametrize(
    ("content", "holds"),
    [
        (PLAIN, True),
        (b"2 3\n" + PLAIN, True),
        (b"the cat sat\n", False),
        (b"Chapter 5\n", False),
        (b'{"embedding": [1, 2, 3]}\n', False),
        (b"", False),
    ],
)
def test_word_vectors_are_recognized_by_the_first_line(write: Write, content: bytes, holds: bool) -> None:
    assert holds_word_vectors(write("w.txt", content)) == holds
