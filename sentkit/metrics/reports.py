"""The reports of `score`: correlations with gold scores, scores of labels, comparisons of two; their tables.

All values are x 100. The aggregates are those of the papers: `all` concatenates the pairs of all groups,
`mean` is the mean of the groups' correlations, `weighted` weights it by the number of pairs.
Letters in shapes: n pairs, v distinct similarities, b resamples in one block, c scores.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentkit.arrays import Float64
from sentkit.digits import decimals, significant
from sentkit.formats.files import readable
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.fingerprint import label_of, space_of
from sentkit.metrics import statistics
from sentkit.metrics.gold_pairs import EXCLUDED, GoldPairs, ScoreOptions, check_same_pairs, read_gold_pairs
from sentkit.metrics.statistics import (
    KINDS,
    RESAMPLES,
    Seed,
    fisher_interval,
    pearson,
    percentile_interval,
    spearman,
    two_sided_p,
)

Record = dict[str, Any]  # a JSON object


def defined(value: float) -> float | None:
    return None if math.isnan(value) else value


def difference(value: float, drawn: Float64) -> Record:
    """The difference of two values with its paired bootstrap, the difference in each resample."""
    interval, p = map(defined, percentile_interval(drawn)), two_sided_p(drawn)
    return {"difference": defined(value), "ci95": [*interval], "p": defined(p)}


def differences(names: Iterable[str], values: Iterable[float], drawn: Float64) -> Record:
    """Differences (c,) by name, with those of the resamples (c, r)."""
    return {
        name: difference(float(value), each) for name, value, each in zip(names, values, drawn, strict=True)
    }


def with_intervals(
    names: Iterable[str], values: Iterable[float], intervals: Iterable[Iterable[float]]
) -> Record:
    """The values by name with their intervals."""
    record: Record = {}
    for name, value, interval in zip(names, values, intervals, strict=True):
        record |= {name: defined(float(value)), f"{name}_ci95": [*map(defined, interval)]}
    return record


AGGREGATES = ("all", "mean", "weighted")
Parts = list[tuple[float, GoldPairs]]  # with separate correlations, each with its weight in the aggregate


def parts_of(pairs: GoldPairs, aggregate: str) -> Parts:
    parts = [pairs] if aggregate == "all" else pairs.split()
    sizes = np.array([len(part) for part in parts], dtype=np.float64)
    weights = (
        sizes / max(sizes.sum(), 1.0) if aggregate == "weighted" else np.full(len(parts), 1 / len(parts))
    )
    return list(zip(weights.tolist(), parts, strict=True))


def average(parts: Parts) -> tuple[float, float]:
    """Spearman's and Pearson's correlation: the mean of the parts; one undefined part makes it NaN."""
    by_rank = sum(weight * spearman(part.similarities, part.gold) for weight, part in parts)
    by_value = sum(weight * pearson(part.similarities, part.gold) for weight, part in parts)
    return 100.0 * by_rank, 100.0 * by_value


def resampled(parts: Parts, *, count: int, seed: Seed) -> Float64:
    """The aggregate of every resample, (2, r): pairs are drawn within each part, whose mean is taken."""
    total = np.zeros((2, count))
    for place, (weight, part) in enumerate(parts):
        own = seed_of(seed, place)
        total += weight * statistics.resample(part.similarities, part.gold, count=count, seed=own)
    return 100.0 * total


def seed_of(seed: Seed, place: int) -> Seed:
    """A different seed for each part, so that resamples of parts of equal size are independent."""
    return seed if place == 0 else (*(seed if isinstance(seed, tuple) else (seed,)), place)


def estimates(pairs: GoldPairs, aggregate: str, *, count: int, seed: Seed) -> Record:
    """Both correlations; above the limit by Fisher's z, or for a mean by fewer resamples."""
    parts, count = parts_of(pairs, aggregate), statistics.resamples_for(len(pairs), count)
    values = average(parts)
    if aggregate == "all" and len(pairs) > statistics.BOOTSTRAP_LIMIT:
        found = [
            fisher_interval(*each, len(pairs)) for each in zip(KINDS, np.divide(values, 100.0), strict=True)
        ]
        return {**with_intervals(KINDS, values, found), "interval": "fisher", "resamples": None}
    drawn = map(percentile_interval, resampled(parts, count=count, seed=seed))
    return {**with_intervals(KINDS, values, drawn), "interval": "bootstrap", "resamples": count}


