"""The mean of the reports of several files."""

from collections.abc import Sequence

from sentkit.formats.vectors.fingerprint import space_of
from sentkit.metrics.sts.report import Record


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
