"""Parquet files made from JSON lines: columns, types, and rows that do not fit."""

import base64

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentkit.errors import DataError
from sentkit.formats.outputs.outputs import open_output
from sentkit.formats.rows.rows import Inputs
from support import in_jsonl

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

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
        | st.dictionaries(st.text(max_size=3), inner, min_size=1, max_size=3).map(st.fixed_dictionaries)
    ),
    max_leaves=4,
)
ROWS = st.dictionaries(st.text(max_size=5), FORMS, min_size=1, max_size=4).flatmap(
    lambda forms: st.lists(
        st.fixed_dictionaries({name: form | st.none() for name, form in forms.items()}), min_size=1
    )
)

NESTED = [{"x": {"y": 1}}] * 3


def write(folder, lines, *, force=True):
    path = str(folder / "a.parquet")
    with open_output(path, force=force) as out:
        out.write(lines)
    return path


def problem_of(folder, *rows):
    with pytest.raises(DataError) as caught:
        write(folder, in_jsonl(*rows).encode())
    assert list(folder.iterdir()) == []
    return caught.value.problem


def rows_of(path):
    return [row.line.decode() for row in Inputs([path]).read(lambda row: row)]


def groups_of(monkeypatch, rows):
    monkeypatch.setattr("sentkit.formats.outputs.parquet_output.GROUP_ROWS", rows)


@given(ROWS)
def test_rows_return_as_they_were(tmp_path, rows):
    """All values are equal after JSONL -> Parquet -> rows; pyarrow itself reads the same."""
    path = write(tmp_path, in_jsonl(*rows).encode())
    again = [row.values for row in Inputs([path]).read(lambda row: row)]

    assert again == rows
    assert parquet.read_table(path).to_pylist() == rows


@given(ROWS, st.integers(1, 4))
def test_row_groups_change_no_row(tmp_path, monkeypatch, rows, size):
    groups_of(monkeypatch, size)
    full = {name: [row[name] for row in rows if row[name] is not None] for name in (rows or [{}])[0]}
    first = {name: (values or [None])[0] for name, values in full.items()}
    try:
        path = write(tmp_path, in_jsonl(first, *rows).encode())
    except DataError:
        return  # the first group has not all types: the next test
    assert [row.values for row in Inputs([path]).read(lambda row: row)] == [first, *rows]


def test_absent_fields_are_null(tmp_path):
    rows = [{"a": 1}, {"b": {"x": 1}}, {"a": None, "b": {"y": ["z"]}}]
    path = write(tmp_path, in_jsonl(*rows).encode())

    assert parquet.read_table(path).to_pylist() == [
        {"a": 1, "b": None},
        {"a": None, "b": {"x": 1, "y": None}},
        {"a": None, "b": {"x": None, "y": ["z"]}},
    ]


