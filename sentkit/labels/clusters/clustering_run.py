"""The runs of a clustering: reads rows, clusters them once per seed, and writes the clusters or a report."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
import orjson

from sentkit.arrays import Float32, Float64, Indices
from sentkit.digits import decimals, significant
from sentkit.errors import DataError, OtherSpaceError, UsageError
from sentkit.formats.files import is_safetensors, readable, together
from sentkit.formats.rows.block import RowBlock, block_of, made_block
from sentkit.formats.rows.kinds import class_of
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.arrays import places_of_texts
from sentkit.formats.vectors.fingerprint import UNNAMED, Space, edition_advice, short_label, space_of
from sentkit.formats.vectors.store import common_fields, common_spec, open_inputs, with_fields
from sentkit.formats.vectors.vectors import VectorBlock, VectorReader, one_vector
from sentkit.formats.vectors.writers import VectorOutput, as_jsonl, open_writers, refuse_existing_fields
from sentkit.labels import UNWATCHED, Watch
from sentkit.labels.clusters.clustering import (
    ALGORITHMS,
    Clustering,
    ClusteringOptions,
    best_of,
    distances,
    of_centres,
    spans,
)
from sentkit.metrics.clusters import MEASURES, Silhouette, agreeing, agreement, keywords, measures
from sentkit.metrics.neighbours.corpus import Lines, VectorTable, in_memory, left_out, read_table
from sentkit.transforms.steps import Step

MAX_MAGNITUDE = 1e15  # maximum; the squared distance of larger vectors may exceed float32
TOO_LARGE = f"the vector has a value above {MAX_MAGNITUDE:.0e}, so squared distances would overflow"


@dataclass(frozen=True, slots=True)
class Points:
    table: VectorTable
    vectors: Float32  # (n, d): as read
    rows: Float32  # (n, d): as clustered
    space: str | None  # the `_emb` of `rows`
    kept: Indices | None  # the places of the rows that are clustered; None: all

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def clustered(self) -> Float32:
        """The rows without zero vectors, which have the label -1."""
        return self.rows if self.kept is None else self.rows[self.kept]


def read_points(
    inputs: Inputs,
    check: Callable[[RowBlock], None] = lambda rows: None,
    step: Step | None = None,
    lines: Lines | None = None,
    *,
    apart: bool = True,
) -> Points:
    """Read all rows. `apart`: a single vector file keeps its rows, and its vectors are memory-mapped."""

    def checked(block: VectorBlock) -> VectorBlock:
        largest = np.abs(one_vector(block).vectors).max(axis=(1, 2))
        for place in np.flatnonzero(largest > MAX_MAGNITUDE).tolist():
            block.rows.refuse(place, TOO_LARGE)
        check(block.rows)
        return block

    if apart:
        table = read_table(inputs, checked, lines=lines)
    else:
        table = in_memory(inputs, VectorReader(inputs), checked, lines, named=True)
    stored = table.vectors
    if not isinstance(stored, np.ndarray):
        stored = inputs.vector_file(inputs.paths[0]).mapped()
    vectors, space = stored[:, 0], table.emb
    rows = vectors if step is None else np.empty(vectors.shape, np.float32)
    for span in spans(len(vectors)):  # of a vector file, `checked` gets only the first row
        for place in np.flatnonzero(np.abs(vectors[span]).max(axis=1) > MAX_MAGNITUDE).tolist():
            raise table.row(span.start + place).error(TOO_LARGE)
        if step is not None:
            rows[span] = step(vectors[span])
    if step is not None:
        label, _, digest = (space or UNNAMED.emb).rpartition(":")
        space = Space(label, digest).after(step.suffix, step.hash).emb
    return Points(table, vectors, rows, space, places_of_texts(rows))


def read_centroids(path: str) -> Points:
    """Read centroids. They are numbered from 0 in row order; a field "cluster" must agree with it."""
    points = read_points(open_inputs([path]))
    for number, row in enumerate(points.table.every_row()):
        if row.values.get("cluster", number) != number:
            problem = f'"cluster" is {orjson.dumps(row.values["cluster"]).decode()}, expected {number}'
            raise row.error(problem)
    return points


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
    def source(self) -> str:
        return together(self.inputs.paths)

    def points(
        self,
        check: Callable[[RowBlock], None] = lambda rows: None,
        lines: Lines | None = None,
        *,
        apart: bool = True,
    ) -> Points:
        """Read the rows. Refuse a number of rows that the algorithm or the cluster number does not allow."""
        points = read_points(self.inputs, check, self.step, lines, apart=apart)
        count, source = len(points.clustered), self.source
        for message in left_out(source, len(points) - count, len(points)):
            self.warn(message)
        if not count:
            raise DataError("the vectors of all rows are zero, so there is nothing to cluster", source=source)
        if (given := self.centroids) is not None:
            ours, theirs = points.space, given.space
            fit = ours == theirs if ours is None or theirs is None else space_of(ours) == space_of(theirs)
            sizes = [f"{short_label(each.space)}, {each.rows.shape[1]} numbers" for each in (points, given)]
            if not fit or points.rows.shape[1] != given.rows.shape[1]:
                problem = f"the vectors are {sizes[0]}, the centroids of {given.table.path} are {sizes[1]}"
                raise OtherSpaceError(
                    problem,
                    source=source,
                    line=None,
                    advice=edition_advice(ours, theirs),
                    wanted=theirs,
                    wanted_path=given.table.path,
                )
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
        sizes = []
        check_sample(self.options.sample, count)
        for seed in self.seeds:
            with self.watch.slow(f"clustering {len(points)} rows, seed {seed}"):
                if self.centroids is not None:
                    centres = self.centroids.rows.astype(np.float64)
                    clustering = of_centres(points.clustered, centres, self.options.device)
                else:
                    run, options = ALGORITHMS[self.algorithm].run, replace(self.options, count=count)
                    random = np.random.RandomState(seed)
                    clustering = run(points.clustered, options, random).without_empty()
            if points.kept is not None:
                labels = np.full(len(points), -1)
                labels[points.kept] = clustering.labels
                clustering = replace(clustering, labels=labels)
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
    columns: list[Iterator[tuple[bytes, bytes]]] = [
        ((b"cluster", b"%d" % label) for label in clustering.labels.tolist())
    ]
    if stability is not None:
        columns.append((b"stability", repr(significant(each)).encode()) for each in stability.tolist())
    if keywords_of_clusters is not None:
        values = [orjson.dumps(words) for words in [*keywords_of_clusters, []]]
        columns.append((b"keywords", values[label]) for label in clustering.labels.tolist())
    fields = zip(*columns, strict=True)  # the new fields of each row
    kept = points.table.every_row()
    spec, names, form = dict[str, Any](), tuple[str, ...](), VectorOutput(force=force, replace=True)
    if is_safetensors(output):
        emb = {"_emb": points.table.emb} if points.table.emb else {}
        spec, names = with_fields({**common_spec(inputs), **emb}, inputs), ("embedding",)
    with open_writers([output], [spec], names, points.vectors.shape[1], form) as [sink]:
        for span in spans(len(points)):
            rows = block_of(islice(kept, span.stop - span.start))
            vectors = points.vectors[span, None] if names else np.empty((len(rows), 0, 0), np.float32)
            own = list(islice(fields, len(rows)))
            refuse_existing_fields(rows, [name.decode() for name, _ in own[0]], replace=replace)
            sink.put(rows, vectors, own)


Record = dict[str, Any]  # a JSON object


def descriptions(
    points: Points, clustering: Clustering, inputs: Inputs, count: int, nearest: int
) -> Iterator[Record]:
    """A record for each cluster: keywords of "text" or "entry", and the most central rows."""
    names = [common_fields(inputs).get(name, name) for name in ("text", "entry")]
    inside = np.flatnonzero(clustering.labels >= 0)
    own = clustering.labels[inside]
    order = inside[np.lexsort((distances(points.rows, clustering.centres, inside, own), own))]
    parts = np.split(order, np.cumsum(clustering.sizes)[:-1])
    central = [part[:nearest].tolist() for part in parts]  # nearest first
    needed = {row for rows in central for row in rows}
    kept: dict[int, dict[str, Any]] = {}

    def texts() -> Iterator[tuple[int, str]]:
        labels = clustering.labels.tolist()
        for place, (row, label) in enumerate(zip(points.table.every_row(), labels, strict=True)):
            fields = (row.values.get(name) for name in names)
            text = next((value for value in fields if isinstance(value, str)), None)
            if place in needed:
                kept[place] = inputs.place_of(row) | ({} if text is None else {"text": text})
            if text is not None:
                yield label, text

    best = keywords(texts(), len(clustering.centres), count)
    for label, size in enumerate(clustering.sizes.tolist()):
        rows = [kept[place] for place in central[label]]
        yield {"cluster": label, "size": size, "keywords": best[label], "nearest": rows}


def write_clusters(
    run: ClusteringRun,
    form: str,
    keywords: int,
    nearest: int,
    output: str,
    centroids: str | None,
    *,
    described: bool,
    with_keywords: bool,
    keep: bool,
    replace: bool,
    force: bool,
) -> list[Record]:
    """Write the centroids and, unless `form` is "describe", the rows, with the best clustering of all seeds.

    If the clusters are `described`, the descriptions are returned, with numbers of keywords and nearest rows.
    `with_keywords`: each row gets the keywords of its cluster.
    """
    new = {"rows": ("cluster",), "stability": ("cluster", "stability")}.get(form, ())
    if with_keywords:
        new = (*new, "keywords")

    def check(rows: RowBlock) -> None:
        refuse_existing_fields(rows, new, replace=replace)

    as_read = keep and not is_safetensors(output)
    lines = (lambda block: as_jsonl(block, block.emb, None)) if as_read else None
    points = run.points(check, lines, apart=not as_read)
    clusterings = list(run.clusterings(points, run.counts[0]))
    best = best_of(clusterings)
    records: list[Record] = []
    if described or with_keywords:
        records = list(descriptions(points, best, run.inputs, keywords, nearest))
    if centroids is not None:  # first, because the reader of the rows may close the pipe
        spec, vectors = {"_emb": points.space} if points.space else {}, best.centres.astype(np.float32)
        form_of, numbers = VectorOutput(force=force, replace=True), [row["cluster"] + 1 for row in records]
        with open_writers([centroids], [spec], ("embedding",), vectors.shape[1], form_of) as [sink]:
            rows = made_block(records, centroids, numbers, [b""] * len(records))
            sink.put(rows, vectors[:, None])
    if form != "describe":
        others = [each.labels for each in clusterings if each is not best]
        stability = agreeing(best.labels, others) if form == "stability" else None
        words = [row["keywords"] for row in records] if with_keywords else None
        write_rows(points, best, stability, words, run.inputs, output, force=force, replace=replace)
    return records


def agreement_records(run: ClusteringRun, truth: str) -> Iterator[Record]:
    """A record for each seed, and one of their mean. Values x 100; noise counts as one additional cluster."""

    def classes_of(block: VectorBlock) -> list[bytes]:
        return [orjson.dumps({truth: name}) for (name,) in block.rows.texts]

    points = run.points(lambda rows: rows.parse(lambda row: class_of(row, truth)), classes_of)
    names = [class_of(row, truth) for row in points.table.every_row()]
    known, classes = np.unique(np.array(names, dtype=object), return_inverse=True)
    if len(known) == 1:
        problem = f'"{truth}" is the same in all {len(points)} rows, expected 2 classes or more'
        raise DataError(problem, source=run.source)
    header = {**report_header(run, points), "classes": len(known)}
    counted = run.centroids is None and ALGORITHMS[run.algorithm].counted
    count = run.counts[0] or (len(known) if counted else 0)
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
    points = run.points(lines=lambda block: [b"{}"] * len(block))
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
    named = {"file": readable(run.source), "encoder": points.space}
    return {**named, "n": len(points), "algorithm": algorithm}


def mean_if_known(values: Sequence[float | None]) -> float | None:
    """The mean; None if a value is None."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if len(known) == len(values) else None


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
