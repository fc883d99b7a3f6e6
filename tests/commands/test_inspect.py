"""`inspect`: checkpoints, vectors, transforms, and other files."""

import numpy as np
import pytest

from sentkit.formats.vectors.safetensors_header import write_arrays
from support import write_affine


@pytest.fixture
def inspect(sentkit):
    def run(path, *flags, **given):
        done = sentkit("inspect", path, *flags, **given)
        assert (done.code, done.err) == (0, "")
        (record,) = done.rows
        return record

    return run


def test_the_bundled_model(inspect):
    record = inspect("nano")

    assert {name: record[name] for name in ("architecture", "layers", "width", "heads", "readout")} == {
        "architecture": "bert",
        "layers": 4,
        "width": 256,
        "heads": 4,
        "readout": "mean",
    }
    assert record["runs"] == "packed"
    assert record["declared_by"] == "sentkit.json"
    assert record["stored_as"] == ["F16"]
    assert record["tokenizer"]["tokens"] == 16384
    assert record["sentence_transformers"] == "yes, by modules.json"
    assert record["lineage"]["parents"] == ["nano-mlm"]


def test_sizes_are_counted(inspect, tiny):
    """16384 words, 128 positions, 2 types of 16 numbers and a norm; three blocks; a pooler."""
    block = 4 * (16 * 16 + 16) + (16 * 24 + 24) + (24 * 16 + 16) + 4 * 16
    embeddings = (16384 + 128 + 2) * 16 + 2 * 16

    assert inspect(tiny)["parameters"] == embeddings + 3 * block + 16 * 16 + 16
    assert inspect(tiny)["max_length"] == 128


def test_a_plain_checkpoint_declares_nothing(inspect, tiny):
    record = inspect(tiny)

    assert record["declared_by"] == "nothing: mean is used"
    assert record["sentence_transformers"].startswith("no: without modules.json")


def test_the_real_minilm_declares_its_pipeline(inspect, minilm):
    record = inspect(minilm)

    assert (record["readout"], record["steps"], record["max_length"]) == ("mean", ["normalise"], 256)
    assert record["declared_by"] == "modules.json"


def test_vectors_are_counted(inspect, jsonl):
    """Norms 5 and 13 by hand; a zero, a duplicate; a broken one is counted and not refused."""
    vectors = [[3, 4], [5, 12], [3, 4], [0, 0], [1e39, 0]]
    record = inspect("-", stdin=jsonl(*({"embedding": v, "_emb": "m:100000000000"} for v in vectors)))

    assert record["rows"] == record["vectors"] == 5
    assert record["numbers"] == 2
    assert record["norm"] == {"min": 0, "mean": (5 + 13 + 5) / 4, "max": 13}
    assert (record["zero"], record["duplicates"], record["nan_or_infinite"]) == (1, 1, 1)
    assert record["spec"] == {"_emb": "m:100000000000"}


def test_pairs_are_counted_by_vectors(inspect):
    record = inspect("-", stdin='{"embedding_a":[1],"embedding_b":[2]}')

    assert (record["rows"], record["vectors"]) == (1, 2)
    assert record["vectors_per_row"] == ["embedding_a", "embedding_b"]


def test_a_vector_file_tells_where_it_comes_from(inspect, sentkit, tiny):
    sentkit("encode", "-q", "-m", tiny, "--prompt", "q: ", "-o", "v.safetensors", stdin="a\nb\na")
    record = inspect("v.safetensors")

    assert (record["rows"], record["numbers"], record["duplicates"]) == (3, 16, 1)
    assert record["spec"]["_emb"].startswith("tiny/mean:")
    assert record["spec"]["model"] == str(tiny)
    assert record["spec"]["prompt"] == "q: "
    assert "vectors" not in record["spec"]


def test_a_vector_file_with_nan_is_counted(inspect, sentkit, tmp_path):
    """Where every other command refuses it."""
    sentkit("cat", "-o", "v.safetensors", stdin='{"embedding":[1,2]}\n{"embedding":[3,4]}')
    raw = (tmp_path / "v.safetensors").read_bytes()
    spoilt = raw.replace(np.array([3, 4], "<f4").tobytes(), np.array([np.nan, 4], "<f4").tobytes())
    (tmp_path / "v.safetensors").write_bytes(spoilt)
    refused = sentkit("score", "v.safetensors")

    assert inspect("v.safetensors")["nan_or_infinite"] == 1
    assert refused.code == 65
    assert refused.err == "sentkit score: v.safetensors:2: a vector contains NaN or infinity\n"


