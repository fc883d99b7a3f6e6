"""What a command line asks of a clustering: which algorithm, how many clusters, which seeds."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sentkit.errors import DataError, UsageError
from sentkit.labels.clusters.catalogue import ALGORITHMS, RANDOM
from sentkit.labels.clusters.centroids import check_space, read_centroids
from sentkit.labels.clusters.clustering import Clustering, Wanted, given
from sentkit.labels.clusters.libraries import LARGEST
from sentkit.labels.clusters.points import Points

FLAGS = {  # those that only some algorithms look at
    "--n-init": RANDOM,
    "--linkage": ("agglomerative",),
    "--min-cluster-size": ("hdbscan",),
}
FIELDS = {"--n-init": "restarts", "--linkage": "linkage", "--min-cluster-size": "least"}


@dataclass(frozen=True, slots=True)
class Plan:
    algorithm: str
    counts: Sequence[int]  # of clusters; 0 where they are found or given
    seeds: Sequence[int]
    wanted: Wanted = field(default_factory=Wanted)
    as_classes: bool = False  # as many clusters as there are classes, once these are known

    def run(self, points: Points, seed: int, count: int) -> Clustering:
        """Equal rows, numbers and seeds make equal clusterings. No cluster is without rows."""
        algorithm = ALGORITHMS[self.algorithm]
        wanted = replace(self.wanted, count=count)
        return algorithm(points.rows, wanted, np.random.RandomState(seed)).without_empty()

    def check(self, points: Points) -> None:
        """Refuse what cannot be done with so many rows, before it is begun."""
        count, source = len(points), points.source
        most = LARGEST.get(self.algorithm, count)
        if count > most:
            problem = f"{count} rows, and {self.algorithm} is for up to {most}"
            raise DataError(problem, source=source, advice="use --algorithm kmeans")
        if self.algorithm == "hdbscan" and count < self.wanted.least:
            raise DataError(f"{count} rows cannot make a cluster of {self.wanted.least}", source=source)
        if max(self.counts) > count:
            raise DataError(f"{count} rows cannot make {max(self.counts)} clusters", source=source)


@dataclass(frozen=True, slots=True)
class GivenPlan(Plan):
    """Clusters that are there already: each row goes to the nearest centroid."""

    centroids: Points | None = None

    def run(self, points: Points, seed: int, count: int) -> Clustering:
        assert self.centroids is not None
        check_space(self.centroids, points)
        return given(points.rows, self.centroids.rows.astype(np.float64))


def plan_of(
    algorithm: str,
    counts: Sequence[int] | None,
    seeds: Sequence[int],
    own: dict[str, Any],
    centroids: str | None,
    *,
    truth: bool = False,
) -> Plan:
    """What the flags ask for; `own` are those that belong to some algorithms, None where not given."""
    if centroids is not None:
        if counts is not None or algorithm != "kmeans" or len(seeds) > 1 or any(own.values()):
            raise UsageError(
                "--from-centroids knows its clusters: -k, --algorithm and their flags are for others"
            )
        return GivenPlan("centroids", (0,), seeds, centroids=read_centroids(centroids))
    as_classes = truth and counts is None and algorithm != "hdbscan"
    if not as_classes:
        check_counts(algorithm, counts)
    check_seeds(algorithm, seeds)
    check_flags(algorithm, own)
    given = {FIELDS[flag]: value for flag, value in own.items() if value is not None}
    return Plan(algorithm, counts or (0,), seeds, Wanted(**given), as_classes)


def check_counts(algorithm: str, counts: Sequence[int] | None) -> None:
    if algorithm == "hdbscan" and counts is not None:
        raise UsageError("hdbscan finds how many clusters there are; -k belongs to the other algorithms")
    if algorithm != "hdbscan" and counts is None:
        raise UsageError(
            "how many clusters: -k is missing", advice="for example -k 20, or -k 2..20 to compare"
        )
    if counts is not None and min(counts) < 1:
        raise UsageError(f"-k {min(counts)}: expected 1 or more")


def check_seeds(algorithm: str, seeds: Sequence[int]) -> None:
    if len(seeds) > 1 and algorithm not in RANDOM:
        raise UsageError(
            f"{algorithm} is the same for every seed: several --seed belong to {', '.join(RANDOM)}"
        )


def check_flags(algorithm: str, values: dict[str, object]) -> None:
    for flag, value in values.items():
        if value is not None and algorithm not in FLAGS[flag]:
            raise UsageError(f"{flag} belongs to --algorithm {' or '.join(FLAGS[flag])}")
