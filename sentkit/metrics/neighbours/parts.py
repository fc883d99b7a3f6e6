"""The hits of the parts of a corpus, which several processes searched, and their union."""

import sys
from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from typing import Any

from sentkit.digits import significant
from sentkit.errors import DataError
from sentkit.formats.rows.block import Row, items_of
from sentkit.formats.rows.kinds import wrong_field
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors.folders import TEXT, Permitted, check_fields, number, or_null, shown

HITS, PART = "hits", "part"  # fields of a row of a part
AGAIN = "join only outputs of one search: the same queries, corpus and flags; write others again with --shard"
ALIKE = ("count", "space", "corpus", "metric", "top", "threshold")  # fields that are equal in all parts
RECORD = {
    "number": number(1),
    "count": number(1),
    "space": or_null(TEXT),
    "corpus": TEXT,
    "metric": TEXT,
    "top": or_null(number(1, sys.maxsize)),
    "threshold": or_null(Permitted("a number", lambda value: type(value) in (int, float))),
    "similarities": Permitted(
        "a list of numbers",
        lambda value: isinstance(value, list) and all(type(each) in (int, float) for each in value),
    ),
}


def union(inputs: Inputs) -> Iterator[bytes]:
    """The rows that one search of the whole corpus writes, from the files of all its parts."""
    blocks = [inputs.other(path).blocks(lambda row: (row, ())) for path in inputs.paths]
    for rows in zip_longest(*map(chain.from_iterable, blocks)):
        for path, row in zip(inputs.paths, rows, strict=True):
            if row is None:
                raise DataError("it has fewer rows than another part", source=path)
        yield united(rows)


def united(rows: Sequence[Row]) -> bytes:
    """One query with the hits of all its parts, best first; ties in the order of the corpus."""
    query, records = rows[0].without((HITS, PART)), list(map(record_of, rows))
    first, numbers = records[0], sorted(record["number"] for record in records)
    if len(rows) != first["count"] or numbers != list(range(1, len(rows) + 1)):
        given = ", ".join(map(str, numbers))
        raise rows[0].error(f"the files are the parts {given}, expected each of 1 to {first['count']} once")
    found: list[tuple[float, int, bytes]] = []
    for row, record in zip(rows, records, strict=True):
        if row.without((HITS, PART)).line != query.line:
            raise row.error(f"another query than in line {rows[0].number} of {rows[0].source}")
        if name := next((name for name in ALIKE if record[name] != first[name]), None):
            problem = f'"{name}" of this part is {shown(record[name])}, that of {rows[0].source}'
            raise row.error(f"{problem} {shown(first[name])}", advice=AGAIN)
        hits = items_of(row.line, row.spans()[HITS].value)
        places = [hit["row"] for hit in row.values[HITS]]
        found += zip(record["similarities"], places, hits, strict=True)
    best = sorted(found, key=lambda hit: (-hit[0], hit[1]))[: first["top"]]
    return query.add([(HITS.encode(), b"[%b]" % b",".join(hit for *_, hit in best))], replace=False)


def record_of(row: Row) -> dict[str, Any]:
    """The record of the part in a row; a DataError if it or the hits are not those that `search` writes."""
    row.refuse_duplicates()
    if not {HITS, PART} <= row.values.keys():
        raise row.error("not a row of sentkit search --shard")
    record, hits = row.values[PART], row.values[HITS]
    try:
        check_fields(record, RECORD, f"{row.source}:{row.number}", PART)
    except DataError as error:
        error.advice = AGAIN
        raise
    if not isinstance(hits, list) or not all(
        isinstance(hit, dict) and type(hit.get("row")) is int for hit in hits
    ):
        raise wrong_field(row, HITS, 'a list of objects with "row", a whole number')
    if [hit.get("similarity") for hit in hits] != [*map(significant, record["similarities"])]:
        raise row.error('"similarities" are not those of the hits', advice=AGAIN)
    return record
