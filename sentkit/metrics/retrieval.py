"""Scores of a search with judgements of relevance (qrels), by the definitions of trec_eval; their report.

The hits of a query are in the order of their list, or with one row per hit in that of their similarity; ties
keep their order. A document that occurs several times counts once, at its best rank.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any

import numpy as np
import orjson

from sentkit.arrays import Float32, Float64, Indices
from sentkit.errors import DataError
from sentkit.formats.files import json_line, open_input, readable
from sentkit.formats.rows.block import Row, items_of
from sentkit.formats.rows.kinds import class_of, scored, wrong_field
from sentkit.formats.rows.lines import looks_like_json, numbered
from sentkit.formats.rows.rows import Inputs
from sentkit.metrics.reports import differences, with_intervals
from sentkit.metrics.similarity import BLOCKS, SIMILARITIES
from sentkit.metrics.statistics import Seed, multiplicities, percentile_interval, resamples_for

MEASURES = {"ndcg@10": "nDCG@10", "recall@10": "recall@10", "recall@100": "recall@100", "map": "MAP"}
MEASURES |= {"mrr@10": "MRR@10"}
IDS = ("id", "_id")  # names of the field that identifies a query or a document
CUT = 10  # ranks of nDCG, recall and MRR
PAIRS_PER_BLOCK, TIE = 1024, 1e-6  # of `mrr_of_pairs`

Record = dict[str, Any]
Qrels = dict[str, dict[str, float]]  # query -> document -> relevance, above 0
Relevant = list[tuple[int, float]]  # rank and relevance of the relevant hits of a query, best first


def read_qrels(inputs: Inputs, path: str) -> Qrels:
    """Read TREC (4 columns), or rows or a table with query-id, corpus-id and score, as BEIR has it."""
    qrels: Qrels = {}
    first = b""
    if inputs.format_of(path) not in ("parquet", "csv"):
        with open_input(path) as file:
            first = next((line for _, line in numbered(file) if line.strip()), b"")
    is_trec = len(first.split()) == 4 and not looks_like_json(first) and b"query-id" not in first
    if is_trec:
        judgements = trec_judgements(path)
    else:
        form = "tsv" if first and not looks_like_json(first) else None
        judgements = replace(inputs.other(path), fields={}, format=form).read(judgement_of)
    for query, document, score, line in judgements:
        relevant = qrels.setdefault(query, {})
        if relevant.setdefault(document, score) != score:
            problem = f'document "{document}" of query "{query}" has two different scores'
            raise DataError(problem, source=path, line=line)
    if not any(max(relevant.values()) > 0 for relevant in qrels.values()):
        raise DataError("no query has a relevant document", source=path)
    return {
        query: {document: score for document, score in relevant.items() if score > 0}
        for query, relevant in qrels.items()
    }


def judgement_of(row: Row) -> tuple[str, str, float, int]:
    row.refuse_duplicates()
    score = scored(row, "score")
    if score is None:
        raise row.error('"score" is empty')
    return class_of(row, "query-id"), class_of(row, "corpus-id"), score, row.number


def trec_judgements(path: str) -> Iterator[tuple[str, str, float, int]]:
    with open_input(path) as file:
        for number, line in numbered(file):
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
        documents, judged = dict.fromkeys(hits), self.qrels.get(query, {})
        self.depth = max(self.depth, len(documents))
        self.relevant[query] = [
            (rank, judged[each]) for rank, each in enumerate(documents, start=1) if each in judged
        ]


def read_run(inputs: Inputs, path: str, qrels: Qrels) -> Run:
    """Read rows with a list of hits (`search`), or rows of one hit each (`search --flat`)."""
    run, flat = Run(path, qrels), dict[str, list[tuple[float, str]]]()
    for row, query, hits in inputs.read(lambda row: hits_of(row, inputs), path):
        if "hits" not in row.values:
            flat.setdefault(query, []).extend(hits)
        elif query in run.relevant:
            raise row.error(f'query "{query}" occurs a second time')
        else:
            run.add(query, [document for _, document in hits])
    for query, hits in flat.items():
        run.add(query, [document for _, document in sorted(hits, key=lambda hit: -hit[0])])
    return run


def hits_of(row: Row, inputs: Inputs) -> tuple[Row, str, list[tuple[float, str]]]:
    """The query of a row, and its hits with their similarities, which a list of hits does not need."""
    row.refuse_duplicates()
    hits, similarity = row.values.get("hits"), inputs.fields.get("similarity", "similarity")
    if "hits" not in row.values:
        if similarity not in row.values:
            advice = "--qrels reads the output of search, or of search --flat"
            raise row.error('this row has no "hits"', advice=advice)
        score = scored(row, similarity)
        if score is None:
            raise wrong_field(row, similarity, "a number")
        return row, id_of(row, inputs, "query", "_a"), [(score, id_of(row, inputs, "hit", "_b"))]
    if not isinstance(hits, list) or not all(isinstance(hit, dict) for hit in hits):
        raise wrong_field(row, "hits", "a list of objects")
    lines: Iterable[bytes] = repeat(b"", len(hits))
    if any(isinstance(hit.get(name), float) for hit in hits for name in names_of_ids(inputs)):
        lines = items_of(row.line, row.spans()["hits"].value)  # for whole numbers of more than 64 bits
    rows = (replace(row, values=hit, line=line) for hit, line in zip(hits, lines, strict=True))
    return row, id_of(row, inputs, "query"), [(0.0, id_of(each, inputs, "hit")) for each in rows]


def names_of_ids(inputs: Inputs) -> list[str]:
    return [*filter(None, (inputs.fields.get("id"),)), *IDS]


def id_of(row: Row, inputs: Inputs, what: str, side: str = "") -> str:
    """The id as a string: 1, 1.0 and "1" are one id, because tables contain only strings."""
    names = (f"{name}{side}" for name in names_of_ids(inputs))
    name = next((name for name in names if name in row.values), None)
    if name is None:
        expected = " or ".join(f'"{name}{side}"' for name in IDS)
        raise row.error(f"the {what} has no {expected}", advice="name the field: --field id=NAME")
    return class_of(row, name)


def scores_of(relevant: Relevant, judged: Mapping[str, float]) -> list[float]:
    """The measures of a query, from 0 to 1."""
    ideal = sorted(judged.values(), reverse=True)[:CUT]
    unit = math.frexp(ideal[0])[1]  # a power of two divides exactly, and no sum of large grades overflows
    best = sum(math.ldexp(score, -unit) / math.log2(rank + 1) for rank, score in enumerate(ideal, start=1))
    gained = sum(math.ldexp(score, -unit) / math.log2(rank + 1) for rank, score in relevant if rank <= CUT)
    recalls = [sum(rank <= depth for rank, _ in relevant) / len(judged) for depth in (CUT, 100)]
    precisions = (count / rank for count, (rank, _) in enumerate(relevant, start=1))
    first = relevant[0][0] if relevant else math.inf
    return [gained / best, *recalls, sum(precisions) / len(judged), 1 / first if first <= CUT else 0.0]


def values_of(run: Run, qrels_path: str, *, missing_is_zero: bool) -> Float64:
    """The measures x 100 of all queries with relevant documents, (n, m), in the order of the qrels."""
    judged = {query: relevant for query, relevant in run.qrels.items() if relevant}
    missing = [query for query in judged if query not in run.relevant]
    if missing and not missing_is_zero:
        problem = f'no hits for {len(missing)} queries of {qrels_path}, such as "{missing[0]}"'
        raise DataError(problem, source=run.file, advice="--missing zero counts such queries as 0")
    return 100.0 * np.array([scores_of(run.relevant.get(query, []), judged[query]) for query in judged])


def resampled(values: Float64, seed: Seed = 0) -> Float64:
    """The mean of each column (n, m) in resamples of the rows, (m, r)."""
    drawn = multiplicities(len(values), resamples_for(len(values)), seed=seed)
    return np.concatenate([times @ values / len(values) for times in drawn]).T


def record_of(run: Run, values: Float64, qrels_path: str) -> Record:
    """The report of a run, with 95 % intervals from resamples of the queries."""
    drawn = resampled(values)
    return {
        "file": readable(run.file),
        "qrels": readable(qrels_path),
        "n": len(values),
        "missing": sum(query not in run.relevant for query, judged in run.qrels.items() if judged),
        "without_relevant": sum(not run.qrels.get(query) for query in {**run.qrels, **run.relevant}),
        "depth": run.depth,
        **with_intervals(MEASURES, values.mean(axis=0), map(percentile_interval, drawn)),
        "resamples": drawn.shape[1],
    }


def against(baseline: Run, changes: Float64) -> Record:
    """The mean differences to another run, by a paired bootstrap of the queries."""
    found = differences(MEASURES, [column.mean() for column in changes.T], resampled(changes))
    return {"file": readable(baseline.file), **found}


def lines_of_queries(run: Run, values: Float64, *, with_file: bool) -> Iterator[bytes]:
    """A line for each query: its measures x 100, and the rank of the first relevant hit."""
    queries = [query for query, relevant in run.qrels.items() if relevant]
    for query, own in zip(queries, values.tolist(), strict=True):
        relevant = run.relevant.get(query)
        yield json_line(
            {
                **({"file": readable(run.file)} if with_file else {}),
                "query": query,
                **dict(zip(MEASURES, own, strict=True)),
                "relevant": len(run.qrels[query]),
                "first_rank": relevant[0][0] if relevant else None,
                "missing": relevant is None,
            }
        )


def mrr_of_pairs(left: Float32, right: Float32, anchors: Indices, positives: Indices) -> Float64:
    """For each pair (left[i], right[i]), RR@10 x 100 by cosine among the right texts of all pairs, (n,).

    `anchors` and `positives` are the numbers of the texts. Other positives of the same anchor and equal texts
    do not compete. A tie (1e-6) counts as better, so a collapsed encoder has no high score.
    """
    blocks, found = BLOCKS["cosine"], list[Float64]()
    corpus = blocks.prepare(right)
    for start in range(0, len(left), PAIRS_PER_BLOCK):
        own = np.arange(start, min(start + PAIRS_PER_BLOCK, len(left)))
        cosines = blocks.compare(blocks.prepare(left[own]), corpus)
        least = cosines[np.arange(len(own)), own] - TIE
        equal = (anchors[own, None] == anchors) | (positives[own, None] == positives)
        ranks = 1 + ((cosines >= least[:, None]) & ~equal).sum(axis=1)
        found.append(np.where(ranks <= CUT, 100.0 / ranks, 0.0))
    return np.concatenate(found)


def accuracy_of_triplets(anchors: Float32, positives: Float32, negatives: Float32) -> Float64:
    """100 for each triplet whose anchor is closer to the positive by cosine, else 0; a tie is wrong, (n,)."""
    cosine = SIMILARITIES["cosine"]
    return np.where(cosine(anchors, positives) > cosine(anchors, negatives), 100.0, 0.0)
