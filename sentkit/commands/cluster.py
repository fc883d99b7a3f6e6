"""`sentkit cluster`: groups of similar rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

from sentkit import completion
from sentkit.console import Console, TaskProgress, print_text, show, slow, watch_rows
from sentkit.errors import UsageError
from sentkit.flag_values import numbers
from sentkit.flags import options
from sentkit.flags.comparing import find_device
from sentkit.flags.outputs import Output
from sentkit.flags.rows import RowSource, input_paths
from sentkit.flags.rules import is_given, needs, refuse_together
from sentkit.training.settings import ours, parsed

if TYPE_CHECKING:
    from sentkit.labels.clusters.clustering_run import ClusteringRun, DescriptionLimits

KEYWORDS = 10  # of a described cluster
NEAREST = 3  # rows of a described cluster
DEFAULT_SEEDS = {"counts": range(5), "stability": range(10)}  # of a form; other forms use only 0
FROM_ROWS = 0  # as the number of clusters: that of classes or centroids, or what hdbscan finds
USERS = {  # setting -> the algorithms that have it
    "restarts": ("kmeans", "minibatch", "faiss"),
    "sample": ("kmeans",),
    "linkage": ("agglomerative",),
    "min_size": ("hdbscan",),
}


@dataclass(frozen=True)
class AlgorithmSettings:
    """The settings of the algorithms; these defaults are those of `ClusteringOptions`."""

    restarts: int = ours(10, "runs for each seed; the best is kept", least=1)
    sample: int | None = ours(None, "rows of the restarts; the best continues on all rows", least=1)
    linkage: str = ours("ward", "linkage", choices=("ward", "complete", "average", "single"))
    min_size: int = ours(5, "the rows of the smallest cluster", least=2)


def cluster(
    *,
    k: Annotated[
        str | None,
        Option(
            "-k",
            metavar="K|A..B",
            help="Number of clusters; several give a report. [default: with --truth, the number of "
            "classes]",
        ),
    ] = None,
    algorithm: Annotated[
        Literal["kmeans", "minibatch", "agglomerative", "hdbscan", "faiss"],
        Option("--algorithm", help="Clustering algorithm."),
    ] = "kmeans",
    truth: Annotated[
        str | None,
        Option(
            "--truth",
            metavar="NAME",
            help="Report agreement with this field, a human class label.",
        ),
    ] = None,
    describe: Annotated[
        bool,
        Option(
            "--describe",
            help="Report the size, keywords and nearest rows of each cluster; with --truth after "
            "its report.",
        ),
    ] = False,
    stability: Annotated[
        bool,
        Option(
            "--stability",
            help='Add "stability" to each row: the share of the other seeds that agree.',
        ),
    ] = False,
    seed: Annotated[
        str | None,
        Option(
            "--seed",
            metavar="N|A,B|A..B",
            help="Random seed. Several are possible with --truth, several -k (0..4) and "
            "--stability (0..9).",
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="NAME=VALUE",
            autocompletion=completion.settings_of(AlgorithmSettings),
            help="Change the algorithm; repeatable: restarts (10) and sample of kmeans, linkage "
            "(ward) of agglomerative, min_size (5) of hdbscan.",
        ),
    ] = None,
    normalize: options.Normalize = False,
    centroids: Annotated[
        str | None,
        Option("--centroids", metavar="PATH", help="Also write the centroids, with descriptions."),
    ] = None,
    from_centroids: Annotated[
        str | None,
        Option(
            "--from-centroids",
            metavar="FILE",
            help="Assign rows to these centroids; not with -k.",
        ),
    ] = None,
    keywords: Annotated[
        int | None,
        Option(
            "--keywords",
            metavar="N",
            min=0,
            help="Keywords per described cluster [default: 10]; without --describe and "
            "--centroids, "
            'add "keywords" to each row: a list of N keywords of its cluster.',
        ),
    ] = None,
    nearest: Annotated[
        int,
        Option("--nearest", metavar="N", min=0, help="Nearest rows per described cluster."),
    ] = NEAREST,
    keep_vectors: Annotated[
        bool,
        Option("--keep-vectors", help="Keep the vectors in the rows."),
    ] = False,
    output_path: options.Output = "-",
    force: options.Force = False,
    json: Annotated[
        bool | None,
        Option(
            "--json/--table",
            help="Print a report as JSON, or as a table. [default: a table on a terminal]",
        ),
    ] = None,
    replace: options.Replace = False,
    mapped: options.Mapped = False,
    field: options.Field = None,
    rejects: options.Rejects = None,
    files: options.Files = None,
    device: options.ComparingDevice = "cpu",
    console: Console,
) -> None:
    """Group rows with similar vectors into clusters."""
    if_truth = {"--truth": truth}
    if_report = {"--truth": truth, "--describe": describe}
    if_described = {"--describe": describe, "--centroids": centroids}
    is_deterministic = algorithm in ("agglomerative", "hdbscan")
    if_deterministic = {"--algorithm agglomerative or hdbscan": is_deterministic}
    if_clusters_are_made = {
        "-k": k,
        "--algorithm": algorithm != "kmeans",
        "--set": set_,
        "--seed": seed,
        "--stability": stability,
    }
    refuse_together(
        {"-k": k},
        {"--algorithm hdbscan": algorithm == "hdbscan"},
        ", which chooses the number of clusters itself",
    )
    if not describe:
        refuse_together({"--keywords": keywords}, {"--truth without --describe": truth})
    refuse_together({"--stability": stability}, if_report)
    refuse_together(
        {"--stability": stability, "--seed": seed}, if_deterministic, ", which is deterministic"
    )
    refuse_together({"--centroids": centroids}, if_truth, ", which makes several clusterings")
    refuse_together(
        {"--from-centroids": from_centroids}, if_clusters_are_made, ": it only assigns rows"
    )
    needs({"--nearest": nearest != NEAREST}, if_described)
    refuse_together(
        {"--keep-vectors": keep_vectors, "--replace": replace}, if_report, ", which writes a report"
    )
    refuse_together({"--device": device != "cpu"}, if_deterministic, ", which runs on the CPU")
    if json is False and output_path != "-":
        raise UsageError("--table is for standard output", advice="use > FILE in place of -o FILE")

    # What the command writes: clusters of rows, with --stability the agreement of seeds, or a
    # report.
    counts = None if k is None else numbers("-k", k)
    has_several_counts = counts is not None and len(counts) > 1
    if has_several_counts:
        not_of_counts = {
            **if_report,
            "--stability": stability,
            "--keywords": keywords,
            "--keep-vectors": keep_vectors,
            "--replace": replace,
            "--centroids": centroids,
        }
        refuse_together(not_of_counts, {"several -k": True}, ", which write a report")
    form = form_of(
        truth, describe=describe, stability=stability, has_several_counts=has_several_counts
    )
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.labels import Watch
    from sentkit.labels.clusters import clustering_run as runs
    from sentkit.labels.clusters.clustering import ALGORITHMS, ClusteringOptions
    from sentkit.labels.clusters.points import read_centroids
    from sentkit.transforms.steps import Normalize

    output = Output(output_path, force)
    check_outputs(output, centroids, form, json)
    is_count_known = truth is not None or from_centroids is not None
    if k is None and not is_count_known and ALGORITHMS[algorithm].takes_count:
        raise UsageError("-k is missing", advice="for example -k 20, or -k 2..20 for a comparison")
    seeds = seeds_of(form, seed, algorithm)
    settings = parsed(AlgorithmSettings, set_ or [])
    check_numbers(counts, seeds, form, algorithm, settings)
    clustering_options = ClusteringOptions(**settings, device=find_device(device))

    rows = RowSource(input_paths(files), field, rejects, accepts_mapped=mapped)
    with rows.open(
        console,
        output,
        field_names=(*VECTOR_FIELDS, "entry", truth),
        reads={"--from-centroids": from_centroids},
        writes={"--centroids": centroids},
    ) as inputs:
        rows.warn_of_prompts(console, rows.paths)
        watch_rows(console, inputs)
        tasks = TaskProgress(console, "clusterings")
        run = runs.ClusteringRun(
            inputs=inputs,
            warn=console.warn,
            algorithm=algorithm,
            counts=counts or (FROM_ROWS,),
            seeds=seeds,
            options=clustering_options,
            centroids=None if from_centroids is None else read_centroids(from_centroids),
            step=Normalize() if normalize else None,
            watch=Watch(tasks.begin, tasks.add, partial(slow, console)),
        )
        as_table = output.on_terminal if json is None else not json
        limits = runs.DescriptionLimits(KEYWORDS if keywords is None else keywords, nearest)
        if truth is not None:
            limits_of_report = limits if describe else None
            show_agreement(
                run, rows.name_in_input(truth), limits_of_report, output, as_table=as_table
            )
        elif form == "counts":
            output.write_records(runs.count_records(run), runs.count_line, as_table=as_table)
        else:
            descriptions = runs.write_clusters(
                run,
                form,
                limits,
                output.path,
                centroids,
                described=any(map(is_given, if_described.values())),
                with_keywords=keywords is not None and not describe and centroids is None,
                keep_vectors=keep_vectors,
                replace=replace,
                force=force,
            )
            if describe:
                show_descriptions(descriptions, output, as_table=as_table)


def form_of(truth: str | None, *, describe: bool, stability: bool, has_several_counts: bool) -> str:
    """What the command writes."""
    if has_several_counts:
        return "counts"
    if truth is not None:
        return "truth"
    if describe:
        return "describe"
    if stability:
        return "stability"
    return "rows"


def seeds_of(form: str, seed: str | None, algorithm: str) -> Sequence[int]:
    """The given seeds, or those of the form. Only one gives the result of a deterministic
    algorithm, for which --seed is refused.
    """
    from sentkit.labels.clusters.clustering import ALGORITHMS

    if seed is not None:
        return numbers("--seed", seed)
    if not ALGORITHMS[algorithm].is_random:
        return (0,)
    return DEFAULT_SEEDS.get(form, (0,))


def show_agreement(
    run: "ClusteringRun",
    truth: str,
    limits: "DescriptionLimits | None",
    output: Output,
    *,
    as_table: bool,
) -> None:
    """Write the agreement with a field and, with limits, descriptions of the clusters; on a
    terminal two tables.
    """
    from sentkit.labels.clusters.clustering_run import agreement_line, agreement_records

    records: Iterable[dict[str, Any]] = agreement_records(run, truth, limits)
    clusters: Sequence[dict[str, Any]] = ()
    if limits is not None and as_table:
        every_record = list(records)
        records = [record for record in every_record if "cluster" not in record]
        clusters = [record for record in every_record if "cluster" in record]
    output.write_records(
        records,
        agreement_line,
        as_table=as_table,
        labels=["seed"],
        optional=["iterations", "inertia", "k"],
    )
    if clusters:
        print_text([""])
        show_descriptions(clusters, output, as_table=as_table)


def show_descriptions(records: Iterable[dict[str, Any]], output: Output, *, as_table: bool) -> None:
    from sentkit.labels.clusters.clustering_run import description_lines

    with output.open() as file:
        show(
            records,
            description_lines,
            file,
            as_table=as_table,
            labels=["class"],
            texts=["keywords", "nearest"],
        )


def check_outputs(output: Output, centroids: str | None, form: str, json: bool | None) -> None:
    """Refuse an output that exists or does not fit what the command writes."""
    if form in ("rows", "stability"):
        if json is not None:
            flag = "--json" if json else "--table"
            raise UsageError(f"{flag} can be used only with reports; rows are always JSON")
        output.check_rows_or_vectors()
    else:
        output.check_rows()
    if centroids is not None:
        Output(centroids, output.force).check_rows_or_vectors()


def check_numbers(
    counts: Sequence[int] | None,
    seeds: Sequence[int],
    form: str,
    algorithm: str,
    settings: Mapping[str, Any],
) -> None:
    """Refuse settings of another algorithm, and numbers of clusters or seeds that do not fit."""
    from sentkit.labels.clusters.clustering_run import check_sample

    for name in settings:
        if algorithm not in USERS[name]:
            raise UsageError(f"--set {name} needs --algorithm {' or '.join(USERS[name])}")
    if counts is not None:
        if min(counts) < 1:
            raise UsageError(f"-k {min(counts)}: expected 1 or more")
        check_sample(settings.get("sample"), max(counts))
    if len(seeds) < 2 and form == "stability":
        raise UsageError("--stability needs several seeds, for example --seed 0..9")
    if len(seeds) > 1 and form in ("rows", "describe"):
        raise UsageError("several seeds can be used only with --truth, --stability or several -k")