def header(pairs: GoldPairs, options: ScoreOptions) -> Record:
    return {"file": readable(pairs.file), "encoder": pairs.encoder, "metric": options.metric}


def report(pairs: GoldPairs, options: ScoreOptions, *, count: int = RESAMPLES) -> Record:
    """The report of one encoder; undefined values are None.

    Only the chosen aggregate has an interval, because resampling is slow. "undefined" names the groups that
    are too small or constant; any makes `mean` and `weighted` undefined.
    """
    record: Record = {
        **header(pairs, options),
        "aggregate": options.aggregate,
        "n": len(pairs),
        "skipped": pairs.skipped,
        **estimates(pairs, options.aggregate, count=count, seed=options.seed),
    }
    groups = {}
    for place, (name, part) in enumerate(zip(pairs.names, pairs.split(), strict=False)):
        own = estimates(part, "all", count=count, seed=seed_of(options.seed, place))
        groups[name] = {"n": len(part), **own}
    if groups:
        averages = {name: average(parts_of(pairs, name)) for name in AGGREGATES}
        record["averages"] = {
            name: dict(zip(KINDS, map(defined, values), strict=True)) for name, values in averages.items()
        }
        record["groups"] = groups
        record["undefined"] = [name for name, group in groups.items() if group["spearman"] is None]
    return record


def compare(first: GoldPairs, second: GoldPairs, options: ScoreOptions, *, count: int = RESAMPLES) -> Record:
    """The paired bootstrap of two encoders on the same pairs; FEWER_RESAMPLES for many pairs."""
    count, sides = statistics.resamples_for(len(first), count), (first, second)
    one, other = (parts_of(pairs, options.aggregate) for pairs in sides)
    changes = np.subtract(average(one), average(other)).tolist()
    drawn = resampled(one, count=count, seed=options.seed)
    drawn -= resampled(other, count=count, seed=options.seed)  # same rows: see `resample`
    return {**header(second, options), **differences(KINDS, changes, drawn), "resamples": count}


def reports(inputs: Inputs, options: ScoreOptions, baseline: str | None) -> Iterator[Record]:
    """A report for each file, with its difference to the baseline; training rows are read last."""
    paired, plain, seen = baseline is not None, replace(options, seen=None), options.seen
    base = None if baseline is None else read_gold_pairs(inputs, baseline, plain, paired=True)
    files: Iterable[GoldPairs] = (
        read_gold_pairs(inputs, path, options, paired=paired) for path in inputs.paths
    )
    if seen is not None:
        files = list(files)
        seen.read(inputs)
    first = 0
    for pairs in files:
        made = report(pairs, options)
        if seen is not None:
            levels = np.array([*map(seen.level, range(first, first + len(pairs)))], np.int8)
            first += len(pairs)
            left = pairs.only(levels < EXCLUDED)  # without pairs of which both texts occur
            own = estimates(left, options.aggregate, count=RESAMPLES, seed=options.seed)
            made["seen"] = {**seen.record(levels), "without": {"n": len(left), **own}}
        if base is not None:
            check_same_pairs(pairs, base)
            made["against"] = compare(pairs, base, options)
        if pairs.cut is None:
            yield made
        else:
            yield made | {"dim": pairs.dim}
            against = compare(pairs.cut, pairs, options) | {"dim": pairs.dim}
            yield report(pairs.cut, options) | {"dim": pairs.cut.dim, "against": against}


def average_records(records: Sequence[Record]) -> Iterator[Record]:
    """The mean over several files of one encoder, for each width of the vectors."""
    for dim in dict.fromkeys(record.get("dim") for record in records):
        own = [record for record in records if record.get("dim") == dim]
        encoders = [record["encoder"] for record in own]
        if len(own) < 2 or None in encoders or len(set(map(space_of, encoders))) > 1:
            continue
        mean = {"file": "average", "encoder": encoders[0], **sums(own)}
        if "seen" in own[0]:
            mean["seen"] = {"without": sums([record["seen"]["without"] for record in own])}
        yield mean | ({} if dim is None else {"dim": dim})


