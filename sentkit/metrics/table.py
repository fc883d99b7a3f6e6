"""Reports as rows of a table: an encoder, its aggregates, its groups, and the difference to a baseline."""

from collections.abc import Iterator

from sentkit.metrics.records import KINDS, Record

COLUMNS = ("file", "encoder", "pairs", "Spearman x 100", "Pearson x 100")
NAMES = ("file", "encoder")


def table_lines(record: Record) -> Iterator[list[str]]:
    """The row of the record, then its aggregates, groups, and difference to the baseline."""
    chosen = record.get("aggregate", "")
    yield [record["file"], label(record["encoder"]), str(record["n"]), *both(record)]
    for name, average in record.get("averages", {}).items():
        yield [f"  {name}{' (chosen)' if name == chosen else ''}", "", "", *both(average)]
    for name, of in record.get("groups", {}).items():
        yield [f"  {name}", "", str(of["n"]), *both(of)]
    if "against" in record and record["against"]["file"] != record["file"]:
        other = record["against"]
        differences = [with_interval(other[kind]["difference"], other[kind]["ci95"]) for kind in KINDS]
        yield [f"  minus {other['file']}", label(other["encoder"]), "", *differences]
        yield ["  p", "", "", *(shown(other[kind]["p"], 3) for kind in KINDS)]


def both(record: Record) -> list[str]:
    return [with_interval(record[kind], record.get(f"{kind}_ci95")) for kind in KINDS]


def with_interval(value: float | None, interval: list[float] | None) -> str:
    if interval is None or None in interval:
        return shown(value)
    return f"{shown(value)} [{shown(interval[0])}, {shown(interval[1])}]"


def shown(value: float | None, digits: int = 2) -> str:
    return "undefined" if value is None else f"{value:.{digits}f}"


def label(emb: str | None) -> str:
    return "" if emb is None else emb.rpartition(":")[0]
