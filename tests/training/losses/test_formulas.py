"""Every loss against its formula, and properties of all losses: gradients, precision, order and length."""

import math
from functools import partial

import pytest
import torch
from torch.autograd import gradcheck

from sentkit.training.losses import triplet_margin
from training.losses.formulas import (
    CONTRASTS,
    OTHERS,
    WIDTH,
    contrasts,
    drawn,
    every_loss,
    gradients,
    half_types,
    named,
)


@named("each", [*CONTRASTS, *contrasts(0.05), *OTHERS])
def test_every_loss_is_its_formula(each):
    for count in range(1, 7):
        values = drawn(each, count, seed=count)
        expected = each.loop(*values)

        stacked = torch.stack(expected) if isinstance(expected, list) else expected
        torch.testing.assert_close(each.loss(*values), stacked, rtol=0, atol=1e-10)


@every_loss
def test_every_gradient_equals_finite_differences(each):
    for count in (1, 2, 4):
        assert gradcheck(each.loss, [value.requires_grad_() for value in drawn(each, count, seed=count)])


@every_loss
def test_no_step_of_the_backward_pass_is_nan(each):
    """Masked intermediate results are finite too."""
    for count in (1, 2, 4):
        values = [value.requires_grad_() for value in drawn(each, count)]
        with torch.autograd.set_detect_anomaly(True):
            each.loss(*values).sum().backward()

        assert all(value.grad.isfinite().all() for value in values)


@every_loss
def test_autocast_changes_nothing(each):
    values = drawn(each, 4, dtype=torch.float32)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = each.loss(*values)

    assert torch.equal(inside, each.loss(*values))


@half_types
@pytest.mark.parametrize("heat", [0.05, 0.01])
@pytest.mark.parametrize("index", range(len(CONTRASTS)), ids=[each.name for each in CONTRASTS])
def test_half_precision_survives_when_all_cosines_are_one(dtype, heat, index):
    """Nothing overflows: the loss is the logarithm of how many there are to choose from."""
    count, each = 4, contrasts(heat)[index]
    values = [torch.ones(count, *shape, dtype=dtype) for shape in each.shapes]
    choices = {
        "in_batch_contrast": count,
        "triplet_contrast": 2 * count,
        "paired_contrast": 2 * count - 1,
        "guided_opt1": 2 * count - 1,
        "guided_opt2_released": count - 1,
        "guided_opt3": 1 + (count - 1) * each.shapes[-1][0],
        "entailment": 2 * count - 1,
    }[each.name.partition("-")[0]]
    extra = math.expm1(0.7) if each.name.endswith("-0.7") else 0.0  # own negative counts e^0.7 times

    found = each.loss(*values)

    torch.testing.assert_close(found, torch.full_like(found, math.log(choices + extra)), rtol=0, atol=1e-4)
    assert all(slope.isfinite().all() for slope in gradients(each.loss, values))


@every_loss
def test_no_loss_is_less_than_float32(each):
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        expected = torch.float64 if dtype is torch.float64 else torch.float32
        assert each.loss(*drawn(each, 3, dtype=dtype)).dtype is expected


@every_loss
def test_a_row_of_zeros_gives_finite_losses(each):
    values = drawn(each, 3)
    values[0][0] = values[1][0] = 0

    assert each.loss(*values).isfinite().all()
    assert all(slope.isfinite().all() for slope in gradients(each.loss, values))


def test_equal_points_have_a_finite_gradient():
    """All three at one place: the loss is the margin, and no direction is better than another."""
    here = torch.ones(2, WIDTH)

    assert triplet_margin(here, here, here, 5.0).tolist() == [5.0, 5.0]
    assert all((slope == 0).all() for slope in gradients(partial(triplet_margin, margin=5.0), [here] * 3))
