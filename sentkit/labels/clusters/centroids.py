"""Centroids as rows with a vector: written by one clustering, and read to label other rows."""

from collections.abc import Iterable

import numpy as np
import orjson

from sentkit.arrays import Float64
from sentkit.errors import DataError
from sentkit.formats.rows.rows import Inputs, Row
from sentkit.formats.vectors.fingerprint import short_label, space_of
from sentkit.formats.vectors.sinks import VectorOutput, open_sinks
from sentkit.formats.vectors.vectors import without_vectors
from sentkit.labels.clusters.description import Description
from sentkit.labels.clusters.vector_rows import Points, read_points


def write_centroids(
    path: str, centres: Float64, descriptions: Iterable[Description], space: str | None, *, force: bool
) -> None:
    """Write a row for each cluster: its description and its centre."""
    vectors = centres.astype(np.float32)
    spec, names, width = {"_emb": space} if space else {}, ("embedding",), vectors.shape[1]
    with open_sinks([path], [spec], names, width, VectorOutput(force=force, replace=True)) as [sink]:
        for vector, description in zip(vectors, descriptions, strict=True):
            line = orjson.dumps(description)
            sink.write(Row(line, description, path, description["cluster"] + 1), vector[None])


def read_centroids(path: str) -> Points:
    """Read centroids. They are numbered from 0 in row order; a field "cluster" must agree with it."""
    points = read_points(Inputs([path]), lambda row, _: without_vectors(row.row, row.names).line)
    for number, row in enumerate(points.kept_rows()):
        if row.values.get("cluster", number) != number:
            problem = f'"cluster" is {orjson.dumps(row.values["cluster"]).decode()}, expected {number}'
            raise row.error(problem)
    return points


def check_space(centroids: Points, points: Points) -> None:
    """Refuse centroids of another space than the rows."""
    ours, theirs = points.space, centroids.space
    fit = ours == theirs if ours is None or theirs is None else space_of(ours) == space_of(theirs)
    if not fit:
        vectors, others = short_label(ours), short_label(theirs)
        problem = f"the vectors are {vectors}, the centroids of {centroids.source} are {others}"
        raise DataError(problem, source=points.source)
    width, wanted = points.rows.shape[1], centroids.rows.shape[1]
    if width != wanted:
        problem = f"the vector has {width} numbers, the centroids of {centroids.source} have {wanted}"
        raise DataError(problem, source=points.source)
