"""WK pooling equals a plain loop over tokens and layers, for both windows."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from sentkit.formats.checkpoints.readout import WK, parse_readout
from sentkit.model.transformer.packed import pack
from sentkit.model.transformer.readouts import apply_readouts, wk

LENGTHS = [*range(1, 21), 4, 4]
STAIRS = np.tri(5, 6)  # layer k has k + 1 leading ones in 6 dimensions
ALL = "L0+L1+L2+L3+L4"


def neighbours(name, k, count):
    """Two layers on each side; `wk` has none on the left of the layers 0 and 1."""
    before = [k - 2, k - 1]
    if before[0] < 0:
        before = [j for j in before if j >= 0] if name == "wk-clip" else []
    return before + [j for j in (k + 1, k + 2) if j < count]


def layer_weights(name, token):
    """The weights of the layers of one token (K, d)."""
    alignment, novelty = [], []
    for k, own in enumerate(token):
        near = token[neighbours(name, k, len(token))]
        orthogonal, _ = np.linalg.qr(near.T)
        projection = orthogonal @ (orthogonal.T @ own)
        size = np.linalg.norm(projection)
        beta = np.mean([other @ own / (np.linalg.norm(other) * size) for other in near])
        alignment.append(1 / (2 * (len(near) + 1) * beta))
        novelty.append(np.linalg.norm(own - projection) / np.linalg.norm(own))
    return (np.array(alignment) / sum(alignment) + np.array(novelty) / sum(novelty)) / 2


def variance(token):
    return np.var([a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in pairwise(token)])


def reference(name, tokens):
    """The vector of a sentence (t, K, d). The last token is not read, unless it is the only one."""
    tokens = tokens[:-1] if len(tokens) > 1 else tokens
    weights = np.array([variance(token) for token in tokens])
    vectors = [layer_weights(name, token) @ token for token in tokens]
    return np.average(vectors, axis=0, weights=weights)


def random_states(lengths, layers=6, width=24, seed=0):
    """(n, K, d): consecutive layers of a token are similar."""
    steps = np.random.default_rng(seed).standard_normal((sum(lengths), layers, width))
    steps[:, 0] += 2
    return np.cumsum(steps * np.linspace(1, 0.3, layers)[:, None], axis=1)


def by_layer(states, dtype=torch.float64):
    return list(torch.tensor(states, dtype=dtype).unbind(1))


def ids(lengths):
    return pack([[1] * length for length in lengths])


@pytest.mark.parametrize("layers", [5, 6, 9])
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize("name", WK)
def test_sentences_of_1_to_20_tokens_equal_plain_loops(name, dtype, limit, layers):
    states = random_states(LENGTHS, layers)

    vectors = wk(by_layer(states, dtype), ids(LENGTHS), clip=name == "wk-clip")
    sentences = np.split(states, np.cumsum(LENGTHS)[:-1])

    assert vectors.dtype == dtype
    assert np.abs(vectors.numpy() - [reference(name, tokens) for tokens in sentences]).max() < limit


def test_a_token_with_equal_cosines_and_the_last_token_have_no_weight():
    turned = np.eye(6)[:5] * 3  # all cosines are 0, so their variance is 0
    last = np.full((5, 6), 9.0)

    vectors = wk(by_layer(np.stack([turned, STAIRS, last])), ids([3]), clip=False)
    alone = wk(by_layer(STAIRS[None]), ids([1]), clip=False)

    assert (vectors - alone).abs().max() < 1e-12


@pytest.mark.parametrize("name", WK)
def test_equal_layers_give_the_mean_of_the_tokens(name):
    """No layer is new and no cosine varies, so all shares are equal. The last token is not read."""
    rows = np.random.default_rng(1).standard_normal((4, 8))
    for dtype, limit in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        layers = by_layer(np.repeat(rows[:, None], 5, axis=1), dtype)
        (vector,) = wk(layers, ids([4]), clip=name == "wk-clip").numpy()

        assert np.abs(vector - rows[:3].mean(0)).max() < limit


@pytest.mark.parametrize("name", WK)
@pytest.mark.parametrize("values", [np.zeros((5, 6)), np.eye(6)[:5], np.eye(6)[[0, 1, 0, 1, 0]]])
def test_orthogonal_and_zero_layers_give_finite_vectors(values, name):
    assert wk(by_layer(values[None]), ids([1]), clip=name == "wk-clip").isfinite().all()


def test_tokens_of_an_excluded_prompt_are_not_read(make, tmp_path, load, sentences):
    """A model in bfloat16 gives float32 vectors that are close to the exact ones."""
    make("bert", num_hidden_layers=9).save_pretrained(tmp_path)
    encoder, texts = load(tmp_path).double(), sentences([3, 7, 4])
    readouts = [parse_readout("wk"), parse_readout("mean"), parse_readout(f"{ALL}:wk-clip")]
    with torch.no_grad():
        states = [torch.stack(list(encoder.states(pack([text]))), 1).numpy() for text in texts]
        vectors, _, others = apply_readouts(encoder, pack(texts, skip=2), readouts)
        (rough,) = apply_readouts(encoder.to(torch.bfloat16), pack(texts, skip=2), readouts[:1])

    expected = [reference("wk", each[2:, 4:]) for each in states]
    clipped = [reference("wk-clip", each[2:, :5]) for each in states]
    assert np.abs(vectors.numpy() - expected).max() < 1e-10
    assert np.abs(others.numpy() - clipped).max() < 1e-10
    assert rough.dtype == torch.float32
    assert torch.cosine_similarity(vectors.float(), rough).min() > 0.99
