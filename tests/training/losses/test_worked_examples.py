"""Losses of small examples, worked by hand."""

import math
from functools import partial

import pytest
import torch

from sentkit.papers.sg_bert.losses import guided_opt1, guided_opt2_released, guided_opt3
from sentkit.training.losses.losses import (
    complex_agreement,
    contrastive_tension,
    cosine_regression,
    in_batch_contrast,
    paired_contrast,
    ranked_pairs,
    soft_negatives,
    triplet_contrast,
    triplet_margin,
)
from training.losses.formulas import HALF, IDENTITY, WIDTH, gradients

VIEWS = [[0.8, 0.6], [0.28, 0.96]]
MIRRORED = [[0.8, 0.6], [0.6, 0.8]]
OPPOSING = [[0.6, -0.8], [-1.0, 0.0]]
THREE = [[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]
THREE_VIEWS = [[0.8, 0.6], [0.6, -0.8], [0.0, 1.0]]
LAYER_VIEWS = [[[0.8, 0.6], [1.0, 0.0]], [[0.28, 0.96], [0.0, 1.0]]]


@pytest.mark.parametrize(
    ("loss", "inputs", "heat", "anchors", "mean"),
    [
        (paired_contrast, (IDENTITY, VIEWS), HALF, [0.441701, 0.490639, 0.982198, 0.684515], 0.649763),
        (guided_opt1, (IDENTITY, VIEWS), HALF, [0.441701, 0.490639], 0.466170),
        (in_batch_contrast, (IDENTITY, VIEWS), HALF, [0.302660, 0.396594], 0.349627),
        (in_batch_contrast, (VIEWS, IDENTITY), HALF, None, 0.370737),
        (in_batch_contrast, (THREE, THREE_VIEWS), HALF, [0.627123, 3.989778, 0.913267], 1.843389),
        (guided_opt2_released, (IDENTITY, VIEWS), HALF, [0.0, 0.0], 0.0),
        (guided_opt2_released, (THREE, THREE_VIEWS), HALF, None, 1.306668),
        (guided_opt3, (IDENTITY, LAYER_VIEWS), HALF, [[0.441701, 0.316461], [0.490639, 0.460373]], 0.427293),
        (guided_opt3, (IDENTITY, [[v[0]] for v in LAYER_VIEWS]), HALF, [[0.302660], [0.396594]], 0.349627),
        (paired_contrast, (IDENTITY, MIRRORED), 0.1, [0.127223, 0.127223, 1.806380, 1.806380], 0.966802),
        (paired_contrast, (MIRRORED, IDENTITY), 0.1, [1.806380, 1.806380, 0.127223, 0.127223], 0.966802),
        (in_batch_contrast, (IDENTITY, MIRRORED), HALF, [0.513015, 0.513015], 0.513015),
        (triplet_contrast, (IDENTITY, MIRRORED, OPPOSING), HALF, None, 0.755346),
        (
            partial(triplet_contrast, negative_weight=math.log(2)),
            (IDENTITY, MIRRORED, OPPOSING),
            HALF,
            None,
            0.930144,
        ),
    ],
)
def test_losses_of_examples_worked_by_hand(loss, inputs, heat, anchors, mean):
    found = loss(*map(torch.tensor, inputs), temperature=heat)

    assert found.mean().item() == pytest.approx(mean, abs=1e-5)
    if anchors is not None:
        torch.testing.assert_close(found, torch.tensor(anchors), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("similarities", "scores", "expected"),
    [
        ([0.9, 0.2, 0.5], [1, 0, 0.5], 0.002811),
        ([0.2, 0.9, 0.5], [1, 0, 0.5], 14.002811),
        ([0.9, 0.2, 0.5], [2, 2, 2], 0.0),
    ],
)
def test_ranked_pairs_of_three(similarities, scores, expected):
    found = ranked_pairs(torch.tensor(similarities), torch.tensor(scores), 0.05)

    assert found.item() == pytest.approx(expected, abs=1e-5)


def test_tension_of_three_products():
    """The negative of 2 costs log(1 + e^2); -log sigmoid(1 - z), as on some slides, would be 1.313262."""
    products = torch.tensor([[-2.0, -2.0], [0.0, 0.0], [2.0, 2.0]])
    expected = [[2.126928, 0.126928], [0.693147, 0.693147], [0.126928, 2.126928]]

    torch.testing.assert_close(contrastive_tension(products), torch.tensor(expected), rtol=0, atol=1e-6)


def test_soft_negatives_of_six_differences():
    found = soft_negatives(torch.tensor([0.0, -0.05, -0.1, -0.2, -0.3, -0.5]), 0.1, 0.3)

    assert found.tolist() == pytest.approx([0.1, 0.05, 0, 0, 0, 0.2], abs=1e-6)


def test_complex_agreement_of_two_vectors():
    """(1 + 3i, 2 + 4i) and (2 + i, 0 + i); equal vectors agree fully."""
    rows = torch.tensor([[1.0, 2.0, 3.0, 4.0], [2.0, 0.0, 1.0, 1.0]])

    assert complex_agreement(rows[:1], rows[1:]).item() == pytest.approx(0.894427, abs=1e-6)
    assert complex_agreement(rows, rows).tolist() == pytest.approx([1.0, 1.0])


def test_the_released_code_of_consert_sums_two_means():
    """Of the left anchors and of the right ones, which is twice the mean of all."""
    found = paired_contrast(torch.tensor(IDENTITY), torch.tensor(MIRRORED), 0.1)

    assert (found[:2].mean() + found[2:].mean()).item() == pytest.approx(1.933603, abs=1e-5)


def test_equal_points_have_a_finite_gradient():
    """All three at one place: the loss is the margin, and no direction is better than another."""
    here = torch.ones(2, WIDTH)

    assert triplet_margin(here, here, here, 5.0).tolist() == [5.0, 5.0]
    assert all((slope == 0).all() for slope in gradients(partial(triplet_margin, margin=5.0), [here] * 3))


def test_regression_of_opposite_vectors():
    """Their cosine is -1, which is 1.5 away from 0.5."""
    found = cosine_regression(torch.tensor([[2.0, 0.0]]), torch.tensor([[-3.0, 0.0]]), torch.tensor([0.5]))

    assert found.tolist() == [2.25]


def test_triplet_margin_of_two_right_triangles():
    """5 - 13 + 1 is nothing, and 13 - 5 + 1 is 9."""
    near, far = [3.0, 4.0], [5.0, 12.0]
    found = triplet_margin(torch.zeros(2, 2), torch.tensor([near, far]), torch.tensor([far, near]), 1.0)

    assert found.tolist() == [0.0, 9.0]
