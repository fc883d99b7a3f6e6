"""Scores of a search with judgements of relevance (qrels), by the definitions of trec_eval; their
report.

The hits of a query are in the order of their list, or with one row per hit in that of their
similarity; ties keep their order. A document that occurs several times counts once, at its best
rank.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from typing import Any

import numpy as np
import orjson

from sentkit.arrays import Float32, Float64, Indices
from sentkit.errors import DataError, NoRowsError
from sentkit.formats.files import json_line, open_input, shown_path
from sentkit.formats.rows.block import Row, items_of
from sentkit.formats.rows.kinds import class_value, score_value, wrong_field
from sentkit.formats.rows.lines import LineBlock, line_blocks, looks_like_json
from sentkit.formats.rows.rows import Inputs
from sentkit.metrics.reports import differences, with_intervals
from sentkit.metrics.similarity import BLOCKS, SIMILARITIES
from sentkit.metrics.statistics import Seed, multiplicities, percentile_interval, resamples_for

MEASURES = {
    "ndcg@10": "nDCG@10",
    "recall@10": "recall@10",
    "recall@100": "recall@100",
    "map": "MAP",
    "mrr@10": "MRR@10",
}
IDS = ("id", "_id")  # names of the field that identifies a query or a document
CUT = 10  # ranks of nDCG, recall and MRR
# Of `mrr_of_pairs`.
PAIRS_PER_BLOCK = 1024
TIE = 1e-6

Record = dict[str, Any]
Judgement = tuple[str, str, float, int]  # query, document, relevance, and the line
Qrels = dict[str, dict[str, float]]  # query -> document -> relevance, above 0
Relevant = list[tuple[int, float]]  # rank and relevance of the relevant hits of a query, best first


def read_qrels(inputs: Inputs, path: str) -> Qrels:
    """Read TREC (4 columns), or rows or a table with query-id, corpus-id and score, as BEIR
    has it.
    """
    scores: Qrels = {}  # also those of 0 and below
    for query, document, score, line in read_judgements(inputs, path):
        scores_of_query = scores.setdefault(query, {})
        if scores_of_query.setdefault(document, score) != score:
            problem = f'document "{document}" of query "{query}" has two different scores'
            raise DataError(problem, source=path, line=line)
    if not scores:
        raise NoRowsError([path])
    qrels: Qrels = {}
    for query, scores_of_query in scores.items():
        qrels[query] = {document: score for document, score in scores_of_query.items() if score > 0}
    if not any(qrels.values()):
        raise DataError("no query has a relevant document", source=path)
    return qrels


def read_judgements(inputs: Inputs, path: str) -> Iterator[Judgement]:
    """The judgements of a file in their order. It is opened once, because it can be a pipe."""
    source = replace(inputs.with_paths(path), fields={})
    if source.format_of(path) in ("parquet", "csv"):
        yield from source.read(judgement_of)
        return
    with open_input(path) as file:
        # The blocks up to the first line that is not blank, which decides.
        blocks = line_blocks(file)
        first_blocks = list[LineBlock]()
        first_line = b""
        for block in blocks:
            first_blocks.append(block)
            first_line = next(filter(bytes.strip, block[1]), b"")
            if first_line:
                break
        if not first_line:
            return
        all_blocks = chain(first_blocks, blocks)

        is_json = looks_like_json(first_line)
        if len(first_line.split()) == 4 and not is_json and b"query-id" not in first_line:
            yield from trec_judgements(path, all_blocks)
            return
        source = replace(source, format=None if is_json else "tsv")
        rows = source.blocks_of_lines(path, all_blocks)
        yield from replace(source, opened=[rows]).read(judgement_of)


def judgement_of(row: Row) -> Judgement:
    row.check_duplicate_names()
    score = score_value(row, "score")
    if score is None:
        raise row.error('"score" is empty')
    return class_value(row, "query-id"), class_value(row, "corpus-id"), score, row.number


def trec_judgements(path: str, blocks: Iterable[LineBlock]) -> Iterator[Judgement]:
    for first, lines in blocks:
        for number, line in enumerate(lines, first):
            columns = line.decode(errors="replace").split()
            if len(columns) not in (0, 4):
                problem = "expected four columns: query, 0, document, relevance"
                raise DataError(problem, source=path, line=number)
            if columns:
                query, _, document, score = columns
                values = {"query-id": query, "corpus-id": document, "score": score}
                yield judgement_of(Row(orjson.dumps(values), values, path, number))


@dataclass(slots=True)
class Run:
    """The hits of a file that are relevant, by query."""

    file: str
    qrels: Qrels
    relevant: dict[str, Relevant] = field(default_factory=dict)
    depth: int = 0  # the largest number of hits of a query

    def add(self, query: str, hits: Iterable[str]) -> None:
        """Add the documents of a query, best first."""
        documents = dict.fromkeys(hits)  # each once, at its best rank
        relevance = self.qrels.get(query, {})
        self.depth = max(self.depth, len(documents))
        relevant_hits: Relevant = []
        for rank, document in enumerate(documents, start=1):
            if document in relevance:
                relevant_hits.append((rank, relevance[document]))
        self.relevant[query] = relevant_hits


ADVICE_ON_REPEATED = (
    "give each query its own id; score A B --qrels FILE reports each of several searches, "
    "search --merge joins those of --shard; to search several files of queries: "
    "sentkit cat QUERIES ... | sentkit search --queries - ..."
)


def read_run(inputs: Inputs, path: str, qrels: Qrels) -> Run:
    """Read rows with a list of hits (`search`), or rows of one hit each (`search --flat`)."""
    run = Run(path, qrels)
    flat_hits: dict[str, list[tuple[float, str]]] = {}  # of rows of one hit each, by query
    # Of these, the number of the query in its file, and its text.
    origin_of_query: dict[str, tuple[Any, Any]] = {}
    for row, query, hits in inputs.read(lambda row: hits_of(row, inputs), path):
        is_flat = "hits" not in row.values
        origin = (row.values.get("row_a"), row.values.get("text_a"))
        is_same_query = is_flat and origin_of_query.setdefault(query, origin) == origin
        if query in run.relevant or (query in origin_of_query and not is_same_query):
            raise row.error(f'query "{query}" occurs a second time', advice=ADVICE_ON_REPEATED)
        if is_flat:
            flat_hits.setdefault(query, []).extend(hits)
        else:
            run.add(query, [document for _, document in hits])
    for query, hits in flat_hits.items():
        hits.sort(key=lambda hit: -hit[0])
        run.add(query, [document for _, document in hits])
    return run


def hits_of(row: Row, inputs: Inputs) -> tuple[Row, str, list[tuple[float, str]]]:
    """The row, the id of its query, and its hits: their similarities and the ids of the documents.

    A row of `search --flat` is one hit. A row of `search` has a list of hits, best first, whose
    similarities are not read: they are 0 here.
    """
    row.check_duplicate_names()
    if "hits" not in row.values:
        similarity = inputs.fields.get("similarity", "similarity")
        if similarity not in row.values:
            advice = "--qrels reads the output of search, or of search --flat"
            raise row.error('this row has no "hits"', advice=advice)
        score = score_value(row, similarity)
        if score is None:
            raise wrong_field(row, similarity, "a number")
        query = id_of(row, inputs, "query", "_a")
        return row, query, [(score, id_of(row, inputs, "hit", "_b"))]

    hits = row.values["hits"]
    if not isinstance(hits, list) or not all(isinstance(hit, dict) for hit in hits):
        raise wrong_field(row, "hits", "a list of objects")
    lines: Iterable[bytes] = repeat(b"", len(hits))
    if any(isinstance(hit.get(name), float) for hit in hits for name in names_of_ids(inputs)):
        # An id of more than 64 bits became a float: only the line has its digits.
        lines = items_of(row.line, row.field_spans()["hits"].value)
    query = id_of(row, inputs, "query")
    documents = list[tuple[float, str]]()
    for hit, line in zip(hits, lines, strict=True):
        documents.append((0.0, id_of(replace(row, values=hit, line=line), inputs, "hit")))
    return row, query, documents


def names_of_ids(inputs: Inputs) -> list[str]:
    """The names of fields that may have the id, the first one first."""
    if inputs.fields.get("id"):
        return [inputs.fields["id"], *IDS]
    return list(IDS)


def id_of(row: Row, inputs: Inputs, role: str, side: str = "") -> str:
    """The id as a string: 1, 1.0 and "1" are one id, because tables contain only strings."""
    for name in names_of_ids(inputs):
        if f"{name}{side}" in row.values:
            return class_value(row, f"{name}{side}")
    expected = " or ".join(f'"{name}{side}"' for name in IDS)
    raise row.error(f"the {role} has no {expected}", advice="name the field: --field id=NAME")


def scores_of(relevant: Relevant, judged: Mapping[str, float]) -> list[float]:
    """The measures of a query, from 0 to 1."""
    ideal = sorted(judged.values(), reverse=True)[:CUT]
    # Grades are divided by a power of two: it divides exactly, and no sum of large ones overflows.
    _, exponent = math.frexp(ideal[0])

    def discounted(hits: Iterable[tuple[int, float]]) -> float:
        return sum(math.ldexp(score, -exponent) / math.log2(rank + 1) for rank, score in hits)

    dcg = discounted((rank, score) for rank, score in relevant if rank <= CUT)
    ideal_dcg = discounted(enumerate(ideal, start=1))
    recalls = [sum(rank <= depth for rank, _ in relevant) / len(judged) for depth in (CUT, 100)]
    precisions = [count / rank for count, (rank, _) in enumerate(relevant, start=1)]
    reciprocal_rank = 0.0
    if relevant:
        first_rank, _ = relevant[0]
        if first_rank <= CUT:
            reciprocal_rank = 1 / first_rank
    return [dcg / ideal_dcg, *recalls, sum(precisions) / len(judged), reciprocal_rank]


def values_of(run: Run, qrels_path: str, *, missing_is_zero: bool) -> Float64:
    """The measures x 100 of all queries with relevant documents, (n, m), in the order of
    the qrels.
    """
    judged = {query: relevant for query, relevant in run.qrels.items() if relevant}
    missing = [query for query in judged if query not in run.relevant]
    if missing and not missing_is_zero:
        problem = f'no hits for {len(missing)} queries of {qrels_path}, such as "{missing[0]}"'
        raise DataError(problem, source=run.file, advice="--missing zero counts such queries as 0")
    return 100.0 * np.array(
        [scores_of(run.relevant.get(query, []), judged[query]) for query in judged]
    )


def resampled(values: Float64, seed: Seed = 0) -> Float64:
    """The mean of each column (n, m) in resamples of the rows, (m, r)."""
    n = len(values)
    blocks = multiplicities(n, resamples_for(n), seed=seed)
    return np.concatenate([times @ values / n for times in blocks]).T


def record_of(run: Run, values: Float64, qrels_path: str) -> Record:
    """The report of a run, with 95 % intervals from resamples of the queries."""
    resampled_means = resampled(values)
    intervals = map(percentile_interval, resampled_means)
    missing = [query for query, judged in run.qrels.items() if judged and query not in run.relevant]
    all_queries = run.qrels.keys() | run.relevant.keys()
    return {
        "file": shown_path(run.file),
        "qrels": shown_path(qrels_path),
        "n": len(values),
        "missing": len(missing),
        "without_relevant": sum(not run.qrels.get(query) for query in all_queries),
        "depth": run.depth,
        **with_intervals(MEASURES, values.mean(axis=0), intervals, len(values)),
        "resamples": resampled_means.shape[1],
    }


def against(baseline: Run, changes: Float64) -> Record:
    """The mean differences to another run, by a paired bootstrap of the queries."""
    means = [column.mean() for column in changes.T]
    compared = differences(MEASURES, means, resampled(changes), len(changes))
    return {"file": shown_path(baseline.file), **compared}


def lines_of_queries(run: Run, values: Float64, *, with_file: bool) -> Iterator[bytes]:
    """A line for each query: its measures x 100, and the rank of the first relevant hit."""
    queries = [query for query, relevant in run.qrels.items() if relevant]
    for query, values_of_query in zip(queries, values.tolist(), strict=True):
        relevant = run.relevant.get(query)
        record: Record = {}
        if with_file:
            record["file"] = shown_path(run.file)
        record["query"] = query
        record |= dict(zip(MEASURES, values_of_query, strict=True))
        record["relevant"] = len(run.qrels[query])
        record["first_rank"] = relevant[0][0] if relevant else None
        record["missing"] = relevant is None
        yield json_line(record)


def mrr_of_pairs(a: Float32, b: Float32, anchors: Indices, positives: Indices) -> Float64:
    """For each pair (a[i], b[i]), RR@10 x 100 by cosine among the texts b of all pairs, (n,).

    `anchors` and `positives` are the numbers of the texts. Other positives of the same anchor and
    equal texts do not compete. A tie (1e-6) counts as better, so a collapsed encoder has no high
    score.
    """
    blocks = BLOCKS["cosine"]
    corpus = blocks.prepare(b)
    reciprocal_ranks = list[Float64]()
    for start in range(0, len(a), PAIRS_PER_BLOCK):
        rows = np.arange(start, min(start + PAIRS_PER_BLOCK, len(a)))
        cosines = blocks.compare(blocks.prepare(a[rows]), corpus)
        limits = cosines[np.arange(len(rows)), rows] - TIE
        is_equal = (anchors[rows, None] == anchors) | (positives[rows, None] == positives)
        ranks = 1 + ((cosines >= limits[:, None]) & ~is_equal).sum(axis=1)
        reciprocal_ranks.append(np.where(ranks <= CUT, 100.0 / ranks, 0.0))
    return np.concatenate(reciprocal_ranks)


def accuracy_of_triplets(anchors: Float32, positives: Float32, negatives: Float32) -> Float64:
    """100 for each triplet whose anchor is closer to the positive by cosine, else 0; a tie is
    wrong, (n,).
    """
    cosine = SIMILARITIES["cosine"]
    return np.where(cosine(anchors, positives) > cosine(anchors, negatives), 100.0, 0.0)
