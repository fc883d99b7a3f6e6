"""What becomes of a file: rows, or one message that names the place."""

import gzip
import io
import itertools
import json

import orjson
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from sentkit.formats.files import open_input
from sentkit.formats.rows.kinds import TextParser
from sentkit.formats.rows.rows import Inputs, Rejects, blocks

AFTER_TEXT = "a:2: a JSON object in a stream that began as plain text (sentkit cat --from text "


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b'{"text": "x", "id":1.10}\n\n{"text":"y"}', {1: b'{"text": "x", "id":1.10}', 3: b'{"text":"y"}'}),
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
        (b'{"a":"\xff"}', "not JSON: "),
        (b'{"a":"\0"}', "not JSON: "),
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
@pytest.mark.parametrize("name", ["a.txt", "a", "a.tsv", "a.csv"])
def test_bytes_that_are_not_text_are_reported_with_their_line(problem_of, name, line, problem):
    assert problem_of(name, b"text\n" + line + b"\n") == f"{name}:2: {problem}"


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
            (start + b' {"n":1}\n\n{"n":2}', [{"n": 1}, {"n": 2}])
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


def test_bad_rows_are_written_with_their_place_and_reason(write):
    kept = io.BytesIO()
    path = write("a.jsonl", b'{"text":3}\r\n{"text":"x"}\n"\xff"')
    rejects = Rejects(skip=True, file=kept)

    texts = [texts for _, texts in Inputs([path], rejects=rejects).read(TextParser({}))]

    assert texts == [("x",)]
    assert (rejects.count, str(rejects.first)) == (2, f'{path}:1: "text" is a number, expected a string')
    number, utf8 = map(orjson.loads, kept.getvalue().splitlines())
    reason = '"text" is a number, expected a string'
    assert number == {"file": path, "line": 1, "reason": reason, "row": '{"text":3}'}
    assert (utf8["line"], utf8["row"]) == (3, '"\ufffd"')
    assert utf8["reason"].startswith("not JSON: ")


def test_blocks_have_a_fixed_size_and_no_rows_are_read_in_advance():
    for count, sizes in ((0, []), (1, [1]), (3, [3]), (7, [3, 3, 1])):
        found = list(blocks(range(count), 3))
        assert [len(block) for block in found] == sizes
        assert [item for block in found for item in block] == list(range(count))
    stream = itertools.count()
    next(blocks(stream, 16))
    assert next(stream) == 16


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".zst", zstandard.compress)])
def test_compressed_files(rows_of, problem_of, suffix, pack):
    """Whole; truncated, with bytes after it, or not compressed."""
    twice = pack(b'{"a":1}\n') + pack(b'{"a":2}\n')

    assert [row.values["a"] for row in rows_of(f"a.jsonl{suffix}", twice)] == [1, 2]
    assert [row.values for row in rows_of(f"b.csv{suffix.upper()}", pack(b"a\nx\n"))] == [{"a": "x"}]
    assert [row.values for row in rows_of(f"c{suffix}", pack(b"a cat"))] == [{"text": "a cat"}]
    whole = pack(b"".join(b'{"a":%d}\n' % (number * number) for number in range(100)))
    name, kind = f"a.jsonl{suffix}", {".gz": "gzip", ".zst": "zst"}[suffix]
    for content in (*(whole[:end] for end in range(1, len(whole))), whole + b"more", b'{"a":1}\n'):
        assert problem_of(name, content).startswith(f"{name}: incomplete or damaged {kind} file: ")


def test_empty_zst_frames_are_skipped(rows_of):
    skipped = bytes.fromhex("502a4d18 03000000 616263")  # magic, three bytes, "abc"

    assert [row.values["a"] for row in rows_of("a.zst", skipped + zstandard.compress(b'{"a":1}'))] == [1]


@given(st.binary(max_size=30_000))
def test_zst_restores_all_bytes(write, content):
    with open_input(write("a.zst", zstandard.compress(content * 5))) as file:
        assert file.read() == content * 5
