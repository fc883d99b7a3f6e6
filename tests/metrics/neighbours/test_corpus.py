"""Rows with vectors that can be read in any order."""

from pathlib import Path

import numpy as np
import orjson
import pytest

from sentkit.errors import DataError
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.tensors import FLOATS
from sentkit.formats.vectors.vector_file import create_vector_file
from sentkit.metrics.neighbours.corpus import read_table

LINES = [orjson.dumps({"text": "é" * number, "id": number}) for number in range(5)]


def write_store(path, vectors, lines, kind="float32"):
    width = vectors.shape[1]
    with create_vector_file(str(path), {}, ["embedding"], width=width, force=True, kind=kind) as writer:
        for line, vector in zip(lines, vectors, strict=True):
            writer.write([line], vector[None, None])
    return str(path)


def read(path):
    return read_table(Inputs([path]))


def test_a_vector_file_and_its_rows_are_the_same_table(tmp_path):
    """Blank lines between rows count for the line number only."""
    vectors = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    with (tmp_path / "a.jsonl").open("wb") as file:
        for line, vector in zip(LINES, vectors.tolist(), strict=True):
            file.write(b'%b,"embedding":%b}\n\n' % (line[:-1], orjson.dumps(vector)))
    tables = [read(write_store(tmp_path / "a.safetensors", vectors, LINES)), read(str(tmp_path / "a.jsonl"))]

    for table in tables:
        np.testing.assert_array_equal(table.vectors, vectors[:, None])
        assert [table.row(place).line for place in (4, 0, 2, 1, 3)] == [LINES[i] for i in (4, 0, 2, 1, 3)]
    assert [[table.row(place).number for place in range(5)] for table in tables] == [
        [1, 2, 3, 4, 5],
        [1, 3, 5, 7, 9],
    ]


@pytest.mark.parametrize("kind", FLOATS)
def test_a_vector_with_nan_is_refused_with_its_row(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("sentkit.metrics.neighbours.corpus.CHECKED", 2)
    vectors = np.ones((5, 3), np.float32)
    vectors[3, 1] = np.nan

    with pytest.raises(DataError, match=r"a\.safetensors:4: a vector contains NaN or infinity"):
        read(write_store(tmp_path / "a.safetensors", vectors, LINES, kind))


@pytest.mark.parametrize("line", [b"[1]", b'{"text":', b'{"text":"a"}\n{"text":"b"}', b""])
def test_a_damaged_row_is_an_error_when_it_is_read(tmp_path, line):
    table = read(write_store(tmp_path / "a.safetensors", np.ones((2, 1), np.float32), [LINES[0], line]))

    assert table.row(0).line == LINES[0]
    with pytest.raises(DataError, match=r"a\.safetensors:2: "):
        table.row(1)


def test_offsets_that_do_not_agree_are_refused(tmp_path):
    path = write_store(tmp_path / "a.safetensors", np.ones((5, 1), np.float32), LINES)
    table = read(path)
    content = bytearray(Path(path).read_bytes())
    offsets = np.cumsum([0, *(len(line) + 1 for line in LINES)]).astype("<i8").tobytes()
    assert content.count(offsets) == 1
    start = content.index(offsets)
    content[start + 16 : start + 24] = (1 << 40).to_bytes(8, "little")
    Path(path).write_bytes(content)

    assert table.row(4).line == LINES[4]
    with pytest.raises(DataError, match=r"a\.safetensors:2: row_offsets and rows do not agree"):
        read(path).row(1)


def test_no_rows_are_an_error(tmp_path):
    with pytest.raises(DataError, match=r"^no rows in .*a\.safetensors$"):
        read(write_store(tmp_path / "a.safetensors", np.ones((0, 2), np.float32), []))
