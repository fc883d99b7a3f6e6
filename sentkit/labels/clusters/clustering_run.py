"""The runs of a clustering: reads rows, clusters them once per seed, and writes the clusters or a report."""

import statistics
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import orjson

from sentkit.arrays import Float32, Float64, Indices
from sentkit.digits import decimals, significant
from sentkit.errors import DataError, UsageError
from sentkit.formats.files import readable, together
from sentkit.formats.outputs.outputs import open_output
from sentkit.formats.rows.block import Row, RowBlock, block_of, made_block
from sentkit.formats.rows.kinds import class_of
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.fingerprint import UNNAMED, Spec, edition_advice, short_label, space_of
from sentkit.formats.vectors.sinks import VectorOutput, as_jsonl, open_sinks, refuse_existing_fields
from sentkit.formats.vectors.store import (
    Store,
    common_fields,
    common_spec,
    is_store,
    places_of_texts,
    with_fields,
)
from sentkit.formats.vectors.vectors import VectorBlock, VectorReader, one_vector
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
from sentkit.metrics.neighbours.corpus import left_out
from sentkit.transforms.steps import Step

MAX_MAGNITUDE = 1e15  # maximum; the squared distance of larger vectors may exceed float32


Kept = Callable[[VectorBlock, str | None], list[bytes]]  # of rows and their `_emb`


@dataclass(frozen=True, slots=True)
class Points:
    vectors: Float32  # (n, d): as read
    rows: Float32  # (n, d): as clustered
    space: str | None  # the `_emb` of `rows`
    lines: list[bytes]  # the kept part of each row
    sources: list[str]  # the file of each row
    numbers: Sequence[int]  # of each row in its file
    spec: dict[str, Any]  # of `vectors`
    inputs: Inputs
    kept: Indices | None  # the places of the rows that are clustered; None: all

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def clustered(self) -> Float32:
        """The rows without zero vectors, which have the label -1."""
        return self.rows if self.kept is None else self.rows[self.kept]

    @property
    def source(self) -> str:
        return together(self.inputs.paths)

    def kept_rows(self) -> Iterator[Row]:
        """The kept parts of the rows."""
        for line, source, number in zip(self.lines, self.sources, self.numbers, strict=True):
            yield Row(line, orjson.loads(line), source, number)


def read_points(
    inputs: Inputs,
    kept: Kept,
    check: Callable[[RowBlock], None] = lambda rows: None,
    step: Step | None = None,
) -> Points:
    """Read all rows. `kept` returns what is kept of them. A single vector file is memory-mapped."""
    reader = VectorReader(inputs)
    mapped = len(inputs.paths) == 1 and is_store(inputs.paths[0])
    lines: list[bytes] = []
    sources: list[str] = []
    numbers, flat = array("q"), bytearray()

    def checked(block: VectorBlock) -> VectorBlock:
        largest = np.abs(one_vector(block).vectors).max(axis=(1, 2))
        for place in np.flatnonzero(largest > MAX_MAGNITUDE).tolist():
            problem = f"the vector has a value above {MAX_MAGNITUDE:.0e}, so squared distances would overflow"
            block.rows.refuse(place, problem)
        check(block.rows)
        return block

    for block in reader.blocks(checked):
        lines += kept(block, reader.emb)
        sources += block.rows.sources
        numbers.extend(block.rows.numbers)
        if not mapped:
            flat += block.vectors.tobytes()
    if mapped:
        vectors = Store(inputs.paths[0]).mapped()[:, 0]
        if len(numbers) < len(vectors):  # some are rejected
            vectors = vectors[np.array(numbers, np.intp) - 1]
    else:
        vectors = np.frombuffer(flat, "<f4").reshape(len(lines), reader.width)
    spec = {**common_spec(inputs), **({"_emb": reader.emb} if reader.emb else {})}
    rows, space = vectors, reader.emb
    if step is not None:
        rows = np.empty(vectors.shape, np.float32)
        for span in spans(len(vectors)):
            rows[span] = step(vectors[span])
        label, _, digest = (reader.emb or UNNAMED.emb).rpartition(":")
        space = Spec(label, digest).after(step.suffix, step.hash).emb
    return Points(vectors, rows, space, lines, sources, numbers, spec, inputs, places_of_texts(rows))


