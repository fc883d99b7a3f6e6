"""The flags of rows, on the commands that read them."""

import json

import pytest

from sentkit.cli import every_command
from sentkit.errors import UsageError
from sentkit.flag_values import size

TABLE = b'text_a\ttext_b\n"a ""dog"""\t"two\nlines"\n'
LONG = b'{"text":"a cat"}\n{"text":"' + b"x" * 2000 + b'"}\n{"text":"a dog"}\n'


def test_quoted_tsv_is_read_with_quoting(sentkit):
    done = sentkit("cat", "--from", "tsv", "--quoting", "csv", stdin=TABLE)

    assert done.out == b'{"text_a":"a \\"dog\\"","text_b":"two\\nlines"}\n'


@pytest.mark.parametrize("arguments", [["--quoting", "csv"], ["--from", "jsonl", "--quoting", "none"]])
def test_quoting_is_refused_where_no_table_is_read(sentkit, arguments):
    done = sentkit("cat", *arguments, stdin=b"{}\n")

    assert done.code == 2
    assert done.err.startswith("sentkit cat: --quoting can be used only with TSV and CSV input\n")


def test_flags_of_rows_are_refused_for_a_checkpoint(sentkit):
    done = sentkit("inspect", "nano", "--max-line", "1M")

    assert done.code == 2
    assert "--max-line and --partial can be used only with a vector file" in done.err


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("1", 1), ("1000", 1000), ("64K", 65536), ("64m", 2**26), ("2G", 2**31), (" 5M ", 5 * 2**20)],
)
def test_sizes_are_powers_of_1024(text, bytes_):
    assert size("--max-line", text) == bytes_


@pytest.mark.parametrize("text", ["", "0", "0K", "-1", "1.5M", "64MB", "M", "1T", "9" * 18 + "G", "\u0663"])
def test_other_sizes_are_refused(text):
    with pytest.raises(UsageError, match="--max-line"):
        size("--max-line", text)


def test_a_long_row_ends_the_command_with_its_place(sentkit):
    done = sentkit("encode", "--dry-run", "--max-line", "1K", stdin=LONG)

    assert done.code == 65
    assert done.err.startswith("sentkit encode: -:2: a row of more than 1024 bytes\n  --max-line ")


def test_a_long_row_is_skipped_counted_and_not_kept(sentkit, tmp_path):
    rejects = tmp_path / "bad"
    arguments = ("--max-line", "1K", "--on-error", "skip", "--rejects", rejects)
    done = sentkit("cat", *map(str, arguments), stdin=LONG + b"[]\n")

    assert done.code == 0
    assert [json.loads(line)["text"] for line in done.out.splitlines()] == ["a cat", "a dog"]
    assert rejects.read_bytes() == b"[]\n"
    assert done.err.splitlines() == [
        "sentkit cat: warning: -:2: a row of more than 1024 bytes; row skipped",
        "sentkit cat: warning: -:4: this row is a list, expected an object; row skipped",
        "sentkit cat: warning: 2 bad rows skipped",
        f"sentkit cat: warning: 1 skipped rows are longer than --max-line and were not written to {rejects}",
    ]


def test_every_command_that_reads_rows_has_the_flags(sentkit):
    with_field = {name for name in every_command() if b"--field " in sentkit(*name.split(), "--help").out}

    for name in with_field:
        text = sentkit(*name.split(), "--help").out
        assert b"--max-line SIZE" in text.replace(b"  ", b" ")
        assert b"--quoting" in text
