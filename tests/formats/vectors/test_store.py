"""Vector files: reading by other libraries, and the refusal of damaged files."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import safetensors.numpy

from sentkit.errors import DataError
from sentkit.formats.rows.rows import Inputs, Rejects, Row
from sentkit.formats.vectors.store import Store, rows_in
from sentkit.formats.vectors.tensors import read_header
from sentkit.formats.vectors.vector_file import create_vector_file
from support import stored_rows

NAMES = {
    1: ("embedding",),
    2: ("embedding_a", "embedding_b"),
    3: ("embedding_anchor", "embedding_positive", "embedding_negative"),
}
Write = Callable[[str, bytes], str]
OVERLAP = "overlaps another or leaves a gap"
WRONG_NAMES = "its vector names do not match their shape"


def fill(path: Path, count: int, *, names: Sequence[str] = NAMES[1], width: int = 3, **spec: Any) -> Any:
    """A vector file of random vectors; returns the vectors, (n, k, d), and the lines."""
    vectors = np.random.default_rng(0).normal(size=(count, len(names), width)).astype(np.float32)
    lines = [orjson.dumps({"text": f"é {'x' * number}", "id": number}) for number in range(count)]
    with create_vector_file(str(path), spec, names, width=width, force=False) as writer:
        for line, row in zip(lines, vectors, strict=True):
            writer.write([line], row[None])
    return vectors, lines


# Written


def test_inputs_read_rows_of_vector_files_and_of_text_files(tmp_path: Path, write: Write) -> None:
    _, lines = fill(tmp_path / "a.safetensors", 3)
    paths = [str(tmp_path / "a.safetensors"), write("b.txt", b"a cat\n")]
    rejects = Rejects(skip=True)

    def parse(row: Row) -> bytes:
        if row.values.get("id") == 1:
            raise row.error("bad")
        return row.line

    inputs = Inputs(paths, rejects=rejects, vector_file=rows_in)

    assert list(inputs.read(parse)) == [lines[0], lines[2], b'{"text":"a cat"}']
    assert (rejects.count, inputs.meter.rows) == (1, 3)


@pytest.mark.parametrize("texts", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_written_rows_are_read_back(tmp_path: Path, count: int, texts: int) -> None:
    spec = {"_emb": "m/cls:010000000000", "model": "m", "max_length": 64}
    vectors, lines = fill(tmp_path / "a.safetensors", count, names=NAMES[texts], **spec)

    file = Store(str(tmp_path / "a.safetensors"))

    assert (file.count, file.width, file.names, file.emb) == (count, 3, NAMES[texts], "m/cls:010000000000")
    assert file.spec == {**spec, "vectors": list(NAMES[texts])}
    rows = stored_rows(file)
    assert [(row.number, row.line) for row, _ in rows] == list(enumerate(lines, start=1))
    assert [found.tolist() for _, found in rows] == vectors.tolist()


def test_a_file_without_rows_may_have_width_0(tmp_path: Path) -> None:
    fill(tmp_path / "a.safetensors", 0, width=0, _emb="m:010000000000")

    assert stored_rows(str(tmp_path / "a.safetensors")) == []


def test_a_file_of_several_blocks_is_read_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentkit.formats.vectors.vector_file.BLOCK", 4)
    vectors, _ = fill(tmp_path / "a.safetensors", 11)

    file = Store(str(tmp_path / "a.safetensors"))

    assert [len(block) for block in file.blocks()] == [4, 4, 3]
    assert np.array_equal(np.concatenate(list(file.blocks())), vectors)
    assert np.array_equal(np.stack([found for _, found in stored_rows(file)]), vectors)


# Read with suspicion


def file_of(header: Any, data: bytes = b"", *, length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + data


def tensor(dtype: Any = "F32", shape: Any = (1,), offsets: Any = (0, 4)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the header is longer than the file"),
        (file_of({}, length=2**63), "the header is longer than the file"),
        (file_of(b"[" * 100_000), "the header is not JSON"),
        (file_of([1]), "the header is not an object"),
        (file_of({"__metadata__": {"a": 1}}), "a metadata value is not a string"),
        (file_of({"x": tensor()}, bytes(5)), "longer than its header declares"),
        (file_of({"x": tensor(offsets=(4, 8))}, bytes(8)), f'tensor "x" {OVERLAP}'),
        (file_of({"x": tensor(), "y": tensor()}, bytes(4)), f'tensor "y" {OVERLAP}'),
        (file_of({"x": tensor(), "y": tensor(offsets=(8, 12))}, bytes(12)), f'tensor "y" {OVERLAP}'),
    ],
)
def test_a_header_that_contradicts_its_file_is_refused(write: Write, content: bytes, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        read_header(write("a.safetensors", content))


@pytest.mark.parametrize(
    "entry",
    [
        *(None, [], tensor(dtype="F31"), tensor(shape=(0, 2**62), offsets=(0, 0))),
        *(tensor(shape=shape) for shape in ((2,), (1.0,), (True,), (2**62,) * 200_000)),
        *(tensor(offsets=offsets) for offsets in ((0,), (4, 0), (-4, 0))),
    ],
)
def test_a_tensor_that_contradicts_itself_is_refused(write: Write, entry: Any) -> None:
    with pytest.raises(DataError, match='tensor "x": its type, shape and offsets do not agree'):
        read_header(write("a.safetensors", file_of({"x": entry}, bytes(4))))


def test_a_truncated_vector_file_is_refused(tmp_path: Path) -> None:
    fill(tmp_path / "a.safetensors", 3)
    whole = (tmp_path / "a.safetensors").read_bytes()

    for end in range(len(whole)):
        (tmp_path / "cut.safetensors").write_bytes(whole[:end])
        with pytest.raises(DataError, match="incomplete or damaged safetensors file"):
            Store(str(tmp_path / "cut.safetensors"))


def vector_file(**changes: Any) -> bytes:
    """Two rows of width 1, `{}` each; `changes` are other tensors or other metadata."""
    parts: dict[str, Any] = {
        "embeddings": np.array([[1.0], [2.0]], np.float32),
        "row_offsets": np.array([0, 3, 6], np.int64),
        "rows": np.frombuffer(b"{}\n{}\n", np.uint8),
        **changes,
    }
    spec = parts.pop("spec", '{"vectors":["embedding"]}')
    parts = {name: value for name, value in parts.items() if value is not None}
    return safetensors.numpy.save(parts, None if spec is None else {"sentkit": spec})


@pytest.mark.parametrize("spec", [None, '{"_emb":null}'])
def test_a_vector_file_of_another_program_is_read(write: Write, spec: str | None) -> None:
    file = Store(write("a.safetensors", vector_file(spec=spec)))

    assert file.emb is None
    assert [(row.line, vectors.tolist()) for row, vectors in stored_rows(file)] == [
        (b"{}", [[1.0]]),
        (b"{}", [[2.0]]),
    ]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"embeddings": None}, 'no F32 tensor "embeddings" (it has row_offsets, rows)'),
        ({"embeddings": np.ones((2, 1), np.float16)}, 'no F32 tensor "embeddings"'),
        ({"row_offsets": np.zeros(3, np.int32)}, 'no I64 tensor "row_offsets"'),
        ({"row_offsets": np.zeros(2, np.int64)}, "embeddings and row_offsets do not agree"),
        ({"embeddings": np.ones(2, np.float32)}, "embeddings and row_offsets do not agree"),
        ({"embeddings": np.ones((2, 1, 1, 1), np.float32)}, "embeddings and row_offsets do not agree"),
        ({"embeddings": np.ones((2, 0), np.float32)}, "its vectors are empty"),
        ({"spec": "{"}, "its spec is not JSON"),
        ({"embeddings": np.ones((2, 2, 1), np.float32)}, WRONG_NAMES),
        *(
            ({"spec": f'{{"vectors":{names}}}'}, WRONG_NAMES)
            for names in ("[]", '["a\\"b"]', '["embedding_a","embedding_b"]')
        ),
    ],
)
def test_another_file_is_refused(write: Write, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(DataError) as caught:
        Store(write("a.safetensors", vector_file(**changes)))

    assert str(caught.value).rpartition("/")[2].startswith("a.safetensors: not a vector file: ")
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("offsets", "line"),
    [
        ([0, 4, 3], 1),  # "{}\n{" is not a row
        ([0, 3, 0], 2),
        ([0, 2**62, 2**62 + 3], 1),
        ([0, -3, 6], 1),
        ([2**63 - 1, -(2**63), 0], 1),
    ],
)
def test_offsets_outside_the_rows_are_refused(write: Write, offsets: list[int], line: int) -> None:
    path = write("a.safetensors", vector_file(row_offsets=np.array(offsets, np.int64)))

    with pytest.raises(DataError, match=rf"a\.safetensors:{line}: (row_offsets and rows do|not JSON)"):
        stored_rows(path)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (b"[]\n{}\n", "1: this row is a list, expected an object"),
        (b"{}\n\xff}\n", "2: not JSON"),
        (b"{}\n{\n}", "2: a row has more than one line"),
    ],
)
def test_an_invalid_row_is_refused(write: Write, rows: bytes, problem: str) -> None:
    with pytest.raises(DataError, match=rf"a\.safetensors:{problem}"):
        stored_rows(write("a.safetensors", vector_file(rows=np.frombuffer(rows, np.uint8))))


def test_a_row_with_another_space_than_its_file_is_refused(write: Write) -> None:
    rows = b'{"_emb":"m:0123456789ab"}\n{"_emb":"m:ba9876543210"}\n'
    changes = {"rows": np.frombuffer(rows, np.uint8), "row_offsets": np.array([0, 26, 52])}
    path = write("a.safetensors", vector_file(spec='{"_emb":"m:0123456789ab"}', **changes))

    problem = '2: "_emb" of this row differs from "_emb" in the metadata of the file'
    with pytest.raises(DataError, match=rf"a\.safetensors:{problem}"):
        stored_rows(path)
