"""The report of `inspect` about a vector file, JSONL rows with vectors, or a transform."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentkit.arrays import Float32
from sentkit.errors import NoRowsError
from sentkit.formats.files import readable
from sentkit.formats.rows.rows import Inputs, Row, blocks
from sentkit.formats.vectors.folders import is_vector_folder
from sentkit.formats.vectors.safetensors_header import read_header
from sentkit.formats.vectors.store import Store, is_store
from sentkit.formats.vectors.vectors import VectorReader
from sentkit.metrics.geometry.geometry import Geometry
from sentkit.transforms.affine import read_fit_note
from sentkit.transforms.flow import PARAMETERS
from sentkit.transforms.moments import MOMENTS


def describe_transform(path: str) -> dict[str, Any]:
    """The fields of its note, with `_emb` renamed to `fitted_on`, and the shapes of its tensors."""
    entries, note = read_header(path).entries, read_fit_note(path)
    known = {
        "file": readable(path),
        "kind": note.pop("kind", "affine"),
        **dict(zip(("width", "kept"), entries["kernel"].shape if "kernel" in entries else (), strict=False)),
    }
    fitted_on = note.pop("_emb", None)
    return {
        **known,
        **note,
        **known,  # these override the note
        "fitted_on": fitted_on,
        "mergeable": entries.keys() >= set(MOMENTS),
        "tensors": {name: f"{e.dtype} {' x '.join(map(str, e.shape))}" for name, e in entries.items()},
    }


@dataclass(frozen=True, slots=True)
class Norms:
    min: float
    mean: float
    max: float


@dataclass(frozen=True, slots=True)
class VectorCounts:
    vectors: int
    numbers: int  # of one vector
    norm: Norms | None  # None without a finite vector
    zero: int
    nan_or_infinite: int
    duplicates: int


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

    def counts(self) -> VectorCounts:
        distinct = len(np.unique(np.concatenate(self.keys))) if self.keys else 0
        whole = self.count - self.broken
        norm = Norms(self.least, self.total / whole, self.most) if whole else None
        return VectorCounts(self.count, self.width, norm, self.zero, self.broken, self.count - distinct)


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


def count_vectors(blocks: Iterable[Float32]) -> VectorCounts:
    """Count blocks (n, k, d)."""
    counter = VectorCounter()
    for block in blocks:
        counter.add(block.reshape(-1, block.shape[-1]))
    return counter.counts()


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
