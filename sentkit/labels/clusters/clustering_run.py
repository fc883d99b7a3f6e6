"""The parameters of a clustering, and its runs: reads rows, checks them, and clusters them once per seed."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sentkit.arrays import Float64, Indices
from sentkit.digits import significant
from sentkit.errors import DataError, UsageError
from sentkit.formats.outputs.outputs import open_output
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.rows.splice import NewFields
from sentkit.formats.vectors.convert import with_fields, with_vectors
from sentkit.formats.vectors.sinks import VectorOutput, open_sinks
from sentkit.formats.vectors.store import is_store
from sentkit.formats.vectors.vectors import VectorRow, without_vectors
from sentkit.labels import UNWATCHED, Watch
from sentkit.labels.clusters.algorithms import ALGORITHMS
from sentkit.labels.clusters.clustering import Clustering, ClusteringOptions, best_of, of_centres
from sentkit.labels.clusters.vector_rows import Points, check_space, read_centroids, read_points
from sentkit.metrics.clustering.agreement import agreeing
from sentkit.transforms.steps import Step

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


@dataclass(frozen=True, slots=True)
class ClusteringRun:
    inputs: Inputs
    plan: Plan
    step: Step | None  # applied to vectors before clustering
    warn: Callable[[str], None]
    watch: Watch = UNWATCHED

    def points(self, line: Callable[[VectorRow, str | None], bytes]) -> Points:
        points = read_points(self.inputs, line, self.step)
        self.plan.check(points)
        self.watch.begin(len(self.plan.counts) * len(self.plan.seeds))
        return points

    def clusterings(self, points: Points, count: int) -> Iterator[Clustering]:
        """Yield a clustering for each seed."""
        sizes = []
        for seed in self.plan.seeds:
            with self.watch.slow(f"clustering {len(points)} rows, seed {seed}"):
                clustering = self.plan.run(points, seed, count)
            self.watch.done()
            sizes.append(len(clustering.centres))
            yield clustering
        fewest = min(sizes)
        if fewest < count:
            self.warn(f"only {fewest} of {count} clusters contain rows, because many vectors are equal")
        elif not fewest:
            self.warn("no clusters: all rows are noise")


@dataclass(frozen=True, slots=True)
class Labelled:
    points: Points
    clustering: Clustering
    stability: Float64 | None  # (n,)


def label_rows(run: ClusteringRun, new: tuple[str, ...], *, keep: bool, replace: bool) -> Labelled:
    """The rows with the best clustering of all seeds, and its agreement with the others."""

    def line(row: VectorRow, emb: str | None) -> bytes:
        """The kept part of a row: all of it, or the row without its vector."""
        row.row.check_absent(new, replace=replace)
        return (with_vectors(row, emb) if keep else without_vectors(row.row, row.names)).line

    points = run.points(line)
    clusterings = list(run.clusterings(points, run.plan.counts[0]))
    best = best_of(clusterings)
    others = [each.labels for each in clusterings if each is not best]
    agreed = agreeing(best.labels, others) if "stability" in new else None
    return Labelled(points, best, agreed)


def new_fields(labels: Indices, stability: Float64 | None) -> Iterator[NewFields]:
    """The new fields of each row, as JSON."""
    clusters = [b"%d" % label for label in labels.tolist()]
    if stability is None:
        return ([(b"cluster", cluster)] for cluster in clusters)
    shares = (repr(significant(share)).encode() for share in stability.tolist())
    return ([(b"cluster", a), (b"stability", b)] for a, b in zip(clusters, shares, strict=True))


def write_rows(
    points: Points, fields: Iterable[NewFields], output: str, inputs: Inputs, *, force: bool
) -> None:
    """Write rows as JSONL, or as a vector file with the unchanged input vectors."""
    if not is_store(output):
        with open_output(output, force=force) as out:
            for row, new in zip(points.kept_rows(), fields, strict=True):
                out.write(row.add(new, replace=True) + b"\n")
        return
    spec, width = with_fields(points.spec, inputs), points.vectors.shape[1]
    form = VectorOutput(force=force, replace=True)
    with open_sinks([output], [spec], ("embedding",), width, form) as [sink]:
        for row, vector, new in zip(points.kept_rows(), points.vectors, fields, strict=True):
            sink.write(row, vector[None], new)
