"""Rows of Parquet files: the JSON lines that are made from their records, and what is refused."""

import base64
import datetime
import json
import math
from decimal import Decimal
from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentkit.errors import DataError, UsageError
from sentkit.formats.outputs.outputs import open_output
from sentkit.formats.rows.lines import LongLine
from sentkit.formats.rows.parquet import open_parquet
from sentkit.formats.rows.rows import Inputs, ReadCounter, Rejects
from support import in_jsonl

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

SECONDS = pa.duration("s")
STRING_MAP = pa.map_(pa.string(), pa.int8())
DATE = datetime.datetime(2024, 1, 2, 3, 4, 5, 6000)
TWICE = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])


@pytest.fixture
def written(tmp_path):
    """A Parquet file with these columns; its path."""

    def write(columns, **options):
        path = str(tmp_path / "a.parquet")
        parquet.write_table(
            columns if isinstance(columns, pa.Table) else pa.table(columns), path, **options
        )
        return path

    return write


def rows_of(path, **options):
    return list(Inputs([path], **options).read(lambda row: row))


@pytest.mark.parametrize(
    ("column", "lines"),
    [
        (pa.array([2**63 - 1, -(2**63)]), ["9223372036854775807", "-9223372036854775808"]),
        (pa.array([2**64 - 1], pa.uint64()), ["18446744073709551615"]),
        (pa.array([True, None]), ["true", "null"]),
        (pa.nulls(1), ["null"]),
        (pa.array(['a "cat"\n', None, "\u2028é"]), ['"a \\"cat\\"\\n"', "null", '"\u2028é"']),
        (pa.array(["x", "y", None, "x"]).dictionary_encode(), ['"x"', '"y"', "null", '"x"']),
        (pa.array(["x"], pa.large_string()), ['"x"']),
        (pa.array([0.1, None, 1 / 3], pa.float32()), ["0.1", "null", "0.33333334"]),
        (pa.array([0.1, 1 / 3]), ["0.1", "0.3333333333333333"]),
        (pa.array(np.array([0.5, 2], np.float16)), ["0.5", "2.0"]),
        (pa.array([Decimal("12.30"), None, Decimal("-0.05")]), ["12.30", "null", "-0.05"]),
        (pa.array([Decimal(10**30)], pa.decimal128(38, 0)), ["1" + "0" * 30]),
        (pa.array([Decimal("1" + "0" * 29 + ".12345678")]), ["1" + "0" * 29 + ".12345678"]),
        (pa.array([Decimal(10**75)], pa.decimal256(76, 0)), ["1" + "0" * 75]),
        (pa.array([DATE, None], pa.timestamp("us")), ['"2024-01-02T03:04:05.006000"', "null"]),
        (pa.array([DATE], pa.timestamp("ms", "Europe/Berlin")), ['"2024-01-02T03:04:05.006Z"']),
        (pa.array([DATE.date()]), ['"2024-01-02"']),
        (pa.array([DATE.time()], pa.time64("us")), ['"03:04:05.006000"']),
        (pa.array([b"\xff\x00", None, b""]), ['"/wA="', "null", '""']),
        (pa.array([b"abc"], pa.binary(3)), ['"YWJj"']),
        (pa.array([bytes(16), None], pa.uuid()), ['"AAAAAAAAAAAAAAAAAAAAAA=="', "null"]),
        (pa.array([["a", None], [], None]), ['["a",null]', "[]", "null"]),
        (
            pa.array([[0.1], [], None, [0.5, 3]], pa.list_(pa.float32())),
            ["[0.1]", "[]", "null", "[0.5,3.0]"],
        ),
        (pa.array([[0.1, None], [2.0]], pa.large_list(pa.float64())), ["[0.1,null]", "[2.0]"]),
        (
            pa.array([[0.1, 0.2], None, [3, 4]], pa.list_(pa.float32(), 2)),
            ["[0.1,0.2]", "null", "[3.0,4.0]"],
        ),
        (pa.array([[[1], []], [[2, 3]]]), ["[[1],[]]", "[[2,3]]"]),
        (
            pa.array([{"a": 1, "b": [{"c": ""}]}, {}]),
            ['{"a":1,"b":[{"c":""}]}', '{"a":null,"b":null}'],
        ),
        (pa.array([None, {"a": 1}]), ["null", '{"a":1}']),
        (pa.array([[("k", 1)], None, []], STRING_MAP), ['[{"key":"k","value":1}]', "null", "[]"]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_each_type_has_one_form(written, column, lines):
    path = written({"x": column, "n": range(len(column))})
    rows = rows_of(path)

    assert [row.line.decode() for row in rows] == [
        f'{{"x":{x},"n":{n}}}' for n, x in enumerate(lines)
    ]
    assert [row.values for row in rows] == [orjson.loads(row.line) for row in rows]
    assert [row.number for row in rows] == list(range(1, len(lines) + 1))
    # Written to Parquet and read again, each value is equal, or it is refused because digits would
    # be lost.
    copy_path = path.replace("a.parquet", "b.parquet")
    try:
        with open_output(copy_path, force=False) as out:
            out.writelines(row.line + b"\n" for row in rows)
    except DataError:
        assert max(map(len, lines)) > 19
        assert pa.types.is_decimal(column.type) or column.type == pa.uint64()
    else:
        values_read = [json.loads(row.line, parse_float=Decimal) for row in rows_of(copy_path)]
        assert values_read == [json.loads(row.line, parse_float=Decimal) for row in rows]


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (pa.array([0.5, math.nan, 1.5]), [0.5, None, 1.5]),
        (pa.array([0.5, -math.inf, None], pa.float32()), [0.5, None, None]),
        (pa.array([[0.5], [1.0, math.nan], None]), [[0.5], [1.0, None], None]),
        (pa.array([[0.5, 1], [math.inf, 1]], pa.list_(pa.float32(), 2)), [[0.5, 1.0], [None, 1.0]]),
        (pa.array([{"a": 0.5}, {"a": math.nan}, None]), [{"a": 0.5}, {"a": None}, None]),
        (pa.array([0, 2**62, None], pa.timestamp("ms")), ["1970-01-01T00:00:00.000", None, None]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_numbers_that_are_not_finite_and_times_out_of_range_are_null(written, column, values):
    assert [row.values["x"] for row in rows_of(written({"x": column}))] == values


def test_text_that_is_not_utf_8_is_damage(written):
    column = pa.array([b"a cat", b"\xff"]).view(pa.string())
    path = written({"x": column})

    with pytest.raises(DataError, match=r"a\.parquet: damaged Parquet file: 'utf-8' codec"):
        rows_of(path)


def test_a_long_row_is_a_bad_row(written, monkeypatch):
    monkeypatch.setattr("sentkit.formats.rows.lines.MAX_LINE", 50)
    path = written({"text": ["a", "x" * 100, "b"]})
    rejects = Rejects(skip=True)

    assert [row.number for row in rows_of(path, rejects=rejects)] == [1, 3]
    assert "a row of more than 50 bytes" in str(rejects.first_error)
    with open_parquet(path) as file:
        [block] = file.blocks()
        assert [isinstance(raw, LongLine) for raw in block.raws] == [False, True, False]


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (pa.table([[1], [2]], ["a", "a"]), "duplicate column name"),
        (pa.table({"t": pa.array([1], SECONDS)}), 'the column "t" has the type duration'),
        (pa.table([TWICE], ["t"]), 'the column "t" has the type struct with two fields "a"'),
        (pa.table([pa.ListArray.from_arrays([0, 1], TWICE)], ["t"]), 'the column "t"'),
        (
            pa.table({"t": pa.array([{"d": [1]}], pa.struct([("d", pa.list_(SECONDS))]))}),
            'the column "t"',
        ),
    ],
)
def test_columns_without_a_json_form_are_refused(written, table, problem):
    with pytest.raises(DataError, match=rf"a\.parquet: {problem}"):
        rows_of(written(table))


def test_other_and_damaged_files_are_refused(written):
    path = Path(
        written({"text": [f"text {number}" for number in range(1000)]}, use_dictionary=False)
    )
    whole = path.read_bytes()
    for content in (
        b"",
        b"a cat\n",
        b"PAR1" + bytes(50) + b"PAR1",
        whole[:100] + bytes(2000) + whole[2100:],
    ):
        path.write_bytes(content)
        kind = "damaged" if len(content) == len(whole) else "not a"
        with pytest.raises(DataError, match=rf"a\.parquet: {kind} Parquet file: [^\n]+$"):
            rows_of(str(path))


def test_a_pipe_is_refused(monkeypatch):
    class Pipe:
        buffer = type("Raw", (), {"seekable": lambda self: False, "fileno": lambda self: 0})()

        def isatty(self):
            return False

    monkeypatch.setattr("sys.stdin", Pipe())
    with pytest.raises(UsageError, match="standard input: Parquet cannot be read from a pipe"):
        rows_of("-", format="parquet")


def test_a_file_that_zstd_has_compressed_is_refused(tmp_path):
    """It is read from its end. Parquet compresses its columns itself."""
    zstandard = pytest.importorskip("zstandard")
    path = tmp_path / "a b.parquet"
    parquet.write_table(pa.table({"text": ["x"]}), path)
    packed = Path(f"{path}.zst")
    packed.write_bytes(zstandard.compress(path.read_bytes()))
    with pytest.raises(
        UsageError, match=r"a b\.parquet\.zst: Parquet cannot be read from a"
    ) as raised:
        rows_of(str(packed))

    assert "pipe" not in str(raised.value)
    assert raised.value.advice == f"decompress it: zstd -d '{packed}'"


@given(
    groups=st.lists(st.integers(0, 6), max_size=5),
    start=st.integers(0, 30),
    length=st.integers(0, 30),
    batch=st.integers(1, 4),
)
def test_a_part_has_the_rows_of_the_whole(tmp_path, monkeypatch, groups, start, length, batch):
    monkeypatch.setattr("sentkit.formats.rows.parquet.BATCH_ROWS", batch)
    path = str(tmp_path / "a.parquet")
    count = sum(groups)
    records = [{"n": n, "v": [n, -n], "l": list(range(n % 3))} for n in range(count)]
    types = {"n": pa.int64(), "v": pa.list_(pa.float32(), 2), "l": pa.list_(pa.int64())}
    table = pa.Table.from_pylist(records, pa.schema(types))
    with parquet.ParquetWriter(path, table.schema) as writer:
        start = 0
        for size in groups:
            writer.write_table(table[start : start + size])
            start += size
    with open_parquet(path) as file:
        rows = [row for block in file.blocks(start, start + length) for row in block]
        assert file.count == count

    expected = records[start : start + length]
    assert [orjson.loads(row.line) for row in rows] == expected
    assert [row.number for row in rows] == [row["n"] + 1 for row in expected]


@given(
    st.lists(
        st.lists(st.none() | st.floats(width=32, allow_infinity=False), max_size=3), min_size=1
    )
)
def test_the_line_of_a_record_does_not_depend_on_other_records(written, lists):
    """A null or NaN in the same batch changes no digit."""

    def lines(lists):
        column = pa.array(lists, pa.list_(pa.float32()))
        path = written({"x": column})
        return {
            row.number: row.line
            for row in rows_of(
                path, rejects=Rejects(skip=True), counter=ReadCounter.accepting_no_rows()
            )
        }

    alone = [lines([record]) for record in lists]

    assert lines(lists) == {
        n: line
        for n, lines_of_record in enumerate(alone, start=1)
        for line in lines_of_record.values()
    }


# Written from JSON lines: columns, types, and rows that do not fit


SCALARS = [
    st.text(max_size=5),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
]
FORMS = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: (
        inner.map(lambda form: st.lists(form | st.none(), max_size=3))
        | st.dictionaries(st.text(max_size=3), inner, min_size=1, max_size=3).map(
            st.fixed_dictionaries
        )
    ),
    max_leaves=4,
)
ROWS = st.dictionaries(st.text(max_size=5), FORMS, min_size=1, max_size=4).flatmap(
    lambda forms: st.lists(
        st.fixed_dictionaries({name: form | st.none() for name, form in forms.items()}), min_size=1
    )
)

GROUP = [{"x": 1}] * 2
NESTED = [{"x": {"y": 1}}] * 2


def put_lines(folder, lines, *, force=True):
    path = str(folder / "a.parquet")
    with open_output(path, force=force) as out:
        out.write(lines)
    return path


def problem_of(folder, *rows):
    with pytest.raises(DataError) as caught:
        put_lines(folder, in_jsonl(*rows).encode())
    assert list(folder.iterdir()) == []
    return caught.value.problem


def lines_of(path):
    return [row.line.decode() for row in Inputs([path]).read(lambda row: row)]


def groups_of(monkeypatch, rows):
    monkeypatch.setattr("sentkit.formats.outputs.parquet_output.GROUP_ROWS", rows)


@given(ROWS, st.sampled_from([1, 2, 3, 1 << 16]))
def test_rows_return_as_they_were(tmp_path, monkeypatch, rows, size):
    """All values are equal after JSONL -> Parquet -> rows, and for pyarrow, with any size of the
    groups.
    """
    groups_of(monkeypatch, size)
    full = {
        name: [row[name] for row in rows if row[name] is not None] for name in (rows or [{}])[0]
    }
    rows = [{name: (values or [None])[0] for name, values in full.items()}, *rows]
    try:
        path = put_lines(tmp_path, in_jsonl(*rows).encode())
    except DataError:
        assert size < len(rows)  # the first group has not all types: the next test
        return

    assert [row.values for row in Inputs([path]).read(lambda row: row)] == rows
    assert parquet.read_table(path).to_pylist() == rows


def test_absent_fields_are_null(tmp_path):
    rows = [{"a": 1}, {"b": {"x": 1}}, {"a": None, "b": {"y": ["z"]}}]
    path = put_lines(tmp_path, in_jsonl(*rows).encode())

    assert parquet.read_table(path).to_pylist() == [
        {"a": 1, "b": None},
        {"a": None, "b": {"x": 1, "y": None}},
        {"a": None, "b": {"x": None, "y": ["z"]}},
    ]


def test_an_object_without_fields_is_null(tmp_path):
    """Parquet has no type for it."""
    rows = [{"a": {}, "b": {"x": {}, "y": 1}, "c": [{}, {"z": 2}]}, {"a": {}, "b": {}, "c": []}]
    path = put_lines(tmp_path, in_jsonl(*rows).replace("{}", "{ }").encode())

    assert parquet.read_table(path).to_pylist() == [
        {"a": None, "b": {"x": None, "y": 1}, "c": [None, {"z": 2}]},
        {"a": None, "b": None, "c": []},
    ]


def test_deep_objects_without_fields_are_refused(tmp_path):
    line = b'{"x":' * 500 + b"{}" + b"}" * 500

    with pytest.raises(DataError, match="nested too deeply for a Parquet file"):
        put_lines(tmp_path, line + b"\n")


def test_vectors_are_lists_of_float32(tmp_path):
    vector_a = np.array([0.1, -2], "<f4")
    vector_b = np.array([1 / 3, 1e-30], "<f4")
    rows = [
        {
            "embedding_a": vector_a.tolist(),
            "embedding_b": base64.b64encode(vector_b.tobytes()).decode(),
            "n": [1, 2],
        },
        {"embedding_a": [3, 4], "embedding_b": None, "n": []},
    ]
    path = put_lines(tmp_path, in_jsonl(*rows).encode())
    table = parquet.read_table(path)

    assert table.schema.field("embedding_a").type == pa.list_(pa.float32(), 2)
    assert table.schema.field("n").type == pa.list_(pa.int64())
    assert table["embedding_a"].to_pylist() == [vector_a.tolist(), [3.0, 4.0]]
    assert table["embedding_b"].to_pylist() == [vector_b.tolist(), None]


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([{"x": 1}, {"x": "a"}], '"x" of rows 1 to 2: both int64 and string'),
        ([{"x": True}, {"x": 1}], '"x" of rows 1 to 2: both bool and int64'),
        ([{"x": 0.5}, {"x": True}], '"x" of rows 1 to 2: both bool and double'),
        ([{"x": [1]}, {"x": [1, [2]]}], '"x" of rows 1 to 2: both int64 and list<item: int64>'),
        (
            [{"x": 0.5}, {"x": 2**53 + 1}],
            f'"x" of rows 1 to 2: Integer value {2**53 + 1} is outside',
        ),
        ([{}], "the rows have no fields"),
        (
            [{"embedding": [1, 2]}, {"embedding": [1]}],
            '"embedding" of rows 1 to 2: Length of item not',
        ),
        # The first two rows determine fields and types.
        ([*GROUP, {"x": 1}, {"x": 1}, {"x": "a"}], '"x" of rows 5 to 5: both int64 and string'),
        ([*GROUP, {"x": 0.5}], '"x" of rows 3 to 3: has double, the first rows have int64'),
        (
            [*NESTED, {"x": {"z": 1}}],
            '"x" of rows 3 to 3: has struct<z: int64>, the first rows have struct',
        ),
        (
            [*NESTED, {"x": None, "z": 1}],
            '"z" of rows 3 to 3: has int64, the first rows have no such field',
        ),
        ([*[{"x": None}] * 2, {"x": 1}], '"x" of rows 3 to 3: has int64, the first rows have null'),
    ],
)
def test_rows_that_do_not_fit_are_refused(tmp_path, monkeypatch, rows, problem):
    groups_of(monkeypatch, 2)

    assert problem_of(tmp_path, *rows).startswith(problem)