def test_a_transform_is_shown(inspect, tmp_path):
    note = {"kind": "whitening", "_emb": "m:100000000000"}
    write_affine(tmp_path / "t.safetensors", np.zeros((4, 2), np.float32), np.zeros(4, np.float32), note)
    record = inspect("t.safetensors")

    assert record == {
        "file": "t.safetensors",
        "kind": "whitening",
        "width": 4,
        "kept": 2,
        "fitted_on": "m:100000000000",
        "mergeable": False,
        "tensors": {"kernel": "F32 4 x 2", "bias": "F32 4"},
    }


def test_a_kernel_without_bias_is_not_a_transform(inspect, tmp_path):
    """`whiten apply` would refuse it."""
    write_arrays(tmp_path / "t.safetensors", {"kernel": np.zeros((4, 2), np.float32)}, {})

    assert inspect("t.safetensors") == {
        "file": "t.safetensors",
        "tensors": {"kernel": "F32 4 x 2"},
        "metadata": {},
    }


def test_table_of_a_transform(on_terminal, sentkit, tmp_path):
    """A line for each member of each file."""
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text('{"embedding":[1,0]}\n{"embedding":[0,1]}\n')
    sentkit("whiten", "fit", "a.jsonl", "b.jsonl", "--kind", "center", "-o", "t.safetensors")
    shown = dict(line.split(maxsplit=1) for line in on_terminal("inspect", "t.safetensors", "-v"))

    assert (shown["inputs.1.file"], shown["inputs.2.file"], shown["inputs.2.rows"]) == (
        "a.jsonl",
        "b.jsonl",
        "2",
    )
    assert not set("".join(shown.values())) & set("{}[]")


@pytest.mark.parametrize(
    ("name", "content", "code", "problem"),
    [
        ("x.jsonl", b'{"text":"a"}', 65, "x.jsonl:1: this row has no vector"),
        ("x.txt", b"plain text", 65, "x.txt:1: this row has no vector"),
        ("x.bin", b"\0\1\2", 65, "x.bin:1: a NUL byte: this is not text"),
        ("x.safetensors", b"not one", 65, "x.safetensors: incomplete or damaged safetensors file"),
        ("x.jsonl", b"", 65, "no rows in x.jsonl"),
    ],
)
def test_an_unknown_kind_of_file_is_reported(sentkit, tmp_path, name, content, code, problem):
    (tmp_path / name).write_bytes(content)
    done = sentkit("inspect", name)

    assert done.code == code
    assert done.out == b""
    assert done.told[0].startswith(f"sentkit inspect: {problem}")


def test_a_folder_without_a_checkpoint_is_66(sentkit, tmp_path):
    done = sentkit("inspect", tmp_path)

    assert done.code == 66
    assert done.err == f"sentkit inspect: {tmp_path}: is not a checkpoint: it has no config.json\n"


def test_names_that_are_not_unicode_can_be_printed(sentkit, tmp_path):
    """Bytes of a file name that are not UTF-8 are printed escaped."""
    rows = b'{"embedding_a":[1,2],"embedding_b":[1,%d],"g":%d}\n'
    (tmp_path / "na\udcffme.jsonl").write_bytes(rows % (1, 1) + rows % (2, 2))
    for command in (("inspect",), ("score", "--gold", "g", "--baseline", "na\udcffme.jsonl")):
        done = sentkit(*command, "na\udcffme.jsonl")
        assert done.code == 0
        assert done.rows[0]["file"] == "na\ufffdme.jsonl"


def test_a_checkpoint_with_such_a_name_is_printed_too(sentkit, copy_of, tiny):
    folder = copy_of(tiny, "na\udcffme")
    done = sentkit("inspect", folder)

    assert done.code == 0
    assert done.rows[0]["model"] == str(folder).replace("\udcff", "\ufffd")
