"""The report of `inspect` about a vector file, JSONL rows with vectors, or a transform."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentkit.arrays import Float32
from sentkit.errors import NoRowsError
from sentkit.formats.files import readable
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.folders import is_vector_folder
from sentkit.formats.vectors.store import Store, is_store
from sentkit.formats.vectors.tensors import Header, read_header
from sentkit.formats.vectors.vectors import VectorReader, joined, resized
from sentkit.metrics.geometry.geometry import Alignment, Geometry
from sentkit.transforms.flow import PARAMETERS
from sentkit.transforms.kinds import MOMENTS
from sentkit.transforms.steps import read_fit_note


def describe_transform(path: str) -> dict[str, Any]:
    """The fields of its note, with `_emb` renamed to `fitted_on`, and the shapes of its tensors."""
    header, note = read_header(path), read_fit_note(path)
    kernel = header.entries["kernel"].shape if "kernel" in header.entries else ()
    known = {
        "file": readable(path),
        "kind": note.pop("kind", "affine"),
        **dict(zip(("width", "kept"), kernel, strict=False)),
    }
    fitted_on = note.pop("_emb", None)
    return {
        **known,
        **note,
        **known,  # these override the note
        "fitted_on": fitted_on,
        "mergeable": header.entries.keys() >= set(MOMENTS),
        "tensors": shapes(header),
    }


class VectorCounter:
    """Counts over blocks of vectors. Duplicates are found by a key of eight bytes per vector."""

    def __init__(self) -> None:
        self.count = self.broken = self.zero = self.width = 0
        self.total, self.least, self.most = 0.0, math.inf, 0.0
        self.keys: list[NDArray[np.uint64]] = []

    def add(self, vectors: Float32) -> None:
        """Add vectors (n, d)."""
        self.count += len(vectors)
        self.width = vectors.shape[1]
        self.keys.append(keys(vectors))
        whole = np.isfinite(vectors).all(axis=1)
        self.broken += int((~whole).sum())
        norms = np.sqrt(np.einsum("nd,nd->n", vectors[whole], vectors[whole], dtype=np.float64))
        if norms.size:
            self.zero += int((norms == 0).sum())
            self.total += float(norms.sum())
            self.least, self.most = min(self.least, float(norms.min())), max(self.most, float(norms.max()))

    def record(self) -> dict[str, Any]:
        distinct = len(np.unique(np.concatenate(self.keys))) if self.keys else 0
        whole = self.count - self.broken
        return {
            "vectors": self.count,
            "numbers": self.width,  # of one vector
            "norm": {"min": self.least, "mean": self.total / whole, "max": self.most} if whole else None,
            "zero": self.zero,
            "nan_or_infinite": self.broken,
            "duplicates": self.count - distinct,
        }


def keys(vectors: Float32) -> NDArray[np.uint64]:
    """A hash for each vector, equal for equal bits: a sum of mixed words, modulo 2^64.

    Numbers such as +1 and -1 differ in one high bit, so each product moves its high bits to all others.
    """
    words = np.ascontiguousarray(vectors, dtype="<f4").view("<u4").astype(np.uint64)
    generator = np.random.Generator(np.random.Philox(0))
    numbers = generator.integers(0, 2**63, (2, words.shape[1]), dtype=np.uint64)
    for odd in numbers * np.uint64(2) + np.uint64(1):
        words *= odd
        words ^= words >> np.uint64(32)
    return words.sum(axis=1, dtype=np.uint64)


ROWS_PER_BLOCK = 256  # rows


class LenientReader(VectorReader):
    """A reader that accepts vectors with NaN or infinity, so that they can be counted."""

    def check(self, row: Row, vectors: Float32) -> None:
        pass


def describe_vectors(inputs: Inputs, geometry: Geometry | None = None) -> dict[str, Any]:
    """Describe the only file of the inputs."""
    (path,) = inputs.paths
    alignment = None if geometry is None else geometry.alignment  # needs rows
    if is_store(path):
        entries = {} if is_vector_folder(path) else read_header(path).entries
        if entries and "embeddings" not in entries:
            is_transform = {"kernel", "bias"} <= entries.keys() or entries.keys() == {PARAMETERS}
            return describe_transform(path) if is_transform else describe_tensors(path)
        file = Store(path)
        vectors = stacked(LenientReader(inputs), alignment) if alignment else file.blocks()
        described = {"rows": file.count, "vectors_per_row": list(file.names), "store": file.kind}
        described |= measured(vectors, geometry)
        spec = {name: value for name, value in file.spec.items() if name != "vectors"}
        return {"file": readable(path), **described, "spec": spec}
    reader = LenientReader(inputs)
    counted = measured(stacked(reader, alignment), geometry)
    rows = counted["vectors"] // max(1, len(reader.names))
    if not rows:
        raise NoRowsError([path])
    described = {"rows": rows, "vectors_per_row": list(reader.names), **counted}
    return {"file": readable(path), **described, "spec": {"_emb": reader.emb}}


def measured(blocks: Iterable[Float32], geometry: Geometry | None) -> dict[str, Any]:
    """Count the vectors of blocks (n, k, d), and measure their geometry if requested, in one pass."""
    counter = VectorCounter()
    for block in blocks:
        vectors = block.reshape(-1, block.shape[-1])
        counter.add(vectors)
        if geometry is not None:
            geometry.add(vectors)
    return counter.record() | ({} if geometry is None else {"geometry": geometry.record()})


def stacked(reader: VectorReader, alignment: Alignment | None) -> Iterator[Float32]:
    blocks = reader.blocks(alignment.check) if alignment else reader.blocks()
    for block in resized(blocks, joined, ROWS_PER_BLOCK):
        if alignment is not None:
            alignment.add(block)
        yield block.vectors


def describe_tensors(path: str) -> dict[str, Any]:
    """A safetensors file without row vectors, for example a part of a model."""
    header = read_header(path)
    return {"file": readable(path), "tensors": shapes(header), "metadata": dict(header.metadata)}


def shapes(header: Header) -> dict[str, str]:
    return {name: f"{each.dtype} {' x '.join(map(str, each.shape))}" for name, each in header.entries.items()}
