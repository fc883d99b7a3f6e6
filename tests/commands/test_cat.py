"""`cat`: rows and vector files joined, and one turned into the other without a byte lost."""

import json

import numpy as np
import pytest

ROWS = (
    b'{"id":12345678901234567890,"text":"a \xe2\x80\xa8 b","price":1.10,'
    b'"_emb":"m/cls:0a1b00000000","embedding":[0.1,-2.5]}\n'
    b'{"text":"", "nested":{"a":[1,{}]},"_emb":"m/cls:0a1b00000000","embedding":[1e-7,3.0]}\n'
)


def test_rows_keep_every_byte(sentkit, tmp_path):
    """JSONL -> vector file -> JSONL -> vector file; both joined. Blank lines and Windows line ends go."""
    (tmp_path / "rows.jsonl").write_bytes(ROWS)
    sentkit("cat", "rows.jsonl", "-o", "one.safetensors")
    back = sentkit("cat", "one.safetensors")
    sentkit("cat", "-o", "two.safetensors", stdin=back.out)
    sentkit("cat", "one.safetensors", "rows.jsonl", "-o", "both.safetensors")

    assert sentkit("cat", stdin=b'{"a": 1.10 }\r\n\n{}\n').out == b'{"a": 1.10 }\n{}\n'
    assert sentkit("cat", "rows.jsonl").out == back.out == ROWS
    assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "two.safetensors").read_bytes()
    assert sentkit("cat", "both.safetensors").out == ROWS * 2


def test_rows_get_the_name_of_their_file(sentkit, tmp_path):
    """In JSONL, in a vector file and in a table; the other bytes stay."""
    (tmp_path / "a.jsonl").write_bytes(ROWS)
    (tmp_path / "b.txt").write_text("x\n")
    (tmp_path / "c.csv").write_text("n\n1.10\n")
    lines = ROWS.splitlines()
    named = sentkit("cat", "a.jsonl", "--name-field", "file")
    sentkit("cat", "a.jsonl", "--name-field", "file", "-o", "v.safetensors")
    texts = sentkit("cat", "b.txt", "c.csv", "--name-field", "set")

    assert named.out == b"".join(line[:-1] + b',"file":"a.jsonl"}\n' for line in lines)
    assert sentkit("cat", "v.safetensors", "--field", "text=text").rows == named.rows
    assert texts.out == b'{"text":"x","set":"b.txt"}\n{"n":"1.10","set":"c.csv"}\n'


@pytest.mark.parametrize(
    ("name", "code", "told"),
    [
        ("id", 65, 'sentkit cat: -:1: field "id" already exists'),
        ('a"b', 2, "sentkit cat: --name-field 'a\"b': expected a printable name"),
    ],
)
def test_a_name_field_that_cannot_be(sentkit, name, code, told):
    done = sentkit("cat", "--name-field", name, stdin='{"id":1}\n')

    assert done.code == code
    assert done.told[0].startswith(told)


def test_a_join_knows_what_all_its_parts_say(sentkit, tiny):
    """Of two files by one model, all but the precision that differs; of JSONL the space alone."""
    sentkit("encode", "-q", "-m", tiny, "--precision", "fp32", "-o", "a.safetensors", stdin="a")
    sentkit("encode", "-q", "-m", tiny, "--precision", "bf16", "-o", "b.safetensors", stdin="b")
    sentkit("cat", "a.safetensors", "b.safetensors", "-o", "c.safetensors")
    sentkit("cat", "-o", "d.safetensors", stdin=sentkit("cat", "a.safetensors").out)
    joined, lone = (sentkit("inspect", f"{name}.safetensors").rows[0]["spec"] for name in "cd")

    assert joined["model"] == str(tiny)
    assert "precision" not in joined
    assert list(lone) == ["_emb"]


