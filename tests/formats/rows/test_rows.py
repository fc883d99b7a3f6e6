"""What becomes of a file: rows, or one message that names the place."""

import bz2
import gzip
import io
import itertools
import json
import lzma
import tracemalloc
import zipfile
from base64 import b64decode
from collections import defaultdict
from functools import partial
from pathlib import Path

import numpy as np
import orjson
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from sentkit.errors import DataError
from sentkit.formats.files import open_input
from sentkit.formats.rows.kinds import TextParser
from sentkit.formats.rows.lines import LongLine, numbered
from sentkit.formats.rows.rows import Inputs, Rejects, lists_of_size
from sentkit.formats.vectors.tensors import write_arrays

AFTER_TEXT = "a:2: a JSON object in a stream that began as plain text (sentkit cat --from text "


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (
            b'{"text": "x", "id":1.10}\n\n{"text":"y"}',
            {1: b'{"text": "x", "id":1.10}', 3: b'{"text":"y"}'},
        ),
        (b'\xef\xbb\xbf{"a":1}\r\n \r\n{"a":2}\r\n', {1: b'{"a":1}', 3: b'{"a":2}'}),
        ('{"a":"x\u2028y\u0085z"}\n'.encode(), {1: '{"a":"x\u2028y\u0085z"}'.encode()}),
    ],
    ids=["blank line", "byte order mark, carriage returns", "no other newline"],
)
def test_a_jsonl_row_keeps_its_bytes_and_number(rows_of, content, lines):
    rows = rows_of("a.jsonl", content)

    assert {row.number: row.line for row in rows} == lines
    assert [row.values for row in rows] == [json.loads(line) for line in lines.values()]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"a":', "not JSON: "),
        (b'{"a":NaN}', "not JSON: "),
        (b'{"a":1e400}', "not JSON: number is infinity"),
        (b'{"a":"\\ud800"}', "not JSON: "),
        (b'{"a":"\xff"}', "not UTF-8 "),
        (b'{"a":"\0"}', "a NUL byte: "),
        (b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}", "not JSON: "),
        (b"[1,2]", "this row is a list, expected an object"),
        (b"12", "this row is a number, expected an object"),
    ],
)
def test_an_invalid_jsonl_line_is_reported_with_its_number(problem_of, line, problem):
    assert problem_of("a.jsonl", b'{"a":1}\n\n' + line + b"\n").startswith(f"a.jsonl:3: {problem}")


def test_every_line_of_text_is_a_row(rows_of):
    rows = rows_of("a.txt", '\ufeffa "cat"\r\n\n{"a":1}\n é'.encode())

    assert [row.values for row in rows] == [{"text": t} for t in ('a "cat"', "", '{"a":1}', " é")]
    assert [json.loads(row.line) for row in rows] == [row.values for row in rows]
    assert [row.number for row in rows] == [1, 2, 3, 4]


LATIN1 = "for Latin-1: iconv -f latin1 -t utf-8 FILE"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"ab\xffc", f"not UTF-8 (byte 3 of the line); {LATIN1}"),
        (b"\xed\xa0\x80", f"not UTF-8 (byte 1 of the line); {LATIN1}"),  # a surrogate in UTF-8
        (b"a\0b", "a NUL byte: this is not text"),
    ],
)
@pytest.mark.parametrize("name", ["a.txt", "a", "a.tsv", "a.csv", "quoted.csv"])
def test_bytes_that_are_not_text_are_reported_with_their_line(problem_of, name, line, problem):
    first = b'"text"\n' if name == "quoted.csv" else b"text\n"

    assert problem_of(name, first + line + b"\n") == f"{name}:2: {problem}"


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("name", ["a", "a.txt", "a.csv", "a.tsv", "a.jsonl"])
def test_utf_16_has_advice(tmp_path, name, encoding):
    """PowerShell writes it."""
    path = tmp_path / name
    path.write_bytes('\ufeff{"text":"a cat"}\r\n'.encode(encoding))
    with pytest.raises(DataError) as raised:
        [*Inputs([str(path)]).read(lambda row: row)]

    assert raised.value.advice == "this is UTF-16; use: iconv -f utf-16 -t utf-8 FILE"


