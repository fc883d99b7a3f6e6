"""Products of integers against Python integers, and blocks that use them."""

import pytest
import torch

from sentkit.formats.checkpoints.readout import parse_readout
from sentkit.model.transformer.kernels import matmul
from sentkit.model.transformer.kernels.inference import (
    Int8Block,
    Recorder,
    factors_of,
    unsigned_scale,
    use_integers,
)
from sentkit.model.transformer.kernels.matmul import (
    LARGEST_WEIGHTS,
    Int8Matmul,
    Integers,
    int8_is_exact,
    largest_weight,
)
from sentkit.model.transformer.packed import pack
from sentkit.model.transformer.readouts import apply_readouts

needs_integers = pytest.mark.skipif(
    not largest_weight(), reason="this torch has no products of integers"
)
WEIGHT = torch.tensor([[1.1, -2.0, 0.5], [0.0, 0.25, -4.0]])
BIAS = torch.tensor([10.0, -1.0])


def by_integers(values, scale, zero, weight, bias):
    """Weights rounded to the levels of a row, then sums of products of Python integers."""
    result = []
    for row in values.tolist():
        result.append([])
        for weights, added in zip(weight.tolist(), bias.tolist(), strict=True):
            unit = max(map(abs, weights)) / largest_weight()
            total = sum((u - zero) * round(w / unit) for u, w in zip(row, weights, strict=True))
            result[-1].append(total * unit * scale + added)
    return torch.tensor(result)


@needs_integers
@pytest.mark.parametrize("zero", [0, 11, 128])
def test_a_product_is_that_of_integers(zero):
    values = torch.tensor([[0, 255, 3], [128, 128, 128], [255, 0, 255]], dtype=torch.uint8)
    expected = by_integers(values, 0.5, zero, WEIGHT, BIAS)
    inputs = Integers(values, 0.5, zero)
    product = Int8Matmul(WEIGHT, BIAS)
    residual = torch.tensor([[100.0, -7.0]]).expand(3, 2).contiguous()

    torch.testing.assert_close(product.to_float(inputs, torch.float32), expected)
    torch.testing.assert_close(
        product.to_float(inputs, torch.float32, residual), expected + residual
    )


@needs_integers
def test_integers_of_a_product_are_rounded_and_clipped_after_the_activation():
    values = torch.tensor([[0, 255, 3], [128, 128, 128], [255, 0, 255]], dtype=torch.uint8)
    exact = by_integers(values, 0.5, 128, WEIGHT, BIAS).relu()
    integers = Int8Matmul(WEIGHT, BIAS, "relu").to_integers(Integers(values, 0.5, 128), 0.75, 20)

    expected = [[min(255, round(x / 0.75) + 20) for x in row] for row in exact.tolist()]
    assert (integers.values.int() - torch.tensor(expected)).abs().max() <= 1  # ties and last bits
    assert integers.values.max() == 255
    assert integers.values.min() == 20  # relu gives 0


@pytest.mark.parametrize("fault", ["absent", "wrong"])
def test_private_operations_that_are_absent_or_wrong_are_not_used(monkeypatch, fault):
    class Faulty(Int8Matmul):
        def run(self, inputs, scale, zero, dtype):
            if fault == "absent":
                raise AttributeError("qlinear_pointwise")
            return super().run(inputs, scale, zero, dtype) + 1

    monkeypatch.setattr(matmul, "Int8Matmul", Faulty)

    assert not any(map(int8_is_exact, LARGEST_WEIGHTS))


def test_sums_that_do_not_fit_need_smaller_weights(monkeypatch):
    """As without VNNI: the sum of two products saturates at 16 bits."""

    class Saturating(Int8Matmul):
        def __init__(self, weight, bias, activation="none", largest=None):
            super().__init__(weight, bias, activation, largest)
            self.weight = (weight / self.scales[:, None]).round()

        def to_float(self, inputs, dtype, residual=None):
            pairs = inputs.values.float()[:, None] * self.weight  # (n, m, k)
            sums = pairs.unflatten(2, (-1, 2)).sum(3).clamp(-(2**15), 2**15 - 1).sum(2)
            result = (sums - inputs.zero * self.weight.sum(1)) * self.scales + self.bias
            if self.activation == "relu":
                result = result.relu()
            return result if residual is None else result + residual

        def to_integers(self, inputs, scale, zero):
            values = (self.to_float(inputs, None) / scale).round() + zero
            return Integers(values.clamp(0, 255).to(torch.uint8), scale, zero)

    monkeypatch.setattr(matmul, "Int8Matmul", Saturating)

    assert [int8_is_exact(largest) for largest in LARGEST_WEIGHTS] == [False, True]


