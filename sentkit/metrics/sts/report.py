"""The STS report: correlations with gold scores, with intervals; comparisons of two; its table.

All values are x 100. The aggregates are those of the papers: `all` concatenates the pairs of all groups,
`mean` is the mean of the groups' correlations, `weighted` weights it by the number of pairs.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sentkit.arrays import Float64
from sentkit.digits import decimals
from sentkit.formats.files import readable
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.fingerprint import label_of, space_of
from sentkit.metrics.sts import intervals
from sentkit.metrics.sts.correlation import pearson, spearman
from sentkit.metrics.sts.gold_pairs import GoldPairs, ScoreOptions, check_same_pairs, read_gold_pairs
from sentkit.metrics.sts.intervals import KINDS, RESAMPLES, Interval, Seed
from sentkit.metrics.sts.seen import EXCLUDED, Seen

Record = dict[str, Any]  # a JSON object


def defined(value: float) -> float | None:
    return None if math.isnan(value) else value


def limits(interval: Interval) -> list[float | None]:
    return [defined(interval.low), defined(interval.high)]


# The weight of each part, given the sizes of the parts.
SHARES: dict[str, Callable[[Float64], Float64]] = {
    "all": lambda sizes: np.ones(1),
    "mean": lambda sizes: np.full(len(sizes), 1.0 / len(sizes)),
    "weighted": lambda sizes: sizes / max(sizes.sum(), 1.0),
}
AGGREGATES = tuple(SHARES)


def _parts(pairs: GoldPairs, aggregate: str) -> list[tuple[float, GoldPairs]]:
    """The parts with separate correlations, each with its weight in the aggregate."""
    parts = [pairs] if aggregate == "all" else pairs.split()
    shares = SHARES[aggregate](np.array([len(part) for part in parts], dtype=np.float64))
    return list(zip(shares.tolist(), parts, strict=True))


def _average(pairs: GoldPairs, aggregate: str) -> tuple[float, float]:
    """Spearman's and Pearson's correlation: the mean of the parts; one undefined part makes it NaN."""
    parts = _parts(pairs, aggregate)
    by_rank = sum(share * spearman(part.similarities, part.gold) for share, part in parts)
    by_value = sum(share * pearson(part.similarities, part.gold) for share, part in parts)
    return 100.0 * by_rank, 100.0 * by_value


def _resampled(pairs: GoldPairs, aggregate: str, *, count: int, seed: Seed) -> Float64:
    """The aggregate of every resample, (2, r): pairs are drawn within each part, whose mean is taken."""
    total = np.zeros((2, count))
    for place, (share, part) in enumerate(_parts(pairs, aggregate)):
        own = _own_seed(seed, place)
        total += share * intervals.resample(part.similarities, part.gold, count=count, seed=own)
    return 100.0 * total


def _own_seed(seed: Seed, place: int) -> Seed:
    """A different seed for each part, so that resamples of parts of equal size are independent."""
    return seed if place == 0 else (*(seed if isinstance(seed, tuple) else (seed,)), place)


def _estimates(pairs: GoldPairs, aggregate: str, *, count: int, seed: Seed) -> Record:
    """Both correlations; above the limit by Fisher's z, or for a mean by fewer resamples."""
    values, count = _average(pairs, aggregate), intervals.resamples_for(len(pairs), count)
    if aggregate == "all" and len(pairs) > intervals.BOOTSTRAP_LIMIT:
        kinds = zip(KINDS, values, strict=True)
        found = [intervals.fisher_interval(kind, value / 100.0, len(pairs)) for kind, value in kinds]
    else:
        drawn = _resampled(pairs, aggregate, count=count, seed=seed)
        found = list(map(intervals.percentile_interval, drawn))
    record: Record = {}
    for name, value, interval in zip(KINDS, values, found, strict=True):
        record |= {name: defined(value), f"{name}_ci95": limits(interval)}
    return record | {"interval": found[0].method, "resamples": found[0].resamples or None}


