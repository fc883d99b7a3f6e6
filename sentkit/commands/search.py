"""`sentkit search`: the rows of a corpus that are most like each query."""

from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from sentkit import options
from sentkit.console import Console, print_table
from sentkit.errors import UsageError

if TYPE_CHECKING:
    from sentkit.metrics.queries import AnsweredQueries
    from sentkit.metrics.records import Record

OWN = ("row", "similarity")  # the members of every hit


def search(
    *,
    corpus: Annotated[str, typer.Option(metavar="FILE", help="Rows with a vector, all held in memory.")],
    queries: Annotated[str, typer.Option(metavar="FILE", help="Rows with a vector; '-' is stdin.")] = "-",
    top: Annotated[int, typer.Option(min=1, metavar="K", help="Hits for each query.")] = 10,
    metric: options.Metric = "cosine",
    show: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="What hits show of their rows; repeatable. [default: text or entry]"
        ),
    ] = None,
    gold: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[=THEIRS]",
            help="Report how often a hit has the query's NAME, as THEIRS if given.",
        ),
    ] = None,
    json: options.Json = False,
    output: options.Output = "-",
    force: options.Force = False,
    replace: options.Replace = False,
    row_flags: options.StreamFlags,
    quiet: options.Quiet = False,
) -> None:
    """Find the rows of a corpus that are most like each query.

    \b
    Examples:
      echo a dog | sentkit encode | sentkit search --corpus titles.safetensors
      sentkit search --queries q.jsonl --corpus titles.safetensors --top 3
      sentkit search --queries q.jsonl --corpus titles.safetensors --gold text

    Each query loses its vector and gets "hits": of the K rows most like it, the
    best first, the number in the corpus (from 1), the similarity, and its "text" or
    "entry". Nothing is approximate, and ties are in the order of the rows. Queries
    and corpus must be of one space, or the queries trained into that of the corpus.
    --from is of the queries: how the corpus is read, its suffix says. --field is of
    both, but --show and --gold name members as the rows themselves do.

    With --gold one report: n, absent (queries whose answer the corpus does not
    hold, which count as not found), hit rates at 1, 3, 10 and K and the mean
    reciprocal rank within K, x 100, and the median rank, null if beyond K.
    """
    from sentkit.formats.files import check_input
    from sentkit.formats.outputs import open_output
    from sentkit.formats.vectors import VECTOR_FIELDS
    from sentkit.metrics.queries import AnsweredQueries
    from sentkit.metrics.retrieval import report

    console = Console("search", quiet)
    check_form(corpus, queries, output, show=show or [], gold=gold, replace=replace)
    check_input(corpus)
    with (
        row_flags.open_files(
            console,
            [queries],
            known=(*VECTOR_FIELDS, "entry"),
            output=output,
            force=force,
            reads={"--corpus": corpus},
        ) as inputs,
        open_output(output, force=force) as out,
    ):
        asked = AnsweredQueries(inputs, corpus, top=top, metric=metric, show=show or [], gold=gold)
        as_table = options.as_table(output, json=json)
        if gold is not None:
            show_report(report(asked), out, as_table=as_table)
        elif as_table:
            show_hits(asked)
        else:
            write_hits(asked, out, replace=replace)
    if not asked.count:
        console.warn("no rows")


def check_form(
    corpus: str, queries: str, output: str, *, show: list[str], gold: str | None, replace: bool
) -> None:
    """One form of output, and two inputs."""
    from sentkit.formats.sinks import check_rows_output

    if corpus == queries == "-":
        raise UsageError("--queries and --corpus cannot both be standard input")
    if gold is not None and (show or replace):
        raise UsageError("--gold makes a report; --show and --replace belong to rows")
    if gold is not None and not all(gold.split("=", 1)):
        raise UsageError(f'--gold "{gold}": expected a name, or NAME=THEIRS')
    own = next((name for name in show if name in OWN), None)
    if own:
        raise UsageError(f'--show {own}: a hit has a member "{own}" of its own')
    check_rows_output(output)


def write_hits(search: "AnsweredQueries", out: BinaryIO, *, replace: bool) -> None:
    from sentkit.formats.sinks import with_members

    for window in search.windows():
        for found in window:
            hits = b"[%b]" % b",".join(search.corpus.hit(*each) for each in found.hits)
            out.write(with_members(found.query, [(b"hits", hits)], replace=replace) + b"\n")
        out.flush()  # whoever reads at the other end of a slow pipe need not wait


def show_hits(search: "AnsweredQueries") -> None:
    """A line for each hit; the query stands before its first."""
    names = search.show or ["hit"]
    lines = []
    for found in search:
        query = search.called(found.query)
        for row, similarity in found.hits:
            lines.append([query, f"{similarity:.4f}", *search.cells(row)])
            query = ""
    if lines:
        print_table(["query", search.metric, *names], lines, names=["query", *names])


def show_report(record: "Record", out: BinaryIO, *, as_table: bool) -> None:
    from sentkit.formats.jsonfiles import json_line
    from sentkit.metrics.retrieval import columns

    if as_table:
        line = columns(record)
        print_table(list(line), [list(line.values())], names=[])
    else:
        out.write(json_line(record))
