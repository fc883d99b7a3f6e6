"""The readouts through a pooler: their activation, their space, and the space in which they
land.
"""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from sentkit import Encoder
from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.formats.vectors.fingerprint import digest, target_space
from sentkit.formats.vectors.tensors import read_array
from sentkit.formats.vectors.vector_file import VectorFile
from sentkit.model.checkpoint_reading import plan_reading
from sentkit.model.reading import ReadingOptions
from sentkit.model.text.tokens import TokenBlock
from sentkit.model.transformer.encoder import TransformerEncoder
from sentkit.model.transformer.weights import read_tensors, weights_hash
from support import write_affine

LANDING = "0123456789ab"
FUNCTIONS = {"tanh": torch.tanh, "gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu}


@pytest.fixture
def saying(tiny, copy_of, tmp_path):
    """A copy of tiny with this record of the pooler in sentkit.json."""

    def make(pooler, name="said", **more):
        folder = copy_of(tiny, name)
        note = {"readout": "mean", "pooler": pooler, **more}
        (folder / "sentkit.json").write_text(json.dumps(note))
        return folder

    return make


@pytest.fixture
def few_sentences(sentences):
    return [sentences[n] for n in (0, 5, 7, 27)]


def worked(folder, texts, pooling, activation):
    """W x + b of the vectors that the readout before the pooler gives."""
    checkpoint = read_checkpoint(str(folder))
    reading = plan_reading(checkpoint, ReadingOptions(readout=pooling))
    encoder = TransformerEncoder(checkpoint, reading, device="cpu", precision="fp32")
    path = folder / "model.safetensors"
    weight = torch.from_numpy(read_array(path, "pooler.dense.weight").copy())
    bias = torch.from_numpy(read_array(path, "pooler.dense.bias").copy())
    pooled = []
    for tokens in reading.tokenizer(texts):
        block = TokenBlock.of([tokens])
        [[vector], *_] = next(encoder.encode([block]))
        vector = torch.from_numpy(vector)
        pooled.append(FUNCTIONS[activation](weight @ vector + bias).numpy())
    return np.stack(pooled)


@pytest.mark.parametrize(
    ("pooling", "activation"), [(None, None), *itertools.product(("cls", "mean"), FUNCTIONS)]
)
def test_the_activation_is_that_of_sentkit_json(
    sentkit, tiny, saying, few_sentences, pooling, activation
):
    """Without a record, it is tanh after [CLS]. Fields of a later version are ignored."""
    folder = saying({"activation": activation, "norm": "layer"}) if activation else tiny
    flags = ("--readout", f"pooler:{pooling}" if pooling else "pooler", "--precision", "fp32")
    result = sentkit("encode", "-m", folder, *flags, stdin="\n".join(few_sentences))

    assert result.code == 0
    expected = worked(folder, few_sentences, pooling or "cls", activation or "tanh")
    assert np.abs(result.vectors() - expected).max() < 1e-5


def spaces_of(sentkit, folder, readout):
    sentkit(
        "encode", "-m", folder, "--readout", readout, "-o", "v.safetensors", "-f", stdin="a cat\n"
    )
    spec = VectorFile("v.safetensors").metadata
    return spec["_emb"].rpartition(":")[2], spec


def test_spaces_of_poolers(sentkit, tiny, saying):
    """The hash covers weights, rules, tokenizer, layers and reduction, but not the target space.

    The pooler belongs only to the space of readouts through it, whatever else is read.
    """
    space, spec = spaces_of(sentkit, tiny, "pooler")
    weights = weights_hash(read_tensors([tiny / "model.safetensors"]), with_pooler=True)
    rules = [2, "gelu", 1e-12, 0]  # heads, activation, epsilon of the norms, first position
    declared = saying({"activation": "tanh", "readout": "pooler:cls", "lands_in": LANDING})
    gelu = saying({"activation": "gelu"}, "gelu")
    other_spaces = [
        spaces_of(sentkit, model, f"pooler:{p}")[0]
        for model in (tiny, gelu)
        for p in ("cls", "mean")
    ]
    sentkit("encode", "-m", tiny, "--readout", "cls,pooler", "-o", "both", stdin="a cat\n")

    assert spec["weights"] == weights
    assert space == digest([weights, rules, spec["tokenizer"], [[3], "pooler"]])
    assert (
        space
        == spaces_of(sentkit, tiny, "pooler:cls")[0]
        == spaces_of(sentkit, declared, "pooler")[0]
    )
    assert len(set(other_spaces)) == 4
    assert spaces_of(sentkit, tiny, "mean")[0] == spaces_of(sentkit, gelu, "mean")[0]
    alone = (spaces_of(sentkit, tiny, "cls")[0], space)
    assert alone == tuple(
        VectorFile(f"both/{name}.safetensors").metadata["_emb"][-12:] for name in ("cls", "pooler")
    )


@pytest.mark.parametrize("trained", ["cls", "mean"])
def test_the_label_names_the_target_space(sentkit, saying, trained):
    """For the readout it was trained through alone."""
    folder = saying({"activation": "gelu", "readout": f"pooler:{trained}", "lands_in": LANDING})

    def emb(readout, *flags):
        result = sentkit("encode", "-m", folder, "--readout", readout, *flags, stdin="a cat\n")
        return result.rows[0]["_emb"]

    readout = f"pooler:{trained}"
    assert emb(readout).startswith(f"said/{readout}>{LANDING}:")
    assert target_space(emb(readout)) == LANDING
    for other in {"pooler:cls", "pooler:mean", "mean", "cls"} - {readout}:
        assert target_space(emb(other)) is None
    if trained == "cls":
        assert target_space(emb("pooler")) == LANDING


def test_a_step_behind_it_ends_the_landing(sentkit, saying):
    folder = saying({"activation": "gelu", "readout": "pooler:cls", "lands_in": LANDING})
    kernel = np.eye(16, dtype=np.float32)
    bias = np.ones(16, np.float32)
    write_affine(Path("t.safetensors"), kernel, bias, {"kind": "pca"})
    for step in ({"normalize": True}, {"dim": 8}, {"transform": "t.safetensors"}):
        assert target_space(Encoder(str(folder), readout="pooler", **step).space) is None


@pytest.mark.parametrize(("pooling", "activation"), [("cls", "gelu"), ("mean", "silu")])
def test_an_export_is_read_alike_by_sentence_transformers(
    sentkit, saying, few_sentences, tmp_path, pooling, activation
):
    """By sentkit from the folder too, with sentkit.json and without."""
    from sentence_transformers import SentenceTransformer

    note = {"activation": activation, "readout": f"pooler:{pooling}", "lands_in": LANDING}
    folder = saying(note)
    readout = ("--readout", f"pooler:{pooling}")
    texts = "\n".join(few_sentences)
    exported = sentkit("export", "-q", "-m", folder, *readout, "-o", "made")
    by_flags = sentkit("encode", "-m", folder, *readout, "--precision", "fp32", stdin=texts)
    by_folder = sentkit("encode", "-m", "made", "--precision", "fp32", stdin=texts)
    library = SentenceTransformer("made", device="cpu", model_kwargs={"dtype": torch.float32})
    of_library = library.encode(few_sentences)
    written = json.loads((tmp_path / "made/sentkit.json").read_text())
    (tmp_path / "made/sentkit.json").unlink()
    bare = sentkit("encode", "-m", "made", "--precision", "fp32", stdin=texts)

    assert (exported.code, exported.err) == (0, "")
    assert written["pooler"] == note
    assert written["steps"] == []
    assert np.array_equal(by_flags.vectors(), by_folder.vectors())
    assert (
        by_flags.rows[0]["_emb"].rpartition(">")[2] == by_folder.rows[0]["_emb"].rpartition(">")[2]
    )
    assert np.abs(of_library - by_flags.vectors()).max() < 1e-5
    assert np.abs(bare.vectors() - of_library).max() < 1e-5


HOSTILE = ["gelu", None, {"activation": 7}, {"activation": "exec"}, {"readout": "cls"}]
HOSTILE += [{"readout": "no such"}, {"readout": "pooler:cls", "lands_in": "0123456789AB"}]
HOSTILE += [{"lands_in": LANDING}]


@pytest.mark.parametrize("pooler", HOSTILE, ids=str)
def test_the_record_of_a_pooler_is_verified(sentkit, saying, pooler):
    result = sentkit("encode", "-m", saying(pooler), "--readout", "pooler", stdin="a cat\n")

    assert result.code == 65
    assert "pooler" in result.told[0]
