"""Target vectors: the dictionary entries that `sentkit build-entries` writes, with one vector per entry."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import torch
from numpy.typing import NDArray

from sentkit.errors import DataError
from sentkit.formats.files import readable
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.kinds import filled, string_in
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.fingerprint import space_of
from sentkit.formats.vectors.store import Store, is_store
from sentkit.formats.vectors.vector_file import BLOCK
from sentkit.formats.vectors.vectors import VectorBlock, VectorReader, one_vector
from sentkit.model.transformer.weights import aligned


@dataclass(frozen=True, slots=True)
class Entries:
    path: str
    vectors: NDArray[np.float32]  # (n, d)
    places: Mapping[str, int]  # name -> row
    spec: Mapping[str, Any]  # `_emb` and the origin of the vectors, as recorded in the file
    hash: str  # hash of names, vectors and their space

    @property
    def space(self) -> str:
        """The hash of the vectors' space, or an empty string if the file does not record it."""
        return recorded_space(self.spec)

    @property
    def lineage(self) -> dict[str, Any]:
        names = ("_emb", "model", "weights", "readout", "steps", "entries")
        recorded = {name: self.spec[name] for name in names if self.spec.get(name)}
        return {"file": readable(self.path), "hash": self.hash, "count": len(self.places), **recorded}

    def mismatch(self, tokenizer: str, family: object) -> str:
        """Return why the entries probably belong to a different kind of model, or an empty string."""
        made_by = self.spec.get("model", "another model")
        made = f"{self.path}: the entries were made with {made_by}"
        origin = self.spec.get("entries")
        theirs = origin.get("family") if isinstance(origin, dict) else None
        if theirs and theirs != family:
            return f"{made} ({theirs}), but the base is {family}"
        if self.spec.get("tokenizer", tokenizer) != tokenizer:
            return f"{made}, which has another tokenizer than the base"
        return ""


def read_entries(path: str) -> Entries:
    """Read all entries. The vectors of a vector file are memory-mapped, other vectors are copied once."""
    reader, places, values = VectorReader(Inputs([path])), dict[str, int](), bytearray()
    in_file = is_store(path)
    for block in reader.blocks(named):
        for row, [name] in zip(block.rows, block.rows.texts, strict=True):
            if name in places:
                raise row.error(f'the entry "{name:.80}" occurs twice')
            places[name] = len(places)
        if not in_file:
            values += block.vectors.astype("<f4", copy=False).tobytes()
    if not places:
        raise DataError("no entries", source=path)
    if in_file:
        matrix, spec = Store(path).mapped()[:, 0], dict(Store(path).spec)
    else:
        matrix = np.frombuffer(values, "<f4").reshape(len(places), reader.width)
        spec = {"_emb": reader.emb} if reader.emb else {}
    matrix = aligned(torch.from_numpy(matrix)).numpy()  # here, so that the methods of all seeds share it
    return Entries(path, matrix, places, spec, hash_of(places, matrix, recorded_space(spec)))


def recorded_space(spec: Mapping[str, Any]) -> str:
    emb = spec.get("_emb")
    return space_of(emb) if emb else ""


def named(block: VectorBlock) -> VectorBlock:
    """Set the entry of each row as its text."""
    block.rows.parse(lambda row: string_in(row, "entry"))
    return one_vector(block)


def hash_of(names: Iterable[str], vectors: NDArray[np.float32], space: str) -> str:
    """Hash names, vectors and space. The model label is excluded, because a folder can be renamed."""
    hash = hashlib.blake2b(orjson.dumps([space, *names]), digest_size=16)
    for start in range(0, len(vectors), BLOCK):
        hash.update(vectors[start : start + BLOCK].astype("<f4", copy=False).tobytes())
    return hash.hexdigest()


@dataclass(frozen=True, slots=True)
class Places:
    """The field "entry", one of these names."""

    places: Mapping[str, int]
    source: str
    why: str = ""  # no row is omitted

    def __call__(self, row: Row, name: str) -> float | None:
        word = filled(row, name)
        if word not in self.places:
            problem = f'the entry "{word:.80}" is not in {self.source}'
            raise row.error(problem, advice="run build-entries on these rows, or use --rejects FILE")
        return float(self.places[word])
