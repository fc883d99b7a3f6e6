"""Unit vectors, cosines and squared distances."""

import pytest
import torch

from sentkit.papers.sg_bert.method import SquaredDistance, squared_distance
from sentkit.training.losses import cosines, unit
from training.losses.formulas import half_types


def test_cosines_of_right_and_equal_angles():
    """A row of length 2e-9 becomes one of 0.2, since a row is divided by no less than 1e-8."""
    torch.testing.assert_close(unit(torch.tensor([[2e-9, 0.0]])), torch.tensor([[0.2, 0.0]]))
    found = cosines(
        torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([[5.0, 0.0], [0.0, 1.0], [3.0, 4.0]])
    )

    torch.testing.assert_close(found, torch.tensor([[1.0, 0.0, 0.6], [0.0, 0.0, 0.0]]))


def test_squared_distance_is_the_sum_over_all_numbers():
    """The differences (.5, 0) and (2) have squares .25 + 0 + 4; no mean and no root of them."""
    tuned = [torch.tensor([1.5, 3.0], requires_grad=True), torch.tensor([[-1.0]], requires_grad=True)]
    start = [torch.tensor([1.0, 3.0], requires_grad=True), torch.tensor([[-3.0]], requires_grad=True)]

    found = squared_distance(zip(tuned, start, strict=True))
    found.backward()

    assert found.shape == ()
    assert found.item() == 4.25
    assert [each.grad.tolist() for each in tuned] == [[1.0, 0.0], [[4.0]]]  # twice the differences
    assert [each.grad for each in start] == [None, None]


def test_squared_distance_with_few_kernels_is_the_same():
    """It runs on a GPU only, and a CPU has its operations."""
    numbers = torch.Generator().manual_seed(0)
    tuned = [torch.randn(size, dtype=torch.float64, generator=numbers) for size in (3, 5)]
    start = [torch.randn(size, dtype=torch.float64, generator=numbers) for size in (3, 5)]
    tuned = [each.requires_grad_() for each in tuned]
    differences = torch.cat(tuned) - torch.cat(start)

    found = SquaredDistance.apply(2, *tuned, *start)

    assert found.item() == pytest.approx(sum(each**2 for each in differences.tolist()))
    assert torch.autograd.gradcheck(lambda *values: SquaredDistance.apply(2, *values, *start), tuned)


@half_types
def test_squared_distance_of_half_precision_is_float32(dtype):
    """Ten thousand squares of 256 are 655,360,000: float16 ends at 65,504."""
    tuned = torch.full((10_000,), 256.0, dtype=dtype)

    assert squared_distance([(tuned, torch.zeros_like(tuned))]).item() == 256.0**2 * 10_000