TOO_LARGE = '"embedding" has NaN, infinity or a number that is too large for float32'


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"x":1,"x":2}', 'duplicate field "x"'),
        (b'{"x":[{"y":{"z":1,"":2,"\\u007a":3}}]}', 'duplicate field "z"'),
        (b"[1]", "the row is a list, a Parquet file needs objects"),
        (b'{"embedding":"no vector"}', '"embedding" is a string, expected a vector'),
        (b'{"embedding":[]}', '"embedding" is a list, expected a vector'),
        (b'{"embedding":[true]}', '"embedding" is a list, expected a vector'),
        *(
            (b'{"embedding":%b}' % vector, TOO_LARGE)
            for vector in (b"[1e39,1]", b'"AACAfwAAgD8="')  # the base64 of infinity and 1
        ),
        (b'{"id":%d}' % 2**63, f"{2**63} is too large for int64"),
        (
            b'{"id":{"a":[1e300,{"b":%d}]}}' % (-(2**63) - 1),
            f"{-(2**63) - 1} is too large for int64",
        ),
        *(
            (b'{"id":[{"b":%b}]}' % digits.encode(), f"{digits} has more digits than float64 has")
            for digits in ("9" * 29 + ".12345678", "0.12345678901234567", "1e-00000000000000400")
        ),
    ],
)
def test_lines_that_are_no_records_are_refused(tmp_path, line, problem):
    with pytest.raises(DataError, match=r"a\.parquet:2: ") as caught:
        put_lines(tmp_path, b'{"y":1}\n' + line + b"\n")

    assert caught.value.problem == problem
    assert list(tmp_path.iterdir()) == []


