"""Vectors in rows: exact both ways, of one space and one shape, and nothing but finite numbers."""

import base64
import json
import math
import struct

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentkit.errors import DataError
from sentkit.formats.rows.block import block_of
from sentkit.formats.rows.kinds import scored
from sentkit.formats.rows.rows import Inputs, Rejects, Row
from sentkit.formats.vectors.vector_file import create_vector_file
from sentkit.formats.vectors.vectors import VectorReader, as_base64, as_list, raw_vectors

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def row(line):
    return Row(line.encode(), orjson.loads(line), "a.jsonl", 7)


@given(st.lists(FLOATS, min_size=1, max_size=20), st.sampled_from([as_list, as_base64]))
def test_a_vector_is_read_back_exactly(values, encode):
    vector = np.array(values, dtype=np.float32)

    line = b'{"embedding":%b}' % encode(vector)
    assert raw_vectors(block_of([row(line.decode())]), ["embedding"]) == [vector.tobytes()]


def test_base64_is_little_endian_float32():
    expected = base64.b64encode(struct.pack("<3f", 1.0, -2.5, 0.1)).decode()

    assert json.loads(as_base64(np.array([1.0, -2.5, 0.1], dtype=np.float32))) == expected
    assert json.loads(as_base64(np.array([1.0, -2.5, 0.1], dtype=">f4"))) == expected


def test_a_list_has_the_shortest_digits_and_may_contain_integers():
    assert as_list(np.array([0.1, 1 / 3, 1e-8], dtype=np.float32)) == b"[0.1,0.33333334,1e-8]"
    found = raw_vectors(block_of([row('{"v":[1,-2,18446744073709551615]}')]), ["v"])

    assert found == [struct.pack("<3f", 1.0, -2.0, 2.0**64)]


def test_rows_of_one_space(write):
    """With another label, after a bad row, and with numbers whose square is infinite."""
    rejects = Rejects(skip=True)
    lines = [
        b'{"embedding":[1e39,1],"_emb":"x:100000000000"}',
        b'{"embedding":[1],"_emb":"a:012300000000"}',
        b'{"embedding":[3e38],"_emb":"b/c:012300000000"}',
    ]
    inputs = Inputs([write("a.jsonl", b"\n".join(lines))], rejects=rejects)
    found = [vectors for block in VectorReader(inputs).blocks() for vectors in block.vectors.tolist()]

    assert found == [[[1.0]], [[np.float32(3e38)]]]
    assert rejects.count == 1


@pytest.mark.parametrize(
    ("value", "expected"), [("1", 1.0), ("-2.5", -2.5), ('"3.5"', 3.5), ("null", None), ('"  "', None)]
)
def test_a_score_is_a_number_or_its_text(value, expected):
    assert scored(row(f'{{"score":{value}}}'), "score") == expected


def test_a_row_without_its_vectors_keeps_all_other_bytes():
    given = row('{"id":1.10,"embedding":[1,2],"_emb":"a:100000000000", "text" : "x"}')
    left = block_of([given]).without({"embedding", "_emb"})

    assert left.lines == [b'{"id":1.10, "text" : "x"}']
    assert left.values == [{"id": 1.1, "text": "x"}]
    same = block_of([row('{"id":1,"id":2}')])
    assert same.without({"embedding", "_emb"}) is same


@pytest.fixture
def stored(tmp_path):
    """Write a vector file of sentences."""

    def write(name, vectors, **spec):
        path = str(tmp_path / f"{name}.safetensors")
        with create_vector_file(path, spec, ("embedding",), width=len(vectors[0]), force=False) as writer:
            for number, vector in enumerate(vectors):
                writer.write([b'{"n":%d}' % number], np.array([[vector]], np.float32))
        return path

    return write


def blocks_of(*paths, skip=False):
    reader = VectorReader(Inputs(list(paths), rejects=Rejects(skip=skip)))
    return [block.tolist() for path in paths for block in reader.arrays(path, 2)]


def test_a_bad_vector_in_a_block_is_named_or_skipped(stored):
    whole = stored("whole", [[1, 2], [3, 4], [5, 6]])
    for skip in (False, True):
        assert blocks_of(whole, skip=skip) == [[[[1, 2]], [[3, 4]]], [[[5, 6]]]]
    path = stored("a", [[1, 2], [3, 4], [5, 6], [7, math.nan], [9, 10]])

    with pytest.raises(DataError, match=r"a\.safetensors:4: a vector contains NaN or infinity"):
        blocks_of(path)
    assert blocks_of(path, skip=True) == [[[[1, 2]], [[3, 4]]], [[[5, 6]], [[9, 10]]]]


def test_a_file_of_another_space_or_width_is_an_error(stored):
    first = stored("a", [[1, 2]], _emb="m/mean:0123456789ab")

    with pytest.raises(DataError, match=r"b\.safetensors:1: the vectors of this row are m/cls"):
        blocks_of(first, stored("b", [[1, 2]], _emb="m/cls:ab0123456789"))
    with pytest.raises(DataError, match=r"c\.safetensors:1: this vector has 3 numbers"):
        blocks_of(first, stored("c", [[1, 2, 3]], _emb="m/mean:0123456789ab"))
