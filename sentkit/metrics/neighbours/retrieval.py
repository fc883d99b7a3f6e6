"""Scores of a search with gold answers: hit rates, reciprocal ranks and the median rank."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentkit.errors import DataError
from sentkit.formats.files import readable
from sentkit.metrics.neighbours.corpus import answer
from sentkit.metrics.neighbours.queries import AnsweredQueries
from sentkit.metrics.records import Record
from sentkit.metrics.table import shown

DEPTHS = (1, 3, 10)


@dataclass(frozen=True, slots=True)
class Retrieved:
    ranks: NDArray[np.float64]  # the rank of the first answer of each query, from 1; infinite if not found
    absent: int  # queries without an answer in the corpus


def report(search: AnsweredQueries) -> Record:
    """Run all queries and report the scores."""
    top = search.asked.top
    assert top is not None, "a report on the K best hits"
    found = retrieved(search)
    if not len(found.ranks):
        raise DataError("no rows", source=search.source)
    return {
        "queries": readable(search.source),
        "corpus": readable(search.corpus.path),
        "encoder": search.queries.emb,
        "metric": search.metric,
        "top": top,
        **rates(found, top),
    }


def retrieved(search: AnsweredQueries) -> Retrieved:
    assert search.answers is not None, "a search with a gold member"
    codes, of_rows = search.answers.codes, search.answers.of_rows
    ranks, absent = [], 0
    for found in search:
        code = codes.get(answer(found.query, search.gold), -1)
        right = (rank for rank, (row, _) in enumerate(found.hits, start=1) if of_rows[row] == code)
        ranks.append(float(next(right, math.inf)))
        absent += code < 0
    return Retrieved(np.array(ranks), absent)


def rates(found: Retrieved, top: int) -> Record:
    """Hit rates and mean reciprocal rank x 100; a median rank above `top` is null."""
    depths = sorted({*(depth for depth in DEPTHS if depth < top), top})
    median = float(np.median(found.ranks))
    return {
        "n": len(found.ranks),
        "absent": found.absent,
        **{f"hit@{depth}": 100.0 * float(np.mean(found.ranks <= depth)) for depth in depths},
        "mrr": 100.0 * float(np.mean(1.0 / found.ranks)),
        "median_rank": None if math.isinf(median) else median,
    }


def columns(record: Record) -> dict[str, str]:
    """The scores as a table row, by column name."""
    hits = {name: shown(value) for name, value in record.items() if name.startswith("hit@")}
    median = record["median_rank"]
    return {
        **{name: str(record[name]) for name in ("n", "absent")},
        **hits,
        "MRR": shown(record["mrr"]),
        "median rank": f"> {record['top']}" if median is None else f"{median:g}",
    }