def test_an_output_without_rows_is_a_parquet_file(tmp_path):
    assert parquet.read_table(put_lines(tmp_path, b"")).num_rows == 0


def test_a_full_disk_is_reported(tmp_path, monkeypatch):
    """Also if the footer cannot be written."""

    def write_less(self, data):
        raise OSError(28, "No space left on device", self.path)

    monkeypatch.setattr("sentkit.formats.outputs.temporary.NamedFile.write", write_less)
    with pytest.raises(OSError, match="No space left on device"):
        put_lines(tmp_path, b'{"x":1}\n')

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "number", ["1e300", "0.10000000000000001", f"{0.1:.55f}", "19.990000000000000000"]
)
def test_digits_that_float64_has_are_kept(tmp_path, number):
    """Also those of programs that print all of them."""
    path = put_lines(tmp_path, b'{"x":%b}\n' % number.encode())

    assert parquet.read_table(path)["x"].to_pylist() == [float(number)]


@pytest.mark.parametrize(("opening", "close", "limit"), [("[", "]", 49), ('{"y":', "}", 98)])
def test_too_many_levels_are_refused(tmp_path, opening, close, limit):
    """Readers accept 100 levels of a schema."""
    for depth, inner in ((limit, "1"), (limit, "null")):
        line = f'{{"x":{opening * depth}{inner}{close * depth}}}'
        assert lines_of(put_lines(tmp_path, line.encode() + b"\n")) == [line]
    for depth in (limit + 1, 900):
        with pytest.raises(DataError, match=r'a.parquet: "x" of rows 1 to 1: nested too deeply'):
            put_lines(tmp_path, f'{{"x":{opening * depth}1{close * depth}}}\n'.encode())


@pytest.mark.parametrize("fields", [{}, {"text": "title"}])
def test_a_text_of_bytes_is_read_as_base64_with_a_warning(tmp_path, fields):
    path = str(tmp_path / "a.parquet")
    name = fields.get("text", "text")
    parquet.write_table(pa.table({name: pa.array([b"a cat"]), "id": pa.array([b"x"])}), path)
    warnings = []
    inputs = Inputs([path], fields=fields, rejects=Rejects(warn=warnings.append))
    (row,) = inputs.read(lambda row: row)

    assert row.values == {name: "YSBjYXQ=", "id": "eA=="}
    problem = f'the column "{name}" has bytes, which are read as base64'
    assert warnings == [f"{path}: {problem}; convert it to strings"]
