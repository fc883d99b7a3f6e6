"""Reports of clusterings: descriptions of clusters, agreement with gold classes, and numbers of clusters."""

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from sentkit.arrays import Float32
from sentkit.digits import decimals
from sentkit.errors import DataError
from sentkit.formats.files import readable
from sentkit.formats.rows.block import RowBlock
from sentkit.formats.rows.kinds import class_of
from sentkit.labels.clusters.clustering import Clustering, distances
from sentkit.labels.clusters.clustering_run import ClusteringRun, Points, nothing
from sentkit.metrics.clusters import MEASURES, Silhouette, agreement, keywords, measures

Record = dict[str, Any]  # a JSON object


def descriptions(
    points: Points, clustering: Clustering, names: Sequence[str], count: int, nearest: int
) -> Iterator[Record]:
    """A record for each cluster, with `count` keywords and the rows nearest to its centre.

    Keywords need texts. The text of a row is the first of the fields `names` that is a string.
    """
    central = nearest_rows(points.rows, clustering, nearest)
    needed = {row for own in central for row in own}
    kept: dict[int, dict[str, Any]] = {}

    def texts() -> Iterator[tuple[int, str]]:
        labels = clustering.labels.tolist()
        for place, (row, label) in enumerate(zip(points.kept_rows(), labels, strict=True)):
            fields = (row.values.get(name) for name in names)
            text = next((value for value in fields if isinstance(value, str)), None)
            if place in needed:
                kept[place] = points.inputs.place_of(row) | ({} if text is None else {"text": text})
            if text is not None:
                yield label, text

    best = keywords(texts(), len(clustering.centres), count)
    for label, size in enumerate(clustering.sizes.tolist()):
        rows = [kept[place] for place in central[label]]
        yield {"cluster": label, "size": size, "keywords": best[label], "nearest": rows}


def nearest_rows(rows: Float32, clustering: Clustering, count: int) -> list[list[int]]:
    """For each cluster, its rows nearest to its centre, nearest first."""
    inside = np.flatnonzero(clustering.labels >= 0)
    labels = clustering.labels[inside]
    order = inside[np.lexsort((distances(rows, clustering.centres, inside, labels), labels))]
    ends = np.cumsum(clustering.sizes)
    return [part[:count].tolist() for part in np.split(order, ends[:-1])]


def agreement_records(run: ClusteringRun, truth: str) -> Iterator[Record]:
    """A record for each seed, and one of their mean. Values x 100; noise counts as one additional cluster."""

    def check(rows: RowBlock) -> None:
        rows.parse(lambda row: class_of(row, truth).encode())

    points = run.points(lambda block, _: [name for (name,) in block.rows.texts], check)
    known, classes = np.unique(np.array(points.lines, dtype=object), return_inverse=True)
    if len(known) == 1:
        problem = f'"{truth}" is the same in all {len(points)} rows, expected 2 classes or more'
        raise DataError(problem, source=points.source)
    header = {**report_header(run, points), "classes": len(known)}
    count = run.counts[0] or (len(known) if run.counted else 0)
    records = []
    for seed, clustering in zip(run.seeds, run.clusterings(points, count), strict=True):
        values = measures(classes, clustering.labels)
        record = {
            **header,
            "k": len(clustering.centres),
            "seed": seed if run.random else None,
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
        yield {**header, "k": count, "seeds": list(run.seeds), **means}


def count_records(run: ClusteringRun) -> Iterator[Record]:
    """A record for each number of clusters. Silhouette and inertia are means over the seeds."""
    points = run.points(nothing)
    seeds, inside = list(run.seeds), slice(None) if points.kept is None else points.kept
    silhouette = Silhouette(points.clustered, np.random.default_rng(seeds[0]))
    for count in run.counts:
        clusterings = list(run.clusterings(points, count))
        agreed = agreement([each.labels for each in clusterings])
        yield {
            **report_header(run, points),
            "k": count,
            "seeds": seeds if run.random else None,
            "silhouette": mean_if_known([silhouette.of(each.labels[inside]) for each in clusterings]),
            "sample": len(silhouette.places),
            "agreement": None if agreed is None else 100.0 * agreed,
            "inertia": mean_if_known([each.inertia for each in clusterings]),
        }


def report_header(run: ClusteringRun, points: Points) -> Record:
    algorithm = run.algorithm if run.centroids is None else "centroids"
    named = {"file": readable(points.source), "encoder": points.space}
    return {**named, "n": len(points), "algorithm": algorithm}


def mean_if_known(values: Sequence[float | None]) -> float | None:
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
        "n": str(record["n"]),
        "k": str(record["k"]),
        **dict(zip(COLUMN_OF.values(), cells, strict=True)),
        "iterations": "" if iterations is None else str(iterations),
    }


def count_line(record: Record) -> dict[str, str]:
    return {
        "n": str(record["n"]),
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