def test_a_line_of_a_log_is_no_safetensors_file(tmp_path):
    """Its object begins where that of a safetensors file does, after eight bytes."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'INFO:   {"text":"a cat"}\n')
    with pytest.raises(DataError) as raised:
        [*Inputs([str(path)]).read(lambda row: row)]

    assert raised.value.advice is None


@pytest.mark.parametrize("name", ["npy", "safetensors", "gz", "zst", "bz2", "xz", "zip"])
def test_bytes_of_other_formats_have_advice(tmp_path, name):
    """They come from a pipe or have another name."""
    arrays = np.arange(6.0).reshape(2, 3)
    path = tmp_path / f"a.{name}"
    packed = {"gz": gzip.compress, "zst": zstandard.compress, "bz2": bz2.compress}
    packed["xz"] = lzma.compress
    if name == "npy":
        np.save(path, arrays)
    elif name == "safetensors":
        write_arrays(path, {"embeddings": arrays}, {})
    elif name == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.txt", "a cat\n")
    else:
        path.write_bytes(packed[name](b"a cat\n" * 9))
    renamed = path.rename(tmp_path / "a")
    with pytest.raises(DataError) as raised:
        [*Inputs([str(renamed)]).read(lambda row: row)]

    words = {"npy": "suffix .npy", "safetensors": "suffix .safetensors", "zip": "zip archive"}
    words |= {"gz": "gunzip -c", "zst": "zstd -dc", "bz2": "bunzip2 -c", "xz": "xz -dc"}
    assert raised.value.line == 1
    assert words[name] in raised.value.advice


@pytest.mark.parametrize(
    ("content", "values"),
    [
        *(
            (content, [{"text": text} for text in texts])
            for content, texts in (
                (b"a cat\n\n", ["a cat", ""]),
                (b"\n\na cat", ["", "", "a cat"]),
                (b"[sic] a cat\n", ["[sic] a cat"]),
                (b'"a" cat\n12\n', ['"a" cat', "12"]),
                (b"\n\n", ["", ""]),
                (b"a cat\n{not json\n", ["a cat", "{not json"]),
            )
        ),
        *(
            (start + b' {"n":1}\n\n{}', [{"n": 1}, {}])
            for start in (b"", b"\n  \n", b"\xef\xbb\xbf")
        ),
    ],
)
def test_a_file_is_jsonl_if_it_starts_with_a_brace(rows_of, content, values):
    assert [row.values for row in rows_of("a", content)] == values


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"{broken\n", "a:1: not JSON: "),
        (b"[1, 2]\n", "a:1: this row is a list, expected an object"),
        (b'{"text":"x"}\na cat\n', "a:2: not JSON: "),
        (b'a cat\n{"text":"x"}\n', AFTER_TEXT),
        (b'a cat\n  {"text":"x"}\n', AFTER_TEXT),
    ],
)
def test_json_after_text_is_refused(problem_of, content, problem):
    assert problem_of("a", content).startswith(problem)


@pytest.mark.parametrize("name", ["a", "a.txt", "a.jsonl", "a.md"])
def test_a_file_that_is_only_a_mark_has_no_rows(problem_of, name):
    assert problem_of(name, b"\xef\xbb\xbf") == name  # "no rows in" this file


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt", "a.csv"])
def test_rows_in_latin_1_have_one_message(problem_of, name):
    line = b'{"text":"x","y":"caf\xe9"}\n'
    problem = f"{name}:2: not UTF-8 (byte 21 of the line); for Latin-1: iconv -f latin1"

    assert problem_of(name, b'{"text":"x"}\n' + line).startswith(problem)


def test_bad_rows_are_written_with_their_place_and_reason(write):
    rejected = io.BytesIO()
    path = write("a.jsonl", b'{"text":3}\r\n{"text":"x"}\n["\xff\xff"]')
    rejects = Rejects(skip=True, file=rejected)

    texts = list(Inputs([path], rejects=rejects).read(TextParser({})))

    assert texts == [("x",)]
    assert (rejects.count, str(rejects.first_error)) == (
        2,
        f'{path}:1: "text" is a number, expected a string',
    )
    number, utf8 = map(orjson.loads, rejected.getvalue().splitlines())
    reason = '"text" is a number, expected a string'
    assert number == {"file": path, "line": 1, "reason": reason, "row": '{"text":3}'}
    assert (utf8["line"], "row" in utf8) == (3, False)
    assert b64decode(utf8["row_base64"]) == b'["\xff\xff"]\n'
    assert utf8["reason"].startswith("not UTF-8 (byte 3 of the line)")


def test_blocks_have_a_fixed_size_and_no_rows_are_read_in_advance():
    for count, sizes in ((0, []), (1, [1]), (3, [3]), (7, [3, 3, 1])):
        read_blocks = list(lists_of_size(range(count), 3))
        assert [len(block) for block in read_blocks] == sizes
        assert [item for block in read_blocks for item in block] == list(range(count))
    stream = itertools.count()
    next(lists_of_size(stream, 16))
    assert next(stream) == 16


@pytest.mark.parametrize(("suffix", "kind"), [(".gz", "gzip"), (".zst", "zst")])
def test_compressed_files(rows_of, problem_of, suffix, kind):
    pack = PACK[suffix]
    twice = pack(b'{"a":1}\n') + pack(b'{"a":2}\n')

    assert [row.values["a"] for row in rows_of(f"a.jsonl{suffix}", twice)] == [1, 2]
    assert [row.values for row in rows_of(f"b.csv{suffix.upper()}", pack(b"a\nx\n"))] == [
        {"a": "x"}
    ]
    assert [row.values for row in rows_of(f"c{suffix}", pack(b"a cat"))] == [{"text": "a cat"}]
    whole = pack(b"".join(b'{"a":%d}\n' % (number * number) for number in range(100)))
    name = f"a.jsonl{suffix}"
    for content in (*(whole[:end] for end in range(1, len(whole))), whole + b"more", b'{"a":1}\n'):
        assert problem_of(name, content).startswith(f"{name}: incomplete or damaged {kind} file: ")


def test_empty_zst_frames_are_skipped(rows_of):
    skipped = bytes.fromhex("502a4d18 03000000 616263")  # magic, three bytes, "abc"

    assert [
        row.values["a"] for row in rows_of("a.zst", skipped + zstandard.compress(b'{"a":1}'))
    ] == [1]


@given(st.binary(max_size=30_000))
def test_zst_restores_all_bytes(write, content):
    with open_input(write("a.zst", zstandard.compress(content * 5))) as file:
        assert file.read() == content * 5


# Paragraphs of text and Markdown


NOTES = """# A heading
The first line of a paragraph
  and its second one.

