"""The reports of `score`: correlations with gold scores, comparisons of encoders, and tables.

All values are x 100. The aggregates are those of the papers: `all` concatenates the pairs of all
groups, `mean` is the mean of the groups' correlations, `weighted` weights it by the number of
pairs.

Letters in shapes: r resamples, c measures.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from sentkit.arrays import Float64
from sentkit.digits import decimals
from sentkit.formats.files import shown_path
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.fingerprint import label_of, space_of
from sentkit.metrics import statistics
from sentkit.metrics.gold_pairs import (
    GoldPairs,
    ScoreOptions,
    check_same_pairs,
    read_baseline,
    read_gold_pairs,
)
from sentkit.metrics.seen_pairs import EXCLUDED
from sentkit.metrics.statistics import (
    FEWEST_ROWS,
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


def difference(value: float, resampled_values: Float64, rows: int) -> Record:
    """The difference of two values with its paired bootstrap, the difference in each resample.

    Fewer than FEWEST_ROWS rows have no interval and no p, and an undefined difference has none.
    """
    low = math.nan
    high = math.nan
    p = math.nan
    if rows >= FEWEST_ROWS and not math.isnan(value):
        low, high = percentile_interval(resampled_values)
        p = two_sided_p(resampled_values)
    return {"difference": defined(value), "ci95": [defined(low), defined(high)], "p": defined(p)}


def differences(
    names: Iterable[str], values: Iterable[float], resampled_values: Float64, rows: int
) -> Record:
    """Differences (c,) by name, with those of the resamples (c, r) of the rows."""
    record: Record = {}
    for name, value, values_of_resamples in zip(names, values, resampled_values, strict=True):
        record[name] = difference(float(value), values_of_resamples, rows)
    return record


def with_intervals(
    names: Iterable[str], values: Iterable[float], intervals: Iterable[Iterable[float]], rows: int
) -> Record:
    """The values by name with their intervals. Fewer than FEWEST_ROWS rows have no interval, and
    an undefined value has none.
    """
    record: Record = {}
    for name, value, (low, high) in zip(names, values, intervals, strict=True):
        if rows < FEWEST_ROWS or math.isnan(value):
            low = math.nan
            high = math.nan
        record[name] = defined(float(value))
        record[f"{name}_ci95"] = [defined(low), defined(high)]
    return record


AGGREGATES = ("all", "mean", "weighted")
WeightedGroups = list[tuple[float, GoldPairs]]  # the weights of their correlations in the aggregate


def weighted_groups(pairs: GoldPairs, aggregate: str) -> WeightedGroups:
    """The pairs of each group with its weight; for the aggregate "all", all pairs as one group."""
    if aggregate == "all":
        return [(1.0, pairs)]
    groups = pairs.split()
    if aggregate == "mean":
        return [(1 / len(groups), group) for group in groups]
    count = max(sum(map(len, groups)), 1)
    return [(len(group) / count, group) for group in groups]


def fewest_pairs(groups: WeightedGroups) -> int:
    """The number of pairs of the smallest group. Of few pairs, many resamples are constant, so that
    their correlation is undefined.
    """
    return min((len(group) for _, group in groups), default=0)


def average(groups: WeightedGroups) -> tuple[float, float]:
    """Spearman's and Pearson's correlation: the weighted mean; one undefined group makes it NaN."""
    by_rank = sum(weight * spearman(group.similarities, group.gold) for weight, group in groups)
    by_value = sum(weight * pearson(group.similarities, group.gold) for weight, group in groups)
    return 100.0 * by_rank, 100.0 * by_value


def resampled(groups: WeightedGroups, *, count: int, seed: Seed) -> Float64:
    """The aggregate of every resample, (2, r): pairs are drawn within each group, then averaged."""
    total = np.zeros((2, count))
    for number, (weight, group) in enumerate(groups):
        group_seed = seed_of(seed, number)
        correlations = statistics.resample(
            group.similarities, group.gold, count=count, seed=group_seed
        )
        total += weight * correlations
    return 100.0 * total


def seed_of(seed: Seed, number: int) -> Seed:
    """A different seed for each group: resamples of equal groups are independent."""
    if number == 0:
        return seed
    if isinstance(seed, int):
        return (seed, number)
    return (*seed, number)


def estimates(pairs: GoldPairs, aggregate: str, *, count: int, seed: Seed) -> Record:
    """Both correlations; above the limit by Fisher's z, or for a mean by fewer resamples."""
    groups = weighted_groups(pairs, aggregate)
    values = average(groups)
    if aggregate == "all" and len(pairs) > statistics.BOOTSTRAP_LIMIT:
        intervals = []
        for kind, value in zip(KINDS, np.divide(values, 100.0), strict=True):
            intervals.append(fisher_interval(kind, value, len(pairs)))
        record = with_intervals(KINDS, values, intervals, len(pairs))
        return {**record, "interval": "fisher", "resamples": None}
    count = statistics.resamples_for(len(pairs), count)
    intervals = [percentile_interval(row) for row in resampled(groups, count=count, seed=seed)]
    record = with_intervals(KINDS, values, intervals, fewest_pairs(groups))
    return {**record, "interval": "bootstrap", "resamples": count}


