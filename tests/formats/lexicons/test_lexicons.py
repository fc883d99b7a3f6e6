"""Word vectors in text, arrays and folders of model2vec; synonyms and paraphrases."""

import gzip
import io
import struct
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from sentkit.errors import DataError, NoInputError, UnavailableError
from sentkit.formats.checkpoints.modules import read_modules
from sentkit.formats.lexicons import word_vectors
from sentkit.formats.lexicons.model2vec import check_table, read_table
from sentkit.formats.lexicons.thesaurus import read_paraphrases, read_synonyms
from sentkit.formats.lexicons.word_vectors import (
    holds_word_vectors,
    read_word_array,
    read_word_vectors,
)
from support import in_jsonl

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
    ids=[
        "GloVe",
        "header",
        "blanks at the end",
        "CRLF",
        "no last newline",
        "numbers that are not JSON",
    ],
)
@pytest.mark.parametrize(("name", "pack"), [("w.txt", bytes), ("w.vec.gz", gzip.compress)])
def test_a_line_contains_a_word_and_its_numbers(write, name, pack, content):
    table = read_word_vectors(write(name, pack(content)))

    assert table.words == {"the": 0, "cat": 1}
    assert table.rows.dtype == np.float32
    assert np.array_equal(table.rows, np.array(VALUES, np.float32))


@pytest.mark.parametrize("block", [1, 100, 1 << 20])
def test_many_lines_agree_with_a_plain_loop(write, monkeypatch, block):
    """Every number is the float32 nearest to the written one, for any blocks of lines."""
    monkeypatch.setattr(word_vectors, "BYTES_PER_READ", block)
    numbers = np.random.default_rng(0).standard_normal((500, 7)) * 10.0 ** np.arange(-9, 5, 2)
    texts = [[f"{number:.6g}" for number in row] for row in numbers]
    lines = [" ".join([f"word{k}", *row]) for k, row in enumerate(texts)]
    content = "\n".join(lines).encode()
    table = read_word_vectors(write("w.txt", content))

    assert list(table.words) == [f"word{k}" for k in range(500)]
    assert table.rows.tolist() == [
        [float(np.float32(float(number))) for number in row] for row in texts
    ]


def test_a_word_may_contain_blanks(write):
    """As some of GloVe's do; and a word may be a number."""
    table = read_word_vectors(
        write("w.txt", b"the 1 2\n. . . 3 4\nat name@domain.com 5 6\n1984 7 8\n")
    )

    assert table.words == {"the": 0, ". . .": 1, "at name@domain.com": 2, "1984": 3}
    assert table.rows.tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]


def test_words_of_any_script_are_unchanged(write):
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
        (
            b"3 2\nthe 1 2\ncat 1 2\n",
            "w.txt:1: the first line declares 3 words, but the file has 2",
        ),
        (
            b"a 1 2\n" * 31_415 + b"b 1 2.5.5\n" + b"a 1 2\n" * 9_999,
            'w.txt:31416: "2.5.5" is not a number',
        ),
        (
            b"1 2\nthe 1 2\ncat 1 2\n",
            "w.txt:1: the first line declares 1 words, but the file has 2",
        ),
        (b"2 2\nthe 1 2\ncat 1 y\n", 'w.txt:3: "y" is not a number'),
        (b"2 3\nthe 1 2\ncat 1 2\n", "w.txt:2: expected word vectors as text: "),
        (b"Chapter 5\nIt was late.\n", "w.txt:1: expected word vectors as text: "),
    ],
)
def test_a_bad_line_is_reported_with_its_number(write, content, problem):
    path = write("w.txt", content)
    with pytest.raises(DataError) as caught:
        read_word_vectors(path)

    assert str(caught.value).startswith(path.removesuffix("w.txt") + problem)


def zipped():
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
def test_another_file_is_refused_and_a_binary_one_gets_advice(write, content, is_binary):
    with pytest.raises(DataError, match=r":[12]: expected word vectors as text: ") as caught:
        read_word_vectors(write("w.bin", content))

    assert (caught.value.advice == word_vectors.FROM_BINARY) == is_binary


def test_word_vectors_are_recognized_by_the_first_line(write):
    other_contents = [b"the cat sat\n", b"Chapter 5\n", b'{"embedding": [1, 2, 3]}\n', b""]
    recognized = [
        holds_word_vectors(write("w.txt", content))
        for content in (PLAIN, b"2 3\n" + PLAIN, *other_contents)
    ]

    assert recognized == [True] * 2 + [False] * 4


# Arrays

NO_ARRAY = "not an array of numbers in the format of numpy"
ROWS = np.array([[0.25, -1, 3], [1, 2.5, -0.125]], np.float32)


