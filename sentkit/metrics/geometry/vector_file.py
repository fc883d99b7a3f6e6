"""The report of `inspect` about a vector file, JSONL rows with vectors, or an affine file."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from sentkit.arrays import Float32
from sentkit.errors import NoRowsError
from sentkit.formats.files import readable
from sentkit.formats.rows.rows import Inputs, Row, blocks
from sentkit.formats.vectors.folders import is_vector_folder
from sentkit.formats.vectors.safetensors_header import read_header
from sentkit.formats.vectors.store import Store, is_store
from sentkit.formats.vectors.vectors import VectorReader
from sentkit.metrics.geometry.geometry import Geometry
from sentkit.metrics.geometry.transform_file import describe_transform
from sentkit.metrics.geometry.vector_counts import count_vectors
from sentkit.transforms.flow import PARAMETERS

ROWS_PER_BLOCK = 256  # rows


class LenientReader(VectorReader):
    """A reader that accepts vectors with NaN or infinity, so that they can be counted."""

    def check(self, row: Row, vectors: Float32) -> None:
        pass


def describe_vectors(inputs: Inputs, geometry: Geometry | None = None) -> dict[str, Any]:
    """Describe the only file of the inputs."""
    (path,) = inputs.paths
    if is_store(path):
        entries = {} if is_vector_folder(path) else read_header(path).entries
        if entries and "embeddings" not in entries:
            is_transform = {"kernel", "bias"} <= entries.keys() or entries.keys() == {PARAMETERS}
            return describe_transform(path) if is_transform else describe_tensors(path)
        file = Store(path)
        aligned = geometry is not None and geometry.alignment is not None  # needs rows
        vectors = stacked(LenientReader(inputs), geometry) if aligned else file.blocks()
        described = {"rows": file.count, "vectors_per_row": list(file.names), "store": file.kind}
        described |= measured(vectors, geometry)
        spec = {name: value for name, value in file.spec.items() if name != "vectors"}
        return {"file": readable(path), **described, "spec": spec}
    reader = LenientReader(inputs)
    counted = measured(stacked(reader, geometry), geometry)
    rows = counted["vectors"] // max(1, len(reader.names))
    if not rows:
        raise NoRowsError([path])
    described = {"rows": rows, "vectors_per_row": list(reader.names), **counted}
    return {"file": readable(path), **described, "spec": {"_emb": reader.emb}}


def measured(vectors: Iterable[Float32], geometry: Geometry | None) -> dict[str, Any]:
    """Count the vectors, and measure their geometry if requested, in one pass."""
    if geometry is None:
        return asdict(count_vectors(vectors))
    return {**asdict(count_vectors(geometry.watch(vectors))), "geometry": geometry.record()}


def stacked(reader: VectorReader, geometry: Geometry | None) -> Iterator[Float32]:
    for block in blocks(reader.read(geometry.take if geometry else lambda row: row), ROWS_PER_BLOCK):
        yield np.stack([row.vectors for row in block])


def describe_tensors(path: str) -> dict[str, Any]:
    """A safetensors file without row vectors, for example a transform."""
    header = read_header(path)
    shapes = {name: f"{e.dtype} {' x '.join(map(str, e.shape))}" for name, e in header.entries.items()}
    return {"file": readable(path), "tensors": shapes, "metadata": dict(header.metadata)}
