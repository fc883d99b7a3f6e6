"""Pairs with labels 0 and 1: average precision, AUC, and thresholds; their report, with all scores x 100.

A threshold is a similarity that occurs, rounded as `score` writes it. A pair is predicted to be 1 if its
similarity is at least the threshold, so equal similarities are predicted together. Of several thresholds with
the same F1 or the same recall, the highest counts.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from sentkit.arrays import Float64
from sentkit.digits import significant
from sentkit.formats.files import readable
from sentkit.formats.rows.rows import Inputs
from sentkit.metrics.sts.gold_pairs import GoldPairs, ScoreOptions, check_same_pairs, read_gold_pairs
from sentkit.metrics.sts.intervals import multiplicities, percentile_interval, resamples_for
from sentkit.metrics.sts.report import Record, defined, difference, limits, measure_lines, with_interval

MEASURES = {"average_precision": "average precision", "auc": "AUC", "f1": "best F1", "recall": "recall"}
THRESHOLDS = {"f1": "f1_threshold", "recall": "recall_threshold"}
COLUMNS = {"average_precision": 100.0, "auc": 100.0, "f1": 100.0, "f1_threshold": 1.0}  # with their factors
COLUMNS_AT = {"recall": 100.0, "recall_threshold": 1.0}  # with a required precision


def columns(precision: float | None) -> dict[str, float]:
    return COLUMNS | (COLUMNS_AT if precision is not None else {})


class Ranking:
    """Pairs in descending order of similarity."""

    def __init__(self, pairs: GoldPairs) -> None:
        similarities = np.array([significant(each) for each in pairs.similarities.tolist()])
        self.order = np.argsort(similarities)[::-1]
        descending = similarities[self.order]
        self.last = np.flatnonzero(np.append(descending[1:] != descending[:-1], True))  # of equal ones
        self.thresholds = descending[self.last]  # (v,)
        self.labels = pairs.gold[self.order]

    def scores(self, times: Float64, precision: float | None) -> Float64:
        """The columns of each resample, (b, c); `times` (b, n) counts each pair. NaN if undefined."""
        drawn = times[:, self.order]
        positives = np.cumsum(drawn * self.labels, axis=1)[:, self.last]  # (b, v) from each threshold on
        predicted = np.cumsum(drawn, axis=1)[:, self.last]
        negatives = predicted - positives
        gained, lost = (np.diff(each, axis=1, prepend=0.0) for each in (positives, negatives))
        all_positives, all_negatives = positives[:, -1], negatives[:, -1]
        precisions = positives / np.maximum(predicted, 1.0)
        above = all_negatives[:, None] - negatives + lost / 2.0  # negatives below, and half of the equal ones
        with np.errstate(invalid="ignore"):  # 0 / 0 if a resample has one class
            f1 = 2.0 * positives / (predicted + all_positives[:, None])
            found = [
                (gained * precisions).sum(axis=1) / all_positives,
                (gained * above).sum(axis=1) / (all_positives * all_negatives),
                *self.highest(f1),
            ]
            if precision is not None:
                reached = np.where(precisions >= precision, positives / all_positives[:, None], np.nan)
                found += self.highest(reached)
        result = np.stack(found, axis=1)
        result[(all_positives == 0.0) | (all_negatives == 0.0)] = np.nan
        return result

    def highest(self, values: Float64) -> tuple[Float64, Float64]:
        """The highest of the values (b, v) with its highest threshold; NaN if all are NaN."""
        known = np.nan_to_num(values, nan=-1.0)
        best = known.argmax(axis=1)
        highest = np.take_along_axis(values, best[:, None], axis=1)[:, 0]
        return highest, np.where(np.isnan(highest), np.nan, self.thresholds[best])


def judged(pairs: GoldPairs, precision: float | None) -> tuple[Float64, Float64]:
    """The columns of all pairs, (c,), and of each resample, (r, c)."""
    ranking, n = Ranking(pairs), len(pairs)
    factors = [*columns(precision).values()]
    drawn = [ranking.scores(times, precision) for times in multiplicities(n, resamples_for(n), 0)]
    return ranking.scores(np.ones((1, n)), precision)[0] * factors, np.concatenate(drawn) * factors


def records(
    inputs: Inputs, options: ScoreOptions, baseline: str | None, precision: float | None
) -> Iterator[Record]:
    """The report of each file, with its differences to the baseline by a paired bootstrap, if any."""
    read = partial(read_gold_pairs, inputs, options=options, paired=baseline is not None)
    base = None if baseline is None else read(baseline)
    others = None if base is None else judged(base, precision)
    for pairs in map(read, inputs.paths):
        values, drawn = judged(pairs, precision)
        record: Record = {
            "file": readable(pairs.file),
            "encoder": pairs.encoder,
            "metric": options.metric,
            "n": len(pairs),
            "positives": int(pairs.gold.sum()),
            "skipped": pairs.skipped,
        }
        if precision is not None:
            record["precision_at"] = precision
        for place, name in enumerate(columns(precision)):
            record[name] = defined(values[place])
            record[f"{name}_ci95"] = limits(percentile_interval(drawn[:, place]))
        record["resamples"] = len(drawn)
        if base is not None and others is not None:
            check_same_pairs(pairs, base)
            record["against"] = {"file": readable(base.file), "encoder": base.encoder} | {
                name: difference(values[place] - others[0][place], drawn[:, place] - others[1][:, place])
                for place, name in enumerate(columns(precision))
                if name in MEASURES
            }
        yield record


def table_lines(record: Record) -> Iterator[dict[str, str]]:
    """A line for each score, with its threshold."""
    measures = {name: label for name, label in MEASURES.items() if name in record}
    if "recall" in record:
        measures["recall"] = f"recall at P {100 * record['precision_at']:g}"
    for name, line in zip(measures, measure_lines(record, measures), strict=True):
        threshold, interval = "", ""
        if name in THRESHOLDS:
            threshold, _, interval = with_interval(
                record[THRESHOLDS[name]], record[f"{THRESHOLDS[name]}_ci95"], 4
            ).partition(" ")
        cells = list(line.items())  # file, measure and value, then those of a baseline
        yield dict([*cells[:3], ("threshold", threshold), ("interval", interval), *cells[3:]])


def warnings(records: Sequence[Record]) -> Iterator[str]:
    """Warn about skipped rows, and a precision that no threshold reaches."""
    for record in records:
        if record["skipped"]:
            yield f"{record['file']}: {record['skipped']} rows without a label skipped"
        if record.get("recall", 0) is None:
            yield f"{record['file']}: no threshold has a precision of {record['precision_at']:g} or more"
