"""Reports of clusterings: agreement with gold classes, and comparison of several numbers of clusters."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sentkit.errors import DataError
from sentkit.formats.files import readable
from sentkit.formats.vectors.vectors import VectorRow
from sentkit.labels.classes import class_of
from sentkit.labels.clusters.clustering_run import Work
from sentkit.labels.clusters.vector_rows import Points, check_some
from sentkit.metrics.clustering.agreement import MEASURES, measures
from sentkit.metrics.clustering.silhouette import Silhouette
from sentkit.metrics.clustering.stability import agreement

Record = dict[str, Any]


def agreement_records(work: Work, truth: str) -> Iterator[Record]:
    """A record for each seed, and one of their mean. Values x 100; noise counts as one additional cluster."""
    names: list[str] = []

    def line(row: VectorRow, _: str | None) -> bytes:
        names.append(class_of(row.row, truth))
        return b""

    points = work.points(line)
    check_some(points)
    known, classes = np.unique(np.array(names, dtype=object), return_inverse=True)
    if len(known) == 1:
        problem = f'"{truth}" is the same in all {len(points)} rows: nothing to compare clusters with'
        raise DataError(problem, source=points.source)
    head = {**head_of(work, points), "classes": len(known)}
    count = len(known) if work.plan.as_classes else work.plan.counts[0]
    records = []
    for seed, found in zip(work.plan.seeds, work.runs(points, count), strict=True):
        agreed = {name: 100.0 * value for name, value in measures(classes, found.labels).items()}
        noise = int((found.labels < 0).sum())
        how = {"noise": noise, "inertia": found.inertia, "iterations": found.iterations}
        drawn = seed if work.plan.random else None
        records.append({**head, "k": len(found.centres), "seed": drawn, **agreed, **how})
        yield records[-1]
    if len(records) > 1:
        yield {**head, "k": count, "seeds": list(work.plan.seeds), **means_of(records)}


def means_of(records: Sequence[Record]) -> Record:
    """The means over seeds, and the sample standard deviations."""
    found: Record = {}
    for name in (*MEASURES, "inertia"):
        values = [record[name] for record in records]
        found |= {f"{name}_mean": statistics.fmean(values), f"{name}_sd": statistics.stdev(values)}
    return found


def count_records(work: Work) -> Iterator[Record]:
    """A record for each number of clusters. Silhouette and inertia are means over the seeds."""
    points = work.points(lambda row, _: b"")
    check_some(points)
    seeds = list(work.plan.seeds)
    silhouette = Silhouette(points.rows, np.random.default_rng(seeds[0]))
    for count in work.plan.counts:
        runs = list(work.runs(points, count))
        yield {
            **head_of(work, points),
            "k": count,
            "seeds": seeds if work.plan.random else None,
            "silhouette": mean([silhouette.of(run.labels) for run in runs]),
            "sample": len(silhouette.places),
            "agreement": scaled(agreement([run.labels for run in runs])),
            "inertia": mean([run.inertia for run in runs]),
        }


def head_of(work: Work, points: Points) -> Record:
    named = {"file": readable(points.source), "encoder": points.space}
    return {**named, "n": len(points), "algorithm": work.plan.algorithm}


def mean(values: Sequence[float | None]) -> float | None:
    """The mean; None if a value is None."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if len(known) == len(values) else None


def scaled(value: float | None) -> float | None:
    return None if value is None else 100.0 * value
