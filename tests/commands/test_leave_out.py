"""Figure 4 of ConSERT: tokens that the readout does not reduce, against loops over transformers."""

import numpy as np
import pytest

from sentkit.errors import CannotCreateError
from sentkit.formats.vectors.vector_file import VectorFile
from sentkit.papers.consert.figures import encode_without
from support import in_jsonl, states_of

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
    (tmp_path / "tokens.jsonl").write_text(
        in_jsonl(*({"token": token, "rank": 1} for token in LEFT_OUT))
    )

    def run(readout="mean", *, left_out="tokens.jsonl", texts=TEXTS, model=tiny):
        (tmp_path / "texts.txt").write_text("\n".join(texts))
        encode_without(
            "texts.txt",
            left_out,
            model=str(model),
            readout=readout,
            output="v.safetensors",
            force=True,
        )
        return VectorFile("v.safetensors")

    return run


def vectors(file):
    return np.concatenate([*file.blocks()])[:, 0]


def by_hand(folder, layer, reduce):
    """The states of all tokens but those left out; of all tokens if there are no others."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    sequences = tokenizer(TEXTS)["input_ids"]
    vectors = []
    for states, sequence in zip(states_of(folder, sequences, layer), sequences, strict=True):
        tokens = tokenizer.convert_ids_to_tokens(sequence)
        remaining = [n for n, token in enumerate(tokens) if token not in LEFT_OUT]
        vectors.append(reduce(states[remaining] if remaining else states))
    return np.array(vectors)


@pytest.mark.parametrize("readout", REDUCE)
@pytest.mark.parametrize("layer", [1, 3])
def test_vectors_are_those_of_a_loop(encode, tiny, readout, layer):
    """A text of only such tokens keeps all of them."""
    expected = by_hand(tiny, layer, REDUCE[readout])

    assert vectors(encode(f"L{layer}:{readout}")) == pytest.approx(expected, abs=1e-5)


def test_the_space_depends_on_the_tokens(encode, sentkit, tiny, tmp_path):
    """Not on their order, and not on the form of the file."""
    for name, tokens in (
        ("one", ["the", "cat"]),
        ("same", ["cat", "the", "the"]),
        ("other", ["the", "dog"]),
    ):
        (tmp_path / name).write_text("".join(f"{token}\n" for token in tokens))
    one, same, other = (encode(left_out=name).space_name for name in ("one", "same", "other"))
    plain = sentkit("encode", "-m", tiny, "--readout", "mean", stdin="a cat").rows[0]["_emb"]

    assert encode(left_out=None).space_name == plain
    assert one == same
    assert len({one, other, plain}) == 3
    assert one.startswith("tiny/mean/out2:")


def test_an_existing_output_is_kept(encode, tiny, tmp_path):
    encode()
    before = (tmp_path / "v.safetensors").read_bytes()
    with pytest.raises(CannotCreateError, match="already exists"):
        encode_without("texts.txt", None, model=str(tiny), output="v.safetensors")

    assert (tmp_path / "v.safetensors").read_bytes() == before
