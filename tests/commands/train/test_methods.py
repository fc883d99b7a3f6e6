"""What every method makes is read alike by sentkit, sentence-transformers and transformers."""

import json

import numpy as np
import pytest

from sentkit.formats.checkpoints.folders import read_checkpoint
from sentkit.training.base import open_base
from sentkit.training.catalogue import METHODS
from support import TEXTS, in_jsonl
from training.making import rows_for

NEEDS = {
    "sg-bert": ("head_width=8",),
    "pairsupcon": ("head_width=8",),
    "mlm": ("head=fresh",),
    "rank-encoder": ("rank_corpus=5",),
    "clear": ("head=fresh",),
    "defsent": ("part=1",),
    "defsent-plus": ("max_length=64",),
}
PROMPTED = {  # templates around a text that ends with a full stop; sentence-transformers has none
    "promptbert": 'This sentence of "{}" means [MASK].',
    "sncse": 'This sentence : " {} " means [MASK] .',
}


@pytest.fixture
def rows(tmp_path):
    """A file of rows that this method reads."""

    def write(name, model):
        kind, path = METHODS[name].load(), tmp_path / f"{name}.jsonl"
        base = open_base(read_checkpoint(str(model)), 32)
        path.write_text(in_jsonl(*rows_for(kind, base, kind.Settings(), 9)))
        return path

    return write


@pytest.fixture
def with_head(sentkit, rows, tiny, tmp_path):
    """As tiny, with a language model head."""
    given = ("--set", "head=fresh", "--set", "warmup=0", "--lr", 1e-9, "--threads", 1, "-q")
    done = sentkit("train", "mlm", rows("mlm", tiny), "-m", tiny, "-o", "with_head", *given)
    assert (done.code, done.err) == (0, "")
    return tmp_path / "with_head"


@pytest.fixture
def made(sentkit, rows, tiny, with_head, tmp_path):
    """Train by this method, and give the checkpoint's folder."""

    def make(name, *more):
        model = with_head if name == "defsent" else tiny
        path = rows(name, model)
        settings = [word for each in (*NEEDS.get(name, ()), "warmup=0") for word in ("--set", each)]
        flags = ("--batch", 4, "--epochs", 2, "--lr", 0.01, "--threads", 1, "-q", *settings, *more)
        if name == "defsent-plus":
            sentkit("build-entries", path, "-m", tiny, "-q", "-o", "entries.safetensors")
            flags = (*flags, "--entries", "entries.safetensors")
        done = sentkit("train", name, path, "-m", model, "-o", "out", *flags)
        assert (done.code, done.err) == (0, "")
        return tmp_path / "out"

    return make


def loaded_whole(folder):
    """Its model in transformers. Only a pooler can be missing, and all weights have the type of the file."""
    import transformers

    model, report = transformers.AutoModel.from_pretrained(folder, output_loading_info=True)
    assert all(key.startswith("pooler.") for key in report["missing_keys"])
    assert {str(weight.dtype) for weight in model.parameters()} == {"torch.float32"}
    return model.eval()


# A fast test for each kind of checkpoint: a pooler, none, a convolution, a projection, a map.
KINDS = ("simcse", "sg-bert", "is-bert", "defsent-plus", "distill", "mlm")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in KINDS else pytest.mark.slow)
        for name in METHODS
        if name not in PROMPTED
    ],
)
def test_sentence_transformers_gives_the_same_vectors(made, sentkit, name):
    from sentence_transformers import SentenceTransformer

    folder = made(name)
    texts = "".join(text + "\n" for text in TEXTS)
    ours = sentkit("encode", "-m", folder, "--precision", "fp32", "-q", stdin=texts).vectors()
    # In a larger batch, the convolution of sentence-transformers reads states of padding.
    alone = {"batch_size": 1} if name == "is-bert" else {}
    theirs = SentenceTransformer(str(folder), device="cpu").encode(TEXTS, **alone)

    assert np.abs(ours - theirs).max() < 1e-5
    assert np.abs(ours[0] - ours[1]).max() > 1e-4
    loaded_whole(folder)


@pytest.mark.parametrize("name", PROMPTED)
def test_transformers_gives_the_state_of_the_mask(made, sentkit, name):
    """The folder has no modules.json, because sentence-transformers cannot read this token."""
    import transformers

    folder = made(name)
    texts = [text + "." for text in TEXTS]
    ours = sentkit("encode", "-m", folder, "--precision", "fp32", "-q", stdin="\n".join(texts)).vectors()
    model = loaded_whole(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for text, vector in zip(texts, ours, strict=True):
        tokens = tokenizer(PROMPTED[name].format(text), return_tensors="pt")
        [at] = (tokens["input_ids"][0] == tokenizer.mask_token_id).nonzero()
        expected = model(**tokens).last_hidden_state[0, at.item()].detach().numpy()
        assert np.abs(vector - expected).max() < 1e-5

    assert not (folder / "modules.json").exists()


def test_dev_selects_an_encoder_of_ct(made, dev):
    folder = made("ct", "--dev", dev)
    record = json.loads((folder / "sentkit.json").read_text())

    assert record["dev"] == max(record["dev_by_encoder"])
    assert record["dev_by_encoder"].index(record["dev"]) == record["encoder"] - 1
