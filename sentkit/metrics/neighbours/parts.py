"""The hits of the parts of a corpus, which several processes searched, and their union."""

import json
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import orjson

from sentkit.errors import DataError
from sentkit.formats.rows.block import Row
from sentkit.formats.rows.rows import Inputs
from sentkit.metrics.neighbours.queries import SearchOptions

HITS, PART = "hits", "part"  # fields of a row of a part


def part_of(options: SearchOptions, similarities: Sequence[float]) -> bytes:
    """What a row records for the union: the part, the selection, and similarities with all digits.

    Those of the hits have seven digits, and their order would be lost.
    """
    number, count = options.part or (1, 1)
    selection = {"metric": options.metric, "top": options.top, "threshold": options.threshold}
    return orjson.dumps({"number": number, "count": count, **selection, "similarities": similarities})


def union(inputs: Inputs) -> Iterator[bytes]:
    """The rows that one search of the whole corpus writes, from the files of all its parts."""
    streams = [inputs.other(path).read(lambda row: row) for path in inputs.paths]
    for rows in zip_longest(*streams):
        for path, row in zip(inputs.paths, rows, strict=True):
            if row is None:
                raise DataError("it has fewer rows than another part", source=path)
        yield united(rows)


def united(rows: Sequence[Row]) -> bytes:
    """One query with the hits of all its parts, best first; ties in the order of the corpus."""
    query, (_, _, top) = rows[0].without((HITS, PART)), selection_of(rows[0])
    numbers = [record_of(row)["number"] for row in rows]
    count = record_of(rows[0])["count"]
    if sorted(numbers) != list(range(1, count + 1)):
        given = ", ".join(map(str, sorted(numbers)))
        raise rows[0].error(f"the files are the parts {given}, expected each of 1 to {count} once")
    found: list[tuple[float, int, bytes]] = []
    for row in rows:
        if row.without((HITS, PART)).line != query.line:
            raise row.error(f"another query than in line {rows[0].number} of {rows[0].source}")
        if record_of(row)["count"] != count or selection_of(row) != selection_of(rows[0]):
            raise row.error(f"searched with other flags or parts than {rows[0].source}")
        found += hits_of(row)
    best = sorted(found, key=lambda hit: (-hit[0], hit[1]))[:top]
    return query.add([(HITS.encode(), b"[%b]" % b",".join(hit for *_, hit in best))], replace=False)


def record_of(row: Row) -> dict[str, Any]:
    record = row.values.get(PART)
    if isinstance(record, dict) and {"number", "count", "metric", "top", "threshold"} <= record.keys():
        return record
    raise row.error("not a row of sentkit search --shard")


def selection_of(row: Row) -> tuple[Any, Any, Any]:
    record = record_of(row)
    return record["metric"], record["threshold"], record["top"]


def hits_of(row: Row) -> Iterator[tuple[float, int, bytes]]:
    """The similarity, the corpus row and the bytes of each hit."""
    span, scan = row.spans()[HITS], json.JSONDecoder().raw_decode
    text, place = row.line[span.value : span.end].decode(), 1
    for similarity in record_of(row)["similarities"]:
        hit, end = scan(text, place)
        yield similarity, hit["row"], text[place:end].encode()
        place = end + 1  # after the comma
