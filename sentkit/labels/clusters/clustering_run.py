"""The runs of a clustering: reads rows, checks them, clusters them once per seed, and writes the clusters."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sentkit.arrays import Float64
from sentkit.digits import significant
from sentkit.errors import DataError, UsageError
from sentkit.formats.outputs.outputs import open_output
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.convert import with_fields, with_vectors
from sentkit.formats.vectors.sinks import VectorOutput, open_sinks
from sentkit.formats.vectors.store import is_store
from sentkit.formats.vectors.vectors import VectorRow, without_vectors
from sentkit.labels import UNWATCHED, Watch
from sentkit.labels.clusters.clustering import ALGORITHMS, Clustering, ClusteringOptions, best_of, of_centres
from sentkit.labels.clusters.vector_rows import Points, check_space, read_points
from sentkit.metrics.clustering.agreement import agreeing
from sentkit.transforms.steps import Step

NEW_FIELDS = {"rows": ("cluster",), "stability": ("cluster", "stability"), "describe": ()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringRun:
    inputs: Inputs
    warn: Callable[[str], None]
    algorithm: str = "kmeans"
    counts: Sequence[int] = (0,)  # of clusters; 0 if the algorithm, a file or the classes determine it
    seeds: Sequence[int] = (0,)
    options: ClusteringOptions = field(default_factory=ClusteringOptions)
    centroids: Points | None = None  # given: each row gets the cluster of the nearest centroid
    step: Step | None = None  # applied to vectors before clustering
    watch: Watch = UNWATCHED

    @property
    def random(self) -> bool:
        """True if the seed can change the result."""
        return self.centroids is None and ALGORITHMS[self.algorithm].random

    @property
    def counted(self) -> bool:
        """True if the algorithm takes the number of clusters."""
        return self.centroids is None and ALGORITHMS[self.algorithm].counted

    def points(self, line: Callable[[VectorRow, str | None], bytes]) -> Points:
        """Read the rows. Refuse a number of rows that the algorithm or the cluster number does not allow."""
        points = read_points(self.inputs, line, self.step)
        count, source = len(points), points.source
        if self.centroids is not None:
            check_space(self.centroids, points)
        elif count > (most := ALGORITHMS[self.algorithm].max_rows or count):
            problem = f"{count} rows, {self.algorithm} accepts up to {most}"
            raise DataError(problem, source=source, advice="use --algorithm kmeans")
        elif self.algorithm == "hdbscan" and count < self.options.min_size:
            raise DataError(f"{count} rows cannot form a cluster of {self.options.min_size}", source=source)
        elif max(self.counts) > count:
            problem = f"-k {max(self.counts)} is larger than the number of rows, {count}"
            raise DataError(problem, source=source)
        self.watch.begin(len(self.counts) * len(self.seeds))
        return points

    def clusterings(self, points: Points, count: int) -> Iterator[Clustering]:
        """Yield a clustering for each seed. It is deterministic, and no cluster is empty."""
        check_sample(self.options.sample, count)
        sizes = []
        for seed in self.seeds:
            with self.watch.slow(f"clustering {len(points)} rows, seed {seed}"):
                if self.centroids is not None:
                    clustering = of_centres(points.rows, self.centroids.rows.astype(np.float64))
                else:
                    run, options = ALGORITHMS[self.algorithm].run, replace(self.options, count=count)
                    clustering = run(points.rows, options, np.random.RandomState(seed)).without_empty()
            self.watch.done()
            sizes.append(len(clustering.centres))
            yield clustering
        fewest = min(sizes)
        if fewest < count:
            self.warn(f"only {fewest} of {count} clusters contain rows, because many vectors are equal")
        elif not fewest:
            self.warn("no clusters: all rows are noise")


def check_sample(sample: int | None, count: int) -> None:
    if sample is not None and count > sample:
        raise UsageError(f"--sample {sample} is less than the number of clusters, {count}")


def label_rows(
    run: ClusteringRun, form: str, *, keep: bool, replace: bool
) -> tuple[Points, Clustering, Float64 | None]:
    """The rows with the best clustering of all seeds, and its agreement with the others (n,)."""
    new = NEW_FIELDS[form]

    def line(row: VectorRow, emb: str | None) -> bytes:
        """The kept part of a row: all of it, or the row without its vector."""
        row.row.check_absent(new, replace=replace)
        return (with_vectors(row, emb) if keep else without_vectors(row.row, row.names)).line

    points = run.points(line)
    clusterings = list(run.clusterings(points, run.counts[0]))
    best = best_of(clusterings)
    others = [each.labels for each in clusterings if each is not best]
    return points, best, agreeing(best.labels, others) if "stability" in new else None


def write_rows(
    points: Points, clustering: Clustering, stability: Float64 | None, output: str, *, force: bool
) -> None:
    """Write rows as JSONL, or as a vector file with the unchanged input vectors."""
    columns: list[Iterator[tuple[bytes, bytes]]] = [
        ((b"cluster", b"%d" % label) for label in clustering.labels.tolist())
    ]
    if stability is not None:
        columns.append((b"stability", repr(significant(each)).encode()) for each in stability.tolist())
    fields = zip(*columns, strict=True)  # the new fields of each row
    if not is_store(output):
        with open_output(output, force=force) as out:
            for row, new in zip(points.kept_rows(), fields, strict=True):
                out.write(row.add(new, replace=True) + b"\n")
        return
    spec, width = with_fields(points.spec, points.inputs), points.vectors.shape[1]
    form = VectorOutput(force=force, replace=True)
    with open_sinks([output], [spec], ("embedding",), width, form) as [sink]:
        for row, vector, new in zip(points.kept_rows(), points.vectors, fields, strict=True):
            sink.write(row, vector[None], new)
