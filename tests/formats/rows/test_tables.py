"""Rows of TSV and CSV. Quotes are read as the csv module writes them, or kept as text, never in
silence.
"""

import csv
import io
import json
import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sentkit.errors import DataError
from sentkit.formats.rows.rows import Inputs, Rejects


def test_tsv_has_no_quotes(rows_of):
    rows = rows_of("a.tsv", b'\xef\xbb\xbftext\tscore\r\nsay "hi\t1.0\r\n\t\n')

    assert [row.values for row in rows] == [
        {"text": 'say "hi', "score": "1.0"},
        {"text": "", "score": ""},
    ]
    assert [row.number for row in rows] == [2, 3]


def test_a_csv_row_has_the_number_of_its_first_line(rows_of):
    rows = rows_of("a.csv", b'text,id\r\n"one, ""two""\r\nthree",7\r\nlast,8')

    assert [list(row.values.values()) for row in rows] == [
        ['one, "two"\r\nthree', "7"],
        ["last", "8"],
    ]
    assert [row.number for row in rows] == [2, 4]
    assert [json.loads(row.line) for row in rows] == [row.values for row in rows]


@pytest.mark.parametrize(
    ("content", "columns", "rows", "note"),
    [
        ("a,b\n1;2,3\n", "", [{"a": "1;2", "b": "3"}], ""),
        ("a;b;c\n1,5;2;3\n", "", [{"a": "1,5", "b": "2", "c": "3"}], "semicolon"),
        ('"a,b"\tc\n"1\t2"\t3\n', "", [{"a,b": "1\t2", "c": "3"}], "tab"),
        ("a,b;c|d|e\n1|2|3\n", "", [{"a,b;c": "1", "d": "2", "e": "3"}], "vertical bar"),
        ("a;b,c\n1,2\n", "", [{"a;b": "1", "c": "2"}], ""),  # as many: a comma
        ("text\n1;2\n", "", [{"text": "1;2"}], ""),
        ("1,5;2\n", "ab", [{"a": "1", "b": "5;2"}], ""),  # both give two cells: a comma
        ("1,5,6;2\n", "ab", [{"a": "1,5,6", "b": "2"}], "semicolon"),
        ("1;2\n", "a", [{"a": "1;2"}], ""),
    ],
)
def test_the_first_line_of_csv_has_the_delimiter(tmp_path, content, columns, rows, note):
    (tmp_path / "a.csv").write_text(content)
    notes = []
    inputs = Inputs(
        [str(tmp_path / "a.csv")], columns=[*columns], rejects=Rejects(note=notes.append)
    )

    assert [row.values for row in inputs.read(lambda row: row)] == rows
    assert notes == ([f"{tmp_path}/a.csv: the delimiter is a {note}"] if note else [])


CLOSED_NOWHERE = "a.csv:3: not CSV: a quote is not closed, so lines 3 to 4 are one record"
LINES_3_TO_4 = "lines 3 to 4 are one record, because a quote is not closed in the first line"


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.tsv", b"a\tb\n1\n", "a.tsv:2: 1 field, the header has 2"),
        ("a.csv", b"a,b\n1,2,3\n", "a.csv:2: 3 fields, the header has 2"),
        ("a.csv", b"a,b\n1,2\n \n", "a.csv:3: 1 field, the header has 2"),
        ("a.csv", b'a,b\n1,2\n"x,3\n4,5\n', CLOSED_NOWHERE),
        (
            "a.csv",
            b'a,b\n1,2\n"x,3\n4",5,6\n7,8\n',
            f"a.csv:3: 3 fields, the header has 2; {LINES_3_TO_4}",
        ),
        (
            "a.csv",
            b'a,b\n1,2\n"x,3\n4"5,6\n7,8\n',
            f"a.csv:3: not CSV: ',' expected after '\"'; {LINES_3_TO_4}",
        ),
        ("a.csv", b'a,b\n"x"y,3\n', "a.csv:2: not CSV: ',' expected after '\"'"),
    ],
)
def test_a_bad_table_row_is_reported_with_its_line(problem_of, name, content, problem):
    assert problem_of(name, content) == problem


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize(("name", "mark"), [("a.csv", b","), ("a.tsv", b"\t")])
def test_blank_lines_are_no_rows_of_several_columns(rows_of, name, mark, end):
    """As in the csv module. In one column, a blank line is an empty text, as in plain text."""
    wide = end.join([mark.join([b"text", b"b"]), b"", mark.join([b"p", b"1"]), b"", b""])
    narrow = end.join([b"text", b"", b"p", b""])

    assert [(row.number, row.values["text"]) for row in rows_of(name, wide)] == [(3, "p")]
    assert [(row.number, row.values["text"]) for row in rows_of(name, narrow)] == [
        (2, ""),
        (3, "p"),
    ]


