"""Training: the gradients are those of transformers, dropout goes by the seed, autocast stays
close.
"""

import copy

import pytest
import torch

from sentkit.formats.checkpoints.readout import parse_readout
from sentkit.model.transformer.attention import plain_attention
from sentkit.model.transformer.bert import Block
from sentkit.model.transformer.layers import drop
from sentkit.model.transformer.packed import pack
from sentkit.model.transformer.readouts import apply_readouts

MIXED = [1, 60, 7, 7, 2, 33, 1, 20, *[6] * 8]  # two groups in attention
EQUAL = [9, 9, 9]


def training(encoder, rate=0.0):
    for module in encoder.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = rate
        if isinstance(module, Block):
            module.attention_dropout = rate
    return encoder.train()


def autocast():
    return torch.autocast("cpu", dtype=torch.bfloat16)


def a_functional(states):
    """A fixed random linear one."""
    weights = torch.randn(
        states.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64
    )
    return (states * weights.to(states.dtype)).sum()


def named_gradients(encoder):
    """By transformers' names."""
    bearer = copy.deepcopy(encoder)
    for weight, trained in zip(bearer.parameters(), encoder.parameters(), strict=True):
        weight.data = torch.zeros_like(trained) if trained.grad is None else trained.grad
    return bearer.tensors()


@pytest.mark.parametrize("lengths", [MIXED, EQUAL])
def test_without_dropout_training_equals_evaluation(checkpoint, tmp_path, load, sentences, lengths):
    """At every layer, in float64; also where the last block computes some rows alone."""
    checkpoint.save_pretrained(tmp_path)
    encoder = load(tmp_path).double()
    packed = pack(sentences(lengths, checkpoint.config.vocab_size))
    with torch.no_grad():
        calm = [*encoder.states(packed), *encoder.states(packed, rows_of_last=packed.starts)]
        training(encoder)
        trained = [*encoder.states(packed), *encoder.states(packed, rows_of_last=packed.starts)]

    for a, b in zip(calm, trained, strict=True):
        assert (a - b).abs().max() <= 1e-12 * a.abs().max()


@pytest.fixture
def exact(monkeypatch):
    """transformers rotates and divides by norms in float32; here, in the type of the states."""
    from transformers.models.llama.modeling_llama import LlamaRMSNorm
    from transformers.models.mistral.modeling_mistral import MistralRMSNorm
    from transformers.models.modernbert import modeling_modernbert as modernbert
    from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

    def apply(q, k, cos, sin, unsqueeze_dim=1):
        cos = cos.unsqueeze(unsqueeze_dim)
        sin = sin.unsqueeze(unsqueeze_dim)
        return tuple(
            states_of_heads * cos + modernbert.rotate_half(states_of_heads) * sin
            for states_of_heads in (q, k)
        )

    def norm(layer, states):
        return (
            layer.weight
            * states
            / (states.square().mean(-1, keepdim=True) + layer.variance_epsilon).sqrt()
        )

    monkeypatch.setattr(modernbert, "apply_rotary_pos_emb", apply)
    for norm_class in (LlamaRMSNorm, MistralRMSNorm, Qwen2RMSNorm, Qwen3RMSNorm):
        monkeypatch.setattr(norm_class, "forward", norm)


@pytest.mark.parametrize("lengths", [MIXED, EQUAL])
def test_every_gradient_equals_that_of_transformers(
    checkpoint, tmp_path, load, sentences, lengths, exact
):
    """In float64 and training mode without dropout, against a padded batch with its mask."""
    checkpoint.save_pretrained(tmp_path)
    encoder = training(load(tmp_path).double())
    packed = pack(sentences(lengths, checkpoint.config.vocab_size))
    assert len(packed.groups.shapes) == (2 if lengths is MIXED else 1)
    *_, last = encoder.states(packed)
    a_functional(last).backward()
    ids, mask = (packed.pad(values) for values in (packed.ids, torch.ones_like(packed.ids)))
    ids[mask == 0] = checkpoint.config.pad_token_id
    states = checkpoint.double()(ids, attention_mask=mask).last_hidden_state
    a_functional(packed.unpad(states)).backward()

    gradients = named_gradients(encoder)
    expected = {
        n: weight.grad for n, weight in checkpoint.named_parameters() if weight.grad is not None
    }

    assert all(name.startswith("pooler.") for name in gradients.keys() ^ expected.keys())
    assert (
        max((gradients[name] - gradient).abs().max() for name, gradient in expected.items()) < 1e-9
    )


