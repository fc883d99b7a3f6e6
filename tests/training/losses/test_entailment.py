"""The contrast of entailment pairs with weighted negatives (PairSupCon)."""

from functools import partial

import pytest
import torch

from sentkit.training.losses import entailment_contrast
from training.losses.formulas import HALF, alphas_of, every_weighting, gradients, loop_entailment, pair_of


@every_weighting
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_batch_without_entailments_has_zero_loss(weighting, count):
    values = pair_of(count)
    none = torch.zeros(count, dtype=torch.bool)
    loss = partial(entailment_contrast, positive=none, temperature=0.05, weighting=weighting)

    found = loss(*values)

    assert found.shape == (0,)
    assert found.sum() == 0
    assert all((slope == 0).all() for slope in gradients(loss, values))


@pytest.mark.parametrize("weighting", ["code", "exponent"])
def test_a_detached_alpha_is_a_constant(weighting):
    """The value is the same; the gradient is the slope of the formula with alpha as it was."""
    left, right = pair_of(3)
    positive = [True, False, True]
    loss = partial(
        entailment_contrast, positive=torch.tensor(positive), temperature=HALF, weighting=weighting
    )
    alphas = {n: alphas_of(n, [*left, *right], HALF) for n in (0, 2, 3, 5)}

    def frozen(step):
        moved = left.clone()
        moved[1, 2] += step
        return sum(loop_entailment(moved, right, positive, HALF, weighting, alphas)).item()

    slope = gradients(partial(loss, detach=True), [left, right])[0][1, 2].item()

    assert torch.equal(loss(left, right), loss(left, right, detach=True))
    assert slope == pytest.approx((frozen(1e-5) - frozen(-1e-5)) / 2e-5, abs=1e-7)
    assert slope != pytest.approx(gradients(loss, [left, right])[0][1, 2].item(), abs=1e-3)


@every_weighting
def test_an_alpha_that_underflows_has_a_gradient(weighting):
    """One negative like the anchor and one opposed to it, e^200 apart: float32 holds no such ratio."""
    left = torch.tensor([[1.0, 0.0], [1.0, 0.1]])
    right = torch.tensor([[1.0, 0.2], [-1.0, 0.0]])
    loss = partial(
        entailment_contrast, positive=torch.tensor([True, False]), temperature=0.01, weighting=weighting
    )

    assert loss(left, right).isfinite().all()
    assert all(slope.isfinite().all() for slope in gradients(loss, [left, right]))
