"""Reads the rows that are clustered, and centroids.

Letters in shapes: n rows, d dimensions.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import orjson

from sentkit.arrays import Float32, Indices
from sentkit.formats.rows.block import RowBlock
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.arrays import first_vectors, places_of_texts
from sentkit.formats.vectors.fingerprint import UNNAMED, Space
from sentkit.formats.vectors.store import open_inputs
from sentkit.formats.vectors.vectors import VectorBlock, VectorReader, one_vector
from sentkit.labels.clusters.clustering import spans
from sentkit.metrics.neighbours.corpus import Lines, VectorTable, read_into_memory, read_table
from sentkit.transforms.steps import Step

MAX_MAGNITUDE = 1e15  # maximum; the squared distance of larger vectors may exceed float32
TOO_LARGE = f"the vector has a value above {MAX_MAGNITUDE:.0e}, so squared distances would overflow"


@dataclass(frozen=True, slots=True)
class Points:
    table: VectorTable
    vectors: Float32  # (n, d): as read
    rows: Float32  # (n, d): as clustered
    space: str | None  # the `_emb` of `rows`
    nonzero: Indices | None  # the indices of the rows that are clustered; None: all

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def clustered(self) -> Float32:
        """The rows without zero vectors, which have the label -1."""
        return self.rows if self.nonzero is None else self.rows[self.nonzero]


def read_points(
    inputs: Inputs,
    check: Callable[[RowBlock], None] = lambda rows: None,
    step: Step | None = None,
    lines_of: Lines | None = None,
    *,
    in_memory: bool = False,
) -> Points:
    """Read all rows. Those of a single vector file stay there, and its vectors are memory-mapped,
    unless the caller needs them `in_memory`.
    """

    def check_block(block: VectorBlock) -> VectorBlock:
        largest = np.abs(one_vector(block).vectors).max(axis=(1, 2))
        for index in np.flatnonzero(largest > MAX_MAGNITUDE).tolist():
            block.rows.refuse(index, TOO_LARGE)
        check(block.rows)
        return block

    if in_memory:
        reader = VectorReader(inputs)
        table = read_into_memory(inputs, reader, check_block, lines_of, with_files=True)
    else:
        table = read_table(inputs, check_block, lines_of=lines_of)
    stored = table.vectors
    if not isinstance(stored, np.ndarray):
        stored = inputs.open_vector_file(inputs.paths[0]).memory_mapped()
    vectors = stored[:, 0]

    # The values of all rows: of a vector file, `check_block` gets only the first row.
    rows = vectors if step is None else np.empty(vectors.shape, np.float32)
    for span in spans(len(vectors)):
        largest = np.abs(vectors[span]).max(axis=1)
        for index in np.flatnonzero(largest > MAX_MAGNITUDE).tolist():
            raise table.row(span.start + index).error(TOO_LARGE)
        if step is not None:
            rows[span] = step(vectors[span])

    space = table.space_name
    if step is not None:
        label, _, digest = (space or UNNAMED.name).rpartition(":")
        space = Space(label, digest).after_step(step.suffix, step.hash).name
    return Points(table, vectors, rows, space, places_of_texts(first_vectors(table.vectors)))


def read_centroids(path: str) -> Points:
    """Read centroids. They are numbered from 0 in row order; a field "cluster" must agree
    with it. A vector file is verified, because one changed centroid moves many rows.
    """
    inputs = open_inputs([path])
    store = inputs.open_vector_file(path)
    if store is not None:
        for file in store.files:
            file.verify()
    points = read_points(inputs)
    for number, row in enumerate(points.table.every_row()):
        if row.values.get("cluster", number) != number:
            problem = (
                f'"cluster" is {orjson.dumps(row.values["cluster"]).decode()}, expected {number}'
            )
            raise row.error(problem)
    return points
