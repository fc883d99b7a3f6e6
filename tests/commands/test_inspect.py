"""`inspect`: checkpoints, vectors, transforms, and other files."""

import json
import os
from threading import Thread

import numpy as np
import pytest

from sentkit.formats.vectors.tensors import write_arrays
from support import copy_tokenizer, declare_modules


@pytest.fixture
def inspect(sentkit):
    def run(path, *flags, **options):
        result = sentkit("inspect", path, *flags, **options)
        assert (result.code, result.err) == (0, "")
        (record,) = result.rows
        return record

    return run


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


def test_an_array_is_a_file_of_vectors_unless_words_are_beside_it(inspect, tmp_path):
    np.save(tmp_path / "x.npy", np.array([[3, 4], [0, 0], [3, 4]], np.float64))
    as_vectors = inspect("x.npy")
    (tmp_path / "x.txt").write_text("the\ncat\na\n")

    counts = {"rows": 3, "vectors": 3, "numbers": 2, "zero": 1, "duplicates": 1}
    assert {name: as_vectors[name] for name in counts} == counts
    assert as_vectors["norm"] == {"min": 0, "mean": pytest.approx(10 / 3), "max": 5}
    assert inspect("x.npy")["words"] == 3


def test_a_named_pipe_has_rows(inspect, tmp_path):
    os.mkfifo(tmp_path / "rows")
    rows = b'{"embedding":[1,2]}\n{"embedding":[3,4]}\n'
    writer = Thread(target=(tmp_path / "rows").write_bytes, args=[rows])
    writer.start()
    record = inspect("rows")
    writer.join()

    assert (record["rows"], record["numbers"]) == (2, 2)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv.gz", "a.ndjson", "a.npy", "a.txt"])
def test_a_missing_file_is_not_a_model(sentkit, name):
    result = sentkit("inspect", name)

    assert (result.code, result.err) == (66, f"sentkit inspect: {name}: no such file\n")


def test_a_kernel_without_bias_is_not_a_transform(inspect, tmp_path):
    """`whiten apply` would refuse it."""
    write_arrays(tmp_path / "t.safetensors", {"kernel": np.zeros((4, 2), np.float32)}, {})
    expected = {"file": "t.safetensors", "tensors": {"kernel": "F32 4 x 2"}, "metadata": {}}

    assert inspect("t.safetensors") == expected


def test_names_that_are_not_unicode_can_be_printed(sentkit, copy_of, tiny, tmp_path):
    """Bytes of the name of a file or folder that are not UTF-8 are printed escaped."""
    rows = b'{"embedding_a":[1,2],"embedding_b":[1,%d],"g":%d}\n'
    (tmp_path / "na\udcffme.jsonl").write_bytes(rows % (1, 1) + rows % (2, 2))
    for command in (("inspect",), ("score", "--gold", "g", "--baseline", "na\udcffme.jsonl")):
        result = sentkit(*command, "na\udcffme.jsonl")
        assert (result.code, result.rows[0]["file"]) == (0, "na\ufffdme.jsonl")
    folder = copy_of(tiny, "na\udcffme")
    result = sentkit("inspect", folder)

    assert (result.code, result.rows[0]["model"]) == (0, str(folder).replace("\udcff", "\ufffd"))


def test_a_plain_folder_of_transformers_is_read_in_the_same_way(inspect, sentkit, copy_of, tiny):
    """By the mean of the last layer, also beside settings of a module without modules.json."""
    from sentence_transformers import SentenceTransformer

    texts = ["a cat", "the weather is nice today"]
    vectors = sentkit("encode", "-m", tiny, "--precision", "fp32", stdin="\n".join(texts)).vectors()
    of_library = SentenceTransformer(str(tiny), device="cpu").encode(texts)
    with_settings = copy_of(tiny)
    (with_settings / "sentence_bert_config.json").write_text('{"max_seq_length":4}')

    assert np.abs(of_library - vectors).max() < 1e-5
    plain = inspect(tiny)["sentence_transformers"]
    assert plain == "yes, by default: the mean of the last layer"
    assert inspect(with_settings)["sentence_transformers"] == plain
    assert inspect(with_settings)["max_length"] == inspect(tiny)["max_length"]


def test_lower_case_of_the_normalizer_and_of_the_settings_is_reported(inspect, copy_of, tiny):
    """The normalizer of a BERT tokenizer, or do_lower_case of sentence-transformers."""
    cased = copy_of(tiny)
    rules = json.loads((cased / "tokenizer.json").read_text())
    rules["normalizer"]["lowercase"] = False
    (cased / "tokenizer.json").write_text(json.dumps(rules))
    config = json.loads((cased / "tokenizer_config.json").read_text())
    (cased / "tokenizer_config.json").write_text(json.dumps(config | {"do_lower_case": False}))
    before = inspect(cased)["tokenizer"]["lowercase"]
    settings = {"max_seq_length": 64, "do_lower_case": True}
    declare_modules(cased, "mean_tokens", 32, sentence_bert_config=settings)

    assert inspect("nano")["tokenizer"]["lowercase"] is True
    assert inspect(tiny)["tokenizer"]["lowercase"] is True
    assert (before, inspect(cased)["tokenizer"]["lowercase"]) == (False, True)


pytestmark = pytest.mark.filterwarnings("error")  # on stderr they would be noise


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("gpt2", {"n_embd": 16, "n_layer": 2, "n_head": 4}),
        ("t5", {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4}),
        ("xlnet", {"d_model": 16, "n_layer": 2, "n_head": 4, "d_inner": 24}),
    ],
)
def test_sizes_of_models_with_other_keys(inspect, tmp_path, family, sizes):
    import transformers

    config = transformers.AutoConfig.for_model(family, vocab_size=16384, **sizes)
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path / "model")
    copy_tokenizer(tmp_path / "model")
    summary = inspect("model")

    assert (summary["layers"], summary["width"], summary["heads"]) == (2, 16, 4)
