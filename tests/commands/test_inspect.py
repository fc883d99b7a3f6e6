"""`inspect`: checkpoints, vectors, transforms, and other files."""

import math

import numpy as np
import pytest

from sentkit.formats.vectors.tensors import write_arrays
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
    sizes = {"architecture": "bert", "layers": 4, "width": 256, "heads": 4, "stored_as": ["F16"]}
    ways = {"readout": "mean", "runs": "packed", "declared_by": "sentkit.json"}

    assert (sizes | ways | {"sentence_transformers": "yes, by modules.json"}).items() <= record.items()
    assert record["tokenizer"]["tokens"] == 16384
    assert record["lineage"]["parents"] == ["nano-mlm"]


def test_sizes_are_counted(inspect, tiny):
    """16384 words, 128 positions, 2 types of 16 numbers and a norm; three blocks; a pooler."""
    block = 4 * (16 * 16 + 16) + (16 * 24 + 24) + (24 * 16 + 16) + 4 * 16
    embeddings = (16384 + 128 + 2) * 16 + 2 * 16
    record = inspect(tiny)

    assert record["parameters"] == embeddings + 3 * block + 16 * 16 + 16
    assert (record["max_length"], record["declared_by"]) == (128, "nothing: mean is used")
    assert record["sentence_transformers"].startswith("no: without modules.json")


def test_the_real_minilm_declares_its_pipeline(inspect, minilm):
    record = inspect(minilm)

    assert (record["readout"], record["steps"], record["max_length"]) == ("mean", ["normalise"], 256)
    assert record["declared_by"] == "modules.json"


def test_vectors_are_counted(inspect, jsonl):
    """Norms 5 and 13 by hand; a zero, a duplicate; a broken one is counted and not refused."""
    vectors = [[3, 4], [5, 12], [3, 4], [0, 0], [1e39, 0]]
    record = inspect("-", stdin=jsonl(*({"embedding": v, "_emb": "m:100000000000"} for v in vectors)))

    counts = {"rows": 5, "vectors": 5, "numbers": 2, "zero": 1, "duplicates": 1, "nan_or_infinite": 1}
    norm = {"min": 0, "mean": (5 + 13 + 5) / 4, "max": 13}

    assert {**counts, "norm": norm, "spec": {"_emb": "m:100000000000"}}.items() <= record.items()


def test_pairs_are_counted_by_vectors(inspect):
    record = inspect("-", stdin='{"embedding_a":[1],"embedding_b":[2]}')

    assert (record["rows"], record["vectors"]) == (1, 2)
    assert record["vectors_per_row"] == ["embedding_a", "embedding_b"]


def test_a_vector_file_tells_where_it_comes_from(inspect, sentkit, tiny):
    sentkit("encode", "-q", "-m", tiny, "--prompt", "q: ", "-o", "v.safetensors", stdin="a\nb\na")
    record = inspect("v.safetensors")

    assert (record["rows"], record["numbers"], record["duplicates"]) == (3, 16, 1)
    assert record["spec"]["_emb"].startswith("tiny/mean:")
    assert (record["spec"]["model"], record["spec"]["prompt"]) == (str(tiny), "q: ")
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


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("x.jsonl", b'{"text":"a"}', "x.jsonl:1: this row has no vector"),
        ("x.txt", b"plain text", "x.txt:1: this row has no vector"),
        ("x.bin", b"\0\1\2", "x.bin:1: a NUL byte: this is not text"),
        ("x.safetensors", b"not one", "x.safetensors: incomplete or damaged safetensors file"),
        ("x.jsonl", b"", "no rows in x.jsonl"),
    ],
)
def test_an_unknown_kind_of_file_is_reported(sentkit, tmp_path, name, content, problem):
    (tmp_path / name).write_bytes(content)
    done = sentkit("inspect", name)

    assert (done.code, done.out) == (65, b"")
    assert done.told[0].startswith(f"sentkit inspect: {problem}")


def test_a_folder_without_a_checkpoint_is_66(sentkit, tmp_path):
    done = sentkit("inspect", tmp_path)

    assert done.code == 66
    assert done.err == f"sentkit inspect: {tmp_path}: is not a checkpoint: it has no config.json\n"


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