def header(pairs: GoldPairs, options: ScoreOptions) -> Record:
    return {"file": shown_path(pairs.file), "encoder": pairs.encoder, "metric": options.metric}


def report(pairs: GoldPairs, options: ScoreOptions, *, count: int = RESAMPLES) -> Record:
    """The report of one encoder; undefined values are None.

    Only the chosen aggregate has an interval, because resampling is slow. "undefined" names the
    groups that are too small or constant; any makes `mean` and `weighted` undefined.
    """
    record: Record = {
        **header(pairs, options),
        "aggregate": options.aggregate,
        "n": len(pairs),
        "skipped": pairs.skipped,
        **estimates(pairs, options.aggregate, count=count, seed=options.seed),
    }
    groups: Record = {}
    for number, (name, group) in enumerate(zip(pairs.names, pairs.split(), strict=False)):
        seed = seed_of(options.seed, number)
        groups[name] = {"n": len(group), **estimates(group, "all", count=count, seed=seed)}
    if groups:
        record["averages"] = {}
        for aggregate in AGGREGATES:
            values = average(weighted_groups(pairs, aggregate))
            record["averages"][aggregate] = dict(zip(KINDS, map(defined, values), strict=True))
        record["groups"] = groups
        record["undefined"] = [name for name, group in groups.items() if group["spearman"] is None]
    return record


def compare(a: GoldPairs, b: GoldPairs, options: ScoreOptions, *, count: int = RESAMPLES) -> Record:
    """The paired bootstrap of two encoders on the same pairs, a minus b."""
    count = statistics.resamples_for(len(a), count)
    groups_a = weighted_groups(a, options.aggregate)
    groups_b = weighted_groups(b, options.aggregate)
    changes = np.subtract(average(groups_a), average(groups_b)).tolist()
    resampled_changes = resampled(groups_a, count=count, seed=options.seed)
    # The seed is the same, so both have the same resamples of pairs.
    resampled_changes -= resampled(groups_b, count=count, seed=options.seed)
    return {
        **header(b, options),
        **differences(KINDS, changes, resampled_changes, fewest_pairs(groups_a)),
        "resamples": count,
    }


def reports(inputs: Inputs, options: ScoreOptions, baseline: str | None) -> Iterator[Record]:
    """A report for each file, with its difference to the baseline; training rows are read last."""
    seen = options.seen
    base = None
    if baseline is not None:
        base = read_baseline(inputs, baseline, options)
    # Each file is read when its report is due.
    files: Iterable[GoldPairs] = (
        read_gold_pairs(inputs, path, options, with_identities=base is not None)
        for path in inputs.paths
    )
    if seen is not None:
        files = list(files)  # `seen` needs the pairs of all files
        seen.read(inputs)
    first = 0  # number of the first pair of a file in `seen`
    for pairs in files:
        record = report(pairs, options)
        if seen is not None:
            levels = np.array([seen.level(first + i) for i in range(len(pairs))], np.int8)
            first += len(pairs)
            unseen = pairs.only(levels < EXCLUDED)  # without pairs of which both texts occur
            correlations = estimates(unseen, options.aggregate, count=RESAMPLES, seed=options.seed)
            record["seen"] = {**seen.record(levels), "without": {"n": len(unseen), **correlations}}
        if base is not None:
            check_same_pairs(pairs, base)
            record["against"] = compare(pairs, base, options)
        if pairs.cut is not None:
            record["dim"] = pairs.dim
        yield record
        if pairs.cut is not None:
            against = compare(pairs.cut, pairs, options) | {"dim": pairs.dim}
            yield report(pairs.cut, options) | {"dim": pairs.cut.dim, "against": against}