@pytest.mark.parametrize("size", [1, 65_536])
@pytest.mark.parametrize("start", [b"\n", b"\r\n\n", b"\xef\xbb\xbf\n"])
def test_blank_lines_before_the_header_are_skipped(rows_of, monkeypatch, start, size):
    monkeypatch.setattr("sentkit.formats.rows.lines.READ", size)
    (row,) = rows_of("a.csv", start + b"text;n\na;1\n")

    assert (row.number, row.values) == (start.count(b"\n") + 2, {"text": "a", "n": "1"})


@pytest.mark.parametrize("content", [b"\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"])
def test_a_table_of_blank_lines_has_no_rows(problem_of, content):
    assert problem_of("a.csv", content) == "a.csv"  # "no rows in" this file


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (b"sep=;", "the first line gives Excel the separator, expected the header"),
        (b",text", "the header has a column without a name"),
        (b"text,text", "duplicate column name in the header"),
        (b"text,\xff", "not UTF-8"),
        (b'text,"b', "not CSV: a quote is not closed"),
    ],
)
def test_a_bad_header_is_never_skipped(problem_of, header, problem):
    """Otherwise all rows of the file are missing without a count."""
    rejects = Rejects(skip=True)

    assert problem_of("a.csv", header + b"\n1,p\n", rejects=rejects).startswith(
        f"a.csv:1: {problem}"
    )
    assert rejects.count == 0


def test_a_csv_field_may_be_long(rows_of):
    text = "word " * 100_000

    assert rows_of("a.csv", f'text\n"{text}"\n'.encode())[0].values == {"text": text}


@pytest.mark.parametrize(
    ("name", "header"), [("a.txt", b""), ("a.tsv", b"text\n"), ("a.csv", b"text\n")]
)
def test_a_kept_row_needs_little_memory(name, header, rows_of):
    """The library that makes the JSON line returns objects of four kilobytes."""
    rows_of(name, header + b"a cat\n")
    tracemalloc.start()

    rows = rows_of(name, header + b"a cat sleeps\n" * 1000)

    bytes_kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(rows) == 1000
    assert bytes_kept < 2_000_000


# Quotes

QUOTED = st.text(
    st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=8
) | st.sampled_from(['"', '""', '"a"', "a\tb", 'a"b', "a,b", "x\ny", "'q'", " a"])


def read(write, name, content, quoting):
    warnings = []
    inputs = Inputs(
        [write(name, content.encode())], rejects=Rejects(warn=warnings.append), quoting=quoting
    )
    return [row.values for row in inputs.read(lambda row: row)], warnings


@given(
    table=st.lists(st.tuples(QUOTED, QUOTED), min_size=1, max_size=5),
    style=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    end=st.sampled_from(["\n", "\r\n"]),
)
@pytest.mark.parametrize(
    ("name", "delimiter", "quoting"),
    [("a.tsv", "\t", "csv"), ("a.csv", ",", "csv"), ("a.csv", ",", None)],
)
def test_quoted_tables_are_read_as_the_csv_module_wrote_them(
    write, name, delimiter, quoting, table, style, end
):
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter, quoting=style, lineterminator=end)
    writer.writerow(["text_a", "text_b"])
    writer.writerows(table)

    rows, warnings = read(write, name, out.getvalue(), quoting)

    assert rows == [{"text_a": a, "text_b": b} for a, b in table]
    assert warnings == []


