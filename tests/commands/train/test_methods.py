"""What every method makes is read alike by sentkit, sentence-transformers and transformers."""

import json

import numpy as np
import pytest

from sentkit.training.catalogue import METHODS
from support import TEXTS, write_rows
from training.small import FEWER, every_field

NEEDS = FEWER | {
    "mlm": {"head": "fresh"},
    "clear": {"head": "fresh"},
    "defsent-plus": {"max_length": 64},
}
PROMPTED = {  # templates around a text that ends with a full stop; sentence-transformers has none
    "promptbert": 'This sentence of "{}" means [MASK].',
    "sncse": 'This sentence : " {} " means [MASK] .',
}


@pytest.fixture
def trained(sentkit, tiny, tmp_path):
    """Train by this method, and give the checkpoint's folder."""
    write_rows(tmp_path, {"rows": every_field(9)})

    def run(*command, **settings):
        assignments = []
        for name, value in settings.items():
            assignments += ["--set", f"{name}={value}"]
        result = sentkit(*command, *assignments)
        assert (result.code, result.err) == (0, "")

    def make(name, *more):
        quick = ("--batch", 4, "--epochs", 2, "--threads", 1, "-q")
        command = ["train", name, "rows.jsonl", *more, *quick, "-o", "out"]
        model = tiny
        if name == "defsent":
            mlm = ("train", "mlm", "rows.jsonl", "-m", tiny, "-o", "with_head", "-q")
            run(*mlm, "--threads", 1, head="fresh", lr=1e-9, warmup=0)
            model = "with_head"
        if name == "defsent-plus":
            run("build-entries", "rows.jsonl", "-m", tiny, "-q", "-o", "entries.safetensors")
            command += ["--entries", "entries.safetensors"]
        run(*command, "-m", model, lr=0.01, warmup=0, **NEEDS.get(name, {}))
        return tmp_path / "out"

    return make


def loaded_whole(folder):
    """Its model in transformers. Only a pooler can be missing, and all weights have the type of the
    file.
    """
    import transformers

    model, report = transformers.AutoModel.from_pretrained(folder, output_loading_info=True)
    assert all(key.startswith("pooler.") for key in report["missing_keys"])
    assert {str(weight.dtype) for weight in model.parameters()} == {"torch.float32"}
    return model.eval()


# A fast test for each kind of checkpoint: a pooler, none, a convolution, a projection, a map.
KINDS = ("simcse", "sg-bert", "is-bert", "defsent-plus", "distill", "mlm")


SLOW = [name for name in METHODS if name not in (*KINDS, *PROMPTED)]


@pytest.mark.parametrize(
    "name", [*KINDS, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_sentence_transformers_gives_the_same_vectors(trained, sentkit, name):
    from sentence_transformers import SentenceTransformer

    folder = trained(name)
    texts = "".join(text + "\n" for text in TEXTS)
    vectors = sentkit("encode", "-m", folder, "--precision", "fp32", "-q", stdin=texts).vectors()
    # In a larger batch, the convolution of sentence-transformers reads states of padding.
    batch_size = 1 if name == "is-bert" else 32
    library = SentenceTransformer(str(folder), device="cpu")
    expected = library.encode(TEXTS, batch_size=batch_size)

    assert np.abs(vectors - expected).max() < 1e-5
    assert np.abs(vectors[0] - vectors[1]).max() > 1e-4
    loaded_whole(folder)


@pytest.mark.parametrize("name", PROMPTED)
def test_transformers_gives_the_state_of_the_mask(trained, sentkit, name):
    """The folder has no modules.json, because sentence-transformers cannot read this token."""
    import transformers

    folder = trained(name)
    texts = [text + "." for text in TEXTS]
    encode = ("encode", "-m", folder, "--precision", "fp32", "-q")
    vectors = sentkit(*encode, stdin="\n".join(texts)).vectors()
    model = loaded_whole(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for text, vector in zip(texts, vectors, strict=True):
        tokens = tokenizer(PROMPTED[name].format(text), return_tensors="pt")
        [mask_index] = (tokens["input_ids"][0] == tokenizer.mask_token_id).nonzero()
        expected = model(**tokens).last_hidden_state[0, mask_index.item()].detach().numpy()
        assert np.abs(vector - expected).max() < 1e-5

    assert not (folder / "modules.json").exists()


def test_dev_selects_an_encoder_of_ct(trained, dev):
    folder = trained("ct", "--dev", dev)
    record = json.loads((folder / "sentkit.json").read_text())

    assert record["dev"] == max(record["dev_by_encoder"])
    assert record["dev_by_encoder"].index(record["dev"]) == record["encoder"] - 1


@pytest.mark.parametrize(
    ("objective", "labels", "problem"),
    [
        ("id", ["contradiction"], "no pair of 8 is an entailment, so no text has a partner"),
        ("both", ["contradiction"], "nothing to classify"),
        ("both", ["entailment"], "nothing to classify"),
        ("cls", ["entailment"], "nothing to classify"),
        ("id", ["entailment"], None),
        ("both", ["entailment", "contradiction"], None),
    ],
)
def test_pairsupcon_needs_labels_of_its_objective(
    sentkit, tiny, tmp_path, objective, labels, problem
):
    rows = []
    for number in range(8):
        texts = {"text_a": f"a {number}", "text_b": f"the {number}"}
        rows.append({**texts, "label": labels[number % len(labels)]})
    write_rows(tmp_path, {"rows": rows})
    command = ("train", "pairsupcon", "rows.jsonl", "-m", tiny, "-o", "out", "--threads", 1)
    done = sentkit(*command, "--batch", 4, "-q", "--set", f"objective={objective}")

    if problem is None:
        assert done.code == 0
    else:
        assert (done.code, problem in done.told[0]) == (65, True)
