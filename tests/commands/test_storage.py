"""`--store`: the outputs that have it, every reader of its files, and refusals."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from sentkit.formats.vectors.tensors import read_header
from support import READERS, read_alike

KINDS = ("float16", "int8", "binary")


@pytest.fixture
def vectors():
    return np.random.default_rng(8).normal(size=(40, 13)).astype(np.float32)


@pytest.fixture
def rows(vectors, jsonl):
    """Forty rows, the last two equal."""
    vectors[39] = vectors[38]
    lines = ({"text": f"t{n}", "label": f"{n % 2}", "_emb": "m/mean:0a0000000000",
              "embedding": v} for n, v in enumerate(vectors.tolist()))  # fmt: skip
    return jsonl(*lines)


@pytest.fixture
def stored(sentkit, rows):
    """Make a vector file of one kind from the rows."""

    def make(kind):
        done = sentkit("cat", "-o", f"{kind}.safetensors", "--store", kind, stdin=rows)
        assert (done.code, done.err) == (0, "")
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
def test_encode_whiten_and_cat_write_each_kind(sentkit, tiny, kind):
    """The numbers are those of the float32 file, stored; a pair has two vectors."""
    for texts in ('{"text":"a cat"}\n{"text":"b"}', '{"text_a":"a cat","text_b":"b"}'):
        sentkit("encode", "-qf", "-m", tiny, "-o", "plain.safetensors", stdin=texts)
        sentkit("encode", "-qf", "-m", tiny, "-o", "encoded.safetensors", "--store", kind, stdin=texts)
        sentkit("cat", "-f", "plain.safetensors", "-o", "copied.safetensors", "--store", kind)
        sentkit("whiten", "fit", "-f", "plain.safetensors", "--kind", "center", "-o", "T.safetensors")
        for name, flags in (("w", []), ("whitened", ["--store", kind])):
            output = ["-f", "-o", f"{name}.safetensors", *flags]
            sentkit("whiten", "apply", "plain.safetensors", "-t", "T.safetensors", *output)
        sentkit("cat", "-f", "w.safetensors", "-o", "w2.safetensors", "--store", kind)

        assert content("encoded.safetensors") == content("copied.safetensors")
        assert content("whitened.safetensors") == content("w2.safetensors")
    if kind == "float32":
        assert Path("encoded.safetensors").read_bytes() == Path("plain.safetensors").read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_keeps_its_bytes_when_it_is_stored_again(sentkit, stored, kind):
    path = stored(kind)
    sentkit("cat", path, "-o", "plain.safetensors")
    for source in (path, "plain.safetensors"):
        sentkit("cat", "-f", source, "-o", "again.safetensors", "--store", kind)

        assert Path("again.safetensors").read_bytes() == Path(path).read_bytes()


@pytest.mark.parametrize(
    "command",
    [
        ["cat", "rows.jsonl", "--store", "int8"],
        ["cat", "rows.jsonl", "-o", "out.jsonl", "--store", "float32"],
        ["encode", "rows.jsonl", "--store", "binary", "-o", "out.jsonl.gz"],
        ["encode", "rows.jsonl", "--store", "float16", "-n"],
        ["whiten", "apply", "rows.jsonl", "-t", "T.safetensors", "--store", "int8"],
    ],
)
def test_jsonl_has_no_kind(sentkit, rows, command):
    Path("rows.jsonl").write_bytes(rows)
    done = sentkit(*command)

    assert done.code == 2
    assert done.told[0].endswith(f": --store {command[command.index('--store') + 1]} needs a vector file")
    assert not Path("out.jsonl").exists()


@pytest.mark.parametrize(("number", "code"), [(65504, 0), (-65504, 0), (65505, 65), (-1e30, 65)])
def test_a_number_beyond_float16_is_refused_with_its_row(sentkit, number, code):
    rows = f'{{"embedding":[1,2]}}\n{{"embedding":[{number},0]}}'
    done = sentkit("cat", "-o", "v.safetensors", "--store", "float16", stdin=rows)

    assert done.code == code
    assert Path("v.safetensors").exists() == (code == 0)
    if code:
        assert done.told == [
            "sentkit cat: -:2: a vector contains a number beyond 65504, the largest of float16",
            "  use --store float32 or int8",
        ]


def test_rows_beyond_float16_go_to_the_rejects(sentkit):
    """Also the first row, which then does not set the space. A rejected row does not count for --head."""
    rows = [{"id": 0, "embedding": [1e6, 0, 0]}, *({"id": n, "embedding": [n, 10.0**n]} for n in (3, 5, 4))]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    command = ["cat", "-o", "v.safetensors", "--store", "float16", "--rejects", "bad.jsonl"]

    assert sentkit(*command, "--head", "2", stdin=text).code == 0
    assert [row["id"] for row in sentkit("cat", "v.safetensors").rows] == [3, 4]
    rejected = [json.loads(line) for line in Path("bad.jsonl").read_text().splitlines()]
    assert [(each["line"], json.loads(each["row"])) for each in rejected] == [(1, rows[0]), (3, rows[2])]
    assert sentkit(*command, "-f", stdin=json.dumps(rows[0])).code == 65


@pytest.mark.parametrize("kind", KINDS)
def test_nan_is_refused_with_its_row(sentkit, kind):
    rows = '{"embedding":[1,2]}\n{"embedding":"AADAfwAAAAA="}'  # NaN and 0 in base64
    done = sentkit("cat", "-o", "v.safetensors", "--store", kind, stdin=rows)

    assert (done.code, done.err) == (65, "sentkit cat: -:2: a vector contains NaN or infinity\n")


def test_signs_are_not_mixed_with_their_vectors(sentkit, stored):
    done = sentkit("cat", stored("int8"), stored("binary"), "-o", "v.safetensors")

    assert done.code == 65
    assert "binary.safetensors:1: the vectors of this row are m/mean/sign (" in done.err
    assert sentkit("cat", stored("float16"), "int8.safetensors", "-o", "v.safetensors").code == 0
