"""Rows with one vector, held in memory: the vectors as one array, and the rows without vectors."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sentkit.arrays import Float32
from sentkit.formats.files import together
from sentkit.formats.rows.lines import json_object
from sentkit.formats.rows.rows import Inputs, Row
from sentkit.formats.vectors.convert import common_spec
from sentkit.formats.vectors.fingerprint import UNNAMED, Spec
from sentkit.formats.vectors.store import Store, is_store
from sentkit.formats.vectors.vectors import VectorReader, VectorRow
from sentkit.labels.clusters.algorithms.nearest_centroid import spans
from sentkit.transforms.steps import Step

MAX_MAGNITUDE = 1e15  # maximum; the squared distance of larger vectors may exceed float32


@dataclass(frozen=True, slots=True)
class Points:
    vectors: Float32  # (n, d): as read
    rows: Float32  # (n, d): as clustered
    space: str | None  # the `_emb` of `rows`
    lines: list[bytes]  # the kept part of each row
    sources: list[str]  # the file of each row
    numbers: Sequence[int]  # of each row in its file
    spec: dict[str, Any]  # of `vectors`
    inputs: Inputs

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def source(self) -> str:
        """The name of the input in errors about all rows."""
        return together(self.inputs.paths)

    def kept_rows(self) -> Iterator[Row]:
        """The kept parts of the rows."""
        for line, source, number in zip(self.lines, self.sources, self.numbers, strict=True):
            yield Row(*json_object(line), source, number)


def read_points(
    inputs: Inputs, line: Callable[[VectorRow, str | None], bytes], step: Step | None = None
) -> Points:
    """Read all rows. `line` gets a row and the `_emb` of the input; it returns the kept part or raises.

    The vectors of a single vector file are memory-mapped. The step, if any, keeps their width.
    """
    reader = VectorReader(inputs)
    mapped = len(inputs.paths) == 1 and is_store(inputs.paths[0])
    lines: list[bytes] = []
    sources: list[str] = []
    numbers, flat = array("q"), bytearray()

    def take(row: VectorRow) -> None:
        if len(row.vectors) != 1:
            raise row.row.error(f"expected 1 vector for cluster, this row has {len(row.vectors)}")
        if np.abs(row.vectors).max() > MAX_MAGNITUDE:
            problem = f"the vector has a value above {MAX_MAGNITUDE:.0e}, so squared distances would overflow"
            raise row.row.error(problem)
        lines.append(line(row, reader.emb))
        sources.append(row.row.source)
        numbers.append(row.row.number)
        if not mapped:
            flat.extend(row.vectors.tobytes())

    for _ in reader.read(take):
        pass
    if mapped:
        vectors = selected(Store(inputs.paths[0]).mapped(), numbers)
    else:
        vectors = np.frombuffer(flat, "<f4").reshape(len(lines), reader.width)
    spec = {**common_spec(inputs), **({"_emb": reader.emb} if reader.emb else {})}
    rows, space = vectors, reader.emb
    if step is not None:
        rows = np.empty(vectors.shape, np.float32)
        for span in spans(len(vectors)):
            rows[span] = step(vectors[span])
        label, _, digest = (reader.emb or UNNAMED.emb).rpartition(":")
        space = Spec(label, digest).after(step.suffix, step.hash).emb
    return Points(vectors, rows, space, lines, sources, numbers, spec, inputs)


def selected(vectors: Float32, numbers: array) -> Float32:
    """Select the accepted rows by their numbers: (n, 1, d) -> (n', d)."""
    vectors = vectors[:, 0] if len(numbers) else vectors.reshape(0, vectors.shape[-1])
    return vectors if len(numbers) == len(vectors) else vectors[np.frombuffer(numbers, np.int64) - 1]