def report(pairs: GoldPairs, options: ScoreOptions, *, count: int = RESAMPLES) -> Record:
    """The report of one encoder; undefined values are None.

    Only the chosen aggregate has an interval, because resampling is slow. "undefined" names the groups that
    are too small or constant; any makes `mean` and `weighted` undefined.
    """
    record: Record = {
        "file": readable(pairs.file),
        "encoder": pairs.encoder,
        "metric": options.metric,
        "aggregate": options.aggregate,
        "n": len(pairs),
        "skipped": pairs.skipped,
        **_estimates(pairs, options.aggregate, count=count, seed=options.seed),
    }
    groups = {}
    for place, (name, part) in enumerate(zip(pairs.names, pairs.split(), strict=False)):
        own = _estimates(part, "all", count=count, seed=_own_seed(options.seed, place))
        groups[name] = {"n": len(part), **own}
    if groups:
        record["averages"] = {
            name: dict(zip(KINDS, map(defined, _average(pairs, name)), strict=True)) for name in AGGREGATES
        }
        record["groups"] = groups
        record["undefined"] = [name for name, group in groups.items() if group["spearman"] is None]
    return record


def without_seen(pairs: GoldPairs, seen: Seen, options: ScoreOptions, *, count: int = RESAMPLES) -> Record:
    """The correlations without the pairs that occur as a pair, or of which both texts occur."""
    left = pairs.only(seen.levels < EXCLUDED)
    own = _estimates(left, options.aggregate, count=count, seed=options.seed)
    return {**seen.record(), "without": {"n": len(left), **own}}


def difference(value: float, resampled: Float64) -> Record:
    """The difference of two values with its paired bootstrap."""
    interval, p = intervals.percentile_interval(resampled), intervals.two_sided_p(resampled)
    return {"difference": defined(value), "ci95": limits(interval), "p": defined(p)}


def compare(first: GoldPairs, second: GoldPairs, options: ScoreOptions, *, count: int = RESAMPLES) -> Record:
    """The paired bootstrap of two encoders on the same pairs; FEWER_RESAMPLES for many pairs."""
    assert np.array_equal(first.gold, second.gold), "both encoders need the same pairs in the same order"
    aggregate, count = options.aggregate, intervals.resamples_for(len(first), count)
    changes = np.subtract(_average(first, aggregate), _average(second, aggregate))
    drawn = _resampled(first, aggregate, count=count, seed=options.seed)
    drawn -= _resampled(second, aggregate, count=count, seed=options.seed)  # same rows: see `resample`
    return {
        "file": readable(second.file),
        "encoder": second.encoder,
        "metric": options.metric,
        **{kind: difference(*each) for kind, *each in zip(KINDS, changes.tolist(), drawn, strict=True)},
        "resamples": count,
    }


def reports(inputs: Inputs, options: ScoreOptions, baseline: str | None) -> Iterator[Record]:
    """A report for each file, with its difference to the baseline, if any.

    With training rows, the pairs of all files are read before them.
    """
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
            made["seen"] = without_seen(pairs, seen.of_pairs(first, len(pairs)), options)
            first += len(pairs)
        if base is not None:
            check_same_pairs(pairs, base)
            made["against"] = compare(pairs, base, options)
        yield made | ({"dim": pairs.dim} if pairs.cut else {})
        for cut in pairs.cut:
            against = compare(cut, pairs, options) | {"dim": pairs.dim}
            yield report(cut, options) | {"dim": cut.dim, "against": against}


def average_records(records: Sequence[Record]) -> Iterator[Record]:
    """The mean over several files of one encoder, for each width of the vectors."""
    for dim in dict.fromkeys(record.get("dim") for record in records):
        average = average_record([record for record in records if record.get("dim") == dim])
        if average is not None:
            yield average | ({} if dim is None else {"dim": dim})


def average_record(records: Sequence[Record]) -> Record | None:
    """The mean over several files of one encoder; None otherwise."""
    encoders = [record["encoder"] for record in records]
    if len(records) < 2 or None in encoders or len(set(map(space_of, encoders))) > 1:
        return None
    average = {
        "file": "average",
        "encoder": encoders[0],
        "n": sum(record["n"] for record in records),
        **_means(records),
    }
    if "seen" in records[0]:
        parts = [record["seen"]["without"] for record in records]
        average["seen"] = {"without": {"n": sum(part["n"] for part in parts), **_means(parts)}}
    return average