@pytest.mark.parametrize(("name", "delimiter"), [("a.tsv", "\t"), ("a.csv", ",")])
def test_without_quoting_a_quote_is_text(write, name, delimiter):
    lines = [["text", "size"], ['"a b"', '5"'], ['"', '""'], ['say "x"', '"open']]

    rows, warnings = read(
        write, name, "".join(delimiter.join(line) + "\n" for line in lines), "none"
    )

    assert [list(row.values()) for row in rows] == lines[1:]
    assert warnings == []


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ('text\tn\nfive 5" screws\t1\n"a" and "b"\t2\n"a ""b"""\t3\n"c"\t4\n', 4),
        ('"text"\t"n"\r\n"a"\t"1"\r\n', 1),
    ],
    ids=["row", "header"],
)
def test_a_warning_names_the_first_quoted_line_of_a_tsv(write, content, line):
    rows, (warning,) = read(write, "a.tsv", content, None)

    assert [[*rows[0]], *([*row.values()] for row in rows)] == [
        line.split("\t") for line in content.splitlines()
    ]
    assert f"a.tsv:{line}: a field is in quotes; the quotes are read as text" in warning
    assert "--quoting csv" in warning


def test_a_multiline_field_is_a_bad_row_of_an_unquoted_tsv(write):
    """As pandas writes a text of two lines with sep="\\t"."""
    with pytest.raises(DataError, match=r"a\.tsv:3: 2 fields, the header has 3"):
        read(write, "a.tsv", 'i\ttext\tn\n0\t"say ""hi"""\t1\n1\t"two\nlines"\t2\n', None)


ODD = {  # content of a file -> what its first error advises, and the texts that this advice gives
    'id,text\n1,"a" cat\n2,dogs\n': ("none", ['"a" cat', "dogs"]),
    'id,text\n1,5" nails\n2,"6"" nails\n3,a "cat" sat\n': (
        "none",
        ['5" nails', '"6"" nails', 'a "cat" sat'],
    ),
    'id,text\n1,"a cat\n2,dogs\n\n': ("none", ['"a cat', "dogs"]),
    'id,text\n1,"a, b"\n2,"a" cat\n3,dogs\n': ("rejects", ["a, b", "dogs"]),
    'id,text\n1,"a" cat\n2,"a, b"\n3,dogs\n': ("rejects", ["a, b", "dogs"]),
    'id,text\n1,"a\nb"\n2,"a" cat\n3,dogs\n': ("rejects", ["a\nb", "dogs"]),
    'id,text\n1,"a, b"\n2,"a cat\n3,"c, d"\n4,dogs\n': ("rejects", ["a, b", "dogs"]),
    'id,text\n1,"a, b"\n2,"a cat\n3,dogs\n': ("close", ["a, b"]),
    "id,text\n1,a, b\n2,dogs\n": ("rejects", ["dogs"]),
}


@pytest.mark.parametrize("content", ODD, ids=repr)
def test_the_advice_for_odd_quotes_works(write, content):
    """Quotes as text, if all lines have as many fields as the header; otherwise, --rejects."""
    kind, texts = ODD[content]
    path = write("a.csv", content.encode())
    with pytest.raises(DataError) as caught:
        list(Inputs([path]).read(lambda row: row))
    advice = str(caught.value.advice)
    options = {"quoting": "none"} if f"sentkit cat --quoting none {path} | ..." in advice else {}
    rejects = Rejects(skip=not options)
    rows = list(Inputs([path], rejects=rejects, **options).read(lambda row: row))

    assert ("quoting" in options) == (kind == "none")
    assert ("--rejects FILE" in advice, "close the quote" in advice) == (
        kind != "none",
        kind == "close",
    )
    assert [row.values["text"] for row in rows] == texts


