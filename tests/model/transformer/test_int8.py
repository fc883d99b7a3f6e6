"""Blocks with integers: near the states of `Block` for every family; factors do not change a product."""

import pytest
import torch

from sentkit.formats.checkpoints.readout import parse_readout
from sentkit.model.transformer.inference import Int8Block, Recorder, factors_of, unsigned_scale, use_integers
from sentkit.model.transformer.packed import pack
from sentkit.model.transformer.products import largest_weight
from sentkit.model.transformer.readouts import apply_readouts

needs_integers = pytest.mark.skipif(not largest_weight(), reason="this torch has no products of integers")
LENGTHS = [40, 33, 33, 20, 7, 7, 7, 2, 1]


@torch.no_grad()
def states(encoder, packed, **options):
    return list(encoder.states(packed, **options))


@pytest.fixture
def prepared(checkpoint, tmp_path, load, sentences):
    """The checkpoint with blocks of integers, from as many tokens of others as the texts of the package."""
    checkpoint.save_pretrained(tmp_path)
    bert = load(tmp_path)
    others = sorted(10 * LENGTHS, reverse=True)
    use_integers(bert, pack(sentences(others, checkpoint.config.vocab_size, seed=9)), "tiny")
    return bert


@needs_integers
def test_states_are_near_those_of_floating_point(prepared, checkpoint, sentences, oracle):
    batch = sentences(LENGTHS, checkpoint.config.vocab_size)

    found = states(prepared, pack(batch))[-1]

    exact = oracle(checkpoint, batch)[-1]
    assert all(isinstance(block, Int8Block) for block in prepared.blocks)
    assert found.dtype == torch.float32
    assert (found - exact).norm() < 0.1 * exact.norm()


@needs_integers
def test_readouts_of_one_row_have_the_numbers_of_all_rows(prepared, checkpoint, sentences):
    """`cls` and `last` compute one row per sentence in the last block."""
    batch = pack(sentences(LENGTHS, checkpoint.config.vocab_size))
    layers = states(prepared, batch)
    reduce = {"cls": lambda x: x[0], "last": lambda x: x[-1], "mean": lambda x: x.mean(0)}
    for readout in ("cls", "last", "mean", "L1:cls"):
        with torch.no_grad():
            (found,) = apply_readouts(prepared, batch, [parse_readout(readout)])

        layer = layers[1 if readout == "L1:cls" else -1].split(list(batch.lengths))
        expected = torch.stack([reduce[readout.rpartition(":")[2]](each) for each in layer])
        # A rounding of the last bit can move an input to the next integer.
        assert (found - expected).norm() < 0.01 * expected.norm()


@pytest.mark.parametrize("share", [0.0, 0.5, 0.8, 1.0])
def test_factors_do_not_change_a_product(share):
    random = torch.Generator().manual_seed(0)
    values = torch.randn(20, 6, generator=random, dtype=torch.float64)
    values *= torch.tensor([1.0, 50.0, 0.01, 3.0, 0.0, 1.0])  # one column is much larger, one is always 0
    weight = torch.randn(4, 6, generator=random, dtype=torch.float64)
    weight[:, 5] = 0
    largest = values.abs().amax(0)

    factors = factors_of(largest, weight, share)

    found = (values * factors) @ (weight / factors).T
    torch.testing.assert_close(found, values @ weight.T, rtol=1e-12, atol=1e-12)
    assert factors.isfinite().all()
    assert (factors > 0).all()
    assert (largest * factors).max().item() == pytest.approx(127)


def test_factors_make_the_ranges_of_inputs_or_of_weights_equal():
    largest, weight = torch.tensor([2.0, 8.0]), torch.tensor([[4.0, -1.0], [1.0, 0.5]])

    inputs, weights = (factors_of(largest, weight, share) for share in (1.0, 0.0))

    assert (largest * inputs).tolist() == pytest.approx([127, 127])
    assert (weight.abs().amax(0) / weights).unique().numel() == 1


def test_a_recorder_has_the_range_of_all_batches():
    recorder = Recorder(torch.eye(3), torch.zeros(3))
    recorder(torch.tensor([[1.0, -5.0, 0.5], [2.0, 1.0, 0.25]]), None)
    recorder(torch.tensor([[-3.0, 1.0, 0.75]]), None)

    assert recorder.least.tolist() == [-3, -5, 0]
    assert recorder.most.tolist() == [2, 1, 0.75]
    assert recorder.largest.tolist() == [3, 5, 0.75]


def test_unsigned_integers_contain_zero_and_more_than_the_range():
    scale, zero = unsigned_scale(torch.tensor([-0.2, 0.0]), torch.tensor([3.0, 5.0]))

    assert scale * (0 - zero) < -0.2
    assert scale * (255 - zero) > 5 * 1.3
    assert unsigned_scale(torch.zeros(2), torch.zeros(2)) == (1e-30, 0)