def average_records(records: Sequence[Record]) -> Iterator[Record]:
    """The mean over several files of one encoder, for each width of the vectors."""
    for dim in dict.fromkeys(record.get("dim") for record in records):
        of_width = [record for record in records if record.get("dim") == dim]
        encoders = [record["encoder"] for record in of_width]
        if len(of_width) < 2 or None in encoders or len(set(map(space_of, encoders))) > 1:
            continue
        mean: Record = {"file": "average", "encoder": encoders[0], **sums(of_width)}
        if "seen" in of_width[0]:
            mean["seen"] = {"without": sums([record["seen"]["without"] for record in of_width])}
        if dim is not None:
            mean["dim"] = dim
        yield mean


def sums(records: Sequence[Record]) -> Record:
    """The number of pairs, and the mean of each correlation; None if one is undefined."""
    mean: Record = {"n": sum(record["n"] for record in records)}
    for name in KINDS:
        values = [record[name] for record in records]
        mean[name] = None
        if None not in values:
            mean[name] = sum(values) / len(values)
    return mean


COLUMNS = ("file", "encoder", "pairs", "Spearman x 100", "Pearson x 100")
SEEN = {"pair": "pair seen", "both": "both seen", "one": "one seen"}


def table_lines(record: Record) -> Iterator[dict[str, str]]:
    """The row of the record, then its aggregates, groups, and difference to the baseline."""
    file = record["file"]
    encoder = label_of(record["encoder"])
    against = record.get("against")
    # compared by the first numbers of the vectors
    is_cut = against is not None and "dim" in against
    if is_cut:
        file = f"  dim {record['dim']}"
        encoder = ""
    rows = [[file, encoder, str(record["n"]), *correlations(record)]]
    for name, average in record.get("averages", {}).items():
        chosen = " (chosen)" if name == record.get("aggregate") else ""
        rows.append([f"  {name}{chosen}", "", "", *correlations(average)])
    for name, group in record.get("groups", {}).items():
        rows.append([f"  {name}", "", str(group["n"]), *correlations(group)])
    # how many pairs occur in the training rows, and the correlation without them
    if "seen" in record:
        seen = record["seen"]
        without = seen["without"]
        for level, label in SEEN.items():
            if level in seen:
                rows.append([f"  {label}", "", str(seen[level]), "", ""])
        excluded = record["n"] - without["n"]
        rows.append([f"  without {excluded}", "", str(without["n"]), *correlations(without)])
    if against is not None:
        if is_cut:
            rows += difference_rows(against, f"dim {against['dim']}", "")
        elif (against["file"], against["metric"]) != (file, record["metric"]):
            rows += difference_rows(against, against["file"], label_of(against["encoder"]))
    return (dict(zip(COLUMNS, cells, strict=True)) for cells in rows)


def difference_rows(against: Record, name: str, encoder: str) -> list[list[str]]:
    """The difference to a baseline with its interval, and the p-values."""
    changes = [with_interval(against[kind]["difference"], against[kind]["ci95"]) for kind in KINDS]
    p_values = [decimals(against[kind]["p"], 3) for kind in KINDS]
    return [[f"  minus {name}", encoder, "", *changes], ["  p", "", "", *p_values]]


def correlations(record: Record) -> list[str]:
    return [with_interval(record[kind], record.get(f"{kind}_ci95")) for kind in KINDS]


def with_interval(value: float | None, interval: list[float] | None, digits: int = 2) -> str:
    if interval is None or None in interval:
        return decimals(value, digits)
    low, high = (decimals(limit, digits) for limit in interval)
    return f"{decimals(value, digits)} [{low}, {high}]"


