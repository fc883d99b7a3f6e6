"""Rows over the limit: refused with their place, or skipped, and never held."""

import gzip
import io
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
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

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self.pieces, self.left = iter(pieces), b""

    def readable(self) -> bool:
        return True

    def readinto(self, room: Any) -> int:
        self.left = self.left or next(self.pieces, b"")
        taken, self.left = self.left[: len(room)], self.left[len(room) :]
        room[: len(taken)] = taken
        return len(taken)


def endless(start: bytes, size: int = 20 * MEGABYTE) -> Iterator[bytes]:
    """A row of more than this many bytes between two others."""
    yield start
    for _ in range(size // MEGABYTE):
        yield b"a" * MEGABYTE
    yield b"\n"


def read(
    write: Callable[[str, bytes], str], name: str, content: bytes, **how: Any
) -> tuple[list[Any], Rejects]:
    rejects = Rejects(skip=True, file=io.BytesIO())
    inputs = Inputs([write(name, content)], rejects=rejects, longest=LIMIT, **how)
    return [(row.number, row.values) for row in inputs.read(lambda row: row)], rejects


def is_long(rejects: Rejects) -> bool:
    """Whether one of the bad rows is too long."""
    return rejects.file.getvalue().count(b"a row of more than ") == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("end", [b"\n", b""])
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
def test_the_limit_is_inclusive(start: bytes, end: bytes) -> None:
    """The limit counts a byte-order mark, and no newline."""
    just, over = (start + b"x" * (size - len(start)) + end for size in (LIMIT, LIMIT + 1))

    assert list(numbered(io.BytesIO(just), LIMIT)) == [(1, just.removeprefix(start))]
    ((number, line),) = numbered(io.BytesIO(over), LIMIT)
    assert number == 1
    assert isinstance(line, LongLine)
    assert line.startswith(b"x")


@given(st.lists(st.binary(max_size=30)), st.integers(1, 20))
def test_lines_keep_their_numbers_and_bytes_around_long_ones(parts: list[bytes], longest: int) -> None:
    content = b"\n".join(parts)
    expected = [
        (number, len(line.rstrip(b"\n")) > longest, line)
        for number, line in enumerate(io.BytesIO(content), start=1)
    ]

    found = [
        (number, isinstance(line, LongLine), line) for number, line in numbered(io.BytesIO(content), longest)
    ]

    assert [each[:2] for each in found] == [each[:2] for each in expected]
    assert all(f[2] == e[2] for f, e in zip(found, expected, strict=True) if not f[1])


FORMS = {
    "a.jsonl": (b'{"text":"p"}\n', b'{"text":"%b"}\n' % LONG, b'{"text":"q"}\n'),
    "a.txt": (b"p\n", LONG + b"\n", b"q\n"),
    "a": (b"p\n", LONG + b"\n", b"q\n"),
    "b": (b'{"text":"p"}\n', b'{"text":"%b"}\n' % LONG, b'{"text":"q"}\n'),
    "a.tsv": (b"text\np\n", LONG + b"\n", b"q\n"),
    "a.csv": (b"text\np\n", LONG + b"\n", b"q\n"),
    "b.csv": (b"text\np\n", b'"%b"\n' % LONG, b"q\n"),
    "c.csv": (b"text\np\n", b'"x\n%b,""\n"\n' % LONG, b"q\n"),
    "d.csv": (b"text\np\n", b'"' + b"x\n" * 60 + b'"\n', b"q\n"),
}


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("name", FORMS)
def test_a_long_row_is_skipped_and_the_rows_around_it_are_read(
    write: Callable[[str, bytes], str], name: str, suffix: str
) -> None:
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


def test_a_long_blank_line_is_refused(write: Callable[[str, bytes], str]) -> None:
    assert is_long(read(write, "a.jsonl", b" " * 101 + b"\n{}")[1])


def test_a_header_over_the_limit_is_never_skipped(write: Callable[[str, bytes], str]) -> None:
    with pytest.raises(DataError, match=rf"a\.tsv:1: a row of more than {LIMIT} bytes"):
        read(write, "a.tsv", LONG + b"\np\n")


def test_an_open_quote_extends_to_the_end_of_the_file(write: Callable[[str, bytes], str]) -> None:
    """Its last lines could pass for rows."""
    found, rejects = read(write, "a.csv", b'text\np\n"' + b"open\n" * 40)

    assert found == [(2, {"text": "p"})]
    assert is_long(rejects)


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt", "a.tsv", "a.csv", "a"])
@pytest.mark.parametrize("start", [b"", b'"'])
def test_an_endless_line_is_not_kept_in_memory(
    monkeypatch: pytest.MonkeyPatch, name: str, start: bytes
) -> None:
    """20 MB through a limit of 1 MB: a line, and in CSV a quoted field, of which nothing may be kept."""
    from contextlib import nullcontext

    stream = io.BufferedReader(Stream(endless(b'text\n{"text":"p"}\n' + start)))
    monkeypatch.setattr(rows_module, "open_input", lambda *_: nullcontext(stream))
    rejects = Rejects(skip=True, file=io.BytesIO())

    tracemalloc.start()
    for _ in Inputs([name], rejects=rejects, longest=MEGABYTE).read(lambda row: row):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert is_long(rejects)
    assert peak < 8 * MEGABYTE


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_an_endless_compressed_line_is_not_kept_in_memory(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    pack = partial(gzip.compress, compresslevel=1) if suffix == ".gz" else zstandard.compress
    path.write_bytes(pack(b"a" * (120 * MEGABYTE) + b"\n{}"))
    rejects = Rejects(skip=True, file=io.BytesIO())

    tracemalloc.start()
    list(Inputs([str(path)], rejects=rejects, longest=MEGABYTE).read(lambda row: row))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert is_long(rejects)
    assert peak < 80 * MEGABYTE  # zst unpacks up to 32 MB at once


def test_an_endless_record_is_not_kept_in_memory(write: Callable[[str, bytes], str]) -> None:
    """None of the lines is long, but they are one field."""
    path = write("a.csv", b'text\nrow\n"' + b"open\n" * 80_000)
    rejects = Rejects(skip=True, file=io.BytesIO())

    tracemalloc.start()
    list(Inputs([path], rejects=rejects, longest=MEGABYTE // 16).read(lambda row: row))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert is_long(rejects)
    assert peak < 2.5 * MEGABYTE  # 64 KB of lines of five bytes as a list; all lines take more than 4 MB
