"""`sentkit score`: how alike vectors are, and how well that agrees with people."""

import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import typer

from sentkit import options
from sentkit.console import Console, print_table
from sentkit.errors import AnswerIsNo, UsageError

if TYPE_CHECKING:
    from sentkit.formats.rows import Inputs
    from sentkit.formats.vectors import VectorRow
    from sentkit.metrics.judged import Judged


def score(
    files: options.Files = None,
    gold: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Report correlations with this member: a score by people."),
    ] = None,
    group: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --gold: the member that says a row's sub-topic.")
    ] = None,
    aggregate: Annotated[
        Literal["all", "mean", "weighted"],
        typer.Option(help="all pairs at once, or the mean over groups, plain or weighted by pairs."),
    ] = "all",
    metric: Annotated[
        Literal["cosine", "dot", "euclidean", "manhattan"],
        typer.Option(help="The two distances are made negative: larger is more alike."),
    ] = "cosine",
    baseline: Annotated[
        str | None, typer.Option(metavar="FILE", help="With --gold: the same pairs from another encoder.")
    ] = None,
    fail_under: Annotated[
        float | None, typer.Option(metavar="X", help="With --gold: exit 1 if a Spearman (x 100) is lower.")
    ] = None,
    top: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="Of sentences: the K closest pairs. [default: 10]")
    ] = None,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="Of up to 20000 sentences: all similarities.")
    ] = False,
    keep_vectors: Annotated[
        bool, typer.Option("--keep-vectors", help="Leave the vectors in the rows of pairs.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="JSON on a terminal too.")] = False,
    seed: options.Seed = 0,
    output: options.Output = "-",
    force: options.Force = False,
    replace: options.Replace = False,
    from_: options.From = None,
    field: options.Field = None,
    on_error: options.OnError = "fail",
    rejects: options.RejectsFile = None,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Score pairs of vectors, or find the closest sentences.

    \\b
    Examples:
      sentkit encode pairs.jsonl | sentkit score
      sentkit encode pairs.jsonl | sentkit score --gold score
      sentkit score a.safetensors b.safetensors --gold score --group topic
      sentkit score new.jsonl --gold score --baseline old.jsonl --fail-under 80
      sentkit encode titles.txt | sentkit score --top 5

    Pairs get "similarity", and lose their vectors. With --gold, one report for
    each FILE: the number of pairs, Spearman's and Pearson's correlation x 100,
    with 95 % intervals from 1000 resamples (by Fisher's z above 50,000 pairs), as a
    table on a terminal and else as a JSON object a line. Sentences: the closest
    pairs among them, all vectors held in memory.
    """
    from sentkit.formats.files import open_output
    from sentkit.formats.vectors import VECTOR_FIELDS

    console = Console("score", quiet, verbose)
    only("--gold", gold, {"--group": group, "--baseline": baseline, "--fail-under": fail_under})
    if aggregate != "all" and group is None:
        raise UsageError(f"--aggregate {aggregate} needs --group")
    if gold is not None and (matrix or top or keep_vectors or replace):
        raise UsageError(
            "--gold makes a report; --matrix, --top, --keep-vectors and --replace belong to rows"
        )
    as_table = output == "-" and not json and sys.stdout is not None and sys.stdout.isatty()
    with (
        options.open_inputs(
            console,
            files,
            format=from_,
            fields=field,
            known=VECTOR_FIELDS,
            on_error=on_error,
            rejects=rejects,
            force=force,
        ) as inputs,
        open_output(output, force=force) as out,
    ):
        if gold is not None:
            records = reports(inputs, gold, group, aggregate, metric, baseline, seed, console)
            show_reports(records, out, as_table=as_table)
        else:
            score_rows(
                inputs,
                out,
                metric,
                top=top,
                whole=matrix,
                keep=keep_vectors,
                replace=replace,
                as_table=as_table,
            )
            records = []
    check_floor(records, fail_under)


def only(flag: str, given: object, dependents: dict[str, object]) -> None:
    for name, value in dependents.items():
        if given is None and value is not None:
            raise UsageError(f"{name} belongs to {flag}")


def score_rows(
    inputs: "Inputs",
    out: BinaryIO,
    metric: str,
    *,
    top: int | None,
    whole: bool,
    keep: bool,
    replace: bool,
    as_table: bool,
) -> None:
    """Pairs or sentences, as the first row says."""
    from sentkit.formats.vectors import VectorReader

    rows = VectorReader(inputs).read(lambda row: row)
    first = next(rows, None)
    if first is None:
        return
    rows = chain([first], rows)
    if len(first.vectors) == 2 and not (top or whole):
        score_pairs(rows, out, metric, keep=keep, replace=replace)
    elif len(first.vectors) == 2:
        raise first.row.error("--top and --matrix are for sentences, and this row holds a pair")
    elif len(first.vectors) != 1:
        raise first.row.error("this row is a triplet; score reads pairs and sentences")
    elif keep:
        raise first.row.error("--keep-vectors is for pairs, and this row holds one sentence")
    elif whole:
        write_matrix(rows, out, metric, replace=replace)
    else:
        write_closest(rows, out, metric, top or 10, as_table=as_table)


def score_pairs(
    rows: Iterable["VectorRow"], out: BinaryIO, metric: str, *, keep: bool, replace: bool
) -> None:
    from sentkit.formats.sinks import with_members
    from sentkit.formats.vectors import without_vectors
    from sentkit.metrics.judged import compare_rows

    for row, similarity in compare_rows(rows, metric):
        left = row.row if keep else without_vectors(row.row, row.names)
        out.write(with_members(left, [(b"similarity", repr(similarity).encode())], replace=replace) + b"\n")


def write_matrix(rows: Iterable["VectorRow"], out: BinaryIO, metric: str, *, replace: bool) -> None:
    from sentkit.formats.sinks import with_members
    from sentkit.formats.vectors import as_list
    from sentkit.metrics.sentences import matrix

    for row, similarities in matrix(rows, metric=metric):
        out.write(with_members(row, [(b"similarities", as_list(similarities))], replace=replace) + b"\n")


def write_closest(
    rows: Iterable["VectorRow"], out: BinaryIO, metric: str, top: int, *, as_table: bool
) -> None:
    import orjson

    from sentkit.metrics.sentences import closest

    found = list(closest(rows, top=top, metric=metric))
    if as_table:
        print_table(
            [metric, "text_a", "text_b"],
            [
                [f"{each['similarity']:.4f}", *(each.get(name, "") for name in ("text_a", "text_b"))]
                for each in found
            ],
        )
    else:
        out.writelines(orjson.dumps(each) + b"\n" for each in found)


def reports(
    inputs: "Inputs",
    gold: str,
    group: str | None,
    aggregate: str,
    metric: str,
    baseline: str | None,
    seed: int,
    console: Console,
) -> list[dict[str, Any]]:
    """One record for each file, and one of their average where that means something."""
    from sentkit.formats.vectors import VectorReader
    from sentkit.metrics.judged import check_same_pairs, judge
    from sentkit.metrics.records import average_record, comparison_record, report_record
    from sentkit.metrics.report import compare, report

    def judged_file(path: str) -> "Judged":
        return judge(VectorReader(inputs), path, gold=gold, group=group, metric=metric)

    base = judged_file(baseline) if baseline is not None else None
    records = []
    for path in inputs.paths:
        judged = judged_file(path)
        record = report_record(judged, report(judged.pairs, aggregate=aggregate, seed=seed), metric)
        if base is not None:
            check_same_pairs(judged, base)
            compared = compare(judged.pairs, base.pairs, aggregate=aggregate, seed=seed)
            record["against"] = comparison_record(base, compared)
        for name in record.get("undefined", ()):
            console.warn(f'{path}: group "{name}" has no correlation: too few pairs, or all alike')
        records.append(record)
    average = average_record(records)
    return records if average is None else [*records, average]


def show_reports(records: list[dict[str, Any]], out: BinaryIO, *, as_table: bool) -> None:
    import orjson

    if not as_table:
        out.writelines(orjson.dumps(record) + b"\n" for record in records)
        return
    rows = [line for record in records for line in table_lines(record)]
    print_table(["file", "encoder", "pairs", "Spearman x 100", "Pearson x 100"], rows)


def table_lines(record: dict[str, Any]) -> Iterator[list[str]]:
    """The record's own line, its aggregates, its groups, and its difference to the baseline."""
    chosen = record.get("aggregate", "")
    yield [record["file"], space_label(record["encoder"]), str(record["n"]), *both(record)]
    for name, average in record.get("averages", {}).items():
        yield [f"  {name}{' (chosen)' if name == chosen else ''}", "", "", *both(average)]
    for name, of in record.get("groups", {}).items():
        yield [f"  {name}", "", str(of["n"]), *both(of)]
    if "against" in record:
        other = record["against"]
        shown = [
            with_interval(other[k]["difference"], other[k]["ci95"], f"{other[k]['p']:.3f}") for k in KINDS
        ]
        yield [f"  minus {other['file']}", space_label(other["encoder"]), "", *shown]


KINDS = ("spearman", "pearson")


def both(record: dict[str, Any]) -> list[str]:
    return [with_interval(record[kind], record.get(f"{kind}_ci95")) for kind in KINDS]


def with_interval(value: float | None, interval: list[float] | None, p: str | None = None) -> str:
    text = "undefined" if value is None else f"{value:.2f}"
    if interval is not None and None not in interval:
        text += f" [{interval[0]:.2f}, {interval[1]:.2f}]"
    return text if p is None else f"{text} p={p}"


def space_label(emb: str | None) -> str:
    return "" if emb is None else emb.rpartition(":")[0]


def check_floor(records: Iterable[dict[str, Any]], floor: float | None) -> None:
    for record in records:
        value = record["spearman"]
        if floor is not None and (value is None or value < floor):
            shown = "undefined" if value is None else f"{value:.2f}"
            raise AnswerIsNo(f"{record['file']}: spearman is {shown}, under {floor:g}")