def measure_lines(record: Record, measures: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """A line for each measure by its label; the first has the file, the second the rows.

    A baseline is not compared with itself.
    """
    baseline = record.get("against")
    if baseline is not None and baseline["file"] == record["file"]:
        baseline = None
    has_thresholds = any(f"{name}_threshold" in record for name in measures)
    for number, (name, label) in enumerate(measures.items()):
        file = ""
        if number == 0:
            file = record["file"]
        elif number == 1:
            file = f"  n {record['n']}"
        value = with_interval(record[name], record[f"{name}_ci95"])
        line = {"file": file, "measure x 100": label, "value": value}
        if has_thresholds:
            cell = ""
            if f"{name}_threshold" in record:
                cell = with_interval(
                    record[f"{name}_threshold"], record[f"{name}_threshold_ci95"], 4
                )
            line["threshold"], _, line["interval"] = cell.partition(" ")
        if baseline is not None:
            change = baseline[name]
            line[f"minus {baseline['file']}"] = with_interval(change["difference"], change["ci95"])
            line["p"] = decimals(change["p"], 3)
        yield line


def warnings(records: Sequence[Record]) -> Iterator[str]:
    """Warn about skipped rows, undefined correlations, and a precision that is not reached."""
    for record in records:
        file = record["file"]
        baseline = record.get("against")
        # compared by the first numbers of the vectors: the same rows as those of another record
        is_cut = baseline is not None and "dim" in baseline
        is_compared = baseline is not None and (is_cut or baseline["file"] != file)
        if is_compared and rows_to_draw(record) < FEWEST_ROWS:
            yield f"{file}: {too_few_rows(record)}, so the difference has no interval and no p"
        if record.get("skipped") and not is_cut:
            field = "label" if "positives" in record else "score"
            yield f"{file}: {record['skipped']} rows without a {field} skipped"
        is_average = "metric" not in record  # of files that have their own warnings
        if record.get("spearman", 0) is None and not (is_average or record.get("undefined")):
            yield f"{file}: the correlation is undefined: all pairs have the same similarity"
        for name in record.get("undefined", ()):
            reason = "too few pairs, or equal values"
            yield f'{file}: the correlation of group "{name}" is undefined: {reason}'
        if record.get("recall", 0) is None:
            yield f"{file}: no threshold has a precision of {record['precision_at']:g} or more"


def too_few_rows(record: Record) -> str:
    """Why a record has no paired test."""
    rows = "queries" if "qrels" in record else "pairs"
    if is_mean_of_groups(record):
        fewest = f"the smallest group has {rows_to_draw(record)}"
        return f"a paired test needs {FEWEST_ROWS} {rows} in each group, {fewest}"
    return f"a paired test needs {FEWEST_ROWS} {rows}, n is {record['n']}"


def rows_to_draw(record: Record) -> int:
    """The rows from which a resample draws: those of the smallest group, if groups are averaged."""
    if is_mean_of_groups(record):
        return min(group["n"] for group in record["groups"].values())
    n: int = record["n"]
    return n


def is_mean_of_groups(record: Record) -> bool:
    return record.get("aggregate", "all") != "all" and bool(record.get("groups"))


def below(records: Sequence[Record], name: str, label: str, limit: float | None) -> str | None:
    """A message about the first record with this measure undefined or below the limit."""
    if limit is None:
        return None
    for record in records:
        value = record[name]
        if value is None or not value >= limit:  # also NaN
            name_of_record = record["file"]
            if "dim" in record:
                name_of_record += f", dim {record['dim']}"
            return f"{name_of_record}: {label} is {decimals(value)}, below {limit:g}"
    return None


def worse(records: Sequence[Record], name: str, label: str, margin: float | None) -> str | None:
    """A message about the first record that is significantly worse, by more than `margin`.

    It is if the whole 95 % interval of the difference is below -margin, or if the test is
    undefined.
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
        if rows_to_draw(record) < FEWEST_ROWS:
            return f"{problem}: {too_few_rows(record)}"
        if not is_defined:
            return f"{problem}: the paired test is undefined"
        by = f" by more than {margin:g}" if margin else ""
        return f"{problem}, p {decimals(change['p'], 3)}: significantly worse{by}"
    return None
