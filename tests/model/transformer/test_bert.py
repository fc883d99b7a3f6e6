"""Concatenated sentences, and the packed transformer, which equals transformers for each family."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from sentkit.model.transformer import attention
from sentkit.model.transformer.attention import blockwise_attention, plain_attention, windowed
from sentkit.model.transformer.packed import Packed, pack
from support import FAMILIES

MIXED = [1, 64, 7, 7, 2, 33, 1, 20]


@torch.no_grad()
def states_of(encoder, batch, **settings):
    return list(encoder.states(pack(batch), **settings))


def differences(states, expected):
    return [(a - b).abs().max().item() for a, b in zip(states, expected, strict=True)]


@pytest.mark.parametrize("lengths", [MIXED, [9, 9, 9]])  # equal lengths need no mask
def test_all_states_equal_those_of_transformers(
    checkpoint, tmp_path, load, sentences, oracle, lengths
):
    """Every layer, from a saved folder, for sentences from 1 token to all positions; not for longer
    ones.

    Loading draws no random numbers.
    """
    checkpoint.save_pretrained(tmp_path)
    state = torch.get_rng_state()
    encoder = load(tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    *batch, longest, longer = sentences(
        [*lengths, encoder.max_tokens, encoder.max_tokens + 1], checkpoint.config.vocab_size
    )

    for texts in (batch, [longest]):
        assert max(differences(states_of(encoder, texts), oracle(checkpoint, texts))) < 1e-5
    if encoder.positions is None:  # rotary positions have no end
        assert max(differences(states_of(encoder, [longer]), oracle(checkpoint, [longer]))) < 1e-5
        return
    with pytest.raises(AssertionError):
        states_of(encoder, [longer])


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta", "camembert"])
def test_the_pooler_equals_that_of_transformers(family, make, tmp_path, load, sentences):
    model = make(family)
    model.save_pretrained(tmp_path)
    encoder = load(tmp_path)
    (ids,) = sentences([11])

    with torch.no_grad():
        expected = model(torch.from_numpy(ids)[None]).pooler_output
        pooled = encoder.pooled(states_of(encoder, [ids])[-1][:1])

    assert (pooled - expected).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("family", "head"),
    [
        *((family, "ForMaskedLM") for family in FAMILIES),
        *(
            ("bert", "ForPreTraining"),
            ("bert", "ForSequenceClassification"),
            ("electra", "ForPreTraining"),
        ),
    ],
)
def test_a_checkpoint_with_a_head_loads_as_its_encoder(
    family, head, make, tmp_path, load, sentences, oracle
):
    model = make(family, head)
    model.save_pretrained(tmp_path)
    batch = sentences(MIXED)
    encoder = load(tmp_path)

    assert max(differences(states_of(encoder, batch), oracle(model, batch))) < 1e-5
    assert encoder.has_pooler == (family == "bert" and head != "ForMaskedLM")


def test_saved_tensors_load_in_automodel(checkpoint, tmp_path, load):
    from safetensors.torch import save_file
    from transformers import AutoModel

    checkpoint.save_pretrained(tmp_path / "theirs")
    encoder = load(tmp_path / "theirs")
    checkpoint.config.save_pretrained(tmp_path / "ours")
    save_file(encoder.tensors(), tmp_path / "ours" / "model.safetensors", metadata={"format": "pt"})
    reloaded, report = AutoModel.from_pretrained(tmp_path / "ours", output_loading_info=True)

    assert not any(report.values())
    reloaded_tensors = reloaded.state_dict()
    expected = checkpoint.base_model.state_dict()
    assert reloaded_tensors.keys() == expected.keys()
    assert all(torch.equal(reloaded_tensors[name], expected[name]) for name in expected)


def test_blocks_after_the_deepest_layer_do_not_run(bert, sentences):
    bert.blocks[2] = None
    batch = sentences(MIXED)

    assert len(states_of(bert, batch, deepest=2)) == 3
    assert len(states_of(bert, batch, deepest=0)) == 1


def test_bf16_norms_accumulate_in_float32():
    """If the mean is far from 0, a bf16 sum loses its digits."""
    values = (torch.arange(4096) % 7 + 100).to(torch.bfloat16)
    normed = torch.nn.LayerNorm(4096, 1e-12).to(torch.bfloat16)(values[None])[0]
    exact = torch.nn.functional.layer_norm(values.double(), (4096,))

    assert (normed.double() - exact).abs().max() < 0.01


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [0, 1, 3, 8, 20])
@pytest.mark.parametrize("lengths", [(17, 17), (17, 1), (9, 16)], ids=str)
def test_a_window_equals_attention_with_a_mask(window, lengths, causal, monkeypatch):
    """Padding of a shorter sentence is not read, and no query has a gradient that is not a number.

    Two heads of queries have the same keys. Causal bands have 5 queries.
    """
    monkeypatch.setattr(attention, "BAND", 5)
    longest = max(lengths)
    generator = torch.Generator().manual_seed(0)
    random = partial(torch.randn, generator=generator, dtype=torch.float64, requires_grad=True)
    query, key, value = (random(len(lengths), heads, longest, 4) for heads in (2, 1, 1))
    real = torch.arange(longest) < torch.tensor(lengths)[:, None]
    mask = None if len(set(lengths)) == 1 else real[:, None, None]

    mixed = windowed(plain_attention, query, key, value, mask, window, causal=causal)
    blockwise = windowed(blockwise_attention, query, key, value, mask, window, causal=causal)

    mixed.sum().backward()
    assert all(tensor.grad.isfinite().all() for tensor in (query, key, value))
    for sentence, length in enumerate(lengths):
        for head in range(2):
            for position in range(length):
                apart = window or longest
                near = range(
                    max(0, position - apart),
                    min(length, position + 1 if causal else position + apart + 1),
                )
                q = query[sentence, head, position]
                keys = key[sentence, 0, near]
                weights = torch.softmax(keys @ q / 2, 0)
                expected = weights @ value[sentence, 0, near]
                torch.testing.assert_close(mixed[sentence, head, position], expected)
                torch.testing.assert_close(blockwise[sentence, head, position], expected)
            for position in {0, length // 2, length - 1}:
                alone = windowed(
                    plain_attention,
                    query[sentence : sentence + 1, head : head + 1, position : position + 1],
                    *(tensor[sentence : sentence + 1] for tensor in (key, value)),
                    real[sentence : sentence + 1, None, None],
                    window,
                    torch.tensor([position]),
                    causal=causal,
                )
                torch.testing.assert_close(alone[0, 0, 0], mixed[sentence, head, position])


def test_a_window_never_has_all_pairs_of_tokens():
    """Scores are of three windows for each token, for 8,192 tokens too."""
    sizes = []

    def attention(query, key, value, mask, causal):
        sizes.append(query.shape[0] * query.shape[2] * key.shape[2])
        return plain_attention(query, key, value, mask, causal)

    values = torch.ones(1, 1, 8192, 2)
    windowed(attention, values, values, values, None, 64)

    assert sizes == [8192 * 3 * 64]
    sizes.clear()
    windowed(attention, values, values, values, None, 4095, causal=True)
    assert max(sizes) == 256 * (256 + 4095)


def test_the_padded_index_does_not_depend_on_the_positions():
    """Which a method may permute."""
    assert Packed(torch.arange(4), torch.tensor([2, 0, 1, 0]), (3, 1)).padded.tolist() == [
        0,
        1,
        2,
        3,
    ]


def test_attention_is_padded_in_groups_of_similar_length():
    """The first group ends above 75 = 100 * 3 / 4, the next one above 56 = 75 * 3 / 4, then 24 = 40
    - 16.
    """
    groups = pack([[1] * length for length in (5, 100, 76, 75, 40, 20) * 20]).groups

    assert groups.shapes == ((40, 100), (20, 75), (20, 40), (40, 20))
    assert groups.order.tolist()[:5] == [1, 7, 13, 19, 25]


@pytest.mark.parametrize(("short", "shapes"), [(5, ((6, 100),)), (6, ((1, 100), (6, 6)))])
def test_a_group_saves_512_tokens_of_padding(short, shapes):
    """5 sentences of 6 tokens save 5 * 94 = 470 tokens, 6 save 564."""
    assert pack([[1] * 100, *[[1] * 6] * short]).groups.shapes == shapes


def test_the_last_token_fills_a_sentence_and_is_masked():
    """Causal attention needs no mask, because the padding follows."""
    packed = pack([[5, 6], [7, 8, 9]])
    groups = packed.groups
    causal = Packed(packed.ids, packed.positions, packed.lengths, causal=True)
    values = torch.arange(6.0)[:, None]  # a sixth row has no token

    assert [padded.tolist() for padded in groups.pad(values)] == [
        [[[2], [3], [4]], [[0], [1], [1]]]
    ]
    assert groups.masks[0].int().tolist() == [[[[1, 1, 1]]], [[[1, 1, 0]]]]
    assert causal.groups.masks == (None,)


def test_readouts_reduce_only_the_tokens_to_read():
    packed = replace(pack([[5, 8, 7], [8, 8]]), is_read=np.array([True, False, True, True, False]))

    assert packed.rows_to_read.tolist() == [0, 2, 3]
    assert packed.batch_to_read.ids.tolist() == [5, 7, 8]
    assert packed.batch_to_read.lengths == (2, 1)
