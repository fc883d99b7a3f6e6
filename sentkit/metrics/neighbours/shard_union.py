"""The union of the hits that one search has in all shards of a corpus."""

from collections.abc import Iterator, Sequence
from itertools import chain, zip_longest
from typing import Any

from sentkit.digits import significant
from sentkit.errors import DataError
from sentkit.formats.rows.block import Row, items_of
from sentkit.formats.rows.rows import Inputs

# Fields of a row of a shard.
HITS = "hits"
SHARD = "part"

AGAIN = (
    "join only outputs of one search: the same queries, corpus and flags; write others again "
    "with --shard"
)
# Fields of the record of a shard that are equal in all shards.
EQUAL_FIELDS = ("count", "space", "corpus", "queries", "metric", "top", "threshold")


def union(inputs: Inputs) -> Iterator[bytes]:
    """The rows that one search of the whole corpus writes, from the files of all its shards."""
    blocks_of_files = [inputs.with_paths(path).blocks(lambda row: ()) for path in inputs.paths]
    rows_of_files = [chain.from_iterable(blocks) for blocks in blocks_of_files]
    for rows in zip_longest(*rows_of_files):
        for path, row in zip(inputs.paths, rows, strict=True):
            if row is None:
                raise DataError("it has fewer rows than another part", source=path)
        yield united(rows)


def united(rows: Sequence[Row]) -> bytes:
    """One query with the hits of all its shards, best first; ties in the order of the corpus."""
    query = rows[0].without((HITS, SHARD))
    records = [record_of(row) for row in rows]
    first = records[0]
    numbers = sorted(record["number"] for record in records)
    if len(rows) != first["count"] or numbers != list(range(1, len(rows) + 1)):
        problem = f"the files are the parts {', '.join(map(str, numbers))}"
        raise rows[0].error(f"{problem}, expected each of 1 to {first['count']} once")

    hits: list[tuple[float, int, bytes]] = []  # similarity, row of the corpus, bytes of the hit
    for row, record in zip(rows, records, strict=True):
        if row.without((HITS, SHARD)).line != query.line:
            raise row.error(f"another query than in line {rows[0].number} of {rows[0].source}")
        for name in EQUAL_FIELDS:
            if record[name] != first[name]:
                problem = f'"{name}" of this part is not that of {rows[0].source}'
                raise row.error(problem, advice=AGAIN)
        corpus_rows = [hit["row"] for hit in row.values[HITS]]
        bytes_of_hits = items_of(row.line, row.field_spans()[HITS].value)
        hits += zip(record["similarities"], corpus_rows, bytes_of_hits, strict=True)
    hits.sort(key=lambda hit: (-hit[0], hit[1]))
    best = b",".join(bytes_of_hit for _, _, bytes_of_hit in hits[: first["top"]])
    return query.add([(HITS.encode(), b"[%b]" % best)], replace=False)


def record_of(row: Row) -> dict[str, Any]:
    """The record of the shard in a row. Its keys are EQUAL_FIELDS, `number` (of the shard, from 1)
    and `similarities` (of the hits, with all digits).

    A DataError if the record or the hits are not those that `search` writes.
    """
    row.check_duplicate_names()
    record: Any = row.values.get(SHARD)
    hits: Any = row.values.get(HITS)
    try:
        integers = [record["number"], record["count"]]
        if record["top"] is not None:  # None: without --top
            integers.append(record["top"])
        integers += [hit["row"] for hit in hits]
        # Those of the hits have fewer digits.
        similarities = [significant(similarity) for similarity in record["similarities"]]
        is_valid = (
            isinstance(hits, list)
            and [hit["similarity"] for hit in hits] == similarities
            and {type(integer) for integer in integers} == {int}
            and record.keys() >= set(EQUAL_FIELDS)
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        is_valid = False
    if not is_valid:
        raise row.error("not a row of sentkit search --shard", advice=AGAIN)
    return record
