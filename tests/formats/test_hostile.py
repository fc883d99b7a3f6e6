"""Any bytes at every reader: a value comes out, or an error that names the place, and never
anything else.
"""

import gzip
import json
from pathlib import Path

import numpy as np
import orjson
import pytest
import safetensors.numpy
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from hostile import ODD, is_read_or_bad_data, mutated, places, replaced, some, survives
from sentkit.errors import DataError
from sentkit.formats.rows.kinds import TextParser
from sentkit.formats.rows.rows import Inputs, Rejects
from sentkit.formats.vectors.conversion import convert
from sentkit.formats.vectors.store import open_inputs
from sentkit.formats.vectors.tensors import read_array, read_header
from sentkit.formats.vectors.vector_file import VectorFile
from sentkit.formats.vectors.vectors import VectorReader
from sentkit.formats.vectors.writers import VectorOutput
from sentkit.metrics.geometry import describe_transform
from sentkit.transforms.fitting import merge_transforms
from sentkit.transforms.steps import check_fitted, read_transform
from support import stored_rows

FORMATS = (None, "jsonl", "text", "tsv", "csv")
VECTORS = {
    "embeddings": np.arange(6, dtype=np.float32).reshape(2, 3),
    "row_offsets": np.array([0, 3, 6]),
    "rows": np.frombuffer(b"{}\n{}\n", np.uint8),
}
STORE = safetensors.numpy.save(
    VECTORS, {"sentkit": '{"vectors":["embedding"],"_emb":"m:010000000000"}'}
)
AFFINE = safetensors.numpy.save(
    {"kernel": np.eye(2, dtype=np.float32), "bias": np.ones((1, 2), np.float32)},
    {"sentkit": '{"kind":"pca"}'},
)
JSONL = (
    b'\xef\xbb\xbf{"text":"a \\u00e9 '
    b'b","id":1.10,"embedding":[0.5,-1e3],"_emb":"m:010000000000"}\r\n'
    b'\n{"text":"x"}\n'
)
TABLE = b'text,score,embedding\r\n"a, ""b""\nc",1.5,AACAPw==\r\nd\t,2,\n'
SAMPLES = [
    JSONL,
    TABLE,
    TABLE.replace(b",", b"\t"),
    STORE,
    AFFINE,
    gzip.compress(JSONL),
    zstandard.compress(JSONL),
]
MEMBERS = ["dtype", "shape", "data_offsets", "__metadata__", "embeddings", "rows"]
ANY = st.binary(max_size=200) | mutated(SAMPLES)


def read_texts(path, format=None):
    return list(Inputs([path], format).read(TextParser({})))


def read_vectors(inputs):
    return list(VectorReader(inputs).blocks())


@some
@given(content=ANY)
@pytest.mark.parametrize("format", FORMATS)
def test_rows_of_every_format(write, format, content):
    """If bad rows are skipped, every line is a row or a reject.

    Then the only error is that of a table's header, because each other fault concerns one row.
    """
    path = write("a", content)
    rejects = Rejects(skip=True)
    rows = []
    problem = ""

    survives(lambda: read_texts(path, format))
    survives(lambda: read_vectors(Inputs([path], format)))
    try:
        rows = list(Inputs([path], format, rejects=rejects).read(lambda row: row))
    except DataError as error:
        problem = str(error)

    header = format in ("tsv", "csv") and problem.startswith(f"{path}:1: ")
    expected = ""
    if not rows:
        expected = f"no rows in {path}"
        if rejects.count:
            expected = f"no valid rows in {path}; bad rows: {rejects.count}"
    assert header or problem == expected
    lines = content.count(b"\n") + 1
    assert len(rows) + rejects.count <= lines
    assert all(orjson.loads(row.line) == row.values for row in rows)


@some
@given(content=ANY)
@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.csv.zst", "a.safetensors"])
def test_files_of_every_suffix(write, name, content):
    path = write(name, content)

    survives(lambda: read_texts(path))
    survives(lambda: read_vectors(open_inputs([path])))
    survives(lambda: read_header(path))
    survives(lambda: stored_rows(path) + list(VectorFile(path).blocks()))
    survives(lambda: [read_array(path, name) for name in read_header(path).entries])
    survives(lambda: read_transform(path))


@some
@given(content=mutated([JSONL, STORE]))
def test_joined_rows_have_one_line_each(write, content):
    path = write("a.safetensors" if content[7:8] == b"\0" else "a.jsonl", content)
    out = Path(path).with_name("out.jsonl")
    out.unlink(missing_ok=True)

    survives(
        lambda: convert(
            open_inputs([path]),
            str(out),
            VectorOutput(replace=True),
            head=None,
            encoding_in_jsonl=None,
        )
    )

    lines = out.read_bytes().split(b"\n")[:-1] if out.exists() else []
    assert all(isinstance(json.loads(line), dict) for line in lines)


HEADERS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2**64 - 1)
    | st.floats()
    | st.sampled_from(["F32", "U8", "x"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(MEMBERS), inner),
    max_leaves=20,
)


@some
@given(header=HEADERS)
def test_headers_of_any_json(write, header):
    text = json.dumps(header).replace("NaN", "null").replace("Infinity", "1e999")
    raw = text.encode()
    path = write("a.safetensors", len(raw).to_bytes(8, "little") + raw + bytes(16))

    survives(lambda: [read_array(path, name) for name in read_header(path).entries])
    survives(lambda: stored_rows(path))
    survives(lambda: read_transform(path))


# Transforms

NOTE = {
    "kind": "whitening",
    "_emb": "m:a1b2c3d4e5f6",
    "dim": 2,
    "width": 2,
    "inputs": [{"file": "x", "rows": 3, "blake2b": "00"}],
}


@some
@given(data=st.data())
def test_notes_of_transforms_with_any_value(write, data):
    """Each command that reads a transform: applied, added up, and shown."""
    path = data.draw(st.sampled_from(places(NOTE)))
    note = replaced(NOTE, path, data.draw(ODD))
    transform = write("w.safetensors", affine_file(note))
    other = write("v.safetensors", affine_file(NOTE))

    is_read_or_bad_data(lambda: read_transform(transform))
    is_read_or_bad_data(lambda: check_fitted(transform, "m:a1b2c3d4e5f6"))
    is_read_or_bad_data(lambda: merge_transforms([transform, other]))
    is_read_or_bad_data(lambda: merge_transforms([other, transform]))
    is_read_or_bad_data(lambda: describe_transform(transform))


def affine_file(note):
    arrays = {
        "kernel": np.eye(2),
        "bias": np.ones((1, 2)),
        "count": np.array([3.0]),
        "mean": np.ones(2),
        "scatter": np.array([[2.0, 1.0], [1.0, 3.0]]),
    }
    return safetensors.numpy.save(arrays, {"sentkit": json.dumps(note)})


def test_the_unchanged_transform_is_valid(write):
    paths = [write(name, affine_file(NOTE)) for name in ("a.safetensors", "b.safetensors")]

    assert merge_transforms(paths).sample.moments.count == 6