@pytest.fixture
def array(tmp_path):
    """Writes w.npy and w.txt; returns the path of the array."""

    def write(rows=ROWS, words=b"the\ncat\n"):
        np.save(tmp_path / "w.npy", rows)
        if words is not None:
            (tmp_path / "w.txt").write_bytes(words)
        return str(tmp_path / "w.npy")

    return write


@pytest.mark.parametrize("words", [b"the\ncat\n", b"\xef\xbb\xbfthe\ncat", b"the\r\ncat\r\n"])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f2", "<f8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_word_has_a_row(array, words, dtype, order):
    path = array(np.asarray(ROWS, dtype, order=order), words)
    vectors = read_word_array(path)

    assert holds_word_vectors(path)
    assert vectors.words == {"the": 0, "cat": 1}
    assert (vectors.rows.dtype, vectors.rows.tolist()) == (np.float32, ROWS.tolist())
    assert vectors.rows.flags.c_contiguous
    mapped = isinstance(vectors.rows, np.memmap) or isinstance(vectors.rows.base, np.memmap)
    assert mapped or (dtype, order) != ("<f4", "C")


def test_the_first_vector_of_a_repeated_word_is_used(array):
    rows = np.arange(10, dtype=np.float32).reshape(5, 2)
    vectors = read_word_array(array(rows, b"a\nb\na\n\xff\nc\n"))

    assert vectors.words == {"a": 0, "b": 1, "c": 2}
    assert vectors.rows.tolist() == [[0, 1], [2, 3], [8, 9]]
    assert (vectors.repeated, vectors.unreadable) == (1, 1)


BOTH = b"the\ncat\n"
SHAPE = "w.npy: an array of {}, expected numbers (rows, width)"


@pytest.mark.parametrize(
    ("rows", "words", "problem"),
    [
        (ROWS[0], b"the\n", SHAPE.format("float32 and shape (3,)")),
        (np.empty((2, 0), np.float32), BOTH, SHAPE.format("float32 and shape (2, 0)")),
        (ROWS.astype("c8"), BOTH, SHAPE.format("complex64 and shape (2, 3)")),
        (
            np.array([[1, np.nan], [1, 1]]),
            BOTH,
            "w.npy: the array contains NaN or a number too large",
        ),
        (np.array([[1, None], [1, 1]]), BOTH, f"w.npy: {NO_ARRAY}"),
        *((content, BOTH, f"w.npy: {NO_ARRAY}") for content in (b"", b"the 0.5 1\n")),
        *(
            (b"\x93NUMPY\x01\x00" + end, BOTH, f"w.npy: {NO_ARRAY}")
            for end in (b"\xff", b"\x02\x00'\n")
        ),
        (None, BOTH, f"w.npy: {NO_ARRAY}"),
        (ROWS, b"the\n", "w.txt: 1 words, and "),
        (ROWS, b"the\ncat\ndog\n", "w.txt: 3 words, and "),
        (ROWS, b"", "w.txt: 1 words, and "),
        (ROWS, b"the\n \n", "w.txt:2: expected a word"),
    ],
)
def test_another_array_and_words_that_do_not_fit_are_bad_data(array, rows, words, problem):
    """Bytes are the content of the file; None is a whole array without its last byte."""
    path = array(rows if isinstance(rows, np.ndarray) else ROWS, words)
    if not isinstance(rows, np.ndarray):
        Path(path).write_bytes(Path(path).read_bytes()[:-1] if rows is None else rows)
    with pytest.raises(DataError) as caught:
        read_word_array(path)

    assert str(caught.value).removeprefix(path.removesuffix("w.npy")).startswith(problem)


def test_an_array_without_words_is_refused(array):
    path = array(words=None)
    with pytest.raises(NoInputError) as caught:
        read_word_array(path)

    base = path.removesuffix(".npy")
    assert (
        str(caught.value)
        == f"{path}: the file with the words is missing: {base}.txt or {base}.parquet"
    )


