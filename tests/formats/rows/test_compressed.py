"""Rows of .gz and .zst files."""

import gzip
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from sentkit.formats.rows.rows import Row

some = settings(max_examples=40)
Write = Callable[[str, bytes], str]
RowsOf = Callable[..., list[Row]]
ProblemOf = Callable[..., str]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_compressed_files_are_decompressed(rows_of: RowsOf, suffix: str) -> None:
    pack = gzip.compress if suffix == ".gz" else zstandard.compress
    twice = pack(b'{"a":1}\n') + pack(b'{"a":2}\n')

    assert [row.values["a"] for row in rows_of(f"a.jsonl{suffix}", twice)] == [1, 2]
    assert [row.values for row in rows_of(f"b.csv{suffix.upper()}", pack(b"a\nx\n"))] == [{"a": "x"}]
    assert [row.values for row in rows_of(f"c{suffix}", pack(b"a cat"))] == [{"text": "a cat"}]


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".zst", zstandard.compress)])
def test_a_truncated_compressed_file_is_refused(
    problem_of: ProblemOf, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    whole = pack(b"".join(b'{"a":%d}\n' % (number * number) for number in range(100)))

    for end in range(1, len(whole)):
        assert problem_of(f"a.jsonl{suffix}", whole[:end]).startswith(
            f"a.jsonl{suffix}: incomplete or damaged {suffix[1:].replace('gz', 'gzip')} file: "
        )


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".zst", zstandard.compress)])
def test_bytes_after_a_compressed_file_are_refused(
    problem_of: ProblemOf, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    assert "incomplete or damaged" in problem_of(f"a.jsonl{suffix}", pack(b'{"a":1}\n') + b"more")
    assert "incomplete or damaged" in problem_of(f"a.jsonl{suffix}", b'{"a":1}\n')


def test_empty_zst_frames_are_skipped(rows_of: RowsOf) -> None:
    skipped = bytes.fromhex("502a4d18 03000000 616263")  # magic, three bytes, "abc"

    assert [row.values["a"] for row in rows_of("a.zst", skipped + zstandard.compress(b'{"a":1}'))] == [1]


@some
@given(st.binary(max_size=30_000))
def test_zst_restores_all_bytes(write: Write, content: bytes) -> None:
    from sentkit.formats.files import open_input

    with open_input(write("a.zst", zstandard.compress(content * 5))) as file:
        assert file.read() == content * 5
