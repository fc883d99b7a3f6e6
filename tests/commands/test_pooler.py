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
        own = {"readout": "mean", "pooler": pooler, **more}
        (folder / "sentkit.json").write_text(json.dumps(own))
        return folder

    return make


@pytest.fixture
def few(sentences):
    return [sentences[n] for n in (0, 5, 7, 27)]


def worked(folder, texts, pooling, activation):
    """W x + b of the vectors that the readout before the pooler gives."""
    checkpoint = read_checkpoint(str(folder))
    reading = plan_reading(checkpoint, ReadingOptions(readout=pooling))
    encoder = TransformerEncoder(checkpoint, reading, device="cpu", precision="fp32")
    weight, bias = (
        torch.from_numpy(read_array(folder / "model.safetensors", f"pooler.dense.{name}").copy())
        for name in ("weight", "bias")
    )
    vectors = [
        torch.from_numpy(next(encoder.encode([TokenBlock.of([each])]))[0])[0]
        for each in reading.tokenizer(texts)
    ]
    return np.stack([FUNCTIONS[activation](weight @ each + bias).numpy() for each in vectors])


@pytest.mark.parametrize(
    ("pooling", "activation"), [(None, None), *itertools.product(("cls", "mean"), FUNCTIONS)]
)
def test_the_activation_is_that_of_sentkit_json(sentkit, tiny, saying, few, pooling, activation):
    """Without a record, it is tanh after [CLS]. Fields of a later version are ignored."""
    folder = saying({"activation": activation, "norm": "layer"}) if activation else tiny
    flags = ("--readout", f"pooler:{pooling}" if pooling else "pooler", "--precision", "fp32")
    done = sentkit("encode", "-m", folder, *flags, stdin="\n".join(few))

    assert done.code == 0
    assert (
        np.abs(done.vectors() - worked(folder, few, pooling or "cls", activation or "tanh")).max()
        < 1e-5
    )


def spaces_of(sentkit, folder, readout):
    sentkit(
        "encode", "-m", folder, "--readout", readout, "-o", "v.safetensors", "-f", stdin="a cat\n"
    )
    spec = VectorFile("v.safetensors").spec
    return spec["_emb"].rpartition(":")[2], spec


def test_spaces_of_poolers(sentkit, tiny, saying):
    """The hash covers weights, rules, tokenizer, layers and reduction, but not the target space.

    The pooler belongs only to the space of readouts through it, whatever else is read.
    """
    space, spec = spaces_of(sentkit, tiny, "pooler")
    weights = weights_hash(read_tensors([tiny / "model.safetensors"]), with_pooler=True)
    rules = [2, "gelu", 1e-12, 0]  # heads, activation, epsilon of the norms, first position
    said = saying({"activation": "tanh", "readout": "pooler:cls", "lands_in": LANDING})
    gelu = saying({"activation": "gelu"}, "gelu")
    others = [
        spaces_of(sentkit, model, f"pooler:{p}")[0]
        for model in (tiny, gelu)
        for p in ("cls", "mean")
    ]
    sentkit("encode", "-m", tiny, "--readout", "cls,pooler", "-o", "both", stdin="a cat\n")

    assert spec["weights"] == weights
    assert space == digest([weights, rules, spec["tokenizer"], [[3], "pooler"]])
    assert (
        space == spaces_of(sentkit, tiny, "pooler:cls")[0] == spaces_of(sentkit, said, "pooler")[0]
    )
    assert len(set(others)) == 4
    assert spaces_of(sentkit, tiny, "mean")[0] == spaces_of(sentkit, gelu, "mean")[0]
    alone = (spaces_of(sentkit, tiny, "cls")[0], space)
    assert alone == tuple(
        VectorFile(f"both/{name}.safetensors").spec["_emb"][-12:] for name in ("cls", "pooler")
    )


@pytest.mark.parametrize("trained", ["cls", "mean"])
def test_the_label_names_the_target_space(sentkit, saying, trained):
    """For the readout it was trained through alone."""
    folder = saying({"activation": "gelu", "readout": f"pooler:{trained}", "lands_in": LANDING})

    def emb(readout, *flags):
        done = sentkit("encode", "-m", folder, "--readout", readout, *flags, stdin="a cat\n")
        return done.rows[0]["_emb"]

    own, other = f"pooler:{trained}", "pooler:cls" if trained == "mean" else "pooler:mean"
    assert emb(own).startswith(f"said/{own}>{LANDING}:")
    assert target_space(emb(own)) == LANDING
    assert target_space(emb(other)) is target_space(emb("mean")) is target_space(emb("cls")) is None
    if trained == "cls":
        assert target_space(emb("pooler")) == LANDING


def test_a_step_behind_it_ends_the_landing(sentkit, saying):
    folder = saying({"activation": "gelu", "readout": "pooler:cls", "lands_in": LANDING})
    kernel, bias = np.eye(16, dtype=np.float32), np.ones(16, np.float32)
    write_affine(Path("t.safetensors"), kernel, bias, {"kind": "pca"})
    for step in ({"normalize": True}, {"dim": 8}, {"transform": "t.safetensors"}):
        assert target_space(Encoder(str(folder), readout="pooler", **step).space) is None


@pytest.mark.parametrize(("pooling", "activation"), [("cls", "gelu"), ("mean", "silu")])
def test_an_export_is_read_alike_by_sentence_transformers(
    sentkit, saying, few, tmp_path, pooling, activation
):
    """By sentkit from the folder too, with sentkit.json and without."""
    from sentence_transformers import SentenceTransformer

    note = {"activation": activation, "readout": f"pooler:{pooling}", "lands_in": LANDING}
    folder, readout = saying(note), f"pooler:{pooling}"
    made = sentkit("export", "-q", "-m", folder, "--readout", readout, "-o", "made")
    by_flags, by_folder = (
        sentkit("encode", "-m", model, *more, "--precision", "fp32", stdin="\n".join(few))
        for model, more in ((folder, ("--readout", readout)), ("made", ()))
    )
    theirs = SentenceTransformer(
        "made", device="cpu", model_kwargs={"dtype": torch.float32}
    ).encode(few)
    own = json.loads((tmp_path / "made/sentkit.json").read_text())
    (tmp_path / "made/sentkit.json").unlink()
    bare = sentkit("encode", "-m", "made", "--precision", "fp32", stdin="\n".join(few))

    assert (made.code, made.err) == (0, "")
    assert own["pooler"] == note
    assert own["steps"] == []
    assert np.array_equal(by_flags.vectors(), by_folder.vectors())
    assert (
        by_flags.rows[0]["_emb"].rpartition(">")[2] == by_folder.rows[0]["_emb"].rpartition(">")[2]
    )
    assert np.abs(theirs - by_flags.vectors()).max() < 1e-5
    assert np.abs(bare.vectors() - theirs).max() < 1e-5


HOSTILE = ["gelu", None, {"activation": 7}, {"activation": "exec"}, {"readout": "cls"}]
HOSTILE += [{"readout": "no such"}, {"readout": "pooler:cls", "lands_in": "0123456789AB"}]
HOSTILE += [{"lands_in": LANDING}]


@pytest.mark.parametrize("pooler", HOSTILE, ids=str)
def test_the_record_of_a_pooler_is_verified(sentkit, saying, pooler):
    done = sentkit("encode", "-m", saying(pooler), "--readout", "pooler", stdin="a cat\n")

    assert done.code == 65
    assert "pooler" in done.told[0]
