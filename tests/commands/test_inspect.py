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


def test_the_real_minilm_declares_its_pipeline(inspect, minilm):
    record = inspect(minilm)

    assert (record["readout"], record["steps"], record["max_length"]) == ("mean", ["normalise"], 256)
    assert record["declared_by"] == "modules.json"


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
    sizes = {"width": 4, "kept": 2, "tensors": {"kernel": "F32 4 x 2", "bias": "F32 4"}}
    origin = {"file": "t.safetensors", "kind": "whitening", "fitted_on": "m:100000000000"}

    assert inspect("t.safetensors") == {**origin, **sizes, "mergeable": False}


def test_a_kernel_without_bias_is_not_a_transform(inspect, tmp_path):
    """`whiten apply` would refuse it."""
    write_arrays(tmp_path / "t.safetensors", {"kernel": np.zeros((4, 2), np.float32)}, {})
    expected = {"file": "t.safetensors", "tensors": {"kernel": "F32 4 x 2"}, "metadata": {}}

    assert inspect("t.safetensors") == expected


def test_table_of_a_transform(on_terminal, sentkit, tmp_path):
    """A line for each member of each file."""
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text('{"embedding":[1,0]}\n{"embedding":[0,1]}\n')
    sentkit("whiten", "fit", "a.jsonl", "b.jsonl", "--kind", "center", "-o", "t.safetensors")
    shown = dict(line.split(maxsplit=1) for line in on_terminal("inspect", "t.safetensors", "-v"))

    inputs = {"inputs.1.file": "a.jsonl", "inputs.2.file": "b.jsonl", "inputs.2.rows": "2"}
    assert inputs.items() <= shown.items()
    assert not set("".join(shown.values())) & set("{}[]")


def test_names_that_are_not_unicode_can_be_printed(sentkit, copy_of, tiny, tmp_path):
    """Bytes of the name of a file or folder that are not UTF-8 are printed escaped."""
    rows = b'{"embedding_a":[1,2],"embedding_b":[1,%d],"g":%d}\n'
    (tmp_path / "na\udcffme.jsonl").write_bytes(rows % (1, 1) + rows % (2, 2))
    for command in (("inspect",), ("score", "--gold", "g", "--baseline", "na\udcffme.jsonl")):
        done = sentkit(*command, "na\udcffme.jsonl")
        assert (done.code, done.rows[0]["file"]) == (0, "na\ufffdme.jsonl")
    folder = copy_of(tiny, "na\udcffme")
    done = sentkit("inspect", folder)

    assert (done.code, done.rows[0]["model"]) == (0, str(folder).replace("\udcff", "\ufffd"))


pytestmark = pytest.mark.filterwarnings("error")  # on stderr they would be noise

PAIRS = [
    {"embedding_a": [1, 0], "embedding_b": [1, 1], "score": 4.2},
    {"embedding_a": [0, 2], "embedding_b": [0, 1], "score": "5"},
    {"embedding_a": [1, 0], "embedding_b": [-1, 0], "score": 4},
    {"embedding_a": [1, 0], "embedding_b": [0, 1], "score": None},
]


@pytest.fixture
def geometry(inspect):
    return lambda *arguments, **given: inspect(*arguments, **given)["geometry"]


def test_it_can_be_left_out(sentkit, jsonl):
    """The other fields are the same."""
    full = sentkit("inspect", "-", stdin=jsonl(*PAIRS)).rows[0]
    bare = sentkit("inspect", "-", "--no-geometry", stdin=jsonl(*PAIRS)).rows[0]
    del full["geometry"]

    assert bare == full


def test_on_a_terminal_members_have_long_names(on_terminal, tmp_path, jsonl):
    (tmp_path / "v.jsonl").write_bytes(jsonl(*PAIRS))
    lines = on_terminal("inspect", "v.jsonl", "--gold", "score", "-v", width=40)
    shown = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines}

    expected = {"alignment": "0.292893", "alignment_pairs.pairs": "2", "uniformity_sample": "none"}
    expected |= {"rank": "2", "component_share.first_3": "1"}
    assert {f"geometry.{name}": value for name, value in expected.items()}.items() <= shown.items()
    assert shown["geometry.skewness.axis"] in ("0", "1")
