"""`sentkit score`: the similarity of vectors, and its correlation with gold scores."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from functools import cached_property, partial
from itertools import chain, islice, takewhile
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

from sentkit.console import Console, show, slow
from sentkit.errors import AnswerIsNo
from sentkit.flags import Excludes, Needs, Range, excludes, options
from sentkit.flags.rows import RowFlags
from sentkit.process import limit_threads

if TYPE_CHECKING:
    from sentkit.formats.rows.rows import Inputs
    from sentkit.formats.vectors.vectors import VectorBlock
    from sentkit.metrics.reports import Record

TOP = 10  # pairs, by default
REPORTS = excludes("--gold", "--label", "--qrels", because=", which writes a report")


ALONE = ", as its tests are against all numbers; encode both files with --dim N to compare them at one width"


@dataclass(frozen=True)
class GoldFlags:
    """Gold scores, labels or judgements of hits, and the comparison with them.

    --gold NAME: Report correlations with this field, a human score.
    --label NAME: Report average precision, AUC and the threshold of the best F1 for this field, 0 or 1.
    --precision-at P: With --label: the threshold with the highest recall at a precision of at least P.
    --group NAME[:HOW]: With --gold: the field that names the group of a row. HOW: all: one correlation of all
        pairs; mean: mean of the groups; weighted: mean weighted by the pairs of each group. [default: all]
    --dim N: With --gold: also the correlations of the first N numbers, with tests against all numbers.
    --baseline FILE: The same pairs, encoded by another model, or with --qrels other hits.
    --fail-under X: Exit code 1 if Spearman, average precision or nDCG@10 (x 100) is below X.
    --fail-if-worse X: Exit code 1 if the paired test finds this measure more than X below that of --baseline;
        X can be 0.
    --seen ROWS: With --gold: training rows; also report the correlation without the pairs that occur in them.
        Repeatable.
    --qrels FILE: For hits of search: report retrieval scores with these judgements (TREC, BEIR or rows).
    --missing: With --qrels: how a query without hits counts.
    --per-query PATH: With --qrels: write the scores of each query.
    """

    gold: str | None = None
    label: Annotated[str | None, Excludes("--gold")] = None
    precision_at: Annotated[float | None, Range(min=0, max=1), Needs("--label")] = None
    group: Annotated[str | None, Needs("--gold")] = None
    dim: Annotated[int | None, Range(min=1), Needs("--gold"), Excludes("--baseline", ALONE)] = None
    baseline: Annotated[str | None, Needs("--gold or --label or --qrels")] = None
    fail_under: Annotated[float | None, Needs("--gold or --label or --qrels")] = None
    fail_if_worse: Annotated[float | None, Range(min=0), Needs("--baseline")] = None
    seen: Annotated[list[str] | None, Needs("--gold")] = None
    qrels: Annotated[str | None, Excludes("--gold"), Excludes("--label")] = None
    missing: Annotated[Literal["error", "zero"], Needs("--qrels")] = "error"
    per_query: Annotated[str | None, Needs("--qrels")] = None

    @cached_property
    def seen_paths(self) -> list[str]:
        """The files of training rows; a pattern becomes the matching files."""
        from sentkit.formats.files import expanded

        return list(expanded(self.seen or []))

    @property
    def grouping(self) -> tuple[str | None, str]:
        """The field of --group, and the aggregate."""
        field, _, how = (self.group or "").rpartition(":")
        return (field, how) if field and how in ("all", "mean", "weighted") else (self.group, "all")


@dataclass(frozen=True)
class PairFlags:
    """The similarities of rows without gold scores.

    --top K: For sentences: show the K closest pairs. [default: 10]
    --matrix: For up to 20000 sentences: write all similarities.
    --keep-vectors: For pairs: keep the vectors in the rows.
    """

    metric: Annotated[options.Metric, Excludes("--qrels")] = "cosine"
    top: Annotated[int | None, Range(min=1), REPORTS] = None
    threshold: Annotated[float | None, REPORTS] = None
    matrix: Annotated[
        bool, REPORTS, Excludes("--top"), Excludes("--threshold"), Excludes("--keep-vectors")
    ] = False
    keep_vectors: Annotated[bool, REPORTS, Excludes("--top"), Excludes("--threshold")] = False


def score(
    *,
    gold_flags: GoldFlags,
    pair_flags: PairFlags,
    output: options.ReportFlags,
    replace: Annotated[bool, REPORTS] = False,
    row_flags: RowFlags,
    console: Console,
) -> None:
    """Score pairs or hits, or find the closest sentences."""
    if gold_flags.gold or gold_flags.label or gold_flags.qrels:
        limit_threads(of_libraries=1)  # the products of resamples are too small for several
    from sentkit.formats.files import check_input
    from sentkit.formats.outputs.outputs import open_output
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS

    per_query = gold_flags.per_query
    options.check_threshold(pair_flags.threshold, pair_flags.metric)
    for path in filter(None, (output.path, per_query)):
        options.OutputFlags(path, output.force).check_rows()
    for path in gold_flags.seen_paths:  # they are read last
        check_input(path)
    reads = {
        "--baseline": gold_flags.baseline,
        "--qrels": gold_flags.qrels,
        "--seen": gold_flags.seen_paths,
    }
    fields = (*VECTOR_FIELDS, gold_flags.gold, gold_flags.label, gold_flags.grouping[0])
    known = ("id", "similarity") if gold_flags.qrels else fields
    problem = None
    with (
        row_flags.open(
            console, output, known=known, reads=reads, writes={"--per-query": per_query}
        ) as inputs,
        nullcontext() if per_query is None else open_output(per_query, force=output.force) as queries_out,
        output.open() as out,
    ):
        if gold_flags.gold or gold_flags.label or gold_flags.qrels:
            work = inputs, gold_flags, row_flags, pair_flags.metric, console
            problem = report(*work, out, queries_out, as_table=output.as_table)
        else:
            score_rows(inputs, out, console, pair_flags, replace=replace, as_table=output.as_table)
    if problem:
        raise AnswerIsNo(problem)


def report(
    inputs: "Inputs",
    flags: GoldFlags,
    rows: RowFlags,
    metric: str,
    console: Console,
    out: BinaryIO,
    queries_out: BinaryIO | None,
    *,
    as_table: bool,
) -> str | None:
    """Print the reports of all files; returns a message if one fails --fail-under or --fail-if-worse."""
    from sentkit.metrics import label_scores, reports
    from sentkit.metrics.gold_pairs import ScoreOptions
    from sentkit.metrics.seen_pairs import SeenPairs

    lines: Callable[[Record], Iterable[dict[str, str]]]
    layout: dict[str, Any] = {"labels": ["file"]}
    group, aggregate = flags.grouping
    scored = ScoreOptions(
        rows.theirs(flags.gold or flags.label or ""),
        rows.theirs(group),
        metric,
        aggregate,
        dim=flags.dim,
        seen=SeenPairs(flags.seen_paths) if flags.seen else None,
        binary=flags.label is not None,
    )
    if flags.qrels is not None:
        from sentkit.metrics.retrieval import MEASURES

        records = report_retrieval(inputs, flags.qrels, flags, queries_out)
        lines = partial(reports.measure_lines, measures=MEASURES)
        measure = "ndcg@10", "nDCG@10"
    elif flags.label is not None:
        records = list(label_scores.label_records(inputs, scored, flags.baseline, flags.precision_at))
        lines, measure = label_scores.label_lines, ("average_precision", "average precision")
        layout["optional"] = ["interval", "threshold"]
    else:
        records = list(reports.reports(inputs, scored, flags.baseline))
        records += reports.average_records(records)
        lines, measure = reports.table_lines, ("spearman", "spearman")
        layout = {"labels": ["file", "encoder"], "optional": ["encoder"]}
    console.warn(*reports.warnings(records))
    show(records, lines, out, as_table=as_table, **layout)
    is_below = reports.below(records, *measure, flags.fail_under)
    return is_below or reports.worse(records, *measure, flags.fail_if_worse)


def report_retrieval(
    inputs: "Inputs", path: str, flags: GoldFlags, queries_out: BinaryIO | None
) -> "list[Record]":
    """The reports of all files of hits. `path` has the judgements."""
    from sentkit.metrics import retrieval

    qrels, baseline = retrieval.read_qrels(inputs, path), flags.baseline
    base = None if baseline is None else retrieval.read_run(inputs.other(baseline), baseline, qrels)
    values_of = partial(retrieval.values_of, qrels_path=path, missing_is_zero=flags.missing == "zero")
    records = []
    for file in inputs.paths:
        run = retrieval.read_run(inputs, file, qrels)
        if not any(run.relevant.values()):
            advice = "do the ids agree? --field id=row uses the numbers of rows"
            inputs.rejects.warn(f"{file}: no relevant document of {path} is a hit; {advice}")
        values = values_of(run)
        records.append(retrieval.record_of(run, values, path))
        if base is not None:
            records[-1]["against"] = retrieval.against(base, values - values_of(base))
        if queries_out is not None:
            with_file = len(inputs.paths) > 1
            queries_out.writelines(retrieval.lines_of_queries(run, values, with_file=with_file))
    return records


def score_rows(
    inputs: "Inputs", out: BinaryIO, console: Console, flags: PairFlags, *, replace: bool, as_table: bool
) -> None:
    """Score pairs or sentences, as the first row determines."""
    from sentkit.formats.vectors.vectors import VectorReader, as_list
    from sentkit.formats.vectors.writers import refuse_existing_fields
    from sentkit.metrics.neighbours.corpus import columns_of_pair
    from sentkit.metrics.neighbours.pairs import matrix

    reader, metric = VectorReader(inputs), flags.metric

    def check(block: "VectorBlock") -> "VectorBlock":
        new = ["similarities"] if flags.matrix else ["similarity"] if block.vectors.shape[1] == 2 else []
        refuse_existing_fields(block.rows, new, replace=replace)
        return block

    def lines(pair: dict[str, Any]) -> list[dict[str, str]]:
        return [{metric: f"{pair['similarity']:.4f}"} | columns_of_pair(pair)]

    blocks = reader.blocks(check)
    first = next(blocks)
    blocks, count, row = chain([first], blocks), first.vectors.shape[1], first.rows.row(0)
    if count == 2 and flags.top is None and flags.threshold is None and not flags.matrix:
        for block in blocks:
            out.write(scored_pairs(block, metric, reader.emb, keep=flags.keep_vectors))
    elif count == 2:
        raise row.error("--top, --threshold and --matrix need sentences, but this row is a pair")
    elif count != 1:
        raise row.error("this row is a triplet; score reads pairs and sentences")
    elif flags.keep_vectors:
        raise row.error("--keep-vectors needs pairs, but this row is one sentence")
    elif flags.matrix:
        for row, similarities in matrix(blocks, metric=metric):
            out.write(row.add([(b"similarities", as_list(similarities))], replace=replace) + b"\n")
    else:
        pairs = closest(inputs, blocks, flags)
        with slow(console, "reading the vectors and comparing all pairs"):
            best = list(islice(pairs, 1))  # the iterator is lazy: the first pair starts the comparison
        show(chain(best, pairs), lines, out, as_table=as_table, texts=("a", "b"), flush=False)


def closest(inputs: "Inputs", blocks: Iterable["VectorBlock"], flags: PairFlags) -> Iterator[dict[str, Any]]:
    """The most similar pairs of sentences."""
    from sentkit.metrics.neighbours.pairs import closest_pairs, pairs_reaching, records, whole

    rows, vectors = whole(blocks)
    if flags.threshold is not None and flags.top is None:
        for pairs in pairs_reaching(vectors, flags.threshold, flags.metric):
            yield from records(inputs, rows, pairs)
        return
    least = -math.inf if flags.threshold is None else flags.threshold
    found = records(inputs, rows, closest_pairs(vectors, flags.top or TOP, flags.metric))
    yield from takewhile(lambda pair: pair["similarity"] >= least, found)


def scored_pairs(block: "VectorBlock", metric: str, emb: str | None, *, keep: bool) -> bytes:
    """The rows of pairs with their similarities; with `keep`, also with their vectors."""
    from sentkit.digits import significant
    from sentkit.formats.vectors.writers import as_jsonl, with_fields
    from sentkit.metrics.similarity import SIMILARITIES

    similarities = SIMILARITIES[metric](block.vectors[:, 0], block.vectors[:, 1]).tolist()
    new = [[(b"similarity", repr(significant(each)).encode())] for each in similarities]
    if keep:
        rows = replace_fields(block.rows, lines=as_jsonl(block, emb, None))
    else:
        rows = block.rows.without({*block.names, "_emb"})
    return b"\n".join([*with_fields(rows, new), b""])