@pytest.mark.parametrize("head", [0, 1, 2, 5])
def test_the_first_rows_are_taken(sentkit, head):
    """A bad row behind them is not met."""
    expected = b"".join(ROWS.splitlines(keepends=True)[:head])
    sentkit("cat", "-o", "v.safetensors", stdin=ROWS)
    bad = b"broken\n" if head < 3 else b""

    assert sentkit("cat", "--head", head, stdin=ROWS + bad).out == expected
    assert sentkit("cat", "--head", head, "v.safetensors").out == expected


def test_encodings_are_turned_into_each_other(sentkit, monkeypatch):
    """Both ways to the bit; in place, and as SENTKIT_VECTORS says too."""
    base64 = sentkit("cat", "--vectors", "base64", stdin=ROWS)
    back = sentkit("cat", "--vectors", "list", stdin=base64.out)
    monkeypatch.setenv("SENTKIT_VECTORS", "base64")

    assert b'"embedding":"zczMPQAAIMA="}' in base64.out
    assert back.out == ROWS
    assert sentkit("cat", stdin=ROWS).out == base64.out


NEEDED = "this row has no vector; in a vector file every row needs a vector"


def test_an_array_in_any_order_has_its_rows(sentkit):
    for number, order in enumerate("CF"):
        np.save(f"{number}.npy", np.array([[1, 2, 3], [4, 5, 6]], np.float64, order=order))
        done = sentkit("cat", f"{number}.npy")

        assert (done.code, done.vectors().tolist()) == (0, [[1, 2, 3], [4, 5, 6]])


@pytest.mark.parametrize(
    ("rows", "flags", "problem"),
    [
        (ROWS + b'{"text":"x"}', (), '-:3: "embedding" is missing'),
        (b'{"text":"x"}\n' + ROWS, (), "-:2: this row has a vector, the first row has none"),
        (b'{"text":"x"}', ("-o", "v.safetensors"), f"-:1: {NEEDED}"),
    ],
)
def test_all_rows_have_vectors_or_none(sentkit, rows, flags, problem, tmp_path):
    done = sentkit("cat", *flags, stdin=rows)

    assert (done.code, done.told[0]) == (65, f"sentkit cat: {problem}")
    assert list(tmp_path.iterdir()) == []


def test_vectors_get_our_name(sentkit):
    row = b'{"v":[1.0,2.0],"text":"a"}\n'
    sentkit("cat", "--field", "embedding=v", "-o", "v.safetensors", stdin=row)

    assert sentkit("cat", "--field", "embedding=v", stdin=row).out == row.replace(b'"v"', b'"embedding"')
    assert sentkit("cat", "v.safetensors").rows == [{"text": "a", "embedding": [1.0, 2.0]}]


@pytest.mark.parametrize(
    ("fields", "row", "expected"),
    [
        (["text=t"], '{ "n":1.10, "t" : "x", "u":[ 1 ]}', '{ "n":1.10, "text" : "x", "u":[ 1 ]}'),
        (["text_a=text_b", "text_b=text_a"], '{"text_a":1,"text_b":2}', '{"text_b":1,"text_a":2}'),
        (["score=r", "label=l"], '{"l":"a","r":5}', '{"label":"a","score":5}'),
        (["text=t"], '{"x":1}', '"t" is missing'),
        (["text=t"], '{"t":1,"text":2}', '"t" cannot become "text", which the row already has'),
        (["text=t"], '{"t":1,"t":2}', 'duplicate field "t"'),
    ],
)
def test_fields_get_our_names(sentkit, fields, row, expected):
    """All other bytes stay. A row that cannot be renamed is a bad row."""
    flags = [word for field in fields for word in ("--field", field)]
    done = sentkit("cat", *flags, "--rejects", "bad.jsonl", stdin=f"{row}\n")

    if expected.startswith("{"):
        assert (done.code, done.out.decode()) == (0, f"{expected}\n")
    else:
        assert done.told[0].endswith(f"the first is -:1: {expected}")


