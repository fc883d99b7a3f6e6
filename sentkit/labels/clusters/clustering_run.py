"""Runs the clusterings of one command: reads rows, checks them, and clusters them once per seed."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from sentkit.arrays import Float64, Indices
from sentkit.digits import significant
from sentkit.formats.outputs.outputs import open_output
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.rows.splice import NewFields
from sentkit.formats.vectors.convert import with_fields, with_vectors
from sentkit.formats.vectors.sinks import VectorOutput, open_sinks
from sentkit.formats.vectors.store import is_store
from sentkit.formats.vectors.vectors import VectorRow, without_vectors
from sentkit.labels.clusters.algorithms.clustering import Clustering, best_of
from sentkit.labels.clusters.plan import Plan
from sentkit.labels.clusters.vector_rows import Points, read_points
from sentkit.labels.watch import UNWATCHED, Watch
from sentkit.metrics.clustering.stability import agreeing
from sentkit.transforms.steps import Step


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
