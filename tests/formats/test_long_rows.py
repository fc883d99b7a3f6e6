"""Rows over the limit: refused with their place, or skipped, and never held."""

import gzip
import io
import tracemalloc
from contextlib import nullcontext
from functools import partial

import orjson
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from sentkit.errors import DataError
from sentkit.formats.rows import rows as rows_module
from sentkit.formats.rows.lines import LongLine, numbered
from sentkit.formats.rows.rows import Inputs, Rejects

LIMIT = 100
LONG = b"x" * 101
MEGABYTE = 1 << 20


class Stream(io.RawIOBase):
    """Pieces made as they are read."""

    def __init__(self, pieces):
        self.pieces, self.left = iter(pieces), b""

    def readable(self):
        return True

    def readinto(self, room):
        self.left = self.left or next(self.pieces, b"")
        taken, self.left = self.left[: len(room)], self.left[len(room) :]
        room[: len(taken)] = taken
        return len(taken)


def endless(start, size=20 * MEGABYTE):
    """A row of more than this many bytes between two others."""
    yield start
    for _ in range(size // MEGABYTE):
        yield b"a" * MEGABYTE
    yield b"\n"


def read(write, name, content):
    rejects = Rejects(skip=True, file=io.BytesIO())
    inputs = Inputs([write(name, content)], rejects=rejects, longest=LIMIT)
    return [(row.number, row.values) for row in inputs.read(lambda row: row)], rejects


def is_long(rejects):
    """Whether one of the bad rows is too long, and is written without its bytes."""
    bad = [orjson.loads(line) for line in rejects.file.getvalue().splitlines()]  # type: ignore[union-attr]
    long = [each for each in bad if "a row of more than " in each["reason"]]
    return [each.keys() for each in long] == [{"file", "line", "reason"}]


def peak_of(name, longest=MEGABYTE):
    """The bytes of memory that reading takes; one row is too long."""
    rejects = Rejects(skip=True, file=io.BytesIO())
    tracemalloc.start()
    for _ in Inputs([name], rejects=rejects, longest=longest).read(lambda row: row):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert is_long(rejects)
    return peak


@pytest.mark.parametrize("end", [b"\n", b""])
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
def test_the_limit_is_inclusive(start, end):
    """The limit counts a byte-order mark, and no newline."""
    just, over = (start + b"x" * (size - len(start)) + end for size in (LIMIT, LIMIT + 1))

    assert list(numbered(io.BytesIO(just), LIMIT)) == [(1, just.removeprefix(start))]
    ((number, line),) = numbered(io.BytesIO(over), LIMIT)
    assert number == 1
    assert isinstance(line, LongLine)
    assert line.startswith(b"x")


@given(st.lists(st.binary(max_size=30)), st.integers(1, 20))
@example([b"\xef\xbb\xbf"], 3)
def test_lines_keep_their_numbers_and_bytes_around_long_ones(parts, longest):
    content = b"\n".join(parts)
    expected = [
        (number, None if len(line.rstrip(b"\n")) > longest else line)
        for number, line in enumerate(io.BytesIO(content), start=1)
    ]
    if expected and expected[0][1] is not None:  # a byte order mark is not a part of the first line
        expected[0] = (1, expected[0][1].removeprefix(b"\xef\xbb\xbf"))

    found = numbered(io.BytesIO(content), longest)

    assert [(number, None if isinstance(line, LongLine) else line) for number, line in found] == expected


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
def test_a_long_row_is_skipped_and_the_rows_around_it_are_read(write, name, suffix):
    pack = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}[suffix]
    before, long, after = FORMS[name]
    place = before.count(b"\n") + 1

    found, rejects = read(write, name + suffix, pack(before + long + after))

    assert found == [(place - 1, {"text": "p"}), (place + long.count(b"\n"), {"text": "q"})]
    assert is_long(rejects)
    with pytest.raises(DataError, match=rf"a row of more than {LIMIT} bytes") as caught:
        list(Inputs([write(name + suffix, pack(before + long))], longest=LIMIT).read(lambda row: row))
    assert f"{name}{suffix}:{place}: " in str(caught.value)
    assert "--max-line" in str(caught.value.advice)


LINES = b'"' + b"x\n" * 60  # of one field


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        *(
            ("a.csv", b"text\np\n" + record + b"q\n", 3)
            for record in (LONG + b"\n", b'"%b"\n' % LONG, b'"x\n%b,""\n"\n' % LONG, LINES + b'"\n', LINES)
        ),
        ("a.tsv", LONG + b"\np\n", 1),
    ],
)
def test_a_long_record_of_csv_and_a_long_header_end_the_command(write, name, content, line):
    """Also with --rejects: the lines after a record could pass for rows."""
    with pytest.raises(DataError, match=rf"{name}:{line}: a row of more than {LIMIT} bytes"):
        read(write, name, content)


@pytest.mark.parametrize(
    ("name", "start"), [*((name, b"") for name in ("a.jsonl", "a.txt", "a.tsv", "a")), ("a.tsv", b'"')]
)
def test_an_endless_line_is_not_kept_in_memory(monkeypatch, name, start):
    """20 MB through a limit of 1 MB: a line, of which nothing may be kept."""
    stream = io.BufferedReader(Stream(endless(b'text\n{"text":"p"}\n' + start)))
    monkeypatch.setattr(rows_module, "open_input", lambda *_: nullcontext(stream))

    assert peak_of(name) < 8 * MEGABYTE


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_an_endless_compressed_line_is_not_kept_in_memory(write, suffix):
    pack = partial(gzip.compress, compresslevel=1) if suffix == ".gz" else zstandard.compress
    path = write(f"a.jsonl{suffix}", pack(b"a" * (120 * MEGABYTE) + b"\n{}"))

    assert peak_of(path) < 80 * MEGABYTE  # zst unpacks up to 32 MB at once
