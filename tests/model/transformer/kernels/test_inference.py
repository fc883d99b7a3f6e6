"""The blocks for encoding on a CPU give the states of `Block`: runs, products, guards."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import sentkit
from sentkit.formats.checkpoints.readout import parse_readout
from sentkit.model.transformer.kernels import inference
from sentkit.model.transformer.kernels.inference import (
    LONGEST_RUN,
    prepare_for_cpu,
    short_attention,
)
from sentkit.model.transformer.packed import SMALLEST_FILLED, filler, pack, spare_tokens
from sentkit.model.transformer.readouts import apply_readouts

LENGTHS = [64, 33, 33, 20, 7, 7, 7, 2, 1, 1]  # sorted, as in a batch, with runs of several lengths


@pytest.fixture
def saved(checkpoint, tmp_path, load):
    """A function that loads the checkpoint again, because `prepare_for_cpu` changes its blocks."""
    checkpoint.save_pretrained(tmp_path)
    return lambda: load(tmp_path)


def largest_difference(states_a, states_b):
    return max((a - b).abs().max().item() for a, b in zip(states_a, states_b, strict=True))


@given(st.lists(st.integers(1, 512), min_size=1, max_size=400))
def test_a_large_batch_is_filled_to_one_of_few_sizes(lengths):
    tokens = sum(lengths)
    fill_lengths = filler(lengths, spare_tokens(tokens))

    assert all(1 <= length <= max(lengths) for length in fill_lengths)
    if tokens < SMALLEST_FILLED:
        assert fill_lengths == []
    else:
        assert len(bin(tokens + sum(fill_lengths)).rstrip("0").removeprefix("0b")) <= 5
        assert sum(fill_lengths) < tokens / 16


@pytest.mark.parametrize("readout", ["cls", "mean", "max", "last"])
def test_a_filled_batch_gives_the_vectors_of_its_sentences(readout, monkeypatch):
    texts = ["a cat", "a dog sleeps on the warm floor", "rain", "two men talk about the weather"]
    encoder = sentkit.Encoder("nano", readout=readout, precision="fp32", device="cpu")
    plain = encoder.encode(texts)
    monkeypatch.setattr(
        "sentkit.model.transformer.encoder.filler", lambda lengths, spare: [max(lengths), 1]
    )

    filled = encoder.encode(texts)

    assert filled.shape == plain.shape
    assert np.abs(filled - plain).max() < 1e-5


@pytest.mark.parametrize("tokens_at_once", [1024, 50])  # of 182 tokens
@pytest.mark.parametrize("lengths", [LENGTHS, [9, 9]], ids=str)
def test_states_and_readouts_in_float64_equal_those_of_padded_attention(
    lengths, tokens_at_once, saved, sentences, checkpoint, states, monkeypatch
):
    """`cls` and `last` compute one row per sentence in the last block."""
    monkeypatch.setattr(inference, "CACHED_TOKENS", tokens_at_once)
    plain = saved().double()
    prepared = prepare_for_cpu(saved().double())
    packed = pack(sentences(lengths, checkpoint.config.vocab_size))

    assert largest_difference(states(prepared, packed), states(plain, packed)) < 1e-12
    for name in ("cls", "mean", "max", "last", "L1:cls", "mean-first-last"):
        with torch.no_grad():
            [expected] = apply_readouts(plain, packed, [parse_readout(name)])
            [vectors] = apply_readouts(prepared, packed, [parse_readout(name)])

        torch.testing.assert_close(vectors, expected, rtol=0, atol=1e-12, msg=name)


def test_states_in_float32_equal_those_of_transformers(
    saved, sentences, checkpoint, oracle, states
):
    batch = sentences(LENGTHS, checkpoint.config.vocab_size)

    assert (
        largest_difference(states(prepare_for_cpu(saved()), pack(batch)), oracle(checkpoint, batch))
        < 1e-5
    )


def test_bfloat16_stays_as_near_to_float32_as_before(saved, sentences, checkpoint, states):
    packed = pack(sentences(LENGTHS, checkpoint.config.vocab_size))
    exact = states(saved(), packed)[-1]
    half = saved().bfloat16()
    plain = states(half, packed)[-1].float()
    prepared_half = prepare_for_cpu(saved().bfloat16())
    prepared = states(prepared_half, packed)[-1].float()

    assert (prepared - exact).norm() < 1.5 * (plain - exact).norm()


def attention_by_loops(query, key, value):
    """Softmax of scaled products with the maximum subtracted, in Python floats, for one head."""
    mixed = []
    for q in query.tolist():
        scores = [
            sum(a * b for a, b in zip(q, k, strict=True)) / math.sqrt(len(q)) for k in key.tolist()
        ]
        weights = [math.exp(score - max(scores)) for score in scores]
        columns = zip(*value.tolist(), strict=True)
        mixed.append(
            [sum(w * v for w, v in zip(weights, c, strict=True)) / sum(weights) for c in columns]
        )
    return torch.tensor(mixed)


@pytest.mark.parametrize(
    "size", [1.0, 6.55, 20.0], ids=["usual", "overflow with values", "overflow"]
)
@pytest.mark.parametrize("sign", [1, -1], ids=["positive", "negative"])
def test_scores_that_overflow_or_vanish_use_softmax(size, sign):
    """exp(800) overflows, exp(-800) is 0, exp(86) is finite, but not 3 products with a value of 20.

    The scores are 4 * 20 * 20 / 2 = 800 and 4 * 6.55 * 6.55 / 2 = 86.
    """
    random = torch.Generator().manual_seed(0)
    query, key = (size * (1 + 0.01 * torch.rand(1, 1, 3, 4, generator=random)) for _ in range(2))
    value = 20 + torch.randn(1, 1, 3, 4, generator=random)

    mixed = short_attention(sign * query, key, value)

    expected = attention_by_loops(sign * query[0, 0], key[0, 0], value[0, 0])
    torch.testing.assert_close(mixed[0, 0], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("family", ["bert", "mpnet"])
def test_long_sentences_equal_padded_attention(family, make, tmp_path, load, sentences, states):
    model = make(
        family, max_position_embeddings=2 * LONGEST_RUN, hidden_size=16, num_hidden_layers=2
    )
    model.save_pretrained(tmp_path)
    packed = pack(sentences([LONGEST_RUN + 1, LONGEST_RUN + 1, LONGEST_RUN, 3]))

    plain = load(tmp_path).double()
    prepared = prepare_for_cpu(load(tmp_path).double())

    assert largest_difference(states(prepared, packed), states(plain, packed)) < 1e-12
