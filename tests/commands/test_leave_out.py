"""`encode --leave-out`: tokens that the readout does not reduce, against loops over transformers."""

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

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
    (tmp_path / "tokens.jsonl").write_text(in_jsonl(*({"token": token, "rank": 1} for token in LEFT_OUT)))

    def run(*arguments, left_out="tokens.jsonl", texts=TEXTS):
        flags = ("--precision", "fp32", "--leave-out", left_out)
        return sentkit("encode", "-m", tiny, *flags, *arguments, stdin="\n".join(texts))

    return run


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
    small = encode("--readout", f"L{layer}:{readout}")
    monkeypatch.setattr("sentkit.model.small_encoder.MOST_WORK", -1)
    large = encode("--readout", f"L{layer}:{readout}")

    assert small.vectors() == pytest.approx(expected, abs=1e-5)
    assert large.vectors() == pytest.approx(expected, abs=1e-5)
    assert small.rows[0]["_emb"] == large.rows[0]["_emb"]


def test_the_space_depends_on_the_tokens(encode, sentkit, tiny, tmp_path):
    """Not on their order, and not on the form of the file."""
    for name, tokens in (("one", ["the", "cat"]), ("same", ["cat", "the", "the"]), ("other", ["the", "dog"])):
        (tmp_path / name).write_text("".join(f"{token}\n" for token in tokens))
    one, same, other = (
        encode("--readout", "mean", left_out=name).rows[0]["_emb"] for name in ("one", "same", "other")
    )
    plain = sentkit("encode", "-m", tiny, "--readout", "mean", stdin="a cat").rows[0]["_emb"]

    assert one == same
    assert len({one, other, plain}) == 3
    assert one.startswith("tiny/mean/out2:")


def test_a_vector_file_records_the_number(encode, sentkit):
    assert encode("--readout", "mean", "-o", "v.safetensors").code == 0
    assert sentkit("inspect", "v.safetensors").rows[0]["spec"]["left_out"] == len(LEFT_OUT)


PARTIAL = "it needs mean, max, mean-sqrt, of any layer"
NO_TOKENS = "python -m sentkit.papers.consert.figures words TEXTS | head -36 lists the 36 most frequent ones"


@pytest.mark.parametrize(
    ("flags", "left_out", "code", "told"),
    [
        (["--readout", "cls"], "tokens.jsonl", 2,
         ['--leave-out cannot be used with the readout "cls"', PARTIAL]),
        (["--readout", "concat:mean:last"], "tokens.jsonl", 2,
         ['--leave-out cannot be used with the readout "concat:mean:last"',
          PARTIAL]),
        (["--on-truncate", "late", "--chunks", "--window", "9"], "tokens.jsonl", 2,
         ["--leave-out cannot be used with --on-truncate late"]),
        (["--on-truncate", "window"], "tokens.jsonl", 2,
         ["--leave-out cannot be used with --on-truncate window"]),
        ([], "absent", 66, ["absent: no such file"]),
        ([], "36", 2, ["--leave-out 36: expected a file of tokens", NO_TOKENS]),
        ([], "-", 2, ["--leave-out needs a file; standard input has the rows"]),
        ([], "empty", 65, ["no rows in empty"]),
        ([], "words", 65, ['words:2: "unbelievably" is not a token of the model']),
        ([], "ranks", 65, ['ranks:1: "token" is a number, expected a string']),
    ],
)  # fmt: skip
def test_tokens_that_cannot_be_left_out(encode, tmp_path, flags, left_out, code, told):
    contents = {"empty": "", "words": "the\nunbelievably\n", "ranks": '{"token":3}\n'}
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    done = encode("--readout", "mean", *flags, left_out=left_out)

    assert (done.code, done.out) == (code, b"")
    assert done.told == [f"sentkit encode: {told[0]}", *(f"  {line}" for line in told[1:])]


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
    done = encode("-m", "static", "--readout", "mean,max", "-o", "out", left_out="tokens", texts=STATIC)

    assert done.code == 0
    for readout, reduce in (("mean", np.mean), ("max", np.max)):
        rows = load_file(tmp_path / f"out/{readout}.safetensors")["embeddings"]
        for row, text in zip(rows, STATIC, strict=True):
            known = [word for word in text.lower().split() if word in VECTORS]
            kept = [word for word in known if word not in ("the", ".")] or known
            expected = reduce([VECTORS[word] for word in kept], axis=0) if kept else np.zeros(3)
            assert row == pytest.approx(expected, abs=1e-6)


def test_what_static_models_refuse(encode, model2vec, tmp_path):
    """Means of windows, whose weights would count the words, and a model without a list of words."""
    (tmp_path / "tokens").write_text("the\n")
    windows = ("-m", model2vec(), "--on-truncate", "window")
    for model, other in ((windows, "--on-truncate window"), (("-m", "words:binary"), "words:binary")):
        done = encode(*model, left_out="tokens")
        assert (done.code, done.told) == (2, [f"sentkit encode: --leave-out cannot be used with {other}"])

    assert encode(*windows, "--chunks", left_out="tokens").code == 0


def test_the_space_of_a_static_model_depends_on_the_words(encode, sentkit, model2vec, tmp_path):
    for name, tokens in (("one", ["the", "cat"]), ("same", ["cat", "the"]), ("other", ["the", "dog"])):
        (tmp_path / name).write_text("".join(f"{token}\n" for token in tokens))
    folder = model2vec()
    one, same, other = (
        encode("-m", folder, left_out=name).rows[0]["_emb"] for name in ("one", "same", "other")
    )
    plain = sentkit("encode", "-m", folder, stdin="a cat").rows[0]["_emb"]

    assert one == same
    assert len({one, other, plain}) == 3
    assert one.startswith("static/mean/out2:")
