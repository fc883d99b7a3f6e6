"""A file of vectors as `inspect` shows it: a vector file, JSONL rows with vectors, or an affine file."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentkit.errors import DataError
from sentkit.formats.files import readable
from sentkit.formats.rows import Inputs, Row, parse_fields
from sentkit.formats.store import Store, is_store
from sentkit.formats.tensors import read_header
from sentkit.formats.vectors import VECTOR_FIELDS, VectorReader
from sentkit.metrics.census import census
from sentkit.metrics.judged import blocks


class LenientReader(VectorReader):
    """Here a vector that is not finite is something to count."""

    def check(self, row: Row, vectors: NDArray[np.float32]) -> None:
        pass


def describe_vectors(path: str, format: str | None, fields: Sequence[str]) -> dict[str, Any]:
    if is_store(path):
        entries = read_header(path).entries
        if "embeddings" not in entries:
            return describe_tensors(path)
        file = Store(path)
        found = {"rows": file.count, "vectors_per_row": list(file.names), **census(file.blocks())}
        spec = {name: value for name, value in file.spec.items() if name != "vectors"}
        return {"file": readable(path), **found, "spec": spec}
    reader = LenientReader(Inputs([path], format, parse_fields(fields, VECTOR_FIELDS)))
    counted = census(stacked(reader))
    rows = counted["vectors"] // max(1, len(reader.names))
    if not rows:
        raise DataError("no rows", source=path)
    found = {"rows": rows, "vectors_per_row": list(reader.names), **counted}
    return {"file": readable(path), **found, "spec": {"_emb": reader.emb}}


def stacked(reader: VectorReader) -> Iterator[NDArray[np.float32]]:
    for block in blocks(reader.read(lambda row: row)):
        yield np.stack([row.vectors for row in block])


def describe_tensors(path: str) -> dict[str, Any]:
    """A safetensors file that holds something else than rows with vectors: a transform, say."""
    header = read_header(path)
    shapes = {name: f"{e.dtype} {' x '.join(map(str, e.shape))}" for name, e in header.entries.items()}
    return {"file": readable(path), "tensors": shapes, "metadata": dict(header.metadata)}