def test_a_field_with_a_delimiter_among_quotes_that_are_text(problem_of, write):
    path = write("a.csv", b'id,text\n1,"a, b"\n')
    with pytest.raises(DataError, match=r"a.csv:2: 3 fields, the header has 2") as caught:
        list(Inputs([path], quoting="none").read(lambda row: row))

    assert str(caught.value.advice).startswith(
        "without --quoting none, a field in quotes can have a comma"
    )


LONGEST = 40
PIECES = [
    "a",
    ",",
    '"',
    "\n",
    "\r\n",
    "\t",
    " ",
    "\n\n",
    "é",
    "\0",
    "# ",
    "x" * 45,
    '{"text":"b"}\n',
]


@given(
    pieces=st.lists(st.sampled_from(PIECES), max_size=30),
    size=st.sampled_from([7, 8, 13, 64, 1024]),
    name=st.sampled_from(["a.csv", "a.tsv", "a.jsonl", "a.txt", "a", "a.md"]),
)
@example(pieces=["t,u\n", "1,2\n", '"', "x" * 45, "\n"], size=7, name="a.csv")
@example(
    pieces=["t,u\n", "1,2\n", '3,"a\n', "x" * 30, "\n", "x" * 30, '"\n4,5\n'], size=7, name="a.csv"
)
def test_rows_do_not_depend_on_the_boundaries_of_reads(write, pieces, size, name):
    """Nor do bad rows, and the rows before an error that ends the command."""
    header = {"a.csv": "t,u\n", "a.tsv": "t\tu\n"}.get(name, "")
    path = write(name, (header + "".join(pieces)).encode())

    def read(size):
        rejects = Rejects(skip=True, file=io.BytesIO())
        inputs = Inputs([path], rejects=rejects, by_paragraph=True)
        rows = []
        problem = ""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sentkit.formats.rows.lines.READ", size)
            patch.setattr("sentkit.formats.rows.lines.MAX_LINE", LONGEST)
            try:
                rows += ((row.number, row.line) for row in inputs.read(lambda row: row))
            except DataError as error:
                problem = str(error)
        return rows, rejects.file.getvalue(), problem

    assert read(size) == read(65_536)


def test_a_long_record_of_csv_needs_no_object_for_each_line(write, monkeypatch):
    """A megabyte in lines of two bytes; the reader of Python has four bytes for a character."""
    monkeypatch.setattr("sentkit.formats.rows.lines.MAX_LINE", 1 << 20)
    path = write("a.csv", b'id,text\n1,"' + b"x\n" * (1 << 20))
    rows = Inputs([path]).read(lambda row: row)
    tracemalloc.start()

    with pytest.raises(DataError, match=r"a.csv:2: a row of more than 1048576 bytes"):
        next(rows)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16_000_000


@pytest.mark.parametrize("size", [7, 100, 65_536])
def test_rows_before_a_long_record_of_csv_are_read(write, size, monkeypatch):
    """The limit is 100 bytes; the record over it begins in the fourth line."""
    monkeypatch.setattr("sentkit.formats.rows.lines.READ", size)
    monkeypatch.setattr("sentkit.formats.rows.lines.MAX_LINE", 100)
    path = write("a.csv", b'id,text\n1,"a ""cat"""\n2,dogs\n3,"' + b"x\n" * 60 + b'"\n4,birds\n')
    rows = Inputs([path]).read(lambda row: row.values["text"])

    assert [next(rows), next(rows)] == ['a "cat"', "dogs"]
    with pytest.raises(DataError, match=r"a.csv:4: a row of more than 100 bytes") as caught:
        next(rows)
    assert "is a quote in this line not closed?" in str(caught.value.advice)
