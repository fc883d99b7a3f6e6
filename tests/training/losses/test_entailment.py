"""The contrast of entailment pairs with weighted negatives (PairSupCon)."""

from functools import partial

import pytest
import torch

from sentkit.training.losses.losses import (
    entailment_contrast,
)
from training.losses.formulas import (
    HALF,
    IDENTITY,
    alphas_of,
    every_weighting,
    gradients,
    loop_entailment,
    pair_of,
)

MIRRORED = [[0.8, 0.6], [0.6, 0.8]]


def test_alpha_of_the_example_worked_by_hand():
    """The loops that the losses are held against weigh the negatives as the paper's example does."""
    found = [alphas_of(anchor, [*IDENTITY, *MIRRORED], HALF) for anchor in (0, 2)]

    assert found[0] == pytest.approx([0.462950, 1.537050], abs=1e-5)
    assert found[1] == pytest.approx([0.654786, 1.345214], abs=1e-5)


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


@every_weighting
def test_a_single_pair_has_a_loss_of_zero(weighting):
    values = pair_of(1)
    loss = partial(entailment_contrast, positive=torch.tensor([True]), temperature=0.05, weighting=weighting)

    assert loss(*values).tolist() == [0.0, 0.0]
    assert all((slope == 0).all() for slope in gradients(loss, values))


@pytest.mark.parametrize("weighting", ["code", "exponent"])
def test_a_detached_alpha_is_a_constant(weighting):
    """The value is the same; the gradient is the slope of the formula with alpha as it was."""
    left, right = pair_of(3)
    positive = [True, False, True]
    loss = partial(
        entailment_contrast, positive=torch.tensor(positive), temperature=HALF, weighting=weighting
    )
    alphas = {n: alphas_of(n, [*left.tolist(), *right.tolist()], HALF) for n in (0, 2, 3, 5)}

    def frozen(step):
        moved = left.clone()
        moved[1, 2] += step
        return sum(loop_entailment(moved.tolist(), right.tolist(), positive, HALF, weighting, alphas))

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


@pytest.mark.parametrize(
    ("weighting", "anchors", "mean"),
    [
        ("none", [0.627123, 1.114304], 0.870714),
        ("code", [0.753199, 1.191328], 0.972263),
        ("exponent", [0.907786, 1.414621], 1.161203),
    ],
)
def test_entailment_of_the_example_worked_by_hand(weighting, anchors, mean):
    """Only the two sides of the entailment are anchors, and the contradiction's are negatives."""
    found = entailment_contrast(
        torch.tensor(IDENTITY),
        torch.tensor(MIRRORED),
        torch.tensor([True, False]),
        HALF,
        weighting=weighting,
    )

    assert found.tolist() == pytest.approx(anchors, abs=1e-5)
    assert found.mean().item() == pytest.approx(mean, abs=1e-5)