LENGTHS = [40, 33, 33, 20, 7, 7, 7, 2, 1]


@pytest.fixture
def prepared(checkpoint, tmp_path, load, sentences):
    """The checkpoint with blocks of integers, from as many tokens of others as the texts of the
    package.
    """
    checkpoint.save_pretrained(tmp_path)
    bert = load(tmp_path)
    other_lengths = sorted(10 * LENGTHS, reverse=True)
    use_integers(bert, pack(sentences(other_lengths, checkpoint.config.vocab_size, seed=9)), "tiny")
    return bert


def test_the_ranges_of_inputs_are_those_of_all_tokens_and_of_zero():
    """The inner layers compute the tokens of a batch in several calls."""
    recorder = Recorder(WEIGHT, BIAS)
    recorder(torch.tensor([[1.0, -2.0, 3.0], [0.5, -5.0, 4.0]]), None)
    recorder(torch.tensor([[2.0, -3.0, -1.0]]), None)

    assert recorder.minima.tolist() == [0.0, -5.0, -1.0]
    assert recorder.maxima.tolist() == [2.0, 0.0, 4.0]
    assert recorder.largest.tolist() == [2.0, 5.0, 4.0]


@needs_integers
def test_states_are_near_those_of_floating_point(prepared, checkpoint, sentences, oracle, states):
    batch = sentences(LENGTHS, checkpoint.config.vocab_size)

    last_states = states(prepared, pack(batch))[-1]

    exact = oracle(checkpoint, batch)[-1]
    assert all(isinstance(block, Int8Block) for block in prepared.blocks)
    assert last_states.dtype == torch.float32
    assert (last_states - exact).norm() < 0.1 * exact.norm()


@needs_integers
def test_readouts_of_one_row_have_the_numbers_of_all_rows(prepared, checkpoint, sentences, states):
    """`cls` and `last` compute one row per sentence in the last block."""
    batch = pack(sentences(LENGTHS, checkpoint.config.vocab_size))
    layers = states(prepared, batch)
    reduce = {"cls": lambda x: x[0], "last": lambda x: x[-1], "mean": lambda x: x.mean(0)}
    for readout in ("cls", "last", "mean", "L1:cls"):
        with torch.no_grad():
            (vectors,) = apply_readouts(prepared, batch, [parse_readout(readout)])

        layer = layers[1 if readout == "L1:cls" else -1].split(list(batch.lengths))
        expected = torch.stack(
            [reduce[readout.rpartition(":")[2]](states_of_text) for states_of_text in layer]
        )
        # A rounding of the last bit can move an input to the next integer.
        assert (vectors - expected).norm() < 0.01 * expected.norm()


@pytest.mark.parametrize("share", [0.0, 0.5, 0.8, 1.0])
def test_factors_do_not_change_a_product(share):
    random = torch.Generator().manual_seed(0)
    values = torch.randn(20, 6, generator=random, dtype=torch.float64)
    # One column is much larger, one is always 0.
    values *= torch.tensor([1.0, 50.0, 0.01, 3.0, 0.0, 1.0])
    weight = torch.randn(4, 6, generator=random, dtype=torch.float64)
    weight[:, 5] = 0
    largest = values.abs().amax(0)

    factors = factors_of(largest, weight, share)

    torch.testing.assert_close(
        (values * factors) @ (weight / factors).T, values @ weight.T, rtol=1e-12, atol=1e-12
    )
    assert factors.isfinite().all()
    assert (factors > 0).all()
    assert (largest * factors).max().item() == pytest.approx(127)


def test_factors_make_the_ranges_of_inputs_or_of_weights_equal():
    largest = torch.tensor([2.0, 8.0])
    weight = torch.tensor([[4.0, -1.0], [1.0, 0.5]])

    inputs, weights = (factors_of(largest, weight, share) for share in (1.0, 0.0))

    assert (largest * inputs).tolist() == pytest.approx([127, 127])
    assert (weight.abs().amax(0) / weights).unique().numel() == 1


def test_unsigned_integers_contain_zero_and_more_than_the_range():
    scale, zero = unsigned_scale(torch.tensor([-0.2, 0.0]), torch.tensor([3.0, 5.0]))

    assert scale * (0 - zero) < -0.2
    assert scale * (255 - zero) > 5 * 1.3
    assert unsigned_scale(torch.zeros(2), torch.zeros(2)) == (1e-30, 0)