def test_vectors_are_lists_of_float32(tmp_path):
    one, other = np.array([0.1, -2], "<f4"), np.array([1 / 3, 1e-30], "<f4")
    rows = [
        {"embedding_a": one.tolist(), "embedding_b": base64.b64encode(other.tobytes()).decode(), "n": [1, 2]},
        {"embedding_a": [3, 4], "embedding_b": None, "n": []},
    ]
    table = parquet.read_table(write(tmp_path, in_jsonl(*rows).encode()))

    assert table.schema.field("embedding_a").type == pa.list_(pa.float32(), 2)
    assert table.schema.field("n").type == pa.list_(pa.int64())
    assert table["embedding_a"].to_pylist() == [one.tolist(), [3.0, 4.0]]
    assert table["embedding_b"].to_pylist() == [other.tolist(), None]


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([{"x": 1}, {"x": 2}, {"x": "a"}, {"x": 3}], '"x" of rows 1 to 4: both int64 and string'),
        ([{"x": True}, {"x": 1}], '"x" of rows 1 to 2: both bool and int64'),
        ([{"x": 0.5}, {"x": True}], '"x" of rows 1 to 2: both bool and double'),
        ([{"x": []}, {"x": [1]}, {"x": [1, [2]]}], '"x" of rows 1 to 3: both int64 and list<item: int64>'),
        ([{"x": {"y": 1}}, {"x": {"y": {}}}], '"x" of rows 1 to 2: an object without fields'),
        ([{"x": 0.5}, {"x": 2**53 + 1}], f'"x" of rows 1 to 2: Integer value {2**53 + 1} is outside'),
        ([{}], "the rows have no fields"),
        (
            [{"embedding": [1, 2]}, {"embedding": [1]}],
            '"embedding" of rows 1 to 2: Length of item not correct',
        ),
    ],
)
def test_rows_that_do_not_fit_are_refused(tmp_path, rows, problem):
    assert problem_of(tmp_path, *rows).startswith(problem)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([*[{"x": 1}] * 4, {"x": "a"}], '"x" of rows 5 to 5: both int64 and string'),
        ([*[{"x": 1}] * 4, {"x": 0.5}], '"x" of rows 5 to 5: has double, the first rows have int64'),
        ([*NESTED, {"x": {"z": 1}}], '"x" of rows 3 to 4: has struct<y: int64, z: int64>, the first rows'),
        ([*NESTED, {"x": None, "z": 1}], '"z" of rows 3 to 4: has int64, the first rows have no such field'),
        ([*[{"x": None}] * 2, {"x": 1}], '"x" of rows 3 to 3: has int64, the first rows have null'),
    ],
)
def test_the_first_rows_determine_fields_and_types(tmp_path, monkeypatch, rows, problem):
    groups_of(monkeypatch, 2)

    assert problem_of(tmp_path, *rows).startswith(problem)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"x":1,"x":2}', 'duplicate field "x"'),
        (b'{"x":[{"y":{"z":1,"":2,"\\u007a":3}}]}', 'duplicate field "z"'),
        (b"[1]", "the row is a list, a Parquet file needs objects"),
        (b'{"embedding":"no vector"}', '"embedding" is a string, expected a vector'),
        (b'{"embedding":[]}', '"embedding" is a list, expected a vector'),
        (b'{"embedding":[true]}', '"embedding" is a list, expected a vector'),
    ],
)
def test_lines_that_are_no_records_are_refused(tmp_path, line, problem):
    with pytest.raises(DataError, match=r"a\.parquet:2: ") as caught:
        write(tmp_path, b'{"y":1}\n' + line + b"\n")

    assert caught.value.problem == problem
    assert list(tmp_path.iterdir()) == []


def test_an_output_without_rows_is_a_parquet_file(tmp_path):
    assert parquet.read_table(write(tmp_path, b"")).num_rows == 0


def test_a_full_disk_is_reported(tmp_path, monkeypatch):
    """Also if the footer cannot be written."""

    def write_less(self, data):
        raise OSError(28, "No space left on device", self.path)

    monkeypatch.setattr("sentkit.formats.outputs.temporary.NamedFile.write", write_less)
    with pytest.raises(OSError, match="No space left on device"):
        write(tmp_path, b'{"x":1}\n')

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (b"%d" % 2**63, "is too large for int64"),
        (b'{"a":[1e300,{"b":%d}]}' % (-(2**63) - 1), "is too large for int64"),
        (b"99999999999999999999999999999.12345678", "has more digits than float64 has"),
        (b'["a {",[{"b":0.12345678901234567}]]', "has more digits than float64 has"),
        (b"1e-00000000000000400", "has more digits than float64 has"),
    ],
)
def test_a_number_that_loses_digits_is_an_error(tmp_path, value, problem):
    with pytest.raises(DataError, match=f"a.parquet:2: .* {problem}"):
        write(tmp_path, b'{"id":null}\n{"id":%b}\n' % value)


@pytest.mark.parametrize("number", ["1e300", "0.10000000000000001", f"{0.1:.55f}", "19.990000000000000000"])
def test_digits_that_float64_has_are_kept(tmp_path, number):
    """Also those of programs that print all of them."""
    path = write(tmp_path, b'{"x":%b}\n' % number.encode())

    assert parquet.read_table(path)["x"].to_pylist() == [float(number)]


@pytest.mark.parametrize(("opening", "close", "most"), [("[", "]", 49), ('{"y":', "}", 98)])
def test_too_many_levels_are_refused(tmp_path, opening, close, most):
    """Readers accept 100 levels of a schema."""
    for depth, inner in ((most, "1"), (most, "null")):
        line = f'{{"x":{opening * depth}{inner}{close * depth}}}'
        assert rows_of(write(tmp_path, line.encode() + b"\n")) == [line]
    for depth in (most + 1, 900):
        with pytest.raises(DataError, match=r'a.parquet: "x" of rows 1 to 1: nested too deeply'):
            write(tmp_path, f'{{"x":{opening * depth}1{close * depth}}}\n'.encode())
