"""The parameters of a clustering: form of output, algorithm, numbers of clusters, seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sentkit.errors import DataError, UsageError
from sentkit.labels.clusters.algorithms.catalogue import ALGORITHMS
from sentkit.labels.clusters.algorithms.clustering import Clustering, ClusteringOptions, of_centres
from sentkit.labels.clusters.centroids import check_space, read_centroids
from sentkit.labels.clusters.vector_rows import Points

SEEDS = {"counts": range(5), "stability": range(10)}  # default seeds of a form; other forms use only 0
NEW_FIELDS = {"rows": ("cluster",), "stability": ("cluster", "stability"), "describe": ()}
OPTION_OF = {
    **{"--n-init": "restarts", "--sample": "sample"},
    **{"--linkage": "linkage", "--min-cluster-size": "min_size"},
}


def form_of(truth: str | None, counts: Sequence[int] | None, *, describe: bool, stability: bool) -> str:
    """The form of output that the flags select: rows, or one of four others."""
    given = {
        "--truth": ("truth", truth is not None),
        "--describe": ("describe", describe),
        "--stability": ("stability", stability),
        "several -k": ("counts", counts is not None and len(counts) > 1),
    }
    flags = [flag for flag, (_, is_given) in given.items() if is_given]
    if len(flags) > 1:
        raise UsageError(f"{' and '.join(flags)} cannot be used together", advice="use only one of them")
    return given[flags[0]][0] if flags else "rows"


def check_form(
    form: str, *, rows: list[bool], centroids: str | None, extent: list[int | None], json: bool
) -> None:
    """Refuse flags that the form does not use."""
    if json and form in ("rows", "stability"):
        raise UsageError("--json can be used only with reports; rows are always JSON")
    if any(rows) and form not in ("rows", "stability"):
        reports = "--truth, --describe or several -k, which write a report"
        raise UsageError(f"--keep-vectors and --replace cannot be used with {reports}")
    if centroids is not None and form in ("truth", "counts"):
        raise UsageError(
            "--centroids cannot be used with --truth or several -k, which make several clusterings"
        )
    if extent != [None, None] and form != "describe" and centroids is None:
        raise UsageError("--keywords and --nearest can be used only with --describe or --centroids")


@dataclass(frozen=True, slots=True)
class Plan:
    algorithm: str
    counts: Sequence[int] = (0,)  # of clusters; 0 if the algorithm or a file determines it
    seeds: Sequence[int] = (0,)
    options: ClusteringOptions = field(default_factory=ClusteringOptions)
    as_classes: bool = False  # use the number of classes, which is known after reading

    @property
    def random(self) -> bool:
        """True if the seed can change the result."""
        return ALGORITHMS[self.algorithm].random

    def with_seeds(self, form: str, given: Sequence[int] | None) -> "Plan":
        """Set the given seeds, or the default seeds of the form; one seed for a deterministic algorithm."""
        if not self.random:
            for flag, is_given in (("--seed", given is not None), ("--stability", form == "stability")):
                if is_given:
                    raise UsageError(f"{self.algorithm} is deterministic; remove {flag}")
        seeds = given or (SEEDS.get(form, range(1)) if self.random else range(1))
        if form == "stability" and len(seeds) < 2:
            raise UsageError("--stability needs several seeds, for example --seed 0..9")
        if form in ("rows", "describe") and len(seeds) > 1:
            raise UsageError(
                "several seeds can be used only with --truth, --stability or several -k",
                advice="use one --seed",
            )
        return replace(self, seeds=seeds)

    def run(self, points: Points, seed: int, count: int) -> Clustering:
        """Cluster the rows. The result is deterministic for a seed, and no cluster is empty."""
        options = replace(self.options, count=count)
        check_sample(options.sample, count)
        clustering = ALGORITHMS[self.algorithm].run(points.rows, options, np.random.RandomState(seed))
        return clustering.without_empty()

    def check(self, points: Points) -> None:
        """Refuse a number of rows that the algorithm or the cluster number does not allow."""
        count, source = len(points), points.source
        most = ALGORITHMS[self.algorithm].max_rows or count
        if count > most:
            problem = f"{count} rows, {self.algorithm} accepts up to {most}"
            raise DataError(problem, source=source, advice="use --algorithm kmeans")
        if self.algorithm == "hdbscan" and count < self.options.min_size:
            raise DataError(f"{count} rows cannot form a cluster of {self.options.min_size}", source=source)
        if max(self.counts) > count:
            raise DataError(
                f"-k {max(self.counts)} is larger than the number of rows, {count}", source=source
            )


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
        return of_centres(points.rows, self.centroids.rows.astype(np.float64))

    def check(self, points: Points) -> None:
        """Any number of rows is valid."""


def plan_of(algorithm: str, counts: Sequence[int] | None, own: Mapping[str, Any], *, truth: bool) -> Plan:
    """Make a plan from flags; `own` are the flags of specific algorithms, None if not given."""
    given = {flag: value for flag, value in own.items() if value is not None}
    for flag in given:
        owners = [name for name, each in ALGORITHMS.items() if flag in each.flags]
        if algorithm not in owners:
            raise UsageError(f"{flag} can be used only with --algorithm {' or '.join(owners)}")
    options = replace(ClusteringOptions(), **{OPTION_OF[flag]: value for flag, value in given.items()})
    counted = ALGORITHMS[algorithm].counted
    if counts is None and counted and not truth:
        raise UsageError("-k is missing", advice="for example -k 20, or -k 2..20 for a comparison")
    if counts is not None and not counted:
        raise UsageError(
            f"-k cannot be used with {algorithm}, which chooses the number of clusters itself",
            advice="remove -k",
        )
    if counts is not None and min(counts) < 1:
        raise UsageError(f"-k {min(counts)}: expected 1 or more")
    check_sample(options.sample, max(counts or (0,)))
    return Plan(algorithm, counts or (0,), options=options, as_classes=truth and counted and counts is None)


def check_sample(sample: int | None, count: int) -> None:
    if sample is not None and count > sample:
        raise UsageError(f"--sample {sample} is less than the number of clusters, {count}")


def given_plan(path: str, algorithm: str, others: Mapping[str, object]) -> Plan:
    """The plan for a file of centroids; `others` are the flags of a clustering, None if not given."""
    flags = {"--algorithm": None if algorithm == "kmeans" else algorithm, **others}
    for flag, value in flags.items():
        if value is not None:
            raise UsageError(f"--from-centroids only assigns rows; remove {flag}")
    return GivenPlan("centroids", centroids=read_centroids(path))
