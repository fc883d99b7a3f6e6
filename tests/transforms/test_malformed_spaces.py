"""All readers of vectors and transforms refuse a malformed name of a space."""

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentkit.errors import DataError
from sentkit.formats.vectors.file_writer import create_vector_file
from sentkit.formats.vectors.fingerprint import emb_problem
from sentkit.formats.vectors.store import open_inputs
from sentkit.formats.vectors.vector_file import VectorFile
from sentkit.formats.vectors.vectors import VectorReader
from sentkit.labels.clusters.points import read_centroids
from sentkit.metrics.geometry import describe_transform, describe_vectors
from sentkit.metrics.neighbours.corpus import read_search_corpus
from sentkit.papers.defsent.plus import read_entries
from sentkit.transforms.fitting import read_fitted_sample
from sentkit.transforms.steps import check_fitted, read_transform
from support import write_affine

GOOD = "m/cls:0123456789ab"
NEARLY = st.tuples(st.integers(0, len(GOOD)), st.integers(0, 3), st.text(max_size=2)).map(
    lambda edit: GOOD[: edit[0]] + edit[2] + GOOD[edit[0] + edit[1] :]
)
MALFORMED = st.one_of(st.sampled_from(["", "x:", "y:", ":"]), st.text(), NEARLY).filter(emb_problem)


def jsonl(folder, emb):
    path = folder / "a.jsonl"
    path.write_bytes(
        orjson.dumps({"entry": "e", "text": "t", "embedding": [1, 2], "_emb": emb}) + b"\n"
    )
    return str(path)


def vector_file(folder, emb):
    path = folder / "a.safetensors"
    with create_vector_file(str(path), {"_emb": emb}, ["embedding"], width=2, force=True) as writer:
        writer.write([b'{"entry":"e","text":"t"}'], np.ones((1, 1, 2), np.float32))
    return str(path)


def transform(folder, emb):
    path = folder / "t.safetensors"
    path.unlink(missing_ok=True)  # of the example before
    write_affine(path, np.eye(2), np.zeros((1, 2)), {"kind": "pca", "_emb": emb})
    return str(path)


def read(path):
    list(VectorReader(open_inputs([path])).blocks())


READERS = {
    "rows": (jsonl, read),
    "a vector file": (vector_file, read),
    "the vectors of a file alone": (vector_file, lambda path: list(VectorFile(path).blocks())),
    "entries in rows": (jsonl, read_entries),
    "entries in a vector file": (vector_file, read_entries),
    "a corpus": (jsonl, lambda path: read_search_corpus(open_inputs([path]))),
    "centroids": (jsonl, read_centroids),
    "inspect, of rows": (jsonl, lambda path: describe_vectors(open_inputs([path]))),
    "inspect, of a vector file": (vector_file, lambda path: describe_vectors(open_inputs([path]))),
    "inspect, of a transform": (transform, describe_transform),
    "a transform": (transform, read_transform),
    "the check of a transform": (transform, lambda path: check_fitted(path, GOOD)),
    "a transform to merge": (transform, read_fitted_sample),
}


@given(emb=MALFORMED)
@pytest.mark.parametrize(("write", "reader"), READERS.values(), ids=READERS)
def test_a_malformed_name_is_refused_by_every_reader(tmp_path, write, reader, emb):
    with pytest.raises(DataError, match=r'(?s)"_emb" is .+ expected LABEL:HASH'):
        reader(write(tmp_path, emb))
