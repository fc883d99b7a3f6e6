"""`sentkit cluster`: groups of similar rows."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sentkit.console import follow_tasks, show, slow
from sentkit.errors import UsageError
from sentkit.flag_values import numbers
from sentkit.flags import options
from sentkit.flags.rows import RowFlags
from sentkit.process import limit_threads

if TYPE_CHECKING:
    from sentkit.formats.rows.rows import Inputs
    from sentkit.labels.clusters.clustering_run import ClusteringRun
    from sentkit.labels.clusters.reports import DescriptionOptions, Record


@dataclass(frozen=True)
class AlgorithmFlags:
    """Flags that only some algorithms use."""

    restarts: Annotated[
        int | None,
        typer.Option(
            "--n-init",
            min=1,
            metavar="N",
            help="Number of restarts per seed; the best is kept. [default: 10]",
        ),
    ] = None
    sample: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="For kmeans: restart on N random rows; the best continues on all rows."
        ),
    ] = None
    linkage: Annotated[
        Literal["ward", "complete", "average", "single"] | None,
        typer.Option(help="For agglomerative: linkage criterion. [default: ward]"),
    ] = None
    least: Annotated[
        int | None,
        typer.Option(
            "--min-cluster-size", min=2, metavar="N", help="For hdbscan: minimum cluster size. [default: 5]"
        ),
    ] = None

    @property
    def values(self) -> dict[str, Any]:
        """The values by flag; None if a flag is not given."""
        return {
            **{"--n-init": self.restarts, "--sample": self.sample},
            **{"--linkage": self.linkage, "--min-cluster-size": self.least},
        }


@dataclass(frozen=True)
class DescriptionFlags:
    """The extent of the description of a cluster."""

    keywords: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Keywords per described cluster. [default: 10]")
    ] = None
    nearest: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Nearest rows per described cluster. [default: 3]")
    ] = None

    def options(self, inputs: "Inputs") -> "DescriptionOptions":
        from sentkit.formats.vectors.store import common_fields
        from sentkit.labels.clusters.reports import DescriptionOptions

        fields = common_fields(inputs)
        names = tuple(fields.get(name, name) for name in ("text", "entry"))
        given = {name: count for name, count in vars(self).items() if count is not None}
        return DescriptionOptions(names, **given)


def cluster(
    *,
    k: Annotated[
        str | None,
        typer.Option(
            "-k",
            metavar="K|A..B",
            help="Number of clusters; several give a report. [default: with --truth, the number of classes]",
        ),
    ] = None,
    algorithm: Annotated[
        Literal["kmeans", "minibatch", "agglomerative", "hdbscan", "faiss"],
        typer.Option(help="Clustering algorithm."),
    ] = "kmeans",
    truth: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Report agreement with this field, a human class label."),
    ] = None,
    describe: Annotated[
        bool, typer.Option("--describe", help="Report the size, keywords and nearest rows of each cluster.")
    ] = False,
    stability: Annotated[
        bool,
        typer.Option(
            "--stability", help='Add "stability" to each row: the share of the other seeds that agree.'
        ),
    ] = False,
    seed: Annotated[
        str | None,
        typer.Option(
            metavar="N|A,B|A..B",
            help="Random seed. Several are possible with --truth, several -k (0..4) and --stability (0..9).",
        ),
    ] = None,
    own: AlgorithmFlags,
    normalize: options.Normalize = False,
    centroids: Annotated[
        str | None, typer.Option(metavar="PATH", help="Also write the centroids, with descriptions.")
    ] = None,
    from_centroids: Annotated[
        str | None, typer.Option(metavar="FILE", help="Assign rows to these centroids; not with -k.")
    ] = None,
    extent: DescriptionFlags,
    keep_vectors: Annotated[
        bool, typer.Option("--keep-vectors", help="Keep the vectors in the rows.")
    ] = False,
    threads: options.Threads = None,
    output: options.ReportFlags,
    replace: options.Replace = False,
    row_flags: RowFlags,
    run: options.RunFlags,
) -> None:
    """Group rows with similar vectors into clusters.

    \b
    Examples:
      sentkit cluster news.safetensors -k 2
      sentkit cluster news.safetensors -k 2 --describe --keywords 5
      sentkit cluster news.safetensors --truth label --seed 0..9
      sentkit cluster news.safetensors -k 2..4

    Most used: [FILE]... -k --algorithm --truth --describe --centroids --seed -o

    The command removes the vector of each row and adds "cluster", a number from 0. With
    hdbscan, -1 means that the row belongs to no cluster. If the output is a vector
    file, the vectors are kept. All rows are kept in memory.
    """
    if threads is not None:
        limit_threads(threads)
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.labels import Watch
    from sentkit.labels.clusters import clustering_run, reports
    from sentkit.labels.clusters.clustering_run import ClusteringRun
    from sentkit.transforms.steps import Normalize

    console = run.console("cluster")
    counts = None if k is None else numbers("-k", k)
    form = clustering_run.form_of(truth, counts, describe=describe, stability=stability)
    clustering_run.check_form(
        form,
        rows=[keep_vectors, replace],
        centroids=centroids,
        extent=[extent.keywords, extent.nearest],
        json=output.json,
    )
    check_outputs(output, centroids, rows=form in ("rows", "stability"))
    if from_centroids is None:
        planned = clustering_run.plan_of(algorithm, counts, own.values, truth=truth is not None)
    else:
        check_read_once(from_centroids, row_flags.paths)
        planned = clustering_run.given_plan(from_centroids, algorithm, {"-k": k, **own.values})
    planned = planned.with_seeds(form, None if seed is None else numbers("--seed", seed))
    with row_flags.open(
        console,
        output,
        known=(*VECTOR_FIELDS, "entry", truth),
        reads={"--from-centroids": from_centroids},
        writes={"--centroids": centroids},
    ) as inputs:
        watch = Watch(*follow_tasks(console, "clusterings", inputs), partial(slow, console))
        work = ClusteringRun(inputs, planned, Normalize() if normalize else None, console.warn, watch)
        if truth is not None:
            optional = ["iterations", "inertia", "k"]
            records = reports.agreement_records(work, row_flags.theirs(truth))
            report(records, reports.agreement_line, output, texts=["seed"], optional=optional)
        elif form == "counts":
            report(reports.count_records(work), reports.count_line, output)
        else:
            wanted = form == "describe" or centroids is not None
            description = extent.options(inputs) if wanted else None
            descriptions = label(
                work, form, description, output, centroids, keep=keep_vectors, replace=replace
            )
            if form == "describe":
                report(
                    descriptions, reports.description_line, output, texts=["keywords", "nearest"], wrap=True
                )


def label(
    run: "ClusteringRun",
    form: str,
    extent: "DescriptionOptions | None",
    output: options.OutputFlags,
    centroids: str | None,
    *,
    keep: bool,
    replace: bool,
) -> "list[Record]":
    """Write the centroids and, except with --describe, the rows; return descriptions if they are needed."""
    from sentkit.formats.vectors.store import is_store
    from sentkit.labels.clusters.clustering_run import NEW_FIELDS, label_rows, new_fields, write_rows
    from sentkit.labels.clusters.reports import descriptions
    from sentkit.labels.clusters.vector_rows import write_centroids

    labelled = label_rows(run, NEW_FIELDS[form], keep=keep and not is_store(output.path), replace=replace)
    points, clustering = labelled.points, labelled.clustering
    described = [] if extent is None else list(descriptions(points, clustering, extent))
    if centroids is not None:  # first, because the reader of the rows may close the pipe
        write_centroids(centroids, clustering.centres, described, points.space, force=output.force)
    if form != "describe":
        fields = new_fields(clustering.labels, labelled.stability)
        write_rows(points, fields, output.path, run.inputs, force=output.force)
    return described


def report(
    records: "Iterable[Record]",
    line: "Callable[[Record], dict[str, str]]",
    output: options.ReportFlags,
    *,
    texts: Sequence[str] = (),
    optional: Sequence[str] = (),
    wrap: bool = False,
) -> None:
    with output.open() as out:
        show(
            records,
            lambda record: [line(record)],
            out,
            as_table=output.as_table,
            texts=texts,
            optional=optional,
            wrap=wrap,
        )


def check_read_once(from_centroids: str, files: list[str]) -> None:
    if from_centroids == "-" and "-" in files:
        raise UsageError("standard input can be read only once", advice="name a FILE for the other input")


def check_outputs(output: options.OutputFlags, centroids: str | None, *, rows: bool) -> None:
    """Refuse existing outputs and wrong suffixes, before any work."""
    from sentkit.formats.outputs.outputs import check_creatable
    from sentkit.formats.vectors.sinks import check_output, check_rows_output

    (check_output if rows else check_rows_output)(output.path)
    output.check_creatable()
    if centroids is not None:
        check_output(centroids)
        check_creatable(centroids, force=output.force)
