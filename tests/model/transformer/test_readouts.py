"""Readouts equal plain loops and do not depend on the batch; WK pooling, for both windows."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.readout import WK_REDUCTIONS, parse_readout, parse_readouts
from sentkit.model.transformer.packed import pack
from sentkit.model.transformer.readouts import REDUCTIONS, apply_readouts, wk

MIXED = [3, 1, 7, 7, 2]


class Layers:
    """An encoder with given states that records its calls."""

    has_pooler = False

    def __init__(self, layers):
        self.layers = layers
        self.depth = len(layers) - 1
        self.made = 0
        self.passes = 0

    def states(self, packed, *, deepest=None, disturb=None, rows_of_last=None):
        self.passes += 1
        for number, states in enumerate(self.layers[: deepest + 1]):
            self.made = number
            yield states[rows_of_last] if rows_of_last is not None and number == deepest else states

    def pooled(self, first):
        return torch.tanh(2 * first)


def rows(lengths):
    """Each sentence's rows, by counting."""
    start = 0
    for length in lengths:
        yield list(range(start, start + length))
        start += length


def reference(name, states, token_rows, token_index=0):
    """One sentence's reduction as a loop over its tokens."""
    values = [states[row].double() for row in token_rows]
    if name in ("mean", "conv"):
        return sum(values) / len(values)
    if name == "mean-sqrt":
        return sum(values) / len(values) ** 0.5
    if name == "weighted-mean":
        return sum(k * value for k, value in enumerate(values, 1)) / sum(range(len(values) + 1))
    if name == "last":
        return values[-1]
    if name == "max":
        return torch.stack([max(column) for column in zip(*values, strict=True)])
    return values[token_index if name == "token" else 0]


