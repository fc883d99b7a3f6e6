"""Products of integers against Python integers, and the conditions under which they are used."""

import pytest
import torch

from sentkit.model.transformer import products
from sentkit.model.transformer.products import (
    LARGEST_WEIGHTS,
    Int8Product,
    Integers,
    centered,
    largest_weight,
    products_are_exact,
)

needs_integers = pytest.mark.skipif(not largest_weight(), reason="this torch has no products of integers")
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
    inputs, product = Integers(values, 0.5, zero), Int8Product(WEIGHT, BIAS)
    residual = torch.tensor([[100.0, -7.0]]).expand(3, 2).contiguous()

    torch.testing.assert_close(product.to_float(inputs, torch.float32), expected)
    torch.testing.assert_close(product.to_float(inputs, torch.float32, residual), expected + residual)


@needs_integers
def test_integers_of_a_product_are_rounded_and_clipped_after_the_activation():
    values = torch.tensor([[0, 255, 3], [128, 128, 128], [255, 0, 255]], dtype=torch.uint8)
    exact = by_integers(values, 0.5, 128, WEIGHT, BIAS).relu()
    found = Int8Product(WEIGHT, BIAS, "relu").to_integers(Integers(values, 0.5, 128), 0.75, 20)

    expected = [[min(255, round(x / 0.75) + 20) for x in row] for row in exact.tolist()]
    assert (found.values.int() - torch.tensor(expected)).abs().max() <= 1  # ties and last bits
    assert found.values.max() == 255
    assert found.values.min() == 20  # relu gives 0


def test_inputs_are_multiplied_rounded_and_clipped():
    values = torch.tensor([[1.0, -1.0, 100.0], [0.26, -0.24, -100.0]])

    found = centered(values, torch.tensor([2.0, 10.0, 5.0]))

    assert found.values.tolist() == [[130, 118, 255], [129, 126, 1]]
    assert (found.scale, found.zero) == (1.0, 128)


@pytest.mark.parametrize("fault", ["absent", "wrong"])
def test_private_operations_that_are_absent_or_wrong_are_not_used(monkeypatch, fault):
    class Faulty(Int8Product):
        def run(self, inputs, scale, zero, dtype):
            if fault == "absent":
                raise AttributeError("qlinear_pointwise")
            return super().run(inputs, scale, zero, dtype) + 1

    monkeypatch.setattr(products, "Int8Product", Faulty)

    assert not any(map(products_are_exact, LARGEST_WEIGHTS))


def test_sums_that_do_not_fit_need_smaller_weights(monkeypatch):
    """As without VNNI: the sum of two products saturates at 16 bits."""

    class Saturating(Int8Product):
        def __init__(self, weight, bias, activation="none", largest=None):
            super().__init__(weight, bias, activation, largest)
            self.weight = (weight / self.scales[:, None]).round()

        def to_float(self, inputs, dtype, residual=None):
            pairs = inputs.values.float()[:, None] * self.weight  # (n, m, k)
            sums = pairs.unflatten(2, (-1, 2)).sum(3).clamp(-(2**15), 2**15 - 1).sum(2)
            result = (sums - inputs.zero * self.weight.sum(1)) * self.scales + self.bias
            if self.activation[0] == "relu":
                result = result.relu()
            return result if residual is None else result + residual

        def to_integers(self, inputs, scale, zero):
            values = (self.to_float(inputs, None) / scale).round() + zero
            return Integers(values.clamp(0, 255).to(torch.uint8), scale, zero)

    monkeypatch.setattr(products, "Int8Product", Saturating)

    assert [products_are_exact(largest) for largest in LARGEST_WEIGHTS] == [False, True]
