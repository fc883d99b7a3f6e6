"""`--store`: the outputs that have it, every reader of its files, and refusals."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import zstandard
from safetensors.numpy import load_file

from sentkit.formats.vectors.tensors import read_header
from support import READERS, normal_rows, read_alike

KINDS = ("float16", "int8", "binary")


@pytest.fixture
def stored(sentkit, jsonl):
    """Make a vector file of one kind from forty rows, the last two equal."""
    vectors = normal_rows(40, 13, seed=8)
    vectors[39] = vectors[38]
    rows = (
        {"text": f"t{n}", "label": f"{n % 2}", "_emb": "m/mean:0a0000000000", "embedding": vector}
        for n, vector in enumerate(vectors.tolist())
    )
    lines = jsonl(*rows)

    def make(kind):
        result = sentkit("cat", "-o", f"{kind}.safetensors", "--store", kind, stdin=lines)
        assert (result.code, result.err) == (0, "")
        return f"{kind}.safetensors"

    return make


def content(path):
    """The tensors, and the metadata in any order."""
    spec = json.loads(read_header(path).metadata["sentkit"])
    return spec, {name: (values.dtype, values.tolist()) for name, values in load_file(path).items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", READERS)
def test_every_command_reads_the_file_as_its_float32_copy(sentkit, stored, name, kind):
    path = stored(kind)
    sentkit("cat", path, "-o", "other.safetensors")
    sentkit("whiten", "fit", "other.safetensors", "--kind", "center", "-o", "transform.safetensors")
    outputs = read_alike(sentkit, name, "other.safetensors", path)

    if name == "inspect":
        records = [json.loads(output) for output in outputs]
        assert [record.pop("store") for record in records] == ["float32", kind]
        assert records[0]["spec"].pop("rounded", "binary") == kind  # for `encode --reuse`
        outputs = records
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("kind", ["float32", *KINDS])
def test_encode_and_cat_write_each_kind(sentkit, tiny, kind):
    """The numbers are those of the float32 file, stored; a pair has two vectors."""
    for texts in ('{"text":"a cat"}\n{"text":"b"}', '{"text_a":"a cat","text_b":"b"}'):
        sentkit("encode", "-qf", "-m", tiny, "-o", "plain.safetensors", stdin=texts)
        sentkit(
            "encode", "-qf", "-m", tiny, "-o", "encoded.safetensors", "--store", kind, stdin=texts
        )
        sentkit("cat", "-f", "plain.safetensors", "-o", "copied.safetensors", "--store", kind)

        assert content("encoded.safetensors") == content("copied.safetensors")
    if kind == "float32":
        assert Path("encoded.safetensors").read_bytes() == Path("plain.safetensors").read_bytes()


@pytest.mark.parametrize(("suffix", "command"), [(".gz", "gunzip -k"), (".zst", "zstd -d")])
@pytest.mark.parametrize(
    "arguments",
    [
        "cat PATH",
        "score PATH",
        "search cat --corpus PATH",
        "encode texts.txt -m static --reuse PATH -o new.safetensors",
        "whiten apply v.safetensors -t PATH",
        "check PATH",
        "cat ARRAY",
        "encode texts.txt -m ARRAY",
    ],
)
def test_a_compressed_vector_file_is_refused_with_advice(sentkit, arguments, suffix, command):
    Path("texts.txt").write_text("a cat\na dog\n")
    sentkit("encode", "texts.txt", "-m", "static", "-o", "v.safetensors")
    np.save("v.npy", normal_rows(2, 3))
    compress = {".gz": gzip.compress, ".zst": zstandard.compress}[suffix]
    for path in (Path("v.safetensors"), Path("v.npy")):
        Path(f"{path}{suffix}").write_bytes(compress(path.read_bytes()))
    names = {"PATH": f"v.safetensors{suffix}", "ARRAY": f"v.npy{suffix}"}
    words = [names.get(word, word) for word in arguments.split()]
    [path] = set(words) & set(names.values())
    result = sentkit(*words)

    assert result.code == 2
    problem, advice = result.told
    assert problem.endswith("cannot be read from a compressed file")
    assert f"{path}: " in problem
    assert advice == f"  decompress it: {command} {path}"


def test_compressed_rows_are_no_vector_file(sentkit):
    """It would not help to decompress them."""
    Path("texts.txt").write_text("a cat\na dog\n")
    sentkit("encode", "texts.txt", "-m", "static", "-o", "rows.jsonl.gz")
    flags = ("-m", "static", "--reuse", "rows.jsonl.gz")
    reused = sentkit("encode", "texts.txt", *flags, "-o", "new.safetensors")
    checked = sentkit("check", "rows.jsonl.gz")

    assert "--reuse rows.jsonl.gz: expected a vector file or a vector folder" in reused.err
    assert "rows.jsonl.gz: expected a vector folder, or a vector file" in checked.err


def test_a_vector_that_int8_would_make_zero_is_refused(sentkit, jsonl):
    rows = [{"_emb": "m/mean:0a0000000000", "embedding": [1.0, 1.0]}] * 2
    short = {"_emb": "m/mean:0a0000000000", "embedding": [1e-3, 1e-3]}
    result = sentkit("cat", "-o", "a.safetensors", "--store", "int8", stdin=jsonl(*rows, short))

    assert result.code == 2
    problem = "--store int8: a vector of row 3 would be zero, as its numbers are too small"
    assert problem in result.err
    assert not Path("a.safetensors").exists()