def without_vectors(block: VectorBlock, _: str | None) -> list[bytes]:
    return block.rows.without({*block.names, "_emb"}).lines


def read_centroids(path: str) -> Points:
    """Read centroids. They are numbered from 0 in row order; a field "cluster" must agree with it."""
    points = read_points(Inputs([path]), without_vectors)
    for number, row in enumerate(points.kept_rows()):
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

    def points(self, kept: Kept, check: Callable[[RowBlock], None] = lambda rows: None) -> Points:
        """Read the rows. Refuse a number of rows that the algorithm or the cluster number does not allow."""
        points = read_points(self.inputs, kept, check, self.step)
        count, source = len(points.clustered), points.source
        for message in left_out(source, len(points) - count, len(points)):
            self.warn(message)
        if not count:
            raise DataError("the vectors of all rows are zero, so there is nothing to cluster", source=source)
        if (given := self.centroids) is not None:
            ours, theirs = points.space, given.space
            fit = ours == theirs if ours is None or theirs is None else space_of(ours) == space_of(theirs)
            sizes = [f"{short_label(each.space)}, {each.rows.shape[1]} numbers" for each in (points, given)]
            if not fit or points.rows.shape[1] != given.rows.shape[1]:
                problem = f"the vectors are {sizes[0]}, the centroids of {given.source} are {sizes[1]}"
                raise DataError(problem, source=source, advice=edition_advice(ours, theirs))
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
    form, kept = VectorOutput(force=force, replace=True), points.kept_rows()
    with open_sinks([output], [spec], ("embedding",), width, form) as [sink]:
        for span in spans(len(points.vectors)):
            rows = block_of(islice(kept, span.stop - span.start))
            sink.put(rows, points.vectors[span][:, None], list(islice(fields, len(rows))))


Record = dict[str, Any]  # a JSON object


def descriptions(
    points: Points, clustering: Clustering, names: Sequence[str], count: int, nearest: int
) -> Iterator[Record]:
    """A record for each cluster: keywords of the first of the fields `names`, and the most central rows."""
    inside = np.flatnonzero(clustering.labels >= 0)
    own = clustering.labels[inside]
    order = inside[np.lexsort((distances(points.rows, clustering.centres, inside, own), own))]
    parts = np.split(order, np.cumsum(clustering.sizes)[:-1])
    central = [part[:nearest].tolist() for part in parts]  # nearest first
    needed = {row for rows in central for row in rows}
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


def write_clusters(
    run: ClusteringRun,
    form: str,
    sizes: tuple[int, int] | None,
    output: str,
    centroids: str | None,
    *,
    keep: bool,
    replace: bool,
    force: bool,
) -> list[Record]:
    """Write the centroids and, unless `form` is "describe", the rows, with the best clustering of all seeds.

    `sizes` are the numbers of keywords and rows of a description, which is returned; None if none is needed.
    """
    new = {"rows": ("cluster",), "stability": ("cluster", "stability")}.get(form, ())

    def check(rows: RowBlock) -> None:
        refuse_existing_fields(rows, new, replace=replace)

    with_vectors = keep and not is_store(output)
    points = run.points(partial(as_jsonl, encoding=None) if with_vectors else without_vectors, check)
    clusterings = list(run.clusterings(points, run.counts[0]))
    best = best_of(clusterings)
    described: list[Record] = []
    if sizes is not None:
        names = [common_fields(run.inputs).get(name, name) for name in ("text", "entry")]
        described = list(descriptions(points, best, names, *sizes))
    if centroids is not None:  # first, because the reader of the rows may close the pipe
        spec, vectors = {"_emb": points.space} if points.space else {}, best.centres.astype(np.float32)
        form_of, numbers = VectorOutput(force=force, replace=True), [row["cluster"] + 1 for row in described]
        with open_sinks([centroids], [spec], ("embedding",), vectors.shape[1], form_of) as [sink]:
            rows = made_block(described, centroids, numbers, [b""] * len(described))
            sink.put(rows, vectors[:, None])
    if form != "describe":
        others = [each.labels for each in clusterings if each is not best]
        stability = agreeing(best.labels, others) if form == "stability" else None
        write_rows(points, best, stability, output, force=force)
    return described


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
    points = run.points(lambda block, _: [b""] * len(block))
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
