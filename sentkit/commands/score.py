"""`sentkit score`: the similarity of vectors, and its correlation with gold scores."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, takewhile
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

from typer import Option

from sentkit.console import Console, show, slow
from sentkit.errors import AnswerIsNo
from sentkit.flags import options
from sentkit.flags.outputs import Output
from sentkit.flags.rows import RowSource, input_paths
from sentkit.flags.rules import check_threshold, needs, refuse_together
from sentkit.process import limit_threads

if TYPE_CHECKING:
    from sentkit.formats.rows.block import Row
    from sentkit.formats.rows.rows import Inputs
    from sentkit.formats.vectors.vectors import VectorBlock
    from sentkit.metrics.gold_pairs import ScoreOptions
    from sentkit.metrics.reports import Record

TOP = 10  # pairs, by default
ONE_WIDTH = (
    ", as its tests are against all numbers; encode both files with --dim N to compare "
    "them at one width"
)


def score(
    *,
    gold: Annotated[
        str | None,
        Option(
            "--gold", metavar="NAME", help="Report correlations with this field, a human score."
        ),
    ] = None,
    label: Annotated[
        str | None,
        Option(
            "--label",
            metavar="NAME",
            help="Report average precision, AUC and the threshold of the best F1 for this field, 0 "
            "or 1.",
        ),
    ] = None,
    precision_at: Annotated[
        float | None,
        Option(
            "--precision-at",
            metavar="P",
            min=0,
            max=1,
            help="With --label: the threshold with the highest recall at a precision of at least "
            "P.",
        ),
    ] = None,
    group: Annotated[
        str | None,
        Option(
            "--group",
            metavar="NAME[:HOW]",
            help="With --gold: the field that names the group of a row. HOW: all: one correlation "
            "of all pairs; mean: mean of the groups; weighted: mean weighted by the pairs of each "
            "group. [default: all]",
        ),
    ] = None,
    dim: Annotated[
        int | None,
        Option(
            "--dim",
            metavar="N",
            min=1,
            help="With --gold: also the correlations of the first N numbers, with tests against "
            "all numbers.",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        Option(
            "--baseline",
            metavar="FILE",
            help="The same pairs, encoded by another model, or with --qrels other hits.",
        ),
    ] = None,
    fail_under: Annotated[
        float | None,
        Option(
            "--fail-under",
            metavar="X",
            help="Exit code 1 if Spearman, average precision or nDCG@10 (x 100) is below X.",
        ),
    ] = None,
    fail_if_worse: Annotated[
        float | None,
        Option(
            "--fail-if-worse",
            metavar="X",
            min=0,
            help="Exit code 1 if the paired test finds this measure more than X below that of "
            "--baseline; X can be 0.",
        ),
    ] = None,
    seen: Annotated[
        list[str] | None,
        Option(
            "--seen",
            metavar="ROWS",
            help="With --gold: training rows; also report the correlation without the pairs that "
            "occur in them. Repeatable.",
        ),
    ] = None,
    qrels: Annotated[
        str | None,
        Option(
            "--qrels",
            metavar="FILE",
            help="For hits of search: report retrieval scores with these judgements (TREC, BEIR or "
            "rows).",
        ),
    ] = None,
    missing: Annotated[
        Literal["error", "zero"],
        Option("--missing", help="With --qrels: how a query without hits counts."),
    ] = "error",
    per_query: Annotated[
        str | None,
        Option("--per-query", metavar="PATH", help="With --qrels: write the scores of each query."),
    ] = None,
    metric: options.Metric = "cosine",
    mapped: options.Mapped = False,
    top: Annotated[
        int | None,
        Option(
            "--top",
            metavar="K",
            min=1,
            help="For sentences: show the K closest pairs. [default: 10]",
        ),
    ] = None,
    threshold: options.Threshold = None,
    matrix: Annotated[
        bool,
        Option("--matrix", help="For up to 20000 sentences: write all similarities."),
    ] = False,
    keep_vectors: Annotated[
        bool,
        Option("--keep-vectors", help="For pairs: keep the vectors in the rows."),
    ] = False,
    output_path: options.Output = "-",
    force: options.Force = False,
    json: options.Json = False,
    replace: options.Replace = False,
    field: options.Field = None,
    rejects: options.Rejects = None,
    files: options.Files = None,
    console: Console,
) -> None:
    """Score pairs or hits, or find the closest sentences."""
    # The rules between the flags: three reports, or else the similarities themselves.
    reports = {"--gold": gold, "--label": label, "--qrels": qrels}
    of_similarities = {
        "--top": top,
        "--threshold": threshold,
        "--matrix": matrix,
        "--keep-vectors": keep_vectors,
        "--replace": replace,
        "--mapped": mapped,
    }
    refuse_together({"--label": label}, {"--gold": gold})
    refuse_together({"--qrels": qrels}, {"--gold": gold, "--label": label})
    needs({"--group": group, "--dim": dim, "--seen": seen}, {"--gold": gold})
    needs({"--precision-at": precision_at}, {"--label": label})
    needs({"--missing": missing == "zero", "--per-query": per_query}, {"--qrels": qrels})
    needs({"--baseline": baseline, "--fail-under": fail_under}, reports)
    needs({"--fail-if-worse": fail_if_worse}, {"--baseline": baseline})
    refuse_together({"--dim": dim}, {"--baseline": baseline}, ONE_WIDTH)
    refuse_together({"--metric": metric != "cosine"}, {"--qrels": qrels})
    refuse_together(of_similarities, reports, ", which writes a report")
    closest = {"--top": top, "--threshold": threshold}
    refuse_together({"--matrix": matrix}, {**closest, "--keep-vectors": keep_vectors})
    refuse_together({"--keep-vectors": keep_vectors, "--replace": replace}, closest)
    refuse_together({"--json": json}, {"--matrix": matrix}, "; rows are always JSON")
    check_threshold(threshold, metric)
    if any(reports.values()):
        limit_threads(of_libraries=1)  # the products of resamples are too small for several
    from sentkit.formats.files import check_input, expanded
    from sentkit.formats.outputs.outputs import open_output
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.metrics.gold_pairs import ScoreOptions
    from sentkit.metrics.reports import warnings
    from sentkit.metrics.seen_pairs import SeenPairs

    # Outputs and files that are opened late have their errors now.
    output = Output(output_path, force)
    output.check_rows()
    if per_query is not None:
        Output(per_query, force).check_rows()
    seen_paths = list(expanded(seen or []))
    for path in seen_paths:
        check_input(path)

    # The inputs: rows with vectors, or with --qrels hits of `search`.
    rows = RowSource(input_paths(files), field, rejects, accepts_mapped=mapped)
    group_field, aggregate = parse_group(group)
    field_names = (*VECTOR_FIELDS, gold, label, group_field)
    if qrels is not None:
        field_names = ("id", "similarity")
    opened = rows.open(
        console,
        output,
        field_names=field_names,
        reads={"--baseline": baseline, "--qrels": qrels, "--seen": seen_paths},
        writes={"--per-query": per_query},
    )
    with (
        opened as inputs,
        nullcontext() if per_query is None else open_output(per_query, force=force) as queries_file,
        output.open() as file,
    ):
        if qrels is None:
            rows.warn_of_prompts(console, rows.paths)
        as_table = output.on_terminal and not json
        score_options = ScoreOptions(
            rows.name_in_input(gold or label or ""),
            rows.name_in_input(group_field),
            metric,
            aggregate,
            dim=dim,
            seen=SeenPairs(seen_paths) if seen_paths else None,
            binary=label is not None,
        )

        # One of the three reports, or the similarities.
        if qrels is not None:
            evaluation = evaluate_hits(
                inputs, qrels, baseline, queries_file, missing_is_zero=missing == "zero"
            )
        elif label is not None:
            evaluation = evaluate_labels(inputs, score_options, baseline, precision_at)
        elif gold is not None:
            evaluation = evaluate_gold(inputs, score_options, baseline)
        else:
            write_similarities(
                inputs,
                file,
                console,
                metric=metric,
                top=top,
                threshold=threshold,
                matrix=matrix,
                keep_vectors=keep_vectors,
                replace=replace,
                as_table=as_table,
            )
            return
        console.warn(*warnings(evaluation.records))
        show(evaluation.records, evaluation.lines, file, as_table=as_table, **evaluation.layout)
    check_limits(evaluation, fail_under, fail_if_worse)


def parse_group(group: str | None) -> tuple[str | None, str]:
    """The field of --group NAME[:HOW], and how the correlations of the groups are combined."""
    name, _, aggregate = (group or "").rpartition(":")
    if name and aggregate in ("all", "mean", "weighted"):
        return name, aggregate
    return group, "all"


@dataclass(frozen=True)
class Evaluation:
    """The records of a report with their table, and the measure of --fail-under and
    --fail-if-worse.
    """

    records: "Sequence[Record]"
    lines: "Callable[[Record], Iterable[dict[str, str]]]"
    measure: str  # its name in the records
    measure_label: str
    layout: Mapping[str, Any]


def evaluate_gold(inputs: "Inputs", options: "ScoreOptions", baseline: str | None) -> Evaluation:
    """The correlations of each file with the gold scores, and their average over the files."""
    from sentkit.metrics.reports import average_records, reports, table_lines

    records = list(reports(inputs, options, baseline))
    records += average_records(records)
    layout = {"labels": ["file", "encoder"], "optional": ["encoder"]}
    return Evaluation(records, table_lines, "spearman", "spearman", layout)


def evaluate_labels(
    inputs: "Inputs", options: "ScoreOptions", baseline: str | None, precision_at: float | None
) -> Evaluation:
    """The average precision and the thresholds of each file with the labels 0 and 1."""
    from sentkit.metrics.label_scores import label_lines, label_records

    records = list(label_records(inputs, options, baseline, precision_at))
    layout = {"labels": ["file"], "optional": ["interval", "threshold"]}
    return Evaluation(records, label_lines, "average_precision", "average precision", layout)


def evaluate_hits(
    inputs: "Inputs",
    qrels_path: str,
    baseline: str | None,
    queries_file: BinaryIO | None,
    *,
    missing_is_zero: bool,
) -> Evaluation:
    """The retrieval scores of each file of hits; `queries_file` gets those of each query."""
    from sentkit.metrics import retrieval
    from sentkit.metrics.reports import measure_lines

    # The judgements, and the hits of the baseline.
    qrels = retrieval.read_qrels(inputs, qrels_path)
    values_of = partial(retrieval.values_of, qrels_path=qrels_path, missing_is_zero=missing_is_zero)
    baseline_run = None
    if baseline is not None:
        baseline_run = retrieval.read_run(inputs.with_paths(baseline), baseline, qrels)

    # A record for each file of hits (a run), with the values (n, m) of its queries and measures.
    records = []
    for path in inputs.paths:
        run = retrieval.read_run(inputs, path, qrels)
        if not any(run.relevant.values()):
            advice = "do the ids agree? --field id=row uses the numbers of rows"
            inputs.rejects.warn(f"{path}: no relevant document of {qrels_path} is a hit; {advice}")
        values = values_of(run)
        record = retrieval.record_of(run, values, qrels_path)
        if baseline_run is not None:
            changes = values - values_of(baseline_run)
            record["against"] = retrieval.against(baseline_run, changes)
        records.append(record)
        if queries_file is not None:
            with_file = len(inputs.paths) > 1
            queries_file.writelines(retrieval.lines_of_queries(run, values, with_file=with_file))
    lines = partial(measure_lines, measures=retrieval.MEASURES)
    return Evaluation(records, lines, "ndcg@10", "nDCG@10", {"labels": ["file"]})


def check_limits(
    evaluation: Evaluation, fail_under: float | None, fail_if_worse: float | None
) -> None:
    """Raise AnswerIsNo if a report fails --fail-under or --fail-if-worse, or both."""
    from sentkit.metrics.reports import below, worse

    records = evaluation.records
    results = [
        below(records, evaluation.measure, evaluation.measure_label, fail_under),
        worse(records, evaluation.measure, evaluation.measure_label, fail_if_worse),
    ]
    problems = [problem for problem in results if problem is not None]
    if problems:
        raise AnswerIsNo("; ".join(problems))


def write_similarities(
    inputs: "Inputs",
    file: BinaryIO,
    console: Console,
    *,
    metric: str,
    top: int | None,
    threshold: float | None,
    matrix: bool,
    keep_vectors: bool,
    replace: bool,
    as_table: bool,
) -> None:
    """Write the similarity of each pair, or those of sentences; the first row determines which."""
    from sentkit.formats.files import text_of_paths
    from sentkit.formats.vectors.vectors import VectorReader, as_list
    from sentkit.formats.vectors.writers import refuse_existing_fields
    from sentkit.metrics.neighbours.pairs import similarity_rows as rows_with_similarities
    from sentkit.metrics.zero_vectors import ZeroVectorCounter

    def check(block: "VectorBlock") -> "VectorBlock":
        new_fields = []
        if matrix:
            new_fields = ["similarities"]
        elif block.vectors.shape[1] == 2:
            new_fields = ["similarity"]
        refuse_existing_fields(block.rows, new_fields, replace=replace)
        return block

    # The first block, with the number of vectors of a row.
    reader = VectorReader(inputs)
    blocks = reader.blocks(check)
    first_block = next(blocks)
    blocks = chain([first_block], blocks)
    vectors_per_row = first_block.vectors.shape[1]
    only_sentences = matrix or top is not None or threshold is not None
    flag_of_pairs = None
    if keep_vectors:
        flag_of_pairs = "--keep-vectors"
    elif replace and not matrix:
        flag_of_pairs = "--replace without --matrix"
    refuse_kind(
        first_block.rows.row(0),
        vectors_per_row,
        only_sentences=only_sentences,
        flag_of_pairs=flag_of_pairs,
    )

    # Pairs, all similarities of sentences, or the closest sentences.
    path = text_of_paths(inputs.paths)
    zero_vectors = ZeroVectorCounter("rows" if matrix else "pairs")
    counted_blocks = zero_vectors.counted(blocks)
    if vectors_per_row == 2:
        for block in counted_blocks:
            file.write(scored_pairs(block, metric, reader.space_name, keep=keep_vectors))
        zero_vectors.warn(inputs, path)
    elif matrix:
        for row, similarities in rows_with_similarities(counted_blocks, metric=metric):
            new_fields = [(b"similarities", as_list(similarities))]
            file.write(row.add(new_fields, replace=replace) + b"\n")
        zero_vectors.warn(inputs, path)
    else:
        pairs = closest_of_sentences(inputs, blocks, metric, top, threshold)
        with slow(console, "reading the vectors and comparing all pairs"):
            first_pair = list(islice(pairs, 1))  # the iterator is lazy: it starts the comparison
        lines = partial(lines_of_pair, metric=metric)
        all_pairs = chain(first_pair, pairs)
        show(all_pairs, lines, file, as_table=as_table, texts=("a", "b"), flush=False)


def refuse_kind(
    row: "Row", vectors: int, *, only_sentences: bool, flag_of_pairs: str | None
) -> None:
    """Refuse the first row if its kind does not fit the flags."""
    if vectors > 2:
        raise row.error("this row is a triplet; score reads pairs and sentences")
    if vectors == 2 and only_sentences:
        raise row.error("--top, --threshold and --matrix need sentences, but this row is a pair")
    if vectors == 1 and flag_of_pairs is not None:
        raise row.error(f"{flag_of_pairs} needs pairs, but this row is one sentence")


def closest_of_sentences(
    inputs: "Inputs",
    blocks: Iterable["VectorBlock"],
    metric: str,
    top: int | None,
    threshold: float | None,
) -> Iterator[dict[str, Any]]:
    """The most similar pairs of sentences: the best, or without `top` all that reach the
    threshold. Sentences with a zero vector are left out.
    """
    from sentkit.formats.files import text_of_paths
    from sentkit.formats.vectors.arrays import places_of_texts
    from sentkit.metrics.neighbours.corpus import left_out
    from sentkit.metrics.neighbours.pairs import (
        closest_pairs,
        pairs_reaching,
        read_all_rows,
        records,
    )

    rows, vectors = read_all_rows(blocks)
    indices = places_of_texts(vectors)
    if indices is not None:
        path = text_of_paths(inputs.paths)
        for message in left_out(path, len(rows) - len(indices), len(rows)):
            inputs.rejects.warn(message)
        rows = rows.take(indices.tolist())
        vectors = vectors[indices]
    if len(vectors) == 1:
        inputs.rejects.warn("there is only one sentence, so there are no pairs")
    if threshold is not None and top is None:
        for pairs in pairs_reaching(vectors, threshold, metric):
            yield from records(inputs, rows, pairs)
        return
    lowest = -math.inf if threshold is None else threshold
    best_first = records(inputs, rows, closest_pairs(vectors, top or TOP, metric))
    yield from takewhile(lambda pair: pair["similarity"] >= lowest, best_first)


def lines_of_pair(pair: dict[str, Any], metric: str) -> list[dict[str, str]]:
    from sentkit.metrics.neighbours.corpus import columns_of_pair

    return [{metric: f"{pair['similarity']:.4f}", **columns_of_pair(pair)}]


def scored_pairs(block: "VectorBlock", metric: str, emb: str | None, *, keep: bool) -> bytes:
    """The rows of pairs with their similarities; with `keep`, also with their vectors."""
    from sentkit.digits import significant
    from sentkit.formats.vectors.writers import as_jsonl, with_fields
    from sentkit.metrics.similarity import SIMILARITIES

    similarities = SIMILARITIES[metric](block.vectors[:, 0], block.vectors[:, 1])  # (n,)
    new_fields = [
        [(b"similarity", repr(significant(similarity)).encode())]
        for similarity in similarities.tolist()
    ]
    if keep:
        # The lines have the fields of the vectors, also if a vector file has rows without fields.
        values = [values or dict.fromkeys(block.names) for values in block.rows.values]
        lines = as_jsonl(block, emb, None)
        rows = dataclasses.replace(block.rows, lines=lines, values=values)
    else:
        rows = block.rows.without({*block.names, "_emb"})
    return b"\n".join([*with_fields(rows, new_fields), b""])
