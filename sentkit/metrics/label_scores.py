"""The report of `score --label`: scores of similarities as predictions of labels, 0 and 1.

Letters in shapes: n pairs, v distinct similarities, b resamples in one block, r resamples, c
scores.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sentkit.arrays import Float64
from sentkit.digits import significant
from sentkit.formats.files import shown_path
from sentkit.formats.rows.rows import Inputs
from sentkit.metrics import statistics
from sentkit.metrics.gold_pairs import (
    GoldPairs,
    ScoreOptions,
    check_same_pairs,
    read_baseline,
    read_gold_pairs,
)
from sentkit.metrics.reports import Record, differences, header, measure_lines, with_intervals

MEASURES = {
    "average_precision": "average precision",
    "auc": "AUC",
    "f1": "best F1",
    "recall": "recall",
}


def factors_of(precision: float | None) -> dict[str, float]:
    """The factor of each column of `Ranking.scores`."""
    factors = {"average_precision": 100.0, "auc": 100.0, "f1": 100.0, "f1_threshold": 1.0}
    if precision is not None:
        factors |= {"recall": 100.0, "recall_threshold": 1.0}
    return factors


class Ranking:
    """Pairs with labels in descending order of similarity.

    A threshold is a similarity that occurs, rounded as `score` writes it. A pair is predicted to be
    1 if its similarity is at least the threshold, so equal similarities are predicted together. Of
    several thresholds with the same F1 or the same recall, the highest counts.
    """

    def __init__(self, pairs: GoldPairs) -> None:
        similarities = np.array([significant(value) for value in pairs.similarities.tolist()])
        self.order = np.argsort(similarities)[::-1]
        descending = similarities[self.order]
        is_last = np.append(descending[1:] != descending[:-1], True)
        self.last = np.flatnonzero(is_last)  # (v,): the last pair of each distinct similarity
        self.thresholds = descending[self.last]  # (v,)
        self.labels = pairs.gold[self.order]

    def scores(self, times: NDArray, precision: float | None) -> Float64:
        """The columns of each resample, (b, c); `times` (b, n) counts each pair. NaN if
        undefined.
        """
        # Pairs from each threshold on, (b, v): those with label 1, all of them, and those with
        # label 0.
        counts = times[:, self.order]
        positives = np.cumsum(counts * self.labels, axis=1)[:, self.last]
        predicted = np.cumsum(counts, axis=1)[:, self.last]
        negatives = predicted - positives
        all_positives = positives[:, -1]
        all_negatives = negatives[:, -1]

        # Pairs of each similarity, (b, v).
        new_positives = np.diff(positives, axis=1, prepend=0.0)
        new_negatives = np.diff(negatives, axis=1, prepend=0.0)
        # half of the equal ones
        negatives_below = all_negatives[:, None] - negatives + new_negatives / 2.0
        precisions = positives / np.maximum(predicted, 1.0)
        with np.errstate(invalid="ignore"):  # 0 / 0 if a resample has one class
            average_precision = (new_positives * precisions).sum(axis=1) / all_positives
            auc = (new_positives * negatives_below).sum(axis=1) / (all_positives * all_negatives)
            f1 = 2.0 * positives / (predicted + all_positives[:, None])
            columns = [average_precision, auc, *self.highest(f1)]
            if precision is not None:
                recalls = positives / all_positives[:, None]
                columns += self.highest(np.where(precisions >= precision, recalls, np.nan))
        scores = np.stack(columns, axis=1)
        scores[(all_positives == 0.0) | (all_negatives == 0.0)] = np.nan
        return scores

    def highest(self, values: Float64) -> tuple[Float64, Float64]:
        """The highest of the values (b, v) with its highest threshold; NaN if all are NaN."""
        best = np.nan_to_num(values, nan=-1.0).argmax(axis=1)
        highest = np.take_along_axis(values, best[:, None], axis=1)[:, 0]
        return highest, np.where(np.isnan(highest), np.nan, self.thresholds[best])


def scores_of(pairs: GoldPairs, precision: float | None) -> tuple[Float64, Float64]:
    """The columns of all pairs, (c,), and of each resample, (c, r)."""
    ranking = Ranking(pairs)
    n = len(pairs)
    factors = list(factors_of(precision).values())
    blocks = statistics.multiplicities(n, statistics.resamples_for(n), 0)
    resampled = np.concatenate([ranking.scores(times, precision) for times in blocks])
    scores = ranking.scores(np.ones((1, n)), precision)[0]
    return scores * factors, (resampled * factors).T


def label_records(
    inputs: Inputs, options: ScoreOptions, baseline: str | None, precision: float | None
) -> Iterator[Record]:
    """The report of each file, with its differences to the baseline by a paired bootstrap,
    if any.
    """
    names = list(factors_of(precision))
    base = None
    if baseline is not None:
        base = read_baseline(inputs, baseline, options)
        base_scores, base_resampled = scores_of(base, precision)
    for path in inputs.paths:
        pairs = read_gold_pairs(inputs, path, options, with_identities=base is not None)
        scores, resampled = scores_of(pairs, precision)
        record: Record = {
            **header(pairs, options),
            "n": len(pairs),
            "positives": int(pairs.gold.sum()),
            "skipped": pairs.skipped,
        }
        if precision is not None:
            record["precision_at"] = precision
        intervals = map(statistics.percentile_interval, resampled)
        record |= with_intervals(names, scores, intervals, len(pairs))
        record["resamples"] = resampled.shape[1]
        if base is not None:
            check_same_pairs(pairs, base)
            changes = differences(
                names, scores - base_scores, resampled - base_resampled, len(pairs)
            )
            record["against"] = {"file": shown_path(base.file), "encoder": base.encoder}
            record["against"] |= {name: changes[name] for name in names if name in MEASURES}
        yield record


def label_lines(record: Record) -> Iterator[dict[str, str]]:
    """A line for each score, with its threshold."""
    measures = {name: label for name, label in MEASURES.items() if name in record}
    if "recall" in record:
        measures["recall"] = f"recall at P {100 * record['precision_at']:g}"
    return measure_lines(record, measures)