def test_words_in_parquet_without_pyarrow(array, monkeypatch):
    path = array(words=None)
    Path(path).with_suffix(".parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UnavailableError, match=r"^Parquet files need the package pyarrow$"):
        read_word_array(path)


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
def test_words_in_parquet(array, columns, problem):
    parquet = pytest.importorskip("pyarrow.parquet")
    pa = pytest.importorskip("pyarrow")
    path = array(words=None)
    words_path = Path(path).with_suffix(".parquet")
    words_path.write_bytes(b"PAR1")
    if columns is not None:
        parquet.write_table(pa.table(columns), words_path)

    if problem is None:
        assert read_word_array(path).words == {"the": 0, "caf\u00e9": 1}
    else:
        with pytest.raises(DataError, match=problem):
            read_word_array(path)


# Folders of model2vec


TOKENS = 13
STORED = np.arange(TOKENS * 2).reshape(TOKENS, 2)
ONES = np.ones(TOKENS, np.float32)
TABLE = np.ones((TOKENS, 2), np.float32)
EACH = r"of F32, expected a number for each token \(13\)"


def read_checked(folder):
    check_table(folder, TOKENS)
    return read_table(folder)


@pytest.mark.parametrize("dtype", [np.int8, np.float16, np.float32, np.float64])
def test_stored_numbers_are_read_unscaled(model2vec, dtype):
    folder = model2vec({"embeddings": STORED.astype(dtype)})
    table = read_checked(folder)

    assert table.rows.dtype == np.float32
    assert np.array_equal(table.rows, STORED)
    assert (table.row_of_token, table.weights) == (None, None)


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_tokens_can_share_rows_and_have_weights(model2vec, kind):
    mapping = np.arange(TOKENS).astype(kind) % 3
    weights = np.linspace(0, 1, TOKENS)
    arrays = {"embeddings": STORED[:3].astype(np.float32), "mapping": mapping, "weights": weights}
    table = read_checked(model2vec(arrays))

    assert table.row_of_token is not None
    assert table.weights is not None
    assert np.array_equal(table.row_of_token, mapping)
    assert np.array_equal(table.weights, weights.astype(np.float32))


@pytest.mark.parametrize(
    ("config", "normalize", "length"),
    [
        ({}, False, 512),
        ({"normalize": True, "max_length": 20}, True, 20),
        ({"normalize": False, "max_length": None, "seq_length": 9}, False, None),
    ],
)
def test_the_config_contains_length_and_normalization(model2vec, config, normalize, length):
    """As in model2vec: 512 tokens by default; `seq_length` is ignored."""
    _, declaration = read_modules(model2vec(**config))

    assert (declaration.step_names, declaration.max_length) == (("normalise",) * normalize, length)


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"weights": ONES}, '"embeddings" is missing, expected a row'),
        ({"embeddings": TABLE[:12]}, '"embeddings" has 12 rows, and the tokenizer 13 tokens'),
        ({"embeddings": ONES}, '"embeddings" is 13 of F32, expected a row of numbers'),
        ({"embeddings": TABLE[:, :0]}, '"embeddings" is 13 x 0 of F32, expected a row'),
        ({"embeddings": TABLE.astype(np.uint8)}, '"embeddings" is 13 x 2 of U8, expected a row'),
        ({"embeddings": TABLE, "weights": ONES[:12]}, rf'"weights" is 12 {EACH}'),
        ({"embeddings": TABLE[:3], "mapping": 0 * ONES}, rf'"mapping" is 13 {EACH}'),
        (
            {"embeddings": TABLE[:3], "mapping": np.full(TOKENS, 3)},
            '"mapping" contains row numbers that',
        ),
    ],
)
def test_tensors_of_a_wrong_shape_are_refused(model2vec, arrays, problem):
    folder = model2vec({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    with pytest.raises(DataError, match=f"model.safetensors: {problem}"):
        read_checked(folder)


@pytest.mark.parametrize("length", [0, "512", 2.5, True])
def test_a_wrong_length_is_refused(model2vec, length):
    with pytest.raises(DataError, match='"max_length" is '):
        read_modules(model2vec(max_length=length))


EXPECTED_KEY = "expected a string or a whole number"
SYNSET = "00000001 29 v"
WORDNET = """\
  1 This software and database is being provided to you, the LICENSEE
  2 and so on
02086723 05 n 03 dog 0 domestic_dog 0 Canis_familiaris 0 001 @ 02085998 n 0000 | a member
00005205 00 a 02 absolute(p) 1 total 0 001 & 00005473 a 0000 | perfect
00001740 03 n 01 entity 0 001 ~ 00001930 n 0000 | that which is
"""


@pytest.fixture
def write_rows(write):
    def written(name, *rows):
        lines = "".join(row if isinstance(row, str) else in_jsonl(row) for row in rows).encode()
        return write(name, gzip.compress(lines) if name.endswith(".gz") else lines)

    return written


def test_a_list_of_words(write_rows):
    rows = [
        {"word": "Big", "synonyms": ["large", "huge ", "BIG", ""]},
        {"word": "big", "synonyms": ["great"]},
        {"word": "a", "synonyms": ["one"]},
        {"word": "alone", "synonyms": []},
    ]
    path = write_rows("a.jsonl", *rows)
    table = write_rows("a.tsv", "word\tsynonyms\n", "big\tlarge, very large\n")

    assert read_synonyms([path]) == {"big": ("great", "huge", "large"), "a": ("one",)}
    assert read_synonyms([table]) == {"big": ("large", "very large")}


@pytest.mark.parametrize("name", ["d.jsonl", "d.jsonl.gz"])
def test_entries_of_one_synset_are_synonyms(write_rows, name):
    """A word has the synonyms of all its synsets; phrases and function words are no keys; names
    have less priority."""
    synsets = {
        "1": ["attempt", "try", "have a go"],
        "2": ["try", "test"],
        "3": ["more", "further"],
        "4": ["More", "Thomas More"],
        "5": ["Paris", "City of Light"],
        "6": ["in", "indium"],
        "7": ["alone"],
        "8": ["adenine", "a", "A", "base"],
    }
    rows = [
        {"entry": entry, "synset": synset} for synset, words in synsets.items() for entry in words
    ]
    rows[0]["synset"] = 1
    rows[1]["definition"] = "x"

    assert read_synonyms([write_rows(name, *rows)]) == {
        "attempt": ("have a go", "try"),
        "try": ("attempt", "have a go", "test"),
        "test": ("try",),
        "more": ("further",),
        "further": ("more",),
        "paris": ("City of Light",),
        "adenine": ("base",),
        "base": ("adenine",),
    }


@pytest.mark.parametrize("name", ["data.noun", "data.noun.gz", "words.txt"])
def test_a_data_file_of_wordnet(write_rows, name):
    """By its lines: the licence is skipped, underscores are blanks, (p) is dropped, the count is in
    hex.
    """
    assert read_synonyms([write_rows(name, WORDNET)]) == {
        "dog": ("Canis familiaris", "domestic dog"),
        "absolute": ("total",),
        "total": ("absolute",),
    }


def test_a_count_of_words_is_hexadecimal(write_rows):
    words = " ".join(f"w{n} {n:x}" for n in range(11))
    synonyms = read_synonyms(
        [write_rows("data.verb", f"00000001 29 v 0b {words} 000 01 + 02 00 | x\n")]
    )

    assert len(synonyms) == 11
    assert set(synonyms["w0"]) == {f"w{n}" for n in range(1, 11)}


def test_several_files_are_joined_but_not_their_synsets(write_rows):
    first_path = write_rows("1.jsonl", {"entry": "a1", "synset": 1}, {"entry": "a2", "synset": 1})
    two = write_rows("2.jsonl", {"entry": "b1", "synset": 1}, {"entry": "b2", "synset": 1})

    assert read_synonyms([first_path, two]) == {
        "a1": ("a2",),
        "a2": ("a1",),
        "b1": ("b2",),
        "b2": ("b1",),
    }


def paraphrases(paths):
    return read_paraphrases(paths[0], "id", "id")


@pytest.mark.parametrize(
    ("read", "rows", "problem"),
    [
        *(
            (
                read_synonyms,
                [line],
                ':1: expected "word" and "synonyms", or "entry" and "synset", or a line',
            )
            for line in (
                "hello\n",
                f"{SYNSET} 03 a 0 b 0\n",
                f"{SYNSET} 02 (p) 0 thing 0 000 | x\n",
            )
        ),
        (
            read_synonyms,
            [{"text": "00000001 29 v 02 a 0 b 0 000"}, {"x": 1}],
            ':2: expected "word" and',
        ),
        (read_synonyms, [{"word": 7, "synonyms": []}], ':1: "word" is a number, expected a string'),
        (
            read_synonyms,
            [{"word": "a", "synonyms": [7]}],
            ':1: "synonyms" is not a list of strings',
        ),
        (read_synonyms, [{"entry": "a", "synset": None}], f':1: "synset" is null, {EXPECTED_KEY}'),
        (read_synonyms, [{"entry": " ", "synset": 1}], ':1: "entry" is empty'),
        (read_synonyms, [{"word": "a", "synonyms": ["A"]}], ": contains no synonyms"),
        (paraphrases, [{"paraphrase": "a"}], ':1: "id" is missing'),
        (paraphrases, [{"id": 1.5, "paraphrase": "a"}], f':1: "id" is a number, {EXPECTED_KEY}'),
        (paraphrases, [{"id": 1}], ':1: "paraphrase" is missing'),
        (paraphrases, [{"id": 1, "paraphrase": ""}], ':1: "paraphrase" is empty'),
    ],
)
def test_a_file_of_other_rows_is_refused_with_its_place(write_rows, read, rows, problem):
    path = write_rows("s", *rows)
    with pytest.raises(DataError) as error:
        read([path])

    assert str(error.value).startswith(path + problem)


def test_paraphrases_by_key(write_rows):
    """Several of a key, in order; a number and its digits are one key, as tables have it."""
    rows = [{"id": key, "paraphrase": text} for key, text in ((7, "b"), ("7", "a"), ("x", "c"))]

    assert read_paraphrases(write_rows("p.jsonl", *rows), "id", "id") == {
        "7": ["b", "a"],
        "x": ["c"],
    }
