"""The records of `score --gold` for people: table rows, warnings, and the message of --fail-under."""

from collections.abc import Iterator, Sequence

from sentkit.digits import decimals
from sentkit.formats.vectors.fingerprint import label_of
from sentkit.metrics.sts.report import Record

COLUMNS = ("file", "encoder", "pairs", "Spearman x 100", "Pearson x 100")
KINDS = ("spearman", "pearson")
SEEN = {"pair": "pair seen", "both": "both seen", "one": "one seen"}


def table_lines(record: Record) -> Iterator[dict[str, str]]:
    """The row of the record, then its aggregates, groups, and difference to the baseline."""
    return (dict(zip(COLUMNS, cells, strict=True)) for cells in table_rows(record))


def table_rows(record: Record) -> Iterator[list[str]]:
    chosen = record.get("aggregate", "")
    yield [record["file"], label_of(record["encoder"]), str(record["n"]), *both(record)]
    for name, average in record.get("averages", {}).items():
        yield [f"  {name}{' (chosen)' if name == chosen else ''}", "", "", *both(average)]
    for name, group in record.get("groups", {}).items():
        yield [f"  {name}", "", str(group["n"]), *both(group)]
    if "seen" in record:
        yield from rows_of_seen(record["n"], record["seen"])
    other = record.get("against")
    if other is not None and (other["file"], other["metric"]) != (record["file"], record["metric"]):
        differences = [with_interval(other[kind]["difference"], other[kind]["ci95"]) for kind in KINDS]
        yield [f"  minus {other['file']}", label_of(other["encoder"]), "", *differences]
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


def with_interval(value: float | None, interval: list[float] | None) -> str:
    if interval is None or None in interval:
        return decimals(value)
    return f"{decimals(value)} [{decimals(interval[0])}, {decimals(interval[1])}]"


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


def below(records: Sequence[Record], least: float) -> str | None:
    """A message about the first record with Spearman undefined or below `least`; None if all pass."""
    for record in records:
        value = record["spearman"]
        if value is None or value < least:
            return f"{record['file']}: spearman is {decimals(value)}, below {least:g}"
    return None