def sums(records: Sequence[Record]) -> Record:
    """The number of pairs, and the mean of each correlation; None if one is undefined."""
    found: Record = {"n": sum(record["n"] for record in records)}
    for name in KINDS:
        values = [record[name] for record in records]
        found[name] = None if None in values else sum(values) / len(values)
    return found


COLUMNS = ("file", "encoder", "pairs", "Spearman x 100", "Pearson x 100")
SEEN = {"pair": "pair seen", "both": "both seen", "one": "one seen"}


def table_lines(record: Record) -> Iterator[dict[str, str]]:
    """The row of the record, then its aggregates, groups, and difference to the baseline."""
    chosen, other = record.get("aggregate", ""), record.get("against")
    file, encoder = record["file"], label_of(record["encoder"])
    if other is not None and "dim" in other:
        file, encoder = f"  dim {record['dim']}", ""
    rows = [[file, encoder, str(record["n"]), *both(record)]]
    for name, average in record.get("averages", {}).items():
        rows.append([f"  {name}{' (chosen)' if name == chosen else ''}", "", "", *both(average)])
    for name, group in record.get("groups", {}).items():
        rows.append([f"  {name}", "", str(group["n"]), *both(group)])
    if "seen" in record:  # how many pairs occur in the training rows, and the correlation without them
        seen, without = record["seen"], record["seen"]["without"]
        rows += [[f"  {SEEN[level]}", "", str(seen[level]), "", ""] for level in SEEN if level in seen]
        rows.append([f"  without {record['n'] - without['n']}", "", str(without["n"]), *both(without)])
    if other is not None and (encoder == "" or (other["file"], other["metric"]) != (file, record["metric"])):
        differences = [with_interval(other[kind]["difference"], other[kind]["ci95"]) for kind in KINDS]
        name = f"dim {other['dim']}" if "dim" in other else other["file"]
        rows.append([f"  minus {name}", label_of(other["encoder"]) if encoder else "", "", *differences])
        rows.append(["  p", "", "", *(decimals(other[kind]["p"], 3) for kind in KINDS)])
    return (dict(zip(COLUMNS, cells, strict=True)) for cells in rows)


def both(record: Record) -> list[str]:
    return [with_interval(record[kind], record.get(f"{kind}_ci95")) for kind in KINDS]


def with_interval(value: float | None, interval: list[float] | None, digits: int = 2) -> str:
    if interval is None or None in interval:
        return decimals(value, digits)
    low, high = (decimals(each, digits) for each in interval)
    return f"{decimals(value, digits)} [{low}, {high}]"


