"""`encode --precision int8`: near fp32, recorded with its loss, refused or replaced if it does not
work.
"""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import sentkit as package
from sentkit.formats.vectors.vector_file import VectorFile
from sentkit.model.transformer import encoder as encoder_module
from sentkit.model.transformer.kernels.matmul import FASTER_INT8, gain_of_int8
from support import make_bert

needs_integers = pytest.mark.skipif(
    gain_of_int8() < FASTER_INT8, reason="this CPU has no fast products of integers"
)
TEXTS = "a cat sat on the mat\na dog\nthe weather is nice today, isn't it?\n"


@needs_integers
@pytest.mark.parametrize("model", ["nano", pytest.param("minilm", marks=pytest.mark.slow)])
def test_vectors_are_near_fp32_in_the_same_space(model, request, sentkit, sentences):
    name = request.getfixturevalue("minilm") if model == "minilm" else model
    texts = "\n".join(sentences)
    exact = sentkit("encode", "-m", name, "--precision", "fp32", stdin=texts)
    result = sentkit("encode", "-m", name, "--precision", "int8", stdin=texts)

    assert result.code == 0
    vectors = result.vectors()
    expected = exact.vectors()
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(expected, axis=1)
    cosines = (vectors * expected).sum(1) / norms
    assert cosines.min() > 0.98  # with texts of many scripts
    assert cosines.mean() > 0.997
    assert cosines.max() < 1 - 1e-7
    assert {row["_emb"] for row in result.rows} == {exact.rows[0]["_emb"]}


@needs_integers
def test_the_loss_is_recorded_and_shown(sentkit, tmp_path, on_terminal, monkeypatch):
    """Queries in fp32 search such a file."""
    first = tmp_path / "a.safetensors"
    second = tmp_path / "b.safetensors"
    for path in (first, second):
        assert sentkit("encode", "--precision", "int8", "-o", path, stdin=TEXTS).code == 0

    record = json.loads(sentkit("inspect", first, "--json").out)["spec"]
    monkeypatch.setenv("SENTKIT_PRECISION", "fp32")
    result = sentkit("search", "a dog", "--corpus", first, "--top", "1")

    assert result.code == 0
    assert b"a dog" in result.out
    assert first.read_bytes() == second.read_bytes()
    assert record["precision"] == "int8"
    assert 0.99 < record["int8_cosine"]["lowest"] <= record["int8_cosine"]["mean"] < 1
    assert any("int8_cosine.lowest" in line for line in on_terminal("inspect", str(first)))


def test_without_the_instructions_a_warning_names_the_precision_that_is_used(sentkit, monkeypatch):
    usual = sentkit("encode", "--precision", "fp32", stdin=TEXTS)
    monkeypatch.setattr(encoder_module, "gain_of_int8", lambda: 0.0)
    monkeypatch.setenv("SENTKIT_PRECISION", "bf16")  # this is for auto

    result = sentkit("encode", "--precision", "int8", stdin=TEXTS)

    assert result.code == 0
    [warning] = result.told
    assert "no fast products of integers on this CPU or in this torch; fp32 is used" in warning
    assert np.abs(result.vectors() - usual.vectors()).max() < 1e-5


@needs_integers
def test_a_large_loss_is_a_warning(sentkit, monkeypatch):
    """Of the command and of the class for Python."""
    monkeypatch.setattr(encoder_module, "WARN_BELOW", 1.0)
    result = sentkit("encode", "--precision", "int8", stdin=TEXTS)
    with pytest.warns(UserWarning, match="the lowest cosine with fp32"):
        vectors = package.Encoder("nano", precision="int8", device="cpu").encode(["a cat"])

    assert result.code == 0
    assert any("the lowest cosine with fp32 on 64 texts is 0.99" in line for line in result.told)
    assert vectors.shape == (1, 256)


@needs_integers
def test_a_model_with_nan_is_refused(sentkit, copy_of, tiny):
    broken = copy_of(tiny)
    weights = load_file(broken / "model.safetensors")
    weights["embeddings.LayerNorm.weight"] *= np.nan
    save_file(weights, broken / "model.safetensors")

    result = sentkit("encode", "-m", broken, "--precision", "int8", stdin=TEXTS)

    assert result.code == 65
    assert any("no finite vectors for the texts of the package" in line for line in result.told)


def test_other_models_are_refused(sentkit, tmp_path, model2vec):
    folder = make_bert(tmp_path / "other", hidden_act="quick_gelu")
    for model, problem in (
        (folder, "runs through transformers"),
        (model2vec(), "a static model computes"),
    ):
        result = sentkit("encode", "-m", model, "--precision", "int8", stdin=TEXTS)

        assert result.code == 2
        assert problem in result.err


@needs_integers
def test_the_blocks_of_a_vector_folder_have_the_measured_loss_of_run_json(sentkit, tmp_path):
    (tmp_path / "in.txt").write_text(TEXTS)
    folder = tmp_path / "out"
    command = ("encode", tmp_path / "in.txt", "-o", f"{folder}/", "--block-bytes", len(TEXTS) // 2)
    assert sentkit(*command, "--precision", "int8").code == 0
    settings = json.loads((folder / "run.json").read_text())
    assert settings["encoder"]["precision"] == "int8"
    settings["encoder"]["int8_cosine"]["lowest"] = 0.9  # as another machine measured it
    (folder / "run.json").write_text(json.dumps(settings))
    first, *missing = sorted(folder.glob("0*"))
    for block in missing:
        block.unlink()

    assert sentkit(*command, "--precision", "int8", "--resume").code == 0
    assert missing
    for block in missing:
        assert VectorFile(str(block)).metadata["int8_cosine"] == settings["encoder"]["int8_cosine"]
    assert VectorFile(str(first)).metadata["int8_cosine"]["lowest"] != 0.9
    rows = sentkit("cat", folder).rows
    assert len(rows) == len(TEXTS.splitlines())  # despite the loss in the first block
    assert sentkit(*command, "--precision", "fp32", "--resume").code == 65


@needs_integers
def test_earlier_vectors_in_int8_are_continued_on_a_cpu(sentkit, tmp_path, monkeypatch):
    """On a machine with a GPU, which cannot compute in int8, no flag has to choose the CPU."""
    (tmp_path / "in.txt").write_text(TEXTS)
    command = ("encode", tmp_path / "in.txt", "--block-bytes", len(TEXTS) // 2)
    assert sentkit(*command, "-o", "out/", "--precision", "int8").code == 0
    first, *_ = sorted((tmp_path / "out").glob("0*"))
    expected = first.read_bytes()
    first.unlink()
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    resumed = sentkit(*command, "-o", "out/", "--resume")
    reused = sentkit(*command, "-o", "new/", "--reuse", "out")

    assert (resumed.code, reused.code) == (0, 0), resumed.err + reused.err
    assert first.read_bytes() == expected
    assert "reused rows: 3, encoded: 0" in reused.told[-1]


@needs_integers
def test_earlier_vectors_in_int8_are_no_flag_of_a_model_of_transformers(sentkit, tmp_path):
    """It has no int8, so nothing is reused."""
    folder = make_bert(tmp_path / "other", hidden_act="quick_gelu")
    sentkit("encode", "--precision", "int8", "-o", "old.safetensors", stdin=TEXTS)
    result = sentkit("encode", "-m", folder, "--reuse", "old.safetensors", stdin=TEXTS)

    assert (result.code, len(result.rows)) == (0, 3)
    assert "nothing is reused" in result.err
    assert "--precision" not in result.err
