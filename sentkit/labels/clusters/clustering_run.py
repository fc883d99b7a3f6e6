"""The runs of a clustering: read rows, cluster them once per seed, write clusters or a report."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, zip_longest
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from sentkit.arrays import Float32, Float64, Indices
from sentkit.digits import decimals, significant
from sentkit.errors import DataError, OtherSpaceError, UsageError
from sentkit.formats.files import is_safetensors, shown_path, text_of_paths
from sentkit.formats.rows.block import RowBlock, block_of_rows, block_of_values
from sentkit.formats.rows.kinds import class_value
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.fingerprint import (
    MAPPED_NOTE,
    advice_on_spaces,
    is_comparable,
    short_label,
)
from sentkit.formats.vectors.store import common_field_names, common_metadata, with_field_names
from sentkit.formats.vectors.vectors import VectorBlock
from sentkit.formats.vectors.writers import (
    VectorOutput,
    as_jsonl,
    open_writers,
    refuse_existing_fields,
    refuse_names_of_vectors,
)
from sentkit.labels import UNWATCHED, Watch
from sentkit.labels.clusters.clustering import (
    ALGORITHMS,
    Clustering,
    ClusteringOptions,
    best_of,
    of_centres,
    spans,
    squared_distances,
)
from sentkit.labels.clusters.points import Points, read_points
from sentkit.metrics.clusters import (
    MEASURES,
    agreeing,
    agreement,
    agreement_measures,
    distances_among,
    keywords,
    rows_with_keyword,
    sample_for_silhouette,
    silhouette,
)
from sentkit.metrics.neighbours.corpus import LEFT_OUT, Lines, left_out
from sentkit.transforms.steps import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringRun:
    inputs: Inputs
    warn: Callable[[str], None]
    algorithm: str = "kmeans"
    # of clusters; 0 if the algorithm, a file or the classes determine it
    counts: Sequence[int] = (0,)
    seeds: Sequence[int] = (0,)
    options: ClusteringOptions = field(default_factory=ClusteringOptions)
    centroids: Points | None = None  # given: each row gets the cluster of the nearest centroid
    step: Step | None = None  # applied to vectors before clustering
    watch: Watch = UNWATCHED

    @property
    def is_random(self) -> bool:
        """True if the seed can change the result."""
        return self.centroids is None and ALGORITHMS[self.algorithm].is_random

    @property
    def source(self) -> str:
        return text_of_paths(self.inputs.paths)

    def points(
        self,
        check: Callable[[RowBlock], None] = lambda rows: None,
        lines_of: Lines | None = None,
        *,
        in_memory: bool = False,
        effect_of_zero: str = LEFT_OUT,
    ) -> Points:
        """Read the rows. Refuse a number of rows that the algorithm or -k does not allow.

        `effect_of_zero` says in a warning what happens to rows with a zero vector.
        """
        points = read_points(self.inputs, check, self.step, lines_of, in_memory=in_memory)
        count = len(points.clustered)
        for message in left_out(
            self.source, len(points) - count, len(points), effect=effect_of_zero
        ):
            self.warn(message)
        if not count:
            problem = "the vectors of all rows are zero, so there is nothing to cluster"
            raise DataError(problem, source=self.source)
        if self.centroids is not None:
            self._refuse_other_space(points, self.centroids)
        else:
            self._refuse_count(count)
        self.watch.begin(len(self.counts) * len(self.seeds))
        return points

    def _refuse_other_space(self, points: Points, centroids: Points) -> None:
        """Refuse vectors of another space than the centroids."""
        width = points.rows.shape[1]
        centroid_width = centroids.rows.shape[1]
        is_same_space = is_comparable(
            points.space, centroids.space, mapped=self.inputs.accepts_mapped
        )
        if is_same_space and width == centroid_width:
            if not is_comparable(points.space, centroids.space):
                self.inputs.rejects.note(MAPPED_NOTE)
            return
        vectors = f"{short_label(points.space)}, {width} numbers"
        expected = f"{short_label(centroids.space)}, {centroid_width} numbers"
        path = centroids.table.path
        advice = advice_on_spaces(
            points.space, centroids.space, permits_mapped=width == centroid_width
        )
        if self.step is not None and is_comparable(points.table.space_name, centroids.space):
            advice = "leave out --normalize, which the centroids do not have"
        raise OtherSpaceError(
            f"the vectors are {vectors}, the centroids of {path} are {expected}",
            source=self.source,
            line=None,
            advice=advice,
            wanted=centroids.space,
            wanted_path=path,
        )

    def _refuse_count(self, count: int) -> None:
        """Refuse too many rows for the algorithm, or too few for the clusters."""
        max_rows = ALGORITHMS[self.algorithm].max_rows
        if max_rows is not None and count > max_rows:
            problem = f"{count} rows, {self.algorithm} accepts up to {max_rows}"
            raise DataError(problem, source=self.source, advice="use --algorithm kmeans")
        if self.algorithm == "hdbscan":
            min_size = self.options.min_size
            if count < min_size:
                raise DataError(
                    f"{count} rows cannot form a cluster of {min_size}", source=self.source
                )
        if max(self.counts) > count:
            problem = f"-k {max(self.counts)} is larger than the number of rows, {count}"
            raise DataError(problem, source=self.source)

    def clusterings(self, points: Points, count: int) -> Iterator[Clustering]:
        """Yield a clustering for each seed. It is deterministic, and no cluster is empty."""
        check_sample(self.options.sample, count)
        cluster_counts = []
        for seed in self.seeds:
            with self.watch.slow(f"clustering {len(points)} rows, seed {seed}"):
                clustering = self._clustering(points.clustered, count, seed)
            if points.nonzero is not None:
                labels = np.full(len(points), -1)
                labels[points.nonzero] = clustering.labels
                clustering = replace(clustering, labels=labels)
            self.watch.done()
            cluster_counts.append(len(clustering.centres))
            yield clustering
        fewest = min(cluster_counts)
        if fewest < count:
            self.warn(
                f"only {fewest} of {count} clusters contain rows, because many vectors are equal"
            )
        elif not fewest:
            self.warn("no clusters: all rows are noise")

    def _clustering(self, rows: Float32, count: int, seed: int) -> Clustering:
        if self.centroids is not None:
            centres = self.centroids.rows.astype(np.float64)
            return of_centres(rows, centres, self.options.device)
        options = replace(self.options, count=count)
        random = np.random.RandomState(seed)
        return ALGORITHMS[self.algorithm].run(rows, options, random).without_empty()


def check_sample(sample: int | None, count: int) -> None:
    if sample is not None and count > sample:
        raise UsageError(f"--set sample={sample} is less than the number of clusters, {count}")


def write_rows(
    points: Points,
    clustering: Clustering,
    stability: Float64 | None,
    keywords_of_clusters: Sequence[Sequence[str]] | None,
    inputs: Inputs,
    output: str,
    *,
    force: bool,
    replace: bool,
) -> None:
    """Write rows as JSONL, or as a vector file with the unchanged input vectors.

    A row that belongs to no cluster has no keywords.
    """
    labels = clustering.labels.tolist()
    shares = None if stability is None else stability.tolist()
    keywords_as_json: list[bytes] = []
    if keywords_of_clusters is not None:
        # the last one is of noise, -1
        keywords_as_json = [orjson.dumps(words) for words in [*keywords_of_clusters, []]]

    def new_fields(index: int) -> list[tuple[bytes, bytes]]:
        """The names and JSON values of the new fields of a row."""
        label = labels[index]
        fields = [(b"cluster", b"%d" % label)]
        if shares is not None:
            share = significant(shares[index]) if label >= 0 else None  # a row that is left out
            fields.append((b"stability", orjson.dumps(share)))
        if keywords_as_json:
            fields.append((b"keywords", keywords_as_json[label]))
        return fields

    # What a vector file stores besides its rows.
    metadata: dict[str, Any] = {}
    vector_names: tuple[str, ...] = ()
    if is_safetensors(output):
        metadata = dict(common_metadata(inputs))
        if points.table.space_name:
            metadata["_emb"] = points.table.space_name
        metadata = with_field_names(metadata, inputs)
        vector_names = ("embedding",)

    width = points.vectors.shape[1]
    vector_output = VectorOutput(force=force, replace=True)
    rows = points.table.every_row()
    with open_writers([output], [metadata], vector_names, width, vector_output) as [writer]:
        for span in spans(len(points)):
            block = block_of_rows(islice(rows, span.stop - span.start))
            vectors = points.vectors[span, None]
            if not vector_names:
                vectors = np.empty((len(block), 0, 0), np.float32)
            fields = [new_fields(index) for index in range(span.start, span.stop)]
            refuse_names_of_vectors(block, vector_names)
            refuse_existing_fields(block, [name.decode() for name, _ in fields[0]], replace=replace)
            writer.put(block, vectors, fields)


Record = dict[str, Any]  # a JSON object


@dataclass(frozen=True, slots=True)
class DescriptionLimits:
    """The largest numbers of keywords and of nearest rows in the description of a cluster."""

    keywords: int
    nearest: int


def cluster_records(
    points: Points, clustering: Clustering, inputs: Inputs, limits: DescriptionLimits
) -> Iterator[Record]:
    """A record for each cluster: keywords of "text" or "entry", and the most central rows."""
    # The rows of each cluster, nearest to the centre first.
    in_cluster = np.flatnonzero(clustering.labels >= 0)
    labels = clustering.labels[in_cluster]
    squares = squared_distances(points.rows, clustering.centres, in_cluster, labels)
    order = in_cluster[np.lexsort((squares, labels))]
    rows_of_clusters = np.split(order, np.cumsum(clustering.sizes)[:-1])
    central_rows = [rows[: limits.nearest].tolist() for rows in rows_of_clusters]
    described_rows = {index for rows in central_rows for index in rows}

    # The first pass gives the words of the clusters and the records of the central rows.
    text_fields = [common_field_names(inputs).get(name, name) for name in ("text", "entry")]
    row_records: dict[int, Record] = {}

    def texts() -> Iterator[tuple[int, str]]:
        rows = zip(points.table.every_row(), clustering.labels.tolist(), strict=True)
        for index, (row, label) in enumerate(rows):
            values = [row.values.get(name) for name in text_fields]
            text = next((value for value in values if isinstance(value, str)), None)
            if index in described_rows:
                row_records[index] = dict(inputs.place_of(row))
                if text is not None:
                    row_records[index]["text"] = text
            if text is not None:
                yield label, text

    keywords_of_clusters = keywords(texts(), len(clustering.centres), limits.keywords)
    covered_rows = rows_with_keyword(texts(), keywords_of_clusters)
    for label, size in enumerate(clustering.sizes.tolist()):
        yield {
            "cluster": label,
            "size": size,
            "keywords": keywords_of_clusters[label],
            "with_keyword": covered_rows[label],
            "nearest": [row_records[index] for index in central_rows[label]],
        }


def write_clusters(
    run: ClusteringRun,
    form: str,
    limits: DescriptionLimits,
    output: str,
    centroids: str | None,
    *,
    described: bool,
    with_keywords: bool,
    keep_vectors: bool,
    replace: bool,
    force: bool,
) -> list[Record]:
    """Write the centroids and the rows (unless `form` is "describe") of the best clustering.

    If the clusters are `described`, the descriptions are returned. `with_keywords`: each row gets
    the keywords of its cluster.
    """
    # The fields that each row gets.
    new = list[str]()
    if form in ("rows", "stability"):
        new.append("cluster")
    if form == "stability":
        new.append("stability")
    if with_keywords:
        new.append("keywords")

    def check(rows: RowBlock) -> None:
        refuse_existing_fields(rows, new, replace=replace)

    # The rows. Those that keep their vectors in JSON need the bytes that were read.
    if keep_vectors and not is_safetensors(output):

        def lines_with_vectors(block: VectorBlock) -> list[bytes]:
            return as_jsonl(block, block.space_name, None)

        points = run.points(check, lines_with_vectors, in_memory=True)
    else:
        points = run.points(check)

    # The clusters and their descriptions.
    clusterings = list(run.clusterings(points, run.counts[0]))
    best = best_of(clusterings)
    records: list[Record] = []
    if described or with_keywords:
        records = list(cluster_records(points, best, run.inputs, limits))

    # The outputs. The rows are last, because their reader may close the pipe.
    if centroids is not None:
        write_centroids(centroids, best.centres, points.space, records, force=force)
    if form == "describe":
        return records
    stability = None
    if form == "stability":
        labels_of_others = [
            clustering.labels for clustering in clusterings if clustering is not best
        ]
        stability = agreeing(best.labels, labels_of_others)
    keywords_of_clusters = None
    if with_keywords:
        keywords_of_clusters = [record["keywords"] for record in records]
    write_rows(
        points,
        best,
        stability,
        keywords_of_clusters,
        run.inputs,
        output,
        force=force,
        replace=replace,
    )
    return records


def write_centroids(
    path: str, centres: Float64, space: str | None, records: Sequence[Record], *, force: bool
) -> None:
    """Write the centres of clusters with the records of the clusters."""
    vectors = centres.astype(np.float32)
    spec = {"_emb": space} if space else {}
    form = VectorOutput(force=force, replace=True)
    numbers = [record["cluster"] + 1 for record in records]
    with open_writers([path], [spec], ("embedding",), vectors.shape[1], form) as [sink]:
        rows = block_of_values(records, path, numbers, [b""] * len(records))
        sink.put(rows, vectors[:, None])


@dataclass(frozen=True, slots=True)
class ClassedPoints:
    """Points, and the class of each row."""

    points: Points
    class_names: NDArray[np.object_]  # (c,)
    classes: Indices  # (n,), the index of the name

    def cluster_count(self, run: ClusteringRun) -> int:
        """The chosen number of clusters, or that of the classes; 0: the algorithm finds it."""
        count = run.counts[0]
        if not count and run.centroids is None and ALGORITHMS[run.algorithm].takes_count:
            # a class can have only rows with a zero vector, which are left out
            count = min(len(self.class_names), len(self.points.clustered))
        return count


def read_classed_points(
    run: ClusteringRun, truth: str, lines_of: Lines | None = None
) -> ClassedPoints:
    """Read the rows with their classes in the field `truth`. Refuse a single class."""
    points = run.points(
        lambda rows: rows.parse(lambda row: class_value(row, truth)),
        lines_of,
        effect_of_zero="get cluster -1, which counts as wrong",
    )
    names = [class_value(row, truth) for row in points.table.every_row()]
    class_names, classes = np.unique(np.array(names, dtype=object), return_inverse=True)
    if len(class_names) == 1:
        problem = f'"{truth}" is the same in all {len(points)} rows, expected 2 classes or more'
        raise DataError(problem, source=run.source)
    return ClassedPoints(points, class_names, classes)


def accuracies_of_rows(run: ClusteringRun, truth: str) -> Float64:
    """For each seed and row, (s, n): 1 if the cluster of the row is the one that is matched to its
    class, else 0, also for cluster -1.
    """

    def only_classes(block: VectorBlock) -> list[bytes]:
        return classes_as_lines(block, truth)

    classed = read_classed_points(run, truth, only_classes)
    clusterings = run.clusterings(classed.points, classed.cluster_count(run))
    return np.array([agreeing(classed.classes, [clustering.labels]) for clustering in clusterings])


def agreement_records(
    run: ClusteringRun, truth: str, limits: DescriptionLimits | None = None
) -> Iterator[Record]:
    """A record for each seed, and one of their mean: values x 100.

    With limits, the descriptions of the clusters follow: those of the best clustering, with their
    classes.
    """

    def only_classes(block: VectorBlock) -> list[bytes]:
        return classes_as_lines(block, truth)

    classed = read_classed_points(run, truth, only_classes if limits is None else None)
    points = classed.points
    header = {**report_header(run, points), "classes": len(classed.class_names)}
    count = classed.cluster_count(run)
    records = []
    clusterings = []
    for seed, clustering in zip(run.seeds, run.clusterings(points, count), strict=True):
        if limits is not None:
            clusterings.append(clustering)
        values = agreement_measures(classed.classes, clustering.labels)
        record = {
            **header,
            "k": len(clustering.centres),
            "seed": seed if run.is_random else None,
            # Without errors of addition, equal clusterings have a deviation of 0.
            **{name: round(100.0 * value, 10) for name, value in values.items()},
            "noise": int((clustering.labels < 0).sum()),
            "inertia": clustering.inertia,
            "iterations": clustering.iterations,
        }
        records.append(record)
        yield record
    if len(records) > 1:
        means: Record = {}
        for name in (*MEASURES, "inertia"):
            values_of_seeds = [record[name] for record in records]
            means[f"{name}_mean"] = statistics.fmean(values_of_seeds)
            means[f"{name}_sd"] = statistics.stdev(values_of_seeds)  # of the sample
        yield {**header, "k": count, "seeds": list(run.seeds), **means}
    if limits is not None:
        best = best_of(clusterings)
        for record in cluster_records(points, best, run.inputs, limits):
            classes_in_cluster = classed.classes[best.labels == record["cluster"]]
            names_in_cluster = classed.class_names[classes_in_cluster].tolist()
            yield {**record, "classes": dict(Counter(names_in_cluster).most_common())}


def classes_as_lines(block: VectorBlock, truth: str) -> list[bytes]:
    """The lines of rows in memory that keep only their class."""
    return [orjson.dumps({truth: name}) for name in block.rows.parsed]


def count_records(run: ClusteringRun) -> Iterator[Record]:
    """A record for each number of clusters. Silhouette and inertia are means over the seeds."""
    # rows in memory have no fields
    points = run.points(lines_of=lambda block: [b"{}"] * len(block))
    seeds = list(run.seeds)
    clustered_rows = points.clustered
    sample = sample_for_silhouette(len(clustered_rows), np.random.default_rng(seeds[0]))
    distances_of_sample = distances_among(clustered_rows[sample])
    for count in run.counts:
        clusterings = list(run.clusterings(points, count))
        labels_of_seeds = [clustering.labels for clustering in clusterings]
        if points.nonzero is not None:
            labels_of_seeds = [labels[points.nonzero] for labels in labels_of_seeds]
        silhouettes = [
            silhouette(distances_of_sample, labels[sample]) for labels in labels_of_seeds
        ]
        mean_agreement = agreement(labels_of_seeds)
        yield {
            **report_header(run, points),
            "k": count,
            "seeds": seeds if run.is_random else None,
            "silhouette": mean_if_known(silhouettes),
            "sample": len(sample),
            "agreement": None if mean_agreement is None else 100.0 * mean_agreement,
            "inertia": mean_if_known([clustering.inertia for clustering in clusterings]),
        }


def report_header(run: ClusteringRun, points: Points) -> Record:
    return {
        "file": shown_path(run.source),
        "encoder": points.space,
        "n": len(points),
        "algorithm": run.algorithm if run.centroids is None else "centroids",
    }


def mean_if_known(values: Sequence[float | None]) -> float | None:
    """The mean; None if a value is None."""
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(values):
        return None
    return statistics.fmean(numbers)


CLASS_LINES = 5  # of a description in a table
COLUMN_OF = {"acc": "ACC", "nmi": "NMI", "ari": "ARI", "ami": "AMI", "inertia": "inertia"}


def agreement_line(record: Record) -> dict[str, str]:
    """The row of one seed, or of the mean over seeds with standard deviations."""
    if "seeds" in record:
        seed = "mean (sd)"
        iterations = None
        cells = [f"{record[f'{name}_mean']:.2f} ({record[f'{name}_sd']:.2f})" for name in COLUMN_OF]
    else:
        seed = record["seed"]
        iterations = record["iterations"]
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


def description_lines(record: Mapping[str, Any]) -> list[dict[str, str]]:
    """The rows of one cluster: one for each of its largest classes and nearest rows, with a share
    of its keywords.
    """
    nearest = [row.get("text", f"row {row['row']}") for row in record["nearest"]]
    classes = list(record.get("classes", {}).items())  # the largest first
    if len(classes) > CLASS_LINES:
        others = classes[CLASS_LINES - 1 :]
        rows_of_others = sum(count for _, count in others)
        classes = [*classes[: CLASS_LINES - 1], (f"{len(others)} others", rows_of_others)]
    count = max(1, len(nearest), len(classes))
    columns = {"cluster": [str(record["cluster"])], "size": [str(record["size"])]}
    if "classes" in record:
        columns["class"] = [name for name, _ in classes]
        columns["rows"] = [str(rows) for _, rows in classes]
    columns["keywords"] = [
        " ".join(record["keywords"][share]) for share in shares(len(record["keywords"]), count)
    ]
    columns["covered"] = []
    if record["size"]:  # given centroids can have no rows
        columns["covered"] = [f"{100 * record['with_keyword'] / record['size']:.0f} %"]
    columns["nearest"] = nearest
    lines = zip_longest(*columns.values(), fillvalue="")
    return [dict(zip(columns, cells, strict=True)) for cells in lines]


def shares(size: int, count: int) -> list[slice]:
    """Divide `size` words into at most `count` slices; only the last one can be shorter."""
    step = max(1, math.ceil(size / count))
    return [slice(start, start + step) for start in range(0, size, step)]