def _means(records: Sequence[Record]) -> Record:
    """The mean of each correlation; None if one is undefined."""
    means: Record = {}
    for name in ("spearman", "pearson"):
        values = [record[name] for record in records]
        means[name] = None if None in values else sum(values) / len(values)
    return means


COLUMNS = ("file", "encoder", "pairs", "Spearman x 100", "Pearson x 100")
SEEN = {"pair": "pair seen", "both": "both seen", "one": "one seen"}


def table_lines(record: Record) -> Iterator[dict[str, str]]:
    """The row of the record, then its aggregates, groups, and difference to the baseline."""
    return (dict(zip(COLUMNS, cells, strict=True)) for cells in table_rows(record))


def table_rows(record: Record) -> Iterator[list[str]]:
    chosen, other = record.get("aggregate", ""), record.get("against")
    file, encoder = record["file"], label_of(record["encoder"])
    if other is not None and "dim" in other:
        file, encoder = f"  dim {record['dim']}", ""
    yield [file, encoder, str(record["n"]), *both(record)]
    for name, average in record.get("averages", {}).items():
        yield [f"  {name}{' (chosen)' if name == chosen else ''}", "", "", *both(average)]
    for name, group in record.get("groups", {}).items():
        yield [f"  {name}", "", str(group["n"]), *both(group)]
    if "seen" in record:
        yield from rows_of_seen(record["n"], record["seen"])
    if other is not None and (encoder == "" or (other["file"], other["metric"]) != (file, record["metric"])):
        differences = [with_interval(other[kind]["difference"], other[kind]["ci95"]) for kind in KINDS]
        name = f"dim {other['dim']}" if "dim" in other else other["file"]
        yield [f"  minus {name}", label_of(other["encoder"]) if encoder else "", "", *differences]
        yield ["  p", "", "", *(decimals(other[kind]["p"], 3) for kind in KINDS)]


def rows_of_seen(n: int, seen: Record) -> Iterator[list[str]]:
    """How many pairs occur in the training rows, and the correlation without them."""
    for level, label in SEEN.items():
        if level in seen:
            yield [f"  {label}", "", str(seen[level]), "", ""]
    without = seen["without"]
    yield [f"  without {n - without['n']}", "", str(without["n"]), *both(without)]


def both(record: Record) -> list[str]:
    return [with_interval(record[kind], record.get(f"{kind}_ci95")) for kind in KINDS]


def with_interval(value: float | None, interval: list[float] | None, digits: int = 2) -> str:
    if interval is None or None in interval:
        return decimals(value, digits)
    low, high = (decimals(each, digits) for each in interval)
    return f"{decimals(value, digits)} [{low}, {high}]"


def measure_lines(record: Record, measures: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """A line for each measure by its label; the first one has the file, the second one the number of rows.

    `measures` are keys of the record.
    """
    file, other = record["file"], record.get("against")
    for name, label in measures.items():
        line = {
            "file": file,
            "measure x 100": label,
            "value": with_interval(record[name], record[f"{name}_ci95"]),
        }
        if other is not None:
            change = other[name]
            line |= {
                f"minus {other['file']}": with_interval(change["difference"], change["ci95"]),
                "p": decimals(change["p"], 3),
            }
        yield line
        file = f"  n {record['n']}" if file == record["file"] else ""


def warnings(records: Sequence[Record]) -> Iterator[str]:
    """Warn about skipped rows and undefined correlations."""
    for record in records:
        file = record["file"]
        if record.get("skipped"):
            yield f"{file}: {record['skipped']} rows without a score skipped"
        if record["spearman"] is None and not record.get("undefined"):
            yield f"{file}: the correlation is undefined: all pairs have the same similarity"
        if "seen" in record and record["seen"]["without"]["spearman"] is None:
            yield f"{file}: the correlation without the seen pairs is undefined"
        for name in record.get("undefined", ()):
            yield f'{file}: the correlation of group "{name}" is undefined: too few pairs, or equal values'


def below(records: Sequence[Record], name: str, label: str, least: float | None) -> str | None:
    """A message about the first record with this measure undefined or below `least`; None if all pass."""
    for record in records if least is not None else ():
        value = record[name]
        if value is None or not value >= least:  # also NaN
            return f"{record['file']}: {label} is {decimals(value)}, below {least:g}"
    return None
