"""Odd values in parts of a search, hits and judgements: they are read, or an error blames
the file.
"""

import json
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hostile import ODD, is_read_or_bad_data, places, replaced
from sentkit.formats.rows.rows import Inputs
from sentkit.metrics.neighbours.shard_union import union
from sentkit.metrics.retrieval import read_qrels, read_run, record_of, values_of

EXAMPLES = [50, pytest.param(3000, marks=pytest.mark.slow)]
ODDER = ODD | st.sampled_from(
    [2, 10**9, 2**64, 1e-320, 1e308, "inf", "nan", "1e999", "1_0", " ", "id", "\ud7ff"]
)
VALUE = st.recursive(
    ODDER, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner)
)
JUDGED = [{"query-id": "q", "corpus-id": row_id, "score": 1} for row_id in (1, "b", 2)]
NESTED = [
    {"id": "q", "hits": [{"id": 1, "row": 1, "similarity": 0.5}, {"id": "b", "similarity": 0.25}]}
]
FLAT = [{"id_a": "q", "id_b": row_id, "rank": 1, "similarity": 0.5} for row_id in (1, "b")]


def numbered_hits(number):
    hits = [{"row": 10 * number + row, "similarity": 0.5, "text": "}]"} for row in range(2)]
    record = {"number": number, "count": 2, "space": "0123456789ab", "corpus": "ba9876543210"}
    record["queries"] = "ab0123456789"
    selection = {"metric": "cosine", "top": 3, "threshold": None, "similarities": [0.5, 0.5]}
    return [{"id": query, "hits": hits, "part": record | selection} for query in range(2)]


BLANKS = (" ,\t", " : ")
SWAPS = [("", "")] * 5 + [
    ("0.5", "1e999"),
    ("0.5", "5e-1"),
    ('"id"', '"hits"'),
    (":", " :\t"),
    ("}", ""),
]


@st.composite
def damaged(draw, samples):
    """The lines of a valid file with other values, names, blanks and numbers of rows."""
    rows = draw(st.sampled_from(samples))
    for _ in range(draw(st.integers(0, 2))):
        paths = [path for path in places(rows) if len(path) > 1]
        rows = replaced(rows, draw(st.sampled_from(paths)), draw(VALUE))
    separators = draw(st.sampled_from([(",", ":"), BLANKS]))
    swap = draw(st.sampled_from(SWAPS))
    lines = [json.dumps(row, separators=separators).replace(*swap, 1) for row in rows]
    return "".join(f"{line}\n" for line in lines * draw(st.sampled_from([1, 1, 1, 2])))


GRADES = ["0", "1", "-1", "2.5", "1e308", "1.7e308", "1e-320", "inf", "nan", "1_0", "x", "\u0661"]
JUDGEMENT = st.tuples(*map(st.sampled_from, ("qr", "1b2", GRADES)))
JUDGEMENTS = st.lists(JUDGEMENT, min_size=1, max_size=6, unique_by=lambda judgement: judgement[:2])
TREC = JUDGEMENTS.map(
    lambda rows: "".join(f"{query} 0 {hit} {grade}\n" for query, hit, grade in rows)
)
TABLE = JUDGEMENTS.map(lambda rows: "\n".join(map("\t".join, [JUDGED[0], *rows])))


def check(examples, strategy, read):
    settings(max_examples=examples)(
        given(strategy)(lambda content: is_read_or_bad_data(partial(read, content)))
    )()


@pytest.mark.parametrize("examples", EXAMPLES)
def test_parts(tmp_path, examples):
    one = Path(tmp_path, "1.jsonl")
    two = Path(tmp_path, "2.jsonl")

    def read(content):
        one.write_text(content)
        # The bytes of equal queries are equal.
        separators = BLANKS if " : " in content else (",", ":")
        two.write_text(
            "".join(json.dumps(row, separators=separators) + "\n" for row in numbered_hits(2))
        )
        for line in union(Inputs([str(one), str(two)])):
            json.loads(line)

    check(examples, damaged([numbered_hits(1)]), read)


@pytest.mark.parametrize("examples", EXAMPLES)
def test_hits_and_judgements(tmp_path, examples):
    """The scores of any files that are read are numbers from 0 to 100."""
    paths = hits, qrels = [str(tmp_path / name) for name in ("hits.jsonl", "qrels")]

    def read(contents):
        for path, content in zip(paths, contents, strict=True):
            Path(path).write_text(content)
        run = read_run(Inputs([hits]), hits, read_qrels(Inputs([hits]), qrels))
        record = record_of(run, values_of(run, qrels, missing_is_zero=True), qrels)
        assert all(0 <= record[name] <= 100 for name in ("ndcg@10", "recall@10", "map", "mrr@10"))

    valid = st.sampled_from(
        ["".join(f"{json.dumps(row)}\n" for row in rows) for rows in (NESTED, FLAT)]
    )
    judged = TREC | TABLE | damaged([JUDGED])
    check(examples, st.tuples(valid | damaged([NESTED, FLAT]), judged), read)


def test_the_id_of_a_hit_can_be_a_large_number(tmp_path):
    path = tmp_path / "hits.jsonl"
    path.write_text('{"id":"q","hits":[{"id":1e300,"row":1,"similarity":0.5}]}\n')
    qrels = {"q": {str(int(1e300)): 1.0}}

    assert read_run(Inputs([str(path)]), str(path), qrels).relevant == {"q": [(1, 1.0)]}
