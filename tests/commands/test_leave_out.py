"""`leave_out`: tokens that the readout does not reduce, against loops over transformers."""

import numpy as np
import pytest
import torch

from sentkit import Encoder
from sentkit.errors import SentkitError
from sentkit.formats.vectors.vector_file import VectorFile
from sentkit.papers.consert.figures import encode_without
from support import PIECES, in_jsonl, padded

TEXTS = ["the cat sat and the dog sat.", "the dog", "a cat, the cat", "the the"]
LEFT_OUT = ["[CLS]", "the", ".", "[SEP]"]
REDUCE = {
    "mean": lambda states: states.mean(0),
    "max": lambda states: states.max(0),
    "mean-sqrt": lambda states: states.sum(0) / len(states) ** 0.5,
}


@pytest.fixture
def encode(sentkit, tiny, tmp_path):
    """Encode without the tokens of a file; return the vectors and their space."""
    (tmp_path / "tokens.jsonl").write_text(in_jsonl(*({"token": token, "rank": 1} for token in LEFT_OUT)))

    def run(readout="mean", *, left_out="tokens.jsonl", texts=TEXTS, model=tiny):
        (tmp_path / "texts.txt").write_text("\n".join(texts))
        encode_without("texts.txt", left_out, model=str(model), readout=readout, output="v.safetensors")
        return VectorFile("v.safetensors")

    return run


def vectors(file):
    return np.concatenate([*file.blocks()])[:, 0]


def by_hand(folder, layer, reduce):
    """The states of all tokens but those left out; of all tokens if there are no others."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    sequences = [tokenizer(text)["input_ids"] for text in TEXTS]
    ids, mask = padded(sequences)
    with torch.no_grad():
        states = model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states[layer]
    vectors = []
    for own, sequence in zip(states.double().numpy(), sequences, strict=True):
        kept = [n for n, i in enumerate(sequence) if tokenizer.convert_ids_to_tokens(i) not in LEFT_OUT]
        vectors.append(reduce(own[kept or list(range(len(sequence)))]))
    return np.array(vectors)


@pytest.mark.parametrize("readout", REDUCE)
@pytest.mark.parametrize("layer", [1, 3])
def test_vectors_are_those_of_a_loop(encode, tiny, readout, layer, monkeypatch):
    """With numpy and with torch; a text of only such tokens keeps all of them."""
    expected = by_hand(tiny, layer, REDUCE[readout])
    small = encode(f"L{layer}:{readout}")
    assert vectors(small) == pytest.approx(expected, abs=1e-5)
    monkeypatch.setattr("sentkit.model.small_encoder.MOST_WORK", -1)
    large = encode(f"L{layer}:{readout}")

    assert vectors(large) == pytest.approx(expected, abs=1e-5)
    assert small.emb == large.emb
    assert large.spec["left_out"] == len(LEFT_OUT)


@pytest.mark.parametrize("kind", ["tiny", "static"])
def test_the_space_depends_on_the_tokens(encode, sentkit, tiny, model2vec, tmp_path, kind):
    """Not on their order, and not on the form of the file."""
    model = tiny if kind == "tiny" else model2vec()
    for name, tokens in (("one", ["the", "cat"]), ("same", ["cat", "the", "the"]), ("other", ["the", "dog"])):
        (tmp_path / name).write_text("".join(f"{token}\n" for token in tokens))
    one, same, other = (encode(left_out=name, model=model).emb for name in ("one", "same", "other"))
    plain = sentkit("encode", "-m", model, "--readout", "mean", stdin="a cat").rows[0]["_emb"]

    assert encode(left_out=None, model=model).emb == plain
    assert one == same
    assert len({one, other, plain}) == 3
    assert one.startswith(f"{kind}/mean/out2:")


@pytest.mark.parametrize(
    ("reading", "left_out", "told"),
    [
        ({"readout": "cls"}, "tokens.jsonl", 'leave_out cannot be used with the readout "cls"'),
        ({"readout": "concat:mean:last"}, "tokens.jsonl",
         'leave_out cannot be used with the readout "concat:mean:last"'),
        ({"on_truncate": "window"}, "tokens.jsonl", "leave_out cannot be used with --on-truncate window"),
        ({}, "absent", "absent: no such file"),
        ({}, "empty", "no rows in empty"),
        ({}, "words", 'words:2: "unbelievably" is not a token of the model'),
        ({}, "ranks", 'ranks:1: "token" is a number, expected a string'),
    ],
)  # fmt: skip
def test_tokens_that_cannot_be_left_out(encode, tiny, tmp_path, reading, left_out, told):
    contents = {"empty": "", "words": "the\nunbelievably\n", "ranks": '{"token":3}\n'}
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(SentkitError) as error:
        Encoder(str(tiny), leave_out=left_out, **{"readout": "mean", **reading})

    assert str(error.value) == told


STATIC = ["the cat and the dog .", "the the", "The dog", "a cat", "zebra"]
VECTORS = {"the": [1, 0, 0], "cat": [0, 2, 0], ".": [0, 0, 3], "dog": [-1, -1, -1], "a": [4, 5, 6]}


@pytest.mark.parametrize("form", ["folder", "file"])
def test_static_models_drop_the_words(encode, model2vec, tmp_path, form):
    """From mean and max. A text of only such words keeps all of them; one without words has zeros."""
    if form == "folder":
        model2vec({"embeddings": np.array([VECTORS.get(piece, [9, 9, 9]) for piece in PIECES], np.float32)})
    else:
        lines = (" ".join([word, *map(str, vector)]) for word, vector in VECTORS.items())
        (tmp_path / "static").write_text("\n".join(lines))
    (tmp_path / "tokens").write_text("the\n.\n")
    for readout, reduce in (("mean", np.mean), ("max", np.max)):
        rows = vectors(encode(readout, left_out="tokens", texts=STATIC, model="./static"))
        for row, text in zip(rows, STATIC, strict=True):
            known = [word for word in text.lower().split() if word in VECTORS]
            kept = [word for word in known if word not in ("the", ".")] or known
            expected = reduce([VECTORS[word] for word in kept], axis=0) if kept else np.zeros(3)
            assert row == pytest.approx(expected, abs=1e-6)


def test_what_static_models_refuse(model2vec, tmp_path):
    """Means of windows, whose weights would count the words, and a model without a list of words."""
    (tmp_path / "tokens").write_text("the\n")
    windows = {"on_truncate": "window"}
    for model, reading, other in (
        (str(model2vec()), windows, "--on-truncate window"),
        ("words:binary", {}, "words:binary"),
    ):
        with pytest.raises(SentkitError, match=f"leave_out cannot be used with {other}"):
            Encoder(model, leave_out="tokens", **reading)
