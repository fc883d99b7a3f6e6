"""`sentkit cluster`: groups of similar rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from sentkit.console import Console, TaskProgress, print_text, show, slow, watch_rows
from sentkit.errors import UsageError
from sentkit.flag_values import numbers
from sentkit.flags import Excludes, Needs, Range, excludes, options
from sentkit.flags.rows import RowFlags
from sentkit.training.settings import ours, parsed

if TYPE_CHECKING:
    from sentkit.labels.clusters.clustering_run import ClusteringRun, Description

DETERMINISTIC = Excludes("--algorithm agglomerative|hdbscan", ", which is deterministic")
REPORTS = excludes("--truth", "--describe", because=", which writes a report")
KEYWORDS = 10  # of a described cluster
DEFAULT_SEEDS = {"counts": range(5), "stability": range(10)}  # of a form; other forms use only 0


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
        str | None, Excludes("--algorithm hdbscan", ", which chooses the number of clusters itself")
    ] = None,
    algorithm: Literal["kmeans", "minibatch", "agglomerative", "hdbscan", "faiss"] = "kmeans",
    truth: str | None = None,
    describe: bool = False,
    stability: Annotated[bool, DETERMINISTIC, excludes("--truth", "--describe")] = False,
    seed: Annotated[str | None, DETERMINISTIC] = None,
    set_: list[str] | None = None,
    normalize: bool = False,
    centroids: Annotated[str | None, Excludes("--truth", ", which makes several clusterings")] = None,
    from_centroids: Annotated[
        str | None,
        excludes(*("-k", "--algorithm", "--set", "--seed", "--stability"), because=": it only assigns rows"),
    ] = None,
    keywords: Annotated[int | None, Range(min=0)] = None,
    nearest: Annotated[int, Range(min=0), Needs("--describe or --centroids")] = 3,
    keep_vectors: Annotated[bool, REPORTS] = False,
    output: options.TableFlags,
    replace: Annotated[bool, REPORTS] = False,
    row_flags: RowFlags,
    comparing: options.ComparingFlags,
    console: Console,
) -> None:
    """Group rows with similar vectors into clusters.

    Flags:
      -k K|A..B: Number of clusters; several give a report. [default: with --truth, the number of classes]
      --algorithm: Clustering algorithm.
      --truth NAME: Report agreement with this field, a human class label.
      --describe: Report the size, keywords and nearest rows of each cluster; with --truth after its report.
      --stability: Add "stability" to each row: the share of the other seeds that agree.
      --seed N|A,B|A..B: Random seed. Several are possible with --truth, several -k (0..4) and --stability
          (0..9).
      --set NAME=VALUE: Change the algorithm; repeatable: restarts (10) and sample of kmeans, linkage (ward)
          of agglomerative, min_size (5) of hdbscan.
      --centroids PATH: Also write the centroids, with descriptions.
      --from-centroids FILE: Assign rows to these centroids; not with -k.
      --keywords N: Keywords per described cluster [default: 10]; without --describe and --centroids, add
          "keywords" to each row: a list of N keywords of its cluster.
      --nearest N: Nearest rows per described cluster.
      --keep-vectors: Keep the vectors in the rows.
    """
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.labels import Watch
    from sentkit.labels.clusters import clustering_run as runs
    from sentkit.labels.clusters.clustering import ALGORITHMS, ClusteringOptions
    from sentkit.transforms.steps import Normalize

    if truth is not None and keywords is not None and not describe:
        raise UsageError("--keywords cannot be used with --truth without --describe")
    counts = None if k is None else numbers("-k", k)
    form = "truth" if truth is not None else "describe" if describe else "stability" if stability else "rows"
    if counts is not None and len(counts) > 1:
        others = {"--truth": truth, "--describe": describe, "--stability": stability}
        others |= {"--keywords": keywords is not None, "--keep-vectors": keep_vectors}
        others |= {"--replace": replace, "--centroids": centroids}
        if flag := next((flag for flag, value in others.items() if value), None):
            raise UsageError(f"{flag} cannot be used with several -k, which write a report")
        form = "counts"
    is_report = form not in ("rows", "stability")
    if output.json is not None and not is_report:
        flag = "--json" if output.json else "--table"
        raise UsageError(f"{flag} can be used only with reports; rows are always JSON")
    output.check_rows(vectors=not is_report)
    if centroids is not None:
        options.OutputFlags(centroids, output.force).check_rows(vectors=True)
    if counts is None and truth is None and from_centroids is None and ALGORITHMS[algorithm].counted:
        raise UsageError("-k is missing", advice="for example -k 20, or -k 2..20 for a comparison")
    seeds = numbers("--seed", seed) if seed is not None else DEFAULT_SEEDS.get(form, (0,))
    given = parsed(AlgorithmSettings, set_ or [])
    check_numbers(counts or (1,), seeds, form, algorithm, given)
    with row_flags.open(
        console,
        output,
        known=(*VECTOR_FIELDS, "entry", truth),
        reads={"--from-centroids": from_centroids},
        writes={"--centroids": centroids},
    ) as inputs:
        watch_rows(console, inputs)
        tasks = TaskProgress(console, "clusterings")
        work = runs.ClusteringRun(
            inputs=inputs,
            warn=console.warn,
            algorithm=algorithm,
            counts=counts or (0,),
            seeds=seeds if from_centroids is None and ALGORITHMS[algorithm].random else (0,),
            options=ClusteringOptions(**given, device=comparing.find()),
            centroids=None if from_centroids is None else runs.read_centroids(from_centroids),
            step=Normalize() if normalize else None,
            watch=Watch(tasks.begin, tasks.add, partial(slow, console)),
        )
        if truth is not None:
            description = runs.Description(KEYWORDS if keywords is None else keywords, nearest)
            show_agreement(work, row_flags.theirs(truth), description if describe else None, output)
        elif form == "counts":
            output.show(runs.count_records(work), runs.count_line)
        else:
            described = runs.write_clusters(
                work,
                form,
                KEYWORDS if keywords is None else keywords,
                nearest,
                output.path,
                centroids,
                described=describe or centroids is not None,
                with_keywords=keywords is not None and not describe and centroids is None,
                keep=keep_vectors,
                replace=replace,
                force=output.force,
            )
            if describe:
                show_descriptions(described, output)


def show_agreement(
    work: "ClusteringRun", truth: str, description: "Description | None", output: options.TableFlags
) -> None:
    """Write the agreement with a field and, with a description, the clusters; on a terminal two tables."""
    from sentkit.labels.clusters.clustering_run import agreement_line, agreement_records

    records: Iterable[dict[str, Any]] = agreement_records(work, truth, description)
    clusters: Sequence[Mapping[str, Any]] = ()
    if description is not None and output.as_table:
        every_record = list(records)
        records = [record for record in every_record if "cluster" not in record]
        clusters = [record for record in every_record if "cluster" in record]
    output.show(records, agreement_line, labels=["seed"], optional=["iterations", "inertia", "k"])
    if clusters:
        print_text([""])
        show_descriptions(clusters, output)


def show_descriptions(records: Iterable[Mapping[str, Any]], output: options.TableFlags) -> None:
    from sentkit.labels.clusters.clustering_run import description_lines

    with output.open() as out:
        texts = ["keywords", "classes", "nearest"]
        show(records, description_lines, out, as_table=output.as_table, texts=texts)


def check_numbers(
    counts: Sequence[int], seeds: Sequence[int], form: str, algorithm: str, given: Mapping[str, Any]
) -> None:
    from sentkit.labels.clusters.clustering_run import check_sample

    if name := next((name for name in given if algorithm not in USERS[name]), None):
        raise UsageError(f"--set {name} needs --algorithm {' or '.join(USERS[name])}")
    if min(counts) < 1:
        raise UsageError(f"-k {min(counts)}: expected 1 or more")
    check_sample(given.get("sample"), max(counts))
    if len(seeds) < 2 and form == "stability":
        raise UsageError("--stability needs several seeds, for example --seed 0..9")
    if len(seeds) > 1 and form in ("rows", "describe"):
        raise UsageError("several seeds can be used only with --truth, --stability or several -k")