def measure_lines(record: Record, measures: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """A line for each measure by its label; the first one has the file, the second one the number of rows.

    A baseline is not compared with itself.
    """
    file, other = record["file"], record.get("against")
    if other is not None and other["file"] == file:
        other = None
    has_thresholds = any(f"{name}_threshold" in record for name in measures)
    for name, label in measures.items():
        value, threshold = with_interval(record[name], record[f"{name}_ci95"]), f"{name}_threshold"
        line = {"file": file, "measure x 100": label, "value": value}
        if has_thresholds:
            known = threshold in record
            cell = with_interval(record[threshold], record[f"{threshold}_ci95"], 4) if known else ""
            line["threshold"], _, line["interval"] = cell.partition(" ")
        if other is not None:
            change = other[name]
            line |= {
                f"minus {other['file']}": with_interval(change["difference"], change["ci95"]),
                "p": decimals(change["p"], 3),
            }
        yield line
        file = f"  n {record['n']}" if file == record["file"] else ""


def warnings(records: Sequence[Record]) -> Iterator[str]:
    """Warn about skipped rows, undefined correlations, and a precision that no threshold reaches."""
    for record in records:
        file, what = record["file"], "label" if "positives" in record else "score"
        if record.get("skipped"):
            yield f"{file}: {record['skipped']} rows without a {what} skipped"
        if record.get("spearman", 0) is None and not record.get("undefined"):
            yield f"{file}: the correlation is undefined: all pairs have the same similarity"
        for name in record.get("undefined", ()):
            yield f'{file}: the correlation of group "{name}" is undefined: too few pairs, or equal values'
        if record.get("recall", 0) is None:
            yield f"{file}: no threshold has a precision of {record['precision_at']:g} or more"


def below(records: Sequence[Record], name: str, label: str, least: float | None) -> str | None:
    """A message about the first record with this measure undefined or below `least`; None if all pass."""
    for record in records if least is not None else ():
        value = record[name]
        if value is None or not value >= least:  # also NaN
            return f"{record['file']}: {label} is {decimals(value)}, below {least:g}"
    return None


def worse(records: Sequence[Record], name: str, label: str, margin: float | None) -> str | None:
    """A message about the first record that is significantly worse than the baseline by more than `margin`.

    It is if the whole 95 % interval of the difference is below -margin, or if the test is undefined.
    """
    if margin is None:
        return None
    for record in records:
        baseline = record.get("against")
        if baseline is None:  # the average of several files
            continue
        change = baseline[name]
        low, high = change["ci95"]
        is_defined = None not in (change["difference"], low, high)
        if is_defined and high >= -margin:
            continue
        difference = with_interval(change["difference"], change["ci95"])
        problem = f"{record['file']}: {label} minus that of {baseline['file']} is {difference}"
        if not is_defined:
            return f"{problem}: the paired test is undefined"
        by = f" by more than {margin:g}" if margin else ""
        return f"{problem}, p {decimals(change['p'], 3)}: significantly worse{by}"
    return None


LABELLED = {"average_precision": "average precision", "auc": "AUC", "f1": "best F1", "recall": "recall"}


def factors_of(precision: float | None) -> dict[str, float]:
    """The factor of each column of `Ranking.scores`."""
    at_precision = {} if precision is None else {"recall": 100.0, "recall_threshold": 1.0}
    return {"average_precision": 100.0, "auc": 100.0, "f1": 100.0, "f1_threshold": 1.0, **at_precision}


class Ranking:
    """Pairs with labels in descending order of similarity.

    A threshold is a similarity that occurs, rounded as `score` writes it. A pair is predicted to be 1 if its
    similarity is at least the threshold, so equal similarities are predicted together. Of several thresholds
    with the same F1 or the same recall, the highest counts.
    """

    def __init__(self, pairs: GoldPairs) -> None:
        similarities = np.array([significant(each) for each in pairs.similarities.tolist()])
        self.order = np.argsort(similarities)[::-1]
        descending = similarities[self.order]
        self.last = np.flatnonzero(np.append(descending[1:] != descending[:-1], True))  # of equal ones
        self.thresholds = descending[self.last]  # (v,)
        self.labels = pairs.gold[self.order]

    def scores(self, times: NDArray, precision: float | None) -> Float64:
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
    """The columns of all pairs, (c,), and of each resample, (c, r)."""
    ranking, n = Ranking(pairs), len(pairs)
    factors = [*factors_of(precision).values()]
    times = statistics.multiplicities(n, statistics.resamples_for(n), 0)
    drawn = np.concatenate([ranking.scores(each, precision) for each in times])
    return ranking.scores(np.ones((1, n)), precision)[0] * factors, (drawn * factors).T


def label_records(
    inputs: Inputs, options: ScoreOptions, baseline: str | None, precision: float | None
) -> Iterator[Record]:
    """The report of each file, with its differences to the baseline by a paired bootstrap, if any."""
    read = partial(read_gold_pairs, inputs, options=options, paired=baseline is not None)
    base, names = None if baseline is None else read(baseline), factors_of(precision)
    others = None if base is None else judged(base, precision)
    for pairs in map(read, inputs.paths):
        values, drawn = judged(pairs, precision)
        record: Record = {
            **header(pairs, options),
            "n": len(pairs),
            "positives": int(pairs.gold.sum()),
            "skipped": pairs.skipped,
            **({} if precision is None else {"precision_at": precision}),
            **with_intervals(names, values, map(percentile_interval, drawn)),
            "resamples": drawn.shape[1],
        }
        if base is not None and others is not None:
            check_same_pairs(pairs, base)
            changes = differences(names, values - others[0], drawn - others[1])
            record["against"] = {"file": readable(base.file), "encoder": base.encoder}
            record["against"] |= {name: each for name, each in changes.items() if name in LABELLED}
        yield record


def label_lines(record: Record) -> Iterator[dict[str, str]]:
    """A line for each score, with its threshold."""
    measures = {name: label for name, label in LABELLED.items() if name in record}
    if "recall" in record:
        measures["recall"] = f"recall at P {100 * record['precision_at']:g}"
    return measure_lines(record, measures)