@pytest.mark.parametrize("lengths", [MIXED, EQUAL])
def test_the_seed_decides_dropout_and_not_whether_there_are_gradients(bert, sentences, lengths):
    packed = pack(sentences(lengths))
    training(bert, 0.1)

    def run(seed):
        torch.manual_seed(seed)
        return [*bert.states(packed), *bert.states(packed, rows_of_last=packed.starts)]

    first = run(3)
    second = run(3)
    other_seed = run(4)
    with torch.no_grad():
        without = run(3)

    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first, without, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other_seed, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dropout_sets_a_share_of_the_values_to_0_and_scales_the_others(dtype):
    """Of a million values the number of zeros has the standard deviation 300."""
    torch.manual_seed(0)
    ones = torch.ones(1000, 1000, dtype=dtype, requires_grad=True)
    dropped = drop(ones, 0.1)
    dropped.sum().backward()

    assert dropped.dtype == dtype
    assert dropped.unique().tolist() == [0.0, torch.tensor(1 / 0.9, dtype=dtype).item()]
    assert abs(int((dropped == 0).sum()) - 100_000) < 1500
    assert max(abs(int(zeros) - 100) for zeros in (dropped == 0).sum(0)) < 60  # in each column
    assert torch.equal(ones.grad, dropped)


def test_dropout_follows_the_generator_of_torch_and_not_the_threads():
    values = torch.randn(3, 70_001)
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            torch.manual_seed(5)
            results.append((drop(values, 0.3), drop(values, 0.3), torch.get_rng_state()))
    finally:
        torch.set_num_threads(threads)

    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert not torch.equal(results[0][0], results[0][1])


def test_dropout_of_attention_acts_on_the_weights_after_softmax():
    """Equal scores of 4 keys weigh 1/4 each; with half of them dropped, those that stay
    weigh 1/2.
    """
    torch.manual_seed(0)
    value = torch.eye(4)[None, None]
    mixed = plain_attention(
        torch.zeros(1, 1, 1000, 4), torch.zeros(1, 1, 4, 4), value, None, dropout=0.5
    )

    assert mixed.unique().tolist() == [0.0, 0.5]
    assert (mixed.mean() - 0.25).abs() < 0.02


def test_masked_keys_weigh_nothing():
    """Of the scores 2, 0 and 5 the last is masked: the weights are e / (e + 1), 1 / (e + 1)
    and 0.
    """
    query = torch.tensor([[[[2.0, 0, 0, 0]]]])
    key = torch.eye(4)[None, None, :3]
    key[..., 2, :] = 5.0
    mask = torch.tensor([True, True, False])[None, None, None]

    mixed = plain_attention(query, key, torch.eye(3)[None, None], mask)

    assert torch.allclose(mixed, torch.tensor([0.7310586, 0.2689414, 0.0]))


def test_weights_are_made_in_float32_beside_bf16_products():
    """Scores 200 and 199 over sqrt(32) differ by 0.1768, so that the first weighs 0.5441.

    Divided in bfloat16 both are 35.25, and weigh 0.5.
    """
    query = torch.zeros(1, 1, 1, 32)
    query[..., 0] = 200.0
    query[..., 1] = 199.0
    eye = torch.eye(32)[None, None, :2]
    with autocast():
        mixed = plain_attention(query, eye, eye, None)

    assert mixed.dtype == torch.bfloat16
    assert (mixed[..., 0].float() - 0.5441).abs().max() < 0.002


