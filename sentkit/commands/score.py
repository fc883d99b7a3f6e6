"""`sentkit score`: the similarity of vectors, and its correlation with gold scores."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from functools import partial
from itertools import chain, islice, takewhile
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

from sentkit.console import Console, show, slow
from sentkit.errors import AnswerIsNo
from sentkit.flags import options
from sentkit.flags.gold import GoldFlags, RetrievalFlags
from sentkit.flags.rows import RowFlags
from sentkit.flags.rules import Excludes, Range, excludes
from sentkit.process import limit_threads

if TYPE_CHECKING:
    from sentkit.formats.rows.rows import Inputs
    from sentkit.formats.vectors.vectors import VectorBlock
    from sentkit.metrics.reports import Record

TOP = 10  # pairs, by default
REPORTS = excludes("--gold", "--label", "--qrels", because=", which writes a report")


def score(
    *,
    gold_flags: GoldFlags,
    retrieval: RetrievalFlags,
    metric: Annotated[options.Metric, Excludes("--qrels")] = "cosine",
    top: Annotated[int | None, Range(min=1), REPORTS] = None,
    threshold: Annotated[float | None, REPORTS] = None,
    matrix: Annotated[
        bool, REPORTS, Excludes("--top"), Excludes("--threshold"), Excludes("--keep-vectors")
    ] = False,
    keep_vectors: Annotated[bool, REPORTS, Excludes("--top"), Excludes("--threshold")] = False,
    output: options.ReportFlags,
    replace: Annotated[bool, REPORTS] = False,
    row_flags: RowFlags,
    run: options.QuietFlags,
) -> None:
    """Score pairs or hits, or find the closest sentences.

    \b
    Examples:
      sentkit encode pairs.jsonl | sentkit score
      sentkit encode pairs.jsonl | sentkit score --label same --precision-at 0.9
      sentkit score hits.jsonl --qrels qrels.tsv --per-query each.jsonl
      sentkit score new.jsonl --gold score --baseline old.jsonl --fail-under 80

    Most used: [FILE]... --gold --label --qrels --baseline --fail-under --top --threshold --json

    For pairs, the command adds "similarity" to each row and removes the vectors. Other
    reports are one line of JSON per FILE, or a table on a terminal, with scores x 100
    and 95 % intervals of 1000 resamples (above 50,000 pairs 200, or Fisher's z). --gold:
    the correlations of Spearman and Pearson. --label, for pairs that are the same (1) or
    not (0): average precision, AUC, and thresholds of the similarity. --qrels, for the
    hits of search: nDCG@10, recall, MAP and MRR@10.

    Flags:
      --top K: For sentences: show the K closest pairs. [default: 10]
      --matrix: For up to 20000 sentences: write all similarities.
      --keep-vectors: For pairs: keep the vectors in the rows.
    """
    if gold_flags.gold or gold_flags.label or retrieval.qrels:
        limit_threads(of_libraries=1)  # the products of resamples are too small for several
    from sentkit.formats.vectors.sinks import check_rows_output
    from sentkit.formats.vectors.vectors import VECTOR_FIELDS
    from sentkit.metrics import reports

    console = run.console("score")
    options.check_threshold(threshold, metric)
    closest = Closest(metric, top, threshold)
    for path in filter(None, (output.path, retrieval.per_query)):
        check_rows_output(path)
    reads = {
        "--baseline": gold_flags.baseline,
        "--qrels": retrieval.qrels,
        "--seen": gold_flags.seen_paths,
    }
    fields = (*VECTOR_FIELDS, gold_flags.gold, gold_flags.label, gold_flags.grouping[0])
    names = ("id", "similarity") if retrieval.qrels else fields
    with (
        row_flags.open(
            console, output, known=names, reads=reads, writes={"--per-query": retrieval.per_query}
        ) as inputs,
        retrieval.open_per_query(force=output.force) as queries_out,
        output.open() as out,
    ):
        problem = None
        if gold_flags.gold or gold_flags.label or retrieval.qrels:
            report = report_of(inputs, gold_flags, retrieval, row_flags, metric, queries_out)
            console.warn(*report.warnings)
            show(report.records, report.lines, out, as_table=output.as_table, **report.layout)
            problem = reports.below(report.records, *report.measure, gold_flags.fail_under)
        else:
            score_rows(
                inputs,
                out,
                console,
                closest,
                whole=matrix,
                keep=keep_vectors,
                replace=replace,
                as_table=output.as_table,
            )
    if problem:
        raise AnswerIsNo(problem)


@dataclass(frozen=True, slots=True)
class FileReports:
    """The reports of all files, and how they are shown."""

    records: "list[Record]"
    warnings: Iterable[str]
    lines: "Callable[[Record], Iterable[dict[str, str]]]"  # of a table
    layout: dict[str, Any]
    measure: tuple[str, str]  # the value of --fail-under: its field, and its name in a message


def report_of(
    inputs: "Inputs",
    flags: GoldFlags,
    retrieval: RetrievalFlags,
    rows: RowFlags,
    metric: str,
    queries_out: BinaryIO | None,
) -> FileReports:
    from sentkit.metrics import reports
    from sentkit.metrics import retrieval as judged

    if retrieval.qrels is not None:
        records = report_retrieval(inputs, retrieval, flags.baseline, queries_out)
        lines = partial(reports.measure_lines, measures=judged.MEASURES)
        return FileReports(records, (), lines, {"texts": ["file"]}, ("ndcg@10", "nDCG@10"))
    chosen = flags.options(rows, metric)
    if flags.label is not None:
        records = list(reports.label_records(inputs, chosen, flags.baseline, flags.precision_at))
        layout = {"texts": ["file"], "optional": ["interval", "threshold"]}
        measure = "average_precision", "average precision"
        return FileReports(records, reports.label_warnings(records), reports.label_lines, layout, measure)
    records = list(reports.reports(inputs, chosen, flags.baseline))
    records += reports.average_records(records)
    layout = {"texts": ["file", "encoder"], "optional": ["encoder"]}
    measure = "spearman", "spearman"
    return FileReports(records, reports.warnings(records), reports.table_lines, layout, measure)


def report_retrieval(
    inputs: "Inputs", flags: RetrievalFlags, baseline: str | None, queries_out: BinaryIO | None
) -> "list[Record]":
    """The reports of all files of hits."""
    from sentkit.metrics.retrieval import Judge, RunReader, read_qrels

    assert flags.qrels is not None
    qrels = read_qrels(inputs, flags.qrels)
    base = None if baseline is None else RunReader(inputs.other(baseline), qrels).read(baseline)
    judge = Judge(flags.qrels, qrels, flags.missing == "zero", base)
    records = []
    for path in inputs.paths:
        run = RunReader(inputs, qrels).read(path)
        if not any(run.relevant.values()):
            advice = "do the ids agree? --field id=row uses the numbers of rows"
            inputs.rejects.warn(f"{path}: no relevant document of {flags.qrels} is a hit; {advice}")
        records.append(judge.record(run))
        if queries_out is not None:
            judge.write_queries(run, queries_out, with_file=len(inputs.paths) > 1)
    return records


@dataclass(frozen=True, slots=True)
class Closest:
    """The selection of pairs of sentences."""

    metric: str
    top: int | None
    threshold: float | None

    @property
    def requested(self) -> bool:
        return self.top is not None or self.threshold is not None

    def find(self, inputs: "Inputs", blocks: Iterable["VectorBlock"]) -> Iterator[dict[str, Any]]:
        from sentkit.metrics.neighbours.pairs import closest_pairs, pairs_reaching, records, whole

        rows, vectors = whole(blocks)
        if self.threshold is not None and self.top is None:
            for pairs in pairs_reaching(vectors, self.threshold, self.metric):
                yield from records(inputs, rows, pairs)
            return
        least = -math.inf if self.threshold is None else self.threshold
        found = records(inputs, rows, closest_pairs(vectors, self.top or TOP, self.metric))
        yield from takewhile(lambda pair: pair["similarity"] >= least, found)


def score_rows(
    inputs: "Inputs",
    out: BinaryIO,
    console: Console,
    closest: "Closest",
    *,
    whole: bool,
    keep: bool,
    replace: bool,
    as_table: bool,
) -> None:
    """Score pairs or sentences, as the first row determines."""
    from sentkit.formats.vectors.sinks import refuse_existing_fields
    from sentkit.formats.vectors.vectors import VectorReader

    reader = VectorReader(inputs)

    def check(block: "VectorBlock") -> "VectorBlock":
        new = ["similarities"] if whole else ["similarity"] if block.vectors.shape[1] == 2 else []
        refuse_existing_fields(block.rows, new, replace=replace)
        return block

    blocks = reader.blocks(check)
    first = next(blocks)
    blocks, count, row = chain([first], blocks), first.vectors.shape[1], first.rows.row(0)
    if count == 2 and not (closest.requested or whole):
        score_pairs(blocks, out, closest.metric, emb=reader.emb, keep=keep, replace=replace)
    elif count == 2:
        raise row.error("--top, --threshold and --matrix need sentences, but this row is a pair")
    elif count != 1:
        raise row.error("this row is a triplet; score reads pairs and sentences")
    elif keep:
        raise row.error("--keep-vectors needs pairs, but this row is one sentence")
    elif whole:
        write_matrix(blocks, out, closest.metric, replace=replace)
    else:
        pairs = closest.find(inputs, blocks)
        with slow(console, "reading the vectors and comparing all pairs"):
            best = list(islice(pairs, 1))  # the iterator is lazy: the first pair starts the comparison
        show_closest(chain(best, pairs), out, closest.metric, as_table=as_table)


def score_pairs(
    blocks: Iterable["VectorBlock"],
    out: BinaryIO,
    metric: str,
    *,
    emb: str | None,
    keep: bool,
    replace: bool,
) -> None:
    from sentkit.digits import significant
    from sentkit.formats.vectors.convert import as_jsonl
    from sentkit.formats.vectors.sinks import with_fields
    from sentkit.metrics.similarity import SIMILARITIES

    for block in blocks:
        similarities = SIMILARITIES[metric](block.vectors[:, 0], block.vectors[:, 1]).tolist()
        new = [[(b"similarity", repr(significant(each)).encode())] for each in similarities]
        if keep:
            rows = replace_fields(block.rows, lines=as_jsonl(block, emb, None))
        else:
            rows = block.rows.without({*block.names, "_emb"})
        out.write(b"\n".join([*with_fields(rows, new), b""]))


def write_matrix(blocks: Iterable["VectorBlock"], out: BinaryIO, metric: str, *, replace: bool) -> None:
    from sentkit.formats.vectors.vectors import as_list
    from sentkit.metrics.neighbours.pairs import matrix

    for row, similarities in matrix(blocks, metric=metric):
        out.write(row.add([(b"similarities", as_list(similarities))], replace=replace) + b"\n")


def show_closest(pairs: Iterable[dict[str, Any]], out: BinaryIO, metric: str, *, as_table: bool) -> None:
    from sentkit.metrics.neighbours.corpus import columns_of_pair

    def lines(pair: dict[str, Any]) -> list[dict[str, str]]:
        return [{metric: f"{pair['similarity']:.4f}"} | columns_of_pair(pair)]

    show(pairs, lines, out, as_table=as_table, texts=("a", "b"), pairs=True, flush=False)
