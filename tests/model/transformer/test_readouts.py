"""Readouts equal plain loops and do not depend on the batch."""

import pytest
import torch

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.readout import parse_readout, parse_readouts
from sentkit.model.transformer.packed import pack
from sentkit.model.transformer.readouts import REDUCTIONS, apply_readouts

MIXED = [3, 1, 7, 7, 2]


class Layers:
    """An encoder with given states that records its calls."""

    has_pooler = False

    def __init__(self, layers):
        self.layers, self.depth, self.made, self.passes = layers, len(layers) - 1, 0, 0

    def states(self, packed, *, deepest=None, disturb=None, only=None):
        self.passes += 1
        for number, states in enumerate(self.layers[: deepest + 1]):
            self.made = number
            yield states[only] if only is not None and number == deepest else states

    def pooled(self, first):
        return torch.tanh(2 * first)


def rows(lengths):
    """Each sentence's rows, by counting."""
    start = 0
    for length in lengths:
        yield list(range(start, start + length))
        start += length


def reference(name, states, own, at=0):
    """One sentence's reduction as a loop over its tokens."""
    values = [states[row].double() for row in own]
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
    return values[at if name == "token" else 0]


@pytest.mark.parametrize("lengths", [MIXED, [4, 4, 4], [1]])
@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_reductions_equal_plain_loops(name, lengths, dtype):
    at = [length // 2 for length in lengths]
    packed = pack([[1] * length for length in lengths], at=at)
    states = (torch.randn(sum(lengths), 6, generator=torch.Generator().manual_seed(1)) - 2).to(dtype)

    found = REDUCTIONS[name](states, packed)
    expected = [reference(name, states, own, k) for own, k in zip(rows(lengths), at, strict=True)]

    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert (found - torch.stack(expected)).abs().max() < (1e-15 if dtype == torch.float64 else 1e-6)


def test_names_select_layers():
    """Constant layers 0, 1, 2, 6; mean-first-last uses layer 1, not the embeddings."""
    encoder = Layers([torch.full((3, 2), value) for value in (0.0, 1.0, 2.0, 6.0)])
    values = {"mean-last2": 4, "mean-first-last": 3.5, "mean-emb-last": 3, "mean": 6}
    values |= {"L2:max": 2, "L0:cls": 0}

    for name, expected in values.items():
        (found,) = apply_readouts(encoder, pack([[1, 1], [1]]), [parse_readout(name)])
        assert found.tolist() == [[expected] * 2] * 2, name


def test_all_readouts_come_from_one_pass():
    random = torch.Generator().manual_seed(2)
    layers = [torch.randn(sum(MIXED), 4, generator=random) for _ in range(4)]
    encoder = Layers(layers)
    readouts = parse_readouts("L*:mean,L*:max,cls,mean-last2", depth=3)

    found = apply_readouts(encoder, pack([[1] * length for length in MIXED]), readouts)

    assert encoder.passes == 1
    for readout, vectors in zip(readouts, found, strict=True):
        own = readout.resolved(3)
        for vector, lines in zip(vectors, rows(MIXED), strict=True):
            expected = sum(reference(readout.reduction, layers[k], lines) for k in own) / len(own)
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
    readouts, packed = [parse_readout(name) for name in names], pack([[1, 1], [1]])

    alone = [apply_readouts(encoder, packed, [each])[0] for each in readouts]
    beside = apply_readouts(encoder, packed, readouts)

    assert torch.allclose(alone[0], torch.tanh(torch.tensor([[0.6, 0.6], [0.6, 0.8]])))
    assert torch.equal(alone[1], alone[2])
    assert all(torch.equal(one, other) for one, other in zip(alone, beside, strict=True))


def test_a_missing_pooler_is_a_usage_error():
    for name in ("pooler", "pooler:cls", "pooler:mean"):
        with pytest.raises(UsageError, match=f'^readout "{name}": this checkpoint has no trained pooler$'):
            apply_readouts(Layers([torch.zeros(1, 2)] * 2), pack([[1]]), [parse_readout(name)])


@pytest.mark.parametrize("lengths", [MIXED, [8, 8, 8]])
@pytest.mark.parametrize("names", ["cls", "prompt", "cls,pooler", "mean", "max", "mean-last2", "cls,prompt"])
def test_readouts_of_a_real_encoder_equal_its_states(bert, sentences, names, lengths):
    """The last block may compute only the required rows."""
    packed = pack(sentences(lengths), at=[length - 1 for length in lengths])
    readouts = parse_readouts(names, bert.depth)
    with torch.no_grad():
        layers = list(bert.states(packed))
        found = apply_readouts(bert, packed, readouts)

        for readout, vectors in zip(readouts, found, strict=True):
            reduce = REDUCTIONS["cls" if readout.reduction == "pooler" else readout.reduction]
            own = readout.resolved(bert.depth)
            expected = sum(reduce(layers[k], packed) for k in own) / len(own)
            if readout.reduction == "pooler":
                expected = bert.pooled(expected)
            assert (vectors - expected).abs().max() < 1e-5


def test_float64_stays_float64_through_every_readout_and_bf16_becomes_float32(bert, sentences):
    packed = pack(sentences(MIXED), at=[0] * len(MIXED))
    readouts = parse_readouts("cls,mean,max,prompt,pooler,pooler:mean,mean-last2,L0:cls", bert.depth)
    with torch.no_grad():
        single = apply_readouts(bert, packed, readouts)
        double = apply_readouts(bert.double(), packed, readouts)
        alone = apply_readouts(bert, packed, readouts[:1])
        rough = apply_readouts(bert.to(torch.bfloat16), packed, readouts)

    assert {vectors.dtype for vectors in [*double, *alone]} == {torch.float64}
    assert max((a - b).abs().max() for a, b in zip(single, double, strict=True)) < 1e-5
    assert {vectors.dtype for vectors in rough} == {torch.float32}
    assert min(torch.cosine_similarity(a, b).min() for a, b in zip(single, rough, strict=True)) > 0.999