@pytest.mark.parametrize("name", ["mean", "cls", "pooler", "mean-first-last", "max"])
def test_autocast_gives_float32_gradients_close_to_the_exact_ones(bert, sentences, name):
    """Of the masters, which stay float32; in every tensor of them."""
    packed = pack(sentences(MIXED))
    training(bert)
    rough = copy.deepcopy(bert)
    (expected,) = apply_readouts(bert, packed, [parse_readout(name)])
    a_functional(expected).backward()
    with autocast():
        (vectors,) = apply_readouts(rough, packed, [parse_readout(name)])
    a_functional(vectors).backward()

    assert vectors.dtype == torch.float32
    assert torch.cosine_similarity(vectors, expected).min() > 0.999
    for (weight_name, exact), weight in zip(
        bert.named_parameters(), rough.parameters(), strict=True
    ):
        if exact.grad is None:
            assert weight.grad is None
            continue
        assert weight.grad.dtype == weight.dtype == torch.float32
        assert torch.cosine_similarity(weight.grad.flatten(), exact.grad.flatten(), dim=0) > 0.99, (
            weight_name
        )


def test_autocast_keeps_the_states_of_every_family_in_float32(
    checkpoint, tmp_path, load, sentences
):
    """Also ELECTRA's first ones, which come from a product; later ones are not bfloat16 numbers
    either.
    """
    checkpoint.save_pretrained(tmp_path)
    encoder = training(load(tmp_path))
    packed = pack(sentences(MIXED, checkpoint.config.vocab_size))
    with autocast():
        layers = list(encoder.states(packed))

    assert {states.dtype for states in layers} == {torch.float32}
    assert all((states != states.bfloat16()).float().mean() > 0.9 for states in layers[1:])


@pytest.mark.parametrize("name", ["mean", "cls", "last"])
def test_rows_that_fill_products_change_no_state_and_no_gradient(
    bert, sentences, monkeypatch, name
):
    """In float64. 179 tokens are filled to 184, and 3 x 27 to 84."""
    training(bert.double())
    sizes = set()
    bert.blocks[0].up.register_forward_hook(lambda _, inputs, __: sizes.add(len(inputs[0])))
    results = []
    for filled in (False, True):
        monkeypatch.setattr(torch, "is_autocast_enabled", lambda _, filled=filled: filled)
        for lengths in (MIXED, [27, 27, 27]):
            packed = pack(sentences(lengths))
            bert.zero_grad()
            (vectors,) = apply_readouts(bert, packed, [parse_readout(name)])
            a_functional(vectors).backward()
            results.append(
                (vectors.detach(), *(p.grad for p in bert.parameters() if p.grad is not None))
            )
            assert [len(states) for states in bert.states(packed)] == [packed.tokens] * 4

    assert sizes == {179, 184, 81, 84}
    for plain, filled_result in zip(results[:2], results[2:], strict=True):
        assert len(plain) == len(filled_result) > 40
        for a, b in zip(plain, filled_result, strict=True):
            assert (a - b).abs().max() <= 1e-12 * a.abs().max()


def test_sums_and_the_scale_of_dropout_are_in_float32(bert):
    """1 + 2**-12 + 2**-10 is a float32 number; in bfloat16 it is 1. 1 / 0.9 is 1.1111, and not
    1.1094.
    """
    block = training(bert).blocks[0]
    summed = block.added(
        torch.tensor([2.0**-10]).bfloat16(), torch.tensor([1 + 2.0**-12]), block.dropout
    )
    block = training(bert, 0.1).blocks[0]
    scaled = block.added(torch.ones(100).bfloat16(), torch.zeros(100), block.dropout)

    assert summed.tolist() == [1 + 2.0**-12 + 2.0**-10]
    assert (scaled.max() - 10 / 9).abs() < 1e-6


def test_a_pass_without_gradients_under_autocast_leaves_those_of_the_next(bert, sentences):
    """Both draw the same dropout. In torch 2.6, the casts of the first pass would keep the weights
    from gradients, so the cache is cleared, as in training.
    """
    packed = pack(sentences(MIXED))
    training(bert, 0.1)
    with autocast():
        torch.manual_seed(5)
        with torch.no_grad():
            *_, first = bert.states(packed)
        torch.clear_autocast_cache()
        torch.manual_seed(5)
        *_, second = bert.states(packed)
    second.sum().backward()

    assert torch.equal(first, second)
    assert all(
        w.grad is not None for name, w in bert.named_parameters() if not name.startswith("pooler")
    )