def test_tables_are_written_and_read_back(sentkit, tmp_path):
    """Numbers keep their digits, null is an empty cell, and a row with another column is bad."""
    rows = '{"a":"x, \\"y\\"","n":1.10,"z":null}\n{"n":12345678901234567890,"a":"1\\n2","z":[1, 2]}\n{"b":1}'
    done = sentkit("cat", "-o", "t.csv", "--rejects", "/dev/null", stdin=rows)
    back = sentkit("cat", "t.csv", "-o", "again.csv")
    tsv = sentkit("cat", "-o", "t.tsv", "--rejects", "bad.jsonl", stdin=rows)
    text = 'a,n,z\n"x, ""y""",1.10,\n"1\n2",12345678901234567890,"[1, 2]"\n'

    assert (done.code, back.code, tsv.code) == (0, 0, 0)
    assert (tmp_path / "t.csv").read_text() == (tmp_path / "again.csv").read_text() == text
    assert (tmp_path / "t.tsv").read_text() == 'a\tn\tz\nx, "y"\t1.10\t\n'
    reasons = [json.loads(line)["reason"][:20] for line in (tmp_path / "bad.jsonl").open()]
    assert reasons == ["a tab or newline: TS", '"b" is not a column ']


def test_tables_have_no_vectors(sentkit, tmp_path):
    done = sentkit("cat", "-o", "t.csv.gz", stdin=ROWS.splitlines(keepends=True)[1] * 2)
    sentkit("cat", "t.csv.gz", "-o", "t.jsonl")

    warning = "sentkit cat: warning: t.csv.gz: a table has no vectors; those of 2 rows are left out"
    assert done.told == [warning]
    assert b"embedding" not in (tmp_path / "t.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("name", "content", "flags", "expected"),
    [
        ("t.csv", 'a,"b ""c""",3\n', (), '{"text_a":"a","text_b":"b \\"c\\"","score":"3"}\n'),
        ("t.tsv", '\ufeffa\t"b"\t3\r\n', ("-q",), '{"text_a":"a","text_b":"\\"b\\"","score":"3"}\n'),
        ("t.csv", "a,b\n", (), "t.csv:1: 2 fields, --columns has 3"),
        ("t.jsonl", "{}\n", (), "--columns can be used only with TSV and CSV input"),
        ("t.csv", "a\n", ("--columns", "a,a"), '--columns "a,a": expected different names'),
        ("t.csv", "a\n", ("--columns", "a,"), '--columns "a,": expected different names'),
    ],
)
def test_files_without_a_header_need_names(sentkit, tmp_path, name, content, flags, expected):
    (tmp_path / name).write_text(content)
    done = sentkit("cat", name, "--columns", "text_a,text_b,score", *flags)

    if expected.startswith("{"):
        assert (done.code, done.out.decode()) == (0, expected)
    else:
        assert done.told[0].startswith(f"sentkit cat: {expected}")


@pytest.mark.parametrize("rows", [b"", b'{"text":"x"}\n'], ids=["no rows", "no vectors"])
def test_an_empty_stream_makes_an_empty_output(sentkit, rows, tmp_path):
    """A vector file of nothing is whole: it can be inspected, and joined with others."""
    sentkit("cat", "--head", 0, "-o", "v.safetensors", stdin=rows)
    (tmp_path / "rows.jsonl").write_bytes(ROWS)

    assert sentkit("cat", "v.safetensors", "rows.jsonl").out == ROWS
    assert sentkit("cat", "v.safetensors", "v.safetensors").code == 65
    assert sentkit("inspect", "v.safetensors").rows[0]["rows"] == 0


def test_a_join_reports_the_number_of_files_and_rows(sentkit, tmp_path):
    """In a batch job too; and nothing of a single file, or with -q."""
    for number in range(3):
        (tmp_path / f"{number}.jsonl").write_text('{"text":"a"}\n' * number)

    assert sentkit("cat", "0.jsonl", "1.jsonl", "2.jsonl").err == "sentkit cat: joined 3 files, 3 rows\n"
    assert sentkit("cat", "1.jsonl", "2.jsonl", "--head", "2").err == "sentkit cat: joined 2 files, 2 rows\n"
    assert sentkit("cat", "1.jsonl", "2.jsonl", "-q").err == ""
    assert sentkit("cat", "2.jsonl").err == ""
