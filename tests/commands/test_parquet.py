"""Parquet files as inputs and outputs of commands: the same rows and vectors as with JSONL."""

from itertools import pairwise
from pathlib import Path

import pytest

from support import TEXTS, in_jsonl

pytest.importorskip("pyarrow")
from pyarrow import parquet

PAIRS = [
    {"id": n, "left": one, "text_b": other, "negatives": [one] * (n % 3), "score": n / 2, "note": {"n": n}}
    for n, (one, other) in enumerate(pairwise(TEXTS))
]


@pytest.fixture
def pairs(sentkit):
    """pairs.jsonl, and pairs.parquet with the same rows."""
    Path("pairs.jsonl").write_text(in_jsonl(*PAIRS).replace(": ", ":").replace(", ", ","))
    done = sentkit("cat", "pairs.jsonl", "-o", "pairs.parquet")
    assert (done.code, done.err) == (0, "")


@pytest.fixture
def encoded(sentkit, pairs):
    """vectors.jsonl, and vectors.parquet, which encode wrote from pairs.parquet."""
    for suffix in ("jsonl", "parquet"):
        done = sentkit("encode", f"pairs.{suffix}", "--field", "text_a=left", "-o", f"vectors.{suffix}")
        assert (done.code, done.err) == (0, "")


def test_a_file_is_read_as_parquet_by_its_suffix(sentkit, pairs):
    """Or with --from. The rows of both formats have the same bytes."""
    raw = Path("pairs.parquet").read_bytes()
    Path("rows").write_bytes(raw)

    assert sentkit("cat", "pairs.parquet").out == Path("pairs.jsonl").read_bytes()
    assert sentkit("cat", "--from", "parquet", "-", stdin=raw).rows == PAIRS
    assert sentkit("cat", "rows").code == 65
    assert sentkit("cat", "rows", "--from", "parquet").rows == PAIRS
    assert sentkit("cat", "pairs.parquet", "--from", "jsonl").code == 65


@pytest.mark.parametrize(
    "command",
    [
        ("cat", "vectors.jsonl", "--vectors", "base64"),
        ("encode", "pairs.jsonl", "--field", "text_a=left", "--vectors", "base64"),
        ("score", "--field", "text_a=left", "--keep-vectors", "vectors.jsonl"),
        ("augment", "--op", "delete", "--field", "text=left", "vectors.jsonl", "--replace"),
        ("search", "a dog", "a cat", "--corpus", "entries.parquet", "--top", "2"),
        ("cluster", "-k", "2", "--keep-vectors", "entries.parquet"),
    ],
    ids=" ".join,
)
def test_an_output_can_be_parquet(sentkit, encoded, command):
    """It has the rows of the JSONL output; vectors in base64 are lists there."""
    sentkit("encode", "-o", "entries.parquet", stdin="".join(text + "\n" for text in TEXTS))
    lines, table = (sentkit(*command, "-o", f"out.{suffix}") for suffix in ("jsonl", "parquet"))
    again = sentkit("cat", "out.parquet", "--vectors", "list")

    assert (lines.code, table.code) == (0, 0), (lines.err, table.err)
    assert again.out == sentkit("cat", "out.jsonl", "--vectors", "list").out


def test_a_vector_file_becomes_parquet_and_a_vector_file_again(sentkit, encoded):
    for source, output in (("parquet", "safetensors"), ("safetensors", "parquet"), ("parquet", "jsonl")):
        done = sentkit("cat", f"vectors.{source}", "-o", f"vectors.{output}", "-f")
        assert (done.code, done.err) == (0, "")

    assert sentkit("cat", "vectors.parquet").rows == sentkit("cat", "vectors.jsonl").rows
    assert parquet.read_schema("vectors.parquet").field("embedding_a").type.list_size == 256


def test_inspect_and_score_describe_parquet(sentkit, encoded):
    for command in (("inspect", "--json"), ("score", "--gold", "score")):
        table, lines = (sentkit(*command, f"vectors.{suffix}").out for suffix in ("parquet", "jsonl"))
        assert table.replace(b".parquet", b".jsonl") == lines
