"""Products of integers against Python integers, and the conditions under which they are used."""

import pytest
import torch

from sentkit.model.transformer import int8
from sentkit.model.transformer.int8 import (
    Int8Product,
    Integers,
    centered,
    instructions,
    int8_products_work,
)

needs_integers = pytest.mark.skipif(
    not int8_products_work(), reason="this CPU has no fast products of integers"
)
WEIGHT = torch.tensor([[1.0, -2.0, 0.5], [0.0, 0.25, -4.0]])
BIAS = torch.tensor([10.0, -1.0])


def by_integers(values, scale, zero, weight, bias):
    """Weights rounded to 127 levels per row, then sums of products of Python integers."""
    result = []
    for row in values.tolist():
        result.append([])
        for weights, added in zip(weight.tolist(), bias.tolist(), strict=True):
            unit = max(map(abs, weights)) / 127
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


@pytest.mark.parametrize(
    ("capabilities", "limit", "expected"),
    [
        (["avx512_vnni", "amx_int8"], "", ["avx512_vnni", "amx_int8"]),
        (["avx512_vnni", "amx_int8"], "AVX512_CORE_AMX", ["avx512_vnni", "amx_int8"]),
        (["avx512_vnni", "amx_int8"], "avx512_core_bf16", ["avx512_vnni"]),
        (["avx512_vnni", "amx_int8"], "AVX2", []),
        (["avx512_vnni"], "", ["avx512_vnni"]),
        (["avx_vnni", "avx2"], "", []),
        ([], "", []),
    ],
)
def test_instructions_of_the_cpu_and_limits_of_the_user(monkeypatch, capabilities, limit, expected):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(capabilities, True))
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)

    assert instructions() == expected
    assert expected or not int8_products_work()


def test_an_older_torch_reports_no_instructions(monkeypatch):
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)

    assert not int8_products_work()


@pytest.mark.parametrize("fault", ["absent", "wrong"])
def test_private_operations_that_are_absent_or_wrong_are_not_used(monkeypatch, fault):
    class Faulty(Int8Product):
        def run(self, inputs, scale, zero, dtype):
            if fault == "absent":
                raise AttributeError("qlinear_pointwise")
            return super().run(inputs, scale, zero, dtype) + 1

    monkeypatch.setattr(int8, "instructions", lambda: ["avx512_vnni"])
    monkeypatch.setattr(int8, "Int8Product", Faulty)

    assert not int8_products_work()
