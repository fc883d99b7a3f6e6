"""Reports of clusterings: agreement with gold classes, comparison of numbers of clusters, and table rows."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sentkit.digits import decimals
from sentkit.errors import DataError
from sentkit.formats.files import readable
from sentkit.formats.rows.kinds import class_of
from sentkit.formats.vectors.vectors import VectorRow
from sentkit.labels.clusters.clustering_run import ClusteringRun
from sentkit.labels.clusters.vector_rows import Points
from sentkit.metrics.clustering.agreement import MEASURES, measures
from sentkit.metrics.clustering.silhouette import Silhouette
from sentkit.metrics.clustering.stability import agreement

Record = dict[str, Any]  # a JSON object


def agreement_records(run: ClusteringRun, truth: str) -> Iterator[Record]:
    """A record for each seed, and one of their mean. Values x 100; noise counts as one additional cluster."""
    names: list[str] = []

    def line(row: VectorRow, _: str | None) -> bytes:
        names.append(class_of(row.row, truth))
        return b""

    points = run.points(line)
    known, classes = np.unique(np.array(names, dtype=object), return_inverse=True)
    if len(known) == 1:
        problem = f'"{truth}" is the same in all {len(points)} rows, expected 2 classes or more'
        raise DataError(problem, source=points.source)
    header = {**report_header(run, points), "classes": len(known)}
    count = len(known) if run.plan.as_classes else run.plan.counts[0]
    records = []
    for seed, clustering in zip(run.plan.seeds, run.clusterings(points, count), strict=True):
        values = measures(classes, clustering.labels)
        record = {
            **header,
            "k": len(clustering.centres),
            "seed": seed if run.plan.random else None,
            **{name: 100.0 * value for name, value in values.items()},
            "noise": int((clustering.labels < 0).sum()),
            "inertia": clustering.inertia,
            "iterations": clustering.iterations,
        }
        records.append(record)
        yield record
    if len(records) > 1:
        means: Record = {}
        for name in (*MEASURES, "inertia"):
            of_seeds = [record[name] for record in records]
            means[f"{name}_mean"] = statistics.fmean(of_seeds)
            means[f"{name}_sd"] = statistics.stdev(of_seeds)  # of the sample
        yield {**header, "k": count, "seeds": list(run.plan.seeds), **means}


def count_records(run: ClusteringRun) -> Iterator[Record]:
    """A record for each number of clusters. Silhouette and inertia are means over the seeds."""
    points = run.points(lambda row, _: b"")
    seeds = list(run.plan.seeds)
    silhouette = Silhouette(points.rows, np.random.default_rng(seeds[0]))
    for count in run.plan.counts:
        clusterings = list(run.clusterings(points, count))
        agreed = agreement([each.labels for each in clusterings])
        yield {
            **report_header(run, points),
            "k": count,
            "seeds": seeds if run.plan.random else None,
            "silhouette": mean([silhouette.of(each.labels) for each in clusterings]),
            "sample": len(silhouette.places),
            "agreement": None if agreed is None else 100.0 * agreed,
            "inertia": mean([each.inertia for each in clusterings]),
        }


def report_header(run: ClusteringRun, points: Points) -> Record:
    named = {"file": readable(points.source), "encoder": points.space}
    return {**named, "n": len(points), "algorithm": run.plan.algorithm}


def mean(values: Sequence[float | None]) -> float | None:
    """The mean; None if a value is None."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if len(known) == len(values) else None


# V-measure equals NMI with the arithmetic mean, so only the JSON report has it.
COLUMN_OF = {"acc": "ACC", "nmi": "NMI", "ari": "ARI", "ami": "AMI", "inertia": "inertia"}


def agreement_line(record: Record) -> dict[str, str]:
    """The row of one seed, or of the mean over seeds with standard deviations."""
    if "seeds" in record:
        seed, iterations = "mean (sd)", None
        cells = [f"{record[f'{name}_mean']:.2f} ({record[f'{name}_sd']:.2f})" for name in COLUMN_OF]
    else:
        seed, iterations = record["seed"], record["iterations"]
        cells = [decimals(record[name]) for name in COLUMN_OF]
    return {
        "seed": "" if seed is None else str(seed),
        "k": str(record["k"]),
        **dict(zip(COLUMN_OF.values(), cells, strict=True)),
        "iterations": "" if iterations is None else str(iterations),
    }


def count_line(record: Record) -> dict[str, str]:
    return {
        "k": str(record["k"]),
        "silhouette": decimals(record["silhouette"], 4),
        "agreement x 100": decimals(record["agreement"]),
        "inertia": decimals(record["inertia"]),
    }


def description_line(record: Record) -> dict[str, str]:
    return {
        "cluster": str(record["cluster"]),
        "size": str(record["size"]),
        "keywords": " ".join(record["keywords"]),
        "nearest": " | ".join(each.get("text", f"row {each['row']}") for each in record["nearest"]),
    }