def test_the_alignment_is_of_scores_above_four(geometry, jsonl):
    """A score of 4 is not above it, and no score is none; all vectors are rows of the space.

    The distances of the pairs are 2 - sqrt(2) and 0. The first four vectors are (1,0), (0,2), (1,1), (0,1).
    """
    found, two = (geometry("-", "--gold", "score", stdin=jsonl(*rows)) for rows in (PAIRS, PAIRS[:2]))

    assert found["alignment"] == pytest.approx(0.292893, abs=1e-6)
    assert found["alignment_pairs"] == {"gold": "score", "above": 4, "pairs": 2, "unscored": 1, "left_out": 0}
    assert found["vectors"] == 8
    assert two["uniformity"] == pytest.approx(-1.115622, abs=1e-6)
    assert two["alignment"] == found["alignment"]


@pytest.mark.parametrize(
    ("above", "alignment", "pairs"), [("3.9", (2 - math.sqrt(2) + 4) / 3, 3), ("5", None, 0)]
)
def test_another_threshold(geometry, jsonl, above, alignment, pairs):
    """The distance of opposite vectors is 2; without a higher score, alignment is null."""
    found = geometry("-", "--gold", "score", "--above", above, stdin=jsonl(*PAIRS))

    assert found["alignment"] == (alignment and pytest.approx(alignment))
    assert {"above": float(above), "pairs": pairs}.items() <= found["alignment_pairs"].items()


def test_pairs_with_a_zero_or_broken_vector_are_counted(geometry, jsonl):
    odd = [{"embedding_a": [1, 0], "embedding_b": b, "score": 5} for b in ([0, 0], [1e39, 0])]
    found = geometry("-", "--gold", "score", stdin=jsonl(*PAIRS, *odd))

    assert found["alignment"] == pytest.approx(0.292893, abs=1e-6)
    assert (found["alignment_pairs"]["pairs"], found["alignment_pairs"]["left_out"]) == (2, 2)
    assert (found["vectors"], found["left_out"], found["directions"]) == (11, 1, 10)


def test_sentences_and_triplets_are_points_too(geometry, jsonl):
    triplet = {"embedding_anchor": [1, 0], "embedding_positive": [1, 1], "embedding_negative": [0, 1]}
    found = geometry("-", stdin=jsonl(triplet))

    assert found["mean_cosine"] == pytest.approx(0.471405, abs=1e-6)
    assert found == geometry("-", stdin=jsonl(*({"embedding": vector} for vector in triplet.values())))
    assert "alignment" not in found


def test_it_can_be_left_out(sentkit, jsonl):
    """The other fields are the same."""
    full = sentkit("inspect", "-", stdin=jsonl(*PAIRS)).rows[0]
    bare = sentkit("inspect", "-", "--no-geometry", stdin=jsonl(*PAIRS)).rows[0]
    del full["geometry"]

    assert bare == full


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["-", "--gold", "s", "--above", "nan"], "--above nan: expected a finite number"),
        (["nano", "--gold", "s"], "--gold needs pairs of vectors, but nano has none"),
        (["nano", "--no-geometry"], "--no-geometry needs vectors, but nano has none"),
        (["t.safetensors", "--no-geometry"], "--no-geometry needs vectors, but t.safetensors has none"),
    ],
)
def test_flags_that_do_not_go_together(sentkit, flags, problem, jsonl):
    sentkit("whiten", "fit", "-o", "t.safetensors", stdin=jsonl(*PAIRS))
    done = sentkit("inspect", *flags)

    assert done.code == 2
    assert done.told[0] == f"sentkit inspect: {problem}"


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ('{"embedding":[1,2],"score":5}', "expected 2 vectors for a gold score, this row has 1"),
        ('{"embedding_a":[1],"embedding_b":[1]}', '"score" is missing'),
        ('{"embedding_a":[1],"embedding_b":[1],"score":"high"}', '"score" is a string, expected a number'),
    ],
)
def test_pairs_without_a_score_are_reported(sentkit, row, problem):
    """With their place, in rows and in a vector file."""
    sentkit("cat", "-o", "v.safetensors", stdin=row)
    for path, given in (("-", row), ("v.safetensors", "")):
        done = sentkit("inspect", path, "--gold", "score", stdin=given)
        assert done.code == 65
        assert done.err == f"sentkit inspect: {path}:1: {problem}\n"


def test_on_a_terminal_members_have_long_names(on_terminal, tmp_path, jsonl):
    (tmp_path / "v.jsonl").write_bytes(jsonl(*PAIRS))
    lines = on_terminal("inspect", "v.jsonl", "--gold", "score", "-v", width=40)
    shown = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines}

    expected = {"alignment": "0.292893", "alignment_pairs.pairs": "2", "uniformity_sample": "none"}
    expected |= {"rank": "2", "component_share.first_3": "1"}
    assert {f"geometry.{name}": value for name, value in expected.items()}.items() <= shown.items()
    assert shown["geometry.skewness.axis"] in ("0", "1")