- an item
  that is wrapped
- another item
1. a number
> a quote

Title
=====
Text below
---
```python
code = 1
```
| cell | cell |
|------|------|
the end"""
PARAGRAPHS = [
    (1, "# A heading"),
    (2, "The first line of a paragraph and its second one."),
    (5, "- an item that is wrapped"),
    (7, "- another item"),
    (8, "1. a number"),
    (9, "> a quote"),
    (11, "Title"),
    (13, "Text below"),
    (16, "code = 1"),
    (18, "| cell | cell |"),
    (20, "the end"),
]


def paragraphs_of(path, **options):
    read = Inputs([str(path)], format="paragraphs", **options)
    return [(row.number, row.values["text"]) for row in read.read(lambda row: row)]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_paragraph_is_a_row_with_the_number_of_its_first_line(tmp_path, end):
    path = tmp_path / "notes.md"
    path.write_bytes(NOTES.replace("\n", end).encode())

    assert paragraphs_of(path) == PARAGRAPHS


def test_paragraphs_do_not_depend_on_the_reads(tmp_path, monkeypatch):
    path = tmp_path / "notes.txt"
    path.write_text("".join(f"word {n} {'ü' * (n % 9)}\n" + "\n" * (n % 3 == 0) for n in range(90)))
    expected = paragraphs_of(path)

    assert len(expected) == 31
    assert expected[1] == (3, "word 1 ü word 2 üü word 3 üüü")
    for size in (1, 7, 100):
        monkeypatch.setattr("sentkit.formats.rows.lines.READ", size)
        assert paragraphs_of(path) == expected


def test_a_paragraph_that_is_too_long_or_not_text_is_a_bad_row(tmp_path, limit):
    """Its other lines are not a second row."""
    path = tmp_path / "notes.txt"
    path.write_bytes(b"short\n\n" + b"a line of text\n" * 5 + b"\nabc\xff\ndef\n\nthe end\n")
    rejects = Rejects(skip=True)

    limit(40)
    assert paragraphs_of(path, rejects=rejects) == [(1, "short"), (12, "the end")]
    assert rejects.count == 2
    with pytest.raises(DataError, match=r"notes.txt:3: a row of more than 40 bytes"):
        paragraphs_of(path)
    limit(74)
    assert len(paragraphs_of(path, rejects=Rejects(skip=True))) == 3


def test_a_folder_is_its_text_files(tmp_path, monkeypatch, capfdbinary):
    """`encode` reads lines, and `search` reads Markdown by paragraph; a folder without texts is an
    error.
    """
    from sentkit.cli import run_command_line

    files = {
        "b.txt": "a dog barks\n",
        "a/notes.md": "# Animals\nthe cat sleeps\non the warm mat\n",
        "a/z.rst": "the sea\n",
        ".git/x.txt": "hidden\n",
        "a/.x.md": "hidden\n",
        "c.json": "{}",
        "data.bin": "0",
    }
    for name, text in files.items():
        (tmp_path / "notes" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "notes" / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert run_command_line(["encode", "notes", "-m", "static"]) == 0
    encoded = [json.loads(line)["text"] for line in capfdbinary.readouterr().out.splitlines()]
    assert encoded == ["# Animals", "the cat sleeps", "on the warm mat", "the sea", "a dog barks"]
    assert (
        run_command_line(["search", "an animal that sleeps", "notes", "-m", "static", "--json"])
        == 0
    )
    [query] = capfdbinary.readouterr().out.splitlines()
    hits = [(hit["file"], hit["row"], hit["text"]) for hit in json.loads(query)["hits"]]
    assert sorted(hits) == [
        ("notes/a/notes.md", 1, "# Animals"),
        ("notes/a/notes.md", 2, "the cat sleeps on the warm mat"),
        ("notes/a/z.rst", 1, "the sea"),
        ("notes/b.txt", 1, "a dog barks"),
    ]
    (tmp_path / "empty").mkdir()
    assert run_command_line(["encode", "empty"]) == 66
    assert (
        b"empty: is a folder without text files (.txt, .text, .md," in capfdbinary.readouterr().err
    )


# Rows over the limit: refused with their place, or skipped, and never held


LIMIT = 100
LONG = b"x" * 101
MARK = b"\xef\xbb\xbf"  # of the order of bytes
MEGABYTE = 1 << 20
PACK = defaultdict(lambda: bytes)
PACK |= {".gz": partial(gzip.compress, compresslevel=1), ".zst": zstandard.compress}


@pytest.fixture
def limit(monkeypatch):
    """Change the bytes of a row."""
    return partial(monkeypatch.setattr, "sentkit.formats.rows.lines.MAX_LINE")


def read_some(write, name, content):
    rejects = Rejects(skip=True, file=io.BytesIO())
    inputs = Inputs([write(name, content)], rejects=rejects)
    return [(row.number, row.values) for row in inputs.read(lambda row: row)], rejects


def is_long(rejects):
    """Whether one of the bad rows is too long, and is written without its bytes."""
    bad = [orjson.loads(line) for line in rejects.file.getvalue().splitlines()]  # type: ignore[union-attr]
    long = [reject for reject in bad if "a row of more than " in reject["reason"]]
    return [reject.keys() for reject in long] == [{"file", "line", "reason"}]


def peak_of(name):
    """The bytes of memory that reading takes; one row is too long."""
    rejects = Rejects(skip=True, file=io.BytesIO())
    tracemalloc.start()
    for _ in Inputs([name], rejects=rejects).read(lambda row: row):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert is_long(rejects)
    return peak


def test_empty_lines_before_the_first_row_are_not_kept(write):
    """800,000 pointers to lines would have 6.4 MB."""
    inputs = Inputs([write("a", b"\n" * 800_000 + b'{"text":"p"}\n')])
    tracemalloc.start()
    rows = [(row.number, row.values) for row in inputs.read(lambda row: row)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert rows == [(800_001, {"text": "p"})]
    assert peak < 5 * MEGABYTE


@given(pieces=st.lists(st.binary(max_size=30)), longest=st.integers(1, 20))
@example(pieces=[MARK], longest=3)
@example(pieces=[MARK + b"xx", b"xxxxx", b"x"], longest=5)
@example(pieces=[MARK + b"xxx", b"xxxxxx"], longest=5)
def test_lines_keep_their_numbers_and_bytes_around_long_ones(pieces, longest, limit):
    """The limit counts a byte-order mark, and no newline."""
    limit(longest)
    content = b"\n".join(pieces)
    expected = [
        (number, None if len(line.rstrip(b"\n")) > longest else line)
        for number, line in enumerate(io.BytesIO(content), start=1)
    ]
    if expected and expected[0][1] is not None:  # a byte order mark is not a part of the first line
        expected[0] = (1, expected[0][1].removeprefix(MARK))
    if expected == [(1, b"")]:  # the file is only this mark
        expected = []

    lines = list(numbered(io.BytesIO(content)))

    assert [
        (number, None if isinstance(line, LongLine) else line) for number, line in lines
    ] == expected
    assert not [line for _, line in lines if isinstance(line, LongLine) and line.startswith(MARK)]


FORMS = {
    "a.jsonl": (b'{"text":"p"}\n', b'{"text":"%b"}\n' % LONG, b'{"text":"q"}\n'),
    "a.txt": (b"p\n", LONG + b"\n", b"q\n"),
    "a": (b"p\n", LONG + b"\n", b"q\n"),
    "b": (b'{"text":"p"}\n', b'{"text":"%b"}\n' % LONG, b'{"text":"q"}\n'),
    "a.tsv": (b"text\np\n", LONG + b"\n", b"q\n"),
    "blank.jsonl": (b'{"text":"p"}\n', b" " * 101 + b"\n", b'{"text":"q"}\n'),
}


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("name", FORMS)
def test_a_long_row_is_skipped_and_the_rows_around_it_are_read(write, name, suffix, limit):
    limit(LIMIT)
    pack = PACK[suffix]
    before, long, after = FORMS[name]
    line_number = before.count(b"\n") + 1

    rows, rejects = read_some(write, name + suffix, pack(before + long + after))

    assert rows == [
        (line_number - 1, {"text": "p"}),
        (line_number + long.count(b"\n"), {"text": "q"}),
    ]
    assert is_long(rejects)
    path = write(name + suffix, pack(before + long))
    with pytest.raises(DataError, match=rf"a row of more than {LIMIT} bytes") as caught:
        list(Inputs([path]).read(lambda row: row))
    assert f"{name}{suffix}:{line_number}: " in str(caught.value)
    assert "shorten or divide it" in str(caught.value.advice)


FIELD = b'"' + b"x\n" * 60  # of one field


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        *(
            ("a.csv", b"text\np\n" + record + b"q\n", 3)
            for record in (
                LONG + b"\n",
                b'"%b"\n' % LONG,
                b'"x\n%b,""\n"\n' % LONG,
                FIELD + b'"\n',
                FIELD,
            )
        ),
        ("a.tsv", LONG + b"\np\n", 1),
    ],
)
def test_a_long_record_of_csv_and_a_long_header_end_the_command(write, name, content, line, limit):
    """Also with --rejects: the lines after a record could pass for rows."""
    limit(LIMIT)
    with pytest.raises(DataError, match=rf"{name}:{line}: a row of more than {LIMIT} bytes"):
        read_some(write, name, content)


@pytest.mark.parametrize(
    ("name", "start", "size", "limit_of_peak"),
    [
        *((name, b"", 20, 8) for name in ("a.jsonl", "a.txt", "a.tsv", "a")),
        ("a.tsv", b'"', 20, 8),
        # zst unpacks up to 32 MB at once.
        *((f"a.jsonl{suffix}", b"", 120, 80) for suffix in (".gz", ".zst")),
    ],
)
def test_an_endless_line_is_not_kept_in_memory(write, name, start, size, limit_of_peak, limit):
    """A line through a limit of 1 MB: nothing of it may be kept."""
    limit(MEGABYTE)
    content = b'text\n{"text":"p"}\n' + start + b"a" * (size * MEGABYTE) + b"\n"

    assert peak_of(write(name, PACK[Path(name).suffix](content))) < limit_of_peak * MEGABYTE