@pytest.mark.parametrize("lengths", [MIXED, [4, 4, 4], [1]])
@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_reductions_equal_plain_loops(name, lengths, dtype):
    token_indices = [length // 2 for length in lengths]
    packed = pack([[1] * length for length in lengths], readout_token_indices=token_indices)
    generator = torch.Generator().manual_seed(1)
    states = (torch.randn(sum(lengths), 6, generator=generator) - 2).to(dtype)

    reduced = REDUCTIONS[name](states, packed)
    expected = [
        reference(name, states, token_rows, index)
        for token_rows, index in zip(rows(lengths), token_indices, strict=True)
    ]

    assert reduced.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    tolerance = 1e-15 if dtype == torch.float64 else 1e-6
    assert (reduced - torch.stack(expected)).abs().max() < tolerance


@pytest.mark.parametrize(
    ("name", "expected"),
    {
        "mean-last2": 4,
        "mean-first-last": 3.5,
        "mean-emb-last": 3,
        "mean": 6,
        "L2:max": 2,
        "L0:cls": 0,
    }.items(),
)
def test_j8_names_select_layers(name, expected):
    """Constant layers 0, 1, 2, 6; mean-first-last uses layer 1, not the embeddings."""
    encoder = Layers([torch.full((3, 2), value) for value in (0.0, 1.0, 2.0, 6.0)])

    (vectors,) = apply_readouts(encoder, pack([[1, 1], [1]]), [parse_readout(name)])

    assert vectors.tolist() == [[expected] * 2] * 2


def test_all_readouts_come_from_one_pass():
    random = torch.Generator().manual_seed(2)
    layers = [torch.randn(sum(MIXED), 4, generator=random) for _ in range(4)]
    encoder = Layers(layers)
    readouts = parse_readouts("L*:mean,L*:max,cls,mean-last2", depth=3)

    arrays = apply_readouts(encoder, pack([[1] * length for length in MIXED]), readouts)

    assert encoder.passes == 1
    for readout, vectors in zip(readouts, arrays, strict=True):
        layer_numbers = readout.layers_in(3)
        for vector, token_rows in zip(vectors, rows(MIXED), strict=True):
            expected = sum(
                reference(readout.reduction, layers[k], token_rows) for k in layer_numbers
            ) / len(layer_numbers)
            assert (vector - expected).abs().max() < 1e-6


def test_the_pass_stops_at_the_deepest_required_layer():
    encoder = Layers([torch.zeros(3, 2)] * 5)

    apply_readouts(encoder, pack([[1, 1, 1]]), [parse_readout("L1:cls"), parse_readout("L2:mean")])

    assert encoder.made == 2


def test_the_pooler_can_read_the_mean():
    """The result does not depend on other readouts of the pass."""
    encoder = Layers([torch.zeros(3, 2), torch.tensor([[0.1, 0.2], [0.5, 0.4], [0.3, 0.4]])])
    encoder.has_pooler = True
    names = ("pooler:mean", "pooler", "pooler:cls", "mean", "cls")
    readouts = [parse_readout(name) for name in names]
    packed = pack([[1, 1], [1]])

    alone = [apply_readouts(encoder, packed, [readout])[0] for readout in readouts]
    beside = apply_readouts(encoder, packed, readouts)

    assert torch.allclose(alone[0], torch.tanh(torch.tensor([[0.6, 0.6], [0.6, 0.8]])))
    assert torch.equal(alone[1], alone[2])
    assert all(
        torch.equal(vectors_alone, vectors_beside)
        for vectors_alone, vectors_beside in zip(alone, beside, strict=True)
    )


def test_a_missing_pooler_is_a_usage_error():
    for name in ("pooler", "pooler:cls", "pooler:mean"):
        with pytest.raises(
            UsageError, match=f'^readout "{name}": this checkpoint has no trained pooler$'
        ):
            apply_readouts(Layers([torch.zeros(1, 2)] * 2), pack([[1]]), [parse_readout(name)])


@pytest.mark.parametrize("lengths", [MIXED, [8, 8, 8]])
@pytest.mark.parametrize(
    "names", ["cls", "prompt", "cls,pooler", "mean", "max", "mean-last2", "cls,prompt"]
)
def test_readouts_of_a_real_encoder_equal_its_states(bert, sentences, names, lengths):
    """The last block may compute only the required rows."""
    packed = pack(sentences(lengths), readout_token_indices=[length - 1 for length in lengths])
    readouts = parse_readouts(names, bert.depth)
    with torch.no_grad():
        layers = list(bert.states(packed))
        arrays = apply_readouts(bert, packed, readouts)

        for readout, vectors in zip(readouts, arrays, strict=True):
            reduce = REDUCTIONS["cls" if readout.reduction == "pooler" else readout.reduction]
            layer_numbers = readout.layers_in(bert.depth)
            expected = sum(reduce(layers[k], packed) for k in layer_numbers) / len(layer_numbers)
            if readout.reduction == "pooler":
                expected = bert.pooled(expected)
            assert (vectors - expected).abs().max() < 1e-5


def test_float64_stays_float64_through_every_readout_and_bf16_becomes_float32(bert, sentences):
    packed = pack(sentences(MIXED), readout_token_indices=[0] * len(MIXED))
    readouts = parse_readouts(
        "cls,mean,max,prompt,pooler,pooler:mean,mean-last2,L0:cls", bert.depth
    )
    with torch.no_grad():
        single = apply_readouts(bert, packed, readouts)
        double = apply_readouts(bert.double(), packed, readouts)
        alone = apply_readouts(bert, packed, readouts[:1])
        rough = apply_readouts(bert.to(torch.bfloat16), packed, readouts)

    assert {vectors.dtype for vectors in [*double, *alone]} == {torch.float64}
    assert max((a - b).abs().max() for a, b in zip(single, double, strict=True)) < 1e-5
    assert {vectors.dtype for vectors in rough} == {torch.float32}
    assert (
        min(torch.cosine_similarity(a, b).min() for a, b in zip(single, rough, strict=True)) > 0.999
    )


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
    alignment = []
    novelty = []
    for k, state in enumerate(token):
        near = token[neighbours(name, k, len(token))]
        orthogonal, _ = np.linalg.qr(near.T)
        projection = orthogonal @ (orthogonal.T @ state)
        size = np.linalg.norm(projection)
        beta = np.mean(
            [near_state @ state / (np.linalg.norm(near_state) * size) for near_state in near]
        )
        alignment.append(1 / (2 * (len(near) + 1) * beta))
        novelty.append(np.linalg.norm(state - projection) / np.linalg.norm(state))
    return (np.array(alignment) / sum(alignment) + np.array(novelty) / sum(novelty)) / 2


def variance(token):
    return np.var([a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in pairwise(token)])


def wk_reference(name, tokens):
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
@pytest.mark.parametrize("name", WK_REDUCTIONS)
def test_sentences_of_1_to_20_tokens_equal_plain_loops(name, dtype, limit, layers):
    states = random_states(LENGTHS, layers)

    vectors = wk(by_layer(states, dtype), ids(LENGTHS), clip=name == "wk-clip")
    sentences = np.split(states, np.cumsum(LENGTHS)[:-1])

    assert vectors.dtype == dtype
    assert (
        np.abs(vectors.numpy() - [wk_reference(name, tokens) for tokens in sentences]).max() < limit
    )


def test_a_token_with_equal_cosines_and_the_last_token_have_no_weight():
    turned = np.eye(6)[:5] * 3  # all cosines are 0, so their variance is 0
    last = np.full((5, 6), 9.0)

    vectors = wk(by_layer(np.stack([turned, STAIRS, last])), ids([3]), clip=False)
    alone = wk(by_layer(STAIRS[None]), ids([1]), clip=False)

    assert (vectors - alone).abs().max() < 1e-12


@pytest.mark.parametrize("name", WK_REDUCTIONS)
def test_equal_layers_give_the_mean_of_the_tokens(name):
    """No layer is new and no cosine varies, so all shares are equal. The last token is not read."""
    rows = np.random.default_rng(1).standard_normal((4, 8))
    for dtype, limit in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        layers = by_layer(np.repeat(rows[:, None], 5, axis=1), dtype)
        (vector,) = wk(layers, ids([4]), clip=name == "wk-clip").numpy()

        assert np.abs(vector - rows[:3].mean(0)).max() < limit


@pytest.mark.parametrize("name", WK_REDUCTIONS)
@pytest.mark.parametrize("values", [np.zeros((5, 6)), np.eye(6)[:5], np.eye(6)[[0, 1, 0, 1, 0]]])
def test_orthogonal_and_zero_layers_give_finite_vectors(values, name):
    assert wk(by_layer(values[None]), ids([1]), clip=name == "wk-clip").isfinite().all()


def test_tokens_of_an_excluded_prompt_are_not_read(make, tmp_path, load, sentences):
    """A model in bfloat16 gives float32 vectors that are close to the exact ones."""
    make("bert", num_hidden_layers=9).save_pretrained(tmp_path)
    encoder = load(tmp_path).double()
    texts = sentences([3, 7, 4])
    readouts = [parse_readout("wk"), parse_readout("mean"), parse_readout(f"{ALL}:wk-clip")]
    with torch.no_grad():
        layers_of_texts = [list(encoder.states(pack([text]))) for text in texts]
        states = [torch.stack(layers, 1).numpy() for layers in layers_of_texts]
        vectors, _, clipped_vectors = apply_readouts(
            encoder, pack(texts, prompt_length=2), readouts
        )
        (rough,) = apply_readouts(
            encoder.to(torch.bfloat16), pack(texts, prompt_length=2), readouts[:1]
        )

    expected = [wk_reference("wk", states_of_text[2:, 4:]) for states_of_text in states]
    clipped = [wk_reference("wk-clip", states_of_text[2:, :5]) for states_of_text in states]
    assert np.abs(vectors.numpy() - expected).max() < 1e-10
    assert np.abs(clipped_vectors.numpy() - clipped).max() < 1e-10
    assert rough.dtype == torch.float32
    assert torch.cosine_similarity(vectors.float(), rough).min() > 0.99
