"""Scores of a search with gold answers: hit rates, reciprocal ranks and the median rank."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from sentkit.arrays import Float64
from sentkit.digits import decimals
from sentkit.formats.files import readable
from sentkit.metrics.neighbours.corpus import gold_value
from sentkit.metrics.neighbours.queries import Search

DEPTHS = (1, 3, 10)


@dataclass(frozen=True, slots=True)
class RetrievalReport:
    queries: str
    corpus: str
    encoder: str | None
    metric: str
    top: int
    absent: int  # queries without an answer in the corpus
    ranks: Float64  # the rank of the first answer of each query, from 1; infinite if not found

    def record(self) -> dict[str, Any]:
        """Hit rates and mean reciprocal rank x 100; a median rank above `top` is null."""
        depths = sorted({*(depth for depth in DEPTHS if depth < self.top), self.top})
        median = float(np.median(self.ranks))
        return {
            "queries": readable(self.queries),
            "corpus": readable(self.corpus),
            "encoder": self.encoder,
            "metric": self.metric,
            "top": self.top,
            "n": len(self.ranks),
            "absent": self.absent,
            **{f"hit@{depth}": 100.0 * float(np.mean(self.ranks <= depth)) for depth in depths},
            "mrr": 100.0 * float(np.mean(1.0 / self.ranks)),
            "median_rank": None if math.isinf(median) else median,
        }


def report(search: Search) -> RetrievalReport:
    """Run all queries and report the scores."""
    options, gold = search.options, search.gold_codes
    assert options.top is not None, "a report on the K best hits"
    assert gold is not None, "a search with a gold field"
    ranks, absent = [], 0
    for query_hits in search:
        code = gold.codes.get(gold_value(query_hits.query, search.gold), -1)
        right = (rank for rank, (row, _) in enumerate(query_hits.hits, start=1) if gold.of_rows[row] == code)
        ranks.append(float(next(right, math.inf)))
        absent += code < 0
    corpus, encoder = search.corpus.path, search.queries.emb
    return RetrievalReport(
        search.source, corpus, encoder, options.metric, options.top, absent, np.array(ranks)
    )


def columns(record: dict[str, Any]) -> dict[str, str]:
    """The record as a table row, by column name."""
    hits = {name: decimals(value) for name, value in record.items() if name.startswith("hit@")}
    median = record["median_rank"]
    return {
        **{name: str(record[name]) for name in ("n", "absent")},
        **hits,
        "MRR": decimals(record["mrr"]),
        "median rank": f"> {record['top']}" if median is None else f"{median:g}",
    }
