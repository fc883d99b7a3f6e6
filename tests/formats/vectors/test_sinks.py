"""Rows with vectors, written: spliced into JSONL, or beside their rows in a vector file."""

import re
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import orjson
import pytest

from sentkit.errors import CannotCreateError, UsageError
from sentkit.formats.rows.block import Row, block_of
from sentkit.formats.rows.rows import Inputs
from sentkit.formats.vectors import sinks
from sentkit.formats.vectors.sinks import VectorOutput, file_name, open_sinks, output_paths
from sentkit.formats.vectors.store import Store
from support import stored_rows

ONE = np.array([[0.5, -1.0]], dtype=np.float32)


def row(line):
    return Row(line.encode(), orjson.loads(line), "a.jsonl", 3)


def write(path, rows, *, extra=(), emb="m/cls:012300000000", replace=False):
    form = VectorOutput(replace=replace)
    with open_sinks([str(path)], [{"_emb": emb}], ("embedding",), 2, form) as [sink]:
        for each, vectors in rows:
            sink.put(block_of([each]), vectors[None], [extra] if extra else ())
    return path.read_bytes()


def test_zero_vectors_are_encoded_once(tmp_path, monkeypatch):
    """A block can have thousands of them, from blank texts. Minus zero is another number."""
    encode = Mock(side_effect=sinks.ENCODINGS["list"])
    monkeypatch.setattr(sinks, "ENCODINGS", {"list": encode})
    pairs = [[[0, 0], [0, 0]], [[0.5, 0], [0, 0]], [[-0.0, 0], [0, 0]]] + [[[0, 0], [0, 0]]] * 100
    rows = block_of([row('{"id":1}')] * len(pairs))
    with open_sinks([str(tmp_path / "a.jsonl")], [{}], ("a", "b"), 2, VectorOutput()) as [sink]:
        sink.put(rows, np.array(pairs, np.float32))
    zeros = '{"id":1,"a":[0.0,0.0],"b":[0.0,0.0]}'
    others = ['{"id":1,"a":[0.5,0.0],"b":[0.0,0.0]}', '{"id":1,"a":[-0.0,0.0],"b":[0.0,0.0]}']

    assert (tmp_path / "a.jsonl").read_text().splitlines() == [zeros, *others, *[zeros] * 100]
    assert encode.call_count == 1 + 2 * 2


@pytest.mark.parametrize("emb", ['a "b"\\c:1', "a\nb:1", "é:1"])
def test_any_space_name_is_written_as_json(tmp_path, emb):
    found = write(tmp_path / "a.jsonl", [(row("{}"), ONE)], emb=emb)

    assert found.count(b"\n") == 1
    assert orjson.loads(found)["_emb"] == emb


def test_a_vector_file_keeps_rows_without_their_old_vectors(tmp_path):
    path, old = tmp_path / "a.safetensors", row('{"_emb":"x:100000000000","embedding":[9]}')

    write(path, [(old, ONE)], replace=True, extra=[(b"n_tokens", b"4")])

    ((kept, vectors),) = stored_rows(str(path))
    assert kept.line == b'{"n_tokens":4}'
    assert vectors.tolist() == ONE.tolist()


@pytest.mark.parametrize(
    ("name", "format"),
    [
        *((f"a{end}", end) for end in (".csv", ".txt.gz", ".arrow", ".JSONLL", ".safetensor")),
        *(("a.safetensors.gz", ".safetensors.gz"), ("a.b.parquet.zst", ".parquet.zst")),
        *(("a.jsonl.bz2", ".bz2"), ("tmp.Ab3", ".Ab3")),
    ],
)
def test_an_unknown_suffix_is_refused_with_the_known_ones(tmp_path, name, format):
    with pytest.raises(UsageError, match=rf"{name}: unknown output format {re.escape(format)}$") as caught:
        write(tmp_path / name, [])

    assert caught.value.advice == "use a name with .jsonl, .jsonl.gz, .jsonl.zst, .parquet or .safetensors"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name",
    [
        *("a", "a.jsonl", "a.JSONL", "a.ndjson", "a.json", "a.gz", "a.jsonl.zst"),
        *(".a", "a.003", "a.v2", "tmp.Ab3dEf9hIj"),
    ],
)
def test_jsonl_is_the_format_of_all_other_names(tmp_path, name):
    write(tmp_path / name, [(row("{}"), ONE)])

    ((found),) = Inputs([str(tmp_path / name)], "jsonl").read(lambda each: each.values["embedding"])
    assert found == ONE[0].tolist()


def test_a_pipe_or_a_device_may_have_any_name(tmp_path):
    (tmp_path / "null.arrow").symlink_to("/dev/null")

    write(tmp_path / "null.arrow", [(row("{}"), ONE)])


def test_each_of_several_readouts_has_a_file_sorted_by_layer(tmp_path):
    assert output_paths("-", ["cls"], VectorOutput(), force=False) == ["-"]
    readouts = ["L2:cls", "L10:cls", "mean"]
    paths = output_paths(str(tmp_path / "sweep"), readouts, VectorOutput(), force=False)

    names = ["L02-cls.safetensors", "L10-cls.safetensors", "mean.safetensors"]
    assert [Path(path).name for path in paths] == names == sorted(names)
    assert file_name("L1+L12:mean") == "L01+L12-mean"


def test_all_files_of_a_sweep_appear_or_none(tmp_path):
    paths = output_paths(str(tmp_path / "sweep"), ["cls", "mean"], VectorOutput(), force=False)
    specs = [{"_emb": "m/cls:010000000000"}, {"_emb": "m/mean:020000000000"}]

    def fill(*, fails):
        with open_sinks(paths, specs, ("embedding",), 2, VectorOutput()) as opened:
            for sink in opened:
                sink.put(block_of([row("{}")]), ONE[None])
            if fails:
                raise RuntimeError

    with pytest.raises(RuntimeError):
        fill(fails=True)
    assert not list((tmp_path / "sweep").iterdir())
    fill(fails=False)
    assert [Store(path).emb for path in paths] == ["m/cls:010000000000", "m/mean:020000000000"]
    with pytest.raises(CannotCreateError, match="already exists"):
        output_paths(str(tmp_path / "sweep"), ["cls", "mean"], VectorOutput(), force=False)
