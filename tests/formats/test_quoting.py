"""Quotes in tables: read as Python's csv module writes them, or kept as text, and never in silence."""

import csv
import io
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentkit.errors import DataError
from sentkit.formats.rows.rows import Inputs, Rejects

Write = Callable[[str, bytes], str]
CELL = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=8) | st.sampled_from(
    ['"', '""', '"a"', "a\tb", 'a"b', "a,b", "x\ny", "'q'", " a"]
)


def read(write: Write, name: str, content: str, quoting: str | None) -> tuple[list[Any], list[str]]:
    warnings: list[str] = []
    inputs = Inputs([write(name, content.encode())], rejects=Rejects(warn=warnings.append), quoting=quoting)
    return [row.values for row in inputs.read(lambda row: row)], warnings


@given(
    table=st.lists(st.tuples(CELL, CELL), min_size=1, max_size=5),
    style=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    end=st.sampled_from(["\n", "\r\n"]),
)
@pytest.mark.parametrize(
    ("name", "delimiter", "quoting"), [("a.tsv", "\t", "csv"), ("a.csv", ",", "csv"), ("a.csv", ",", None)]
)
def test_quoted_tables_are_read_as_the_csv_module_wrote_them(
    write: Write, name: str, delimiter: str, quoting: Any, table: list[tuple[str, str]], style: Any, end: str
) -> None:
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter, quoting=style, lineterminator=end)
    writer.writerow(["text_a", "text_b"])
    writer.writerows(table)

    found, warnings = read(write, name, out.getvalue(), quoting)

    assert found == [{"text_a": a, "text_b": b} for a, b in table]
    assert warnings == []


@pytest.mark.parametrize(("name", "delimiter"), [("a.tsv", "\t"), ("a.csv", ",")])
def test_without_quoting_a_quote_is_text(write: Write, name: str, delimiter: str) -> None:
    lines = [["text", "size"], ['"a b"', '5"'], ['"', '""'], ['say "x"', '"open']]

    found, warnings = read(write, name, "".join(delimiter.join(line) + "\n" for line in lines), "none")

    assert [list(row.values()) for row in found] == lines[1:]
    assert warnings == []


@pytest.mark.parametrize(
    ("content", "rows", "line"),
    [
        (
            'text\tn\nfive 5" screws\t1\n"a" and "b"\t2\n"a ""b"""\t3\n"c"\t4\n',
            [('five 5" screws', "1"), ('"a" and "b"', "2"), ('"a ""b"""', "3"), ('"c"', "4")],
            4,
        ),
        ('"text"\t"n"\r\n"a"\t"1"\r\n', [('"a"', '"1"')], 1),
    ],
    ids=["row", "header"],
)
def test_a_warning_names_the_first_quoted_line_of_a_tsv(write: Write, content: str, rows, line: int) -> None:
    found, (warning,) = read(write, "a.tsv", content, None)

    assert [tuple(row.values()) for row in found] == rows
    assert list(found[0]) == content.splitlines()[0].split("\t")
    assert f"a.tsv:{line}: a field is in quotes; the quotes are read as text" in warning
    assert "--quoting csv" in warning


def test_a_multiline_field_is_a_bad_row_of_an_unquoted_tsv(write: Write) -> None:
    """As pandas writes a text of two lines with sep="\\t"."""
    with pytest.raises(DataError, match=r"a\.tsv:3: 2 fields, the header has 3"):
        read(write, "a.tsv", 'i\ttext\tn\n0\t"say ""hi"""\t1\n1\t"two\nlines"\t2\n', None)
