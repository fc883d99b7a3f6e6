"""The parameters of a clustering: algorithm, numbers of clusters, seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sentkit.errors import DataError, UsageError
from sentkit.labels.clusters.algorithms.catalogue import ALGORITHMS
from sentkit.labels.clusters.algorithms.clustering import Clustering, Wanted, given
from sentkit.labels.clusters.centroids import check_space, read_centroids
from sentkit.labels.clusters.output_kinds import seeds_of
from sentkit.labels.clusters.vector_rows import Points

OWN = {"--n-init": "restarts", "--linkage": "linkage", "--min-cluster-size": "least"}


@dataclass(frozen=True, slots=True)
class Plan:
    algorithm: str
    counts: Sequence[int] = (0,)  # of clusters; 0 if the algorithm or a file determines it
    seeds: Sequence[int] = (0,)
    wanted: Wanted = field(default_factory=Wanted)
    as_classes: bool = False  # use the number of classes, which is known after reading

    @property
    def random(self) -> bool:
        """True if the seed can change the result."""
        return ALGORITHMS[self.algorithm].random

    def for_form(self, form: str, seeds: Sequence[int] | None) -> "Plan":
        """Set the given seeds, or the default seeds of this form of output."""
        return replace(self, seeds=seeds_of(form, seeds, self.algorithm, random=self.random))

    def run(self, points: Points, seed: int, count: int) -> Clustering:
        """Cluster the rows. The result is deterministic for a seed, and no cluster is empty."""
        wanted = replace(self.wanted, count=count)
        found = ALGORITHMS[self.algorithm].find(points.rows, wanted, np.random.RandomState(seed))
        return found.without_empty()

    def check(self, points: Points) -> None:
        """Refuse a number of rows that the algorithm or the cluster number does not allow."""
        count, source = len(points), points.source
        most = ALGORITHMS[self.algorithm].largest or count
        if count > most:
            problem = f"{count} rows, and {self.algorithm} is for up to {most}"
            raise DataError(problem, source=source, advice="use --algorithm kmeans")
        if self.algorithm == "hdbscan" and count < self.wanted.least:
            raise DataError(f"{count} rows cannot make a cluster of {self.wanted.least}", source=source)
        if max(self.counts) > count:
            raise DataError(f"{count} rows cannot make {max(self.counts)} clusters", source=source)


@dataclass(frozen=True, slots=True)
class GivenPlan(Plan):
    """Given centroids: each row gets the cluster of the nearest centroid."""

    centroids: Points | None = None

    @property
    def random(self) -> bool:
        return False

    def run(self, points: Points, seed: int, count: int) -> Clustering:
        assert self.centroids is not None
        check_space(self.centroids, points)
        return given(points.rows, self.centroids.rows.astype(np.float64))

    def check(self, points: Points) -> None:
        """Any number of rows is valid."""


def plan_of(algorithm: str, counts: Sequence[int] | None, own: Mapping[str, Any], *, truth: bool) -> Plan:
    """Make a plan from flags; `own` are the flags of specific algorithms, None if not given."""
    asked = {flag: value for flag, value in own.items() if value is not None}
    for flag in asked:
        owners = [name for name, each in ALGORITHMS.items() if flag in each.flags]
        if algorithm not in owners:
            raise UsageError(f"{flag} belongs to --algorithm {' or '.join(owners)}")
    wanted = replace(Wanted(), **{OWN[flag]: value for flag, value in asked.items()})
    counted = ALGORITHMS[algorithm].counted
    check_counts(algorithm, counts, needed=counted and not truth)
    return Plan(algorithm, counts or (0,), wanted=wanted, as_classes=truth and counted and counts is None)


def check_counts(algorithm: str, counts: Sequence[int] | None, *, needed: bool) -> None:
    if counts is None and needed:
        raise UsageError(
            "how many clusters: -k is missing", advice="for example -k 20, or -k 2..20 to compare"
        )
    if counts is not None and not ALGORITHMS[algorithm].counted:
        raise UsageError(f"{algorithm} finds how many clusters there are; -k belongs to the other algorithms")
    if counts is not None and min(counts) < 1:
        raise UsageError(f"-k {min(counts)}: expected 1 or more")


def given_plan(path: str, algorithm: str, others: Mapping[str, object]) -> Plan:
    """The plan for a file of centroids; `others` are flags of a search for clusters, None if not given."""
    looking = {"--algorithm": None if algorithm == "kmeans" else algorithm, **others}
    for flag, value in looking.items():
        if value is not None:
            raise UsageError(f"--from-centroids knows its clusters: {flag} is for those that look for them")
    return GivenPlan("centroids", centroids=read_centroids(path))
