"""Every loss against its formula, and properties of all losses: gradients, precision, order and
length.
"""

from functools import partial

import pytest
import torch
from scipy.stats import spearmanr
from torch.autograd import gradcheck

from sentkit.papers.sg_bert.method import SquaredDistance, squared_distance
from sentkit.training.losses import cosines, entailment_contrast, triplet_margin, unit
from sentkit.training.methods.is_bert import local_information
from sentkit.training.methods.rank_encoder import rank_regression, rank_vectors
from training.losses.formulas import (
    CONTRASTS,
    HALF,
    OTHERS,
    WIDTH,
    alphas_of,
    contrasts,
    double,
    drawn,
    every_loss,
    every_weighting,
    gradients,
    half_types,
    loop_entailment,
    loop_information,
    named,
    pair_of,
)


@named("loss_case", [*CONTRASTS, *contrasts(0.05), *OTHERS])
def test_every_loss_is_its_formula(loss_case):
    for count in range(1, 7):
        values = drawn(loss_case, count, seed=count)
        expected = loss_case.loop(*values)

        stacked = torch.stack(expected) if isinstance(expected, list) else expected
        torch.testing.assert_close(loss_case.loss(*values), stacked, rtol=0, atol=1e-10)


@every_loss
def test_every_gradient_equals_finite_differences(loss_case):
    for count in (1, 2, 4):
        assert gradcheck(
            loss_case.loss,
            [value.requires_grad_() for value in drawn(loss_case, count, seed=count)],
        )


@every_loss
def test_no_step_of_the_backward_pass_is_nan(loss_case):
    """Masked intermediate results are finite too."""
    for count in (1, 2, 4):
        values = [value.requires_grad_() for value in drawn(loss_case, count)]
        with torch.autograd.set_detect_anomaly(True):
            loss_case.loss(*values).sum().backward()

        assert all(value.grad.isfinite().all() for value in values)


@every_loss
def test_autocast_changes_nothing(loss_case):
    values = drawn(loss_case, 4, dtype=torch.float32)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = loss_case.loss(*values)

    assert torch.equal(inside, loss_case.loss(*values))


@half_types
@named("loss_case", [*contrasts(0.05), *contrasts(0.01)])
def test_half_precision_survives_when_all_cosines_are_one(loss_case, dtype):
    """Nothing overflows: the loss is that of the formula in float64, the logarithm of a number of
    choices.
    """
    values = [torch.ones(4, *shape, dtype=dtype) for shape in loss_case.shapes]
    exact_values = [value.double() for value in values]
    expected = torch.stack(loss_case.loop(*exact_values)).float()

    torch.testing.assert_close(loss_case.loss(*values), expected, rtol=0, atol=1e-4)
    assert all(slope.isfinite().all() for slope in gradients(loss_case.loss, values))


@every_loss
def test_no_loss_is_less_than_float32(loss_case):
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        expected = torch.float64 if dtype is torch.float64 else torch.float32
        assert loss_case.loss(*drawn(loss_case, 3, dtype=dtype)).dtype is expected


@every_loss
def test_a_row_of_zeros_gives_finite_losses(loss_case):
    values = drawn(loss_case, 3)
    values[0][0] = values[1][0] = 0

    assert loss_case.loss(*values).isfinite().all()
    assert all(slope.isfinite().all() for slope in gradients(loss_case.loss, values))


def test_equal_points_have_a_finite_gradient():
    """All three at one place: the loss is the margin, and no direction is better than another."""
    points = torch.ones(2, WIDTH)

    assert triplet_margin(points, points, points, 5.0).tolist() == [5.0, 5.0]
    assert all(
        (slope == 0).all() for slope in gradients(partial(triplet_margin, margin=5.0), [points] * 3)
    )


def test_rank_similarities_are_those_of_scipy():
    """With ties, and with a row of equal numbers, which has no ranking."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(0, 5, (6, 9), generator=generator).double()
    expected = spearmanr(values.numpy(), axis=1).statistic
    ranks = rank_vectors(torch.cat([values, torch.ones(1, 9, dtype=torch.float64)]))
    products = ranks @ ranks.T

    torch.testing.assert_close(products[:6, :6], double(expected.tolist()), rtol=0, atol=1e-12)
    assert products[6].abs().max() == 0


def test_pairs_out_of_the_range_have_no_error():
    ranks = double([[1.0, 0.5], [0.4, 0.9999]])
    similarities = double([[0.2, 0.7], [0.2, 0.9]])
    values = rank_regression(similarities, ranks, 0.5, 0.9999)

    assert values.tolist() == pytest.approx([0.04, 0.00998001], abs=1e-9)
    assert gradcheck(
        lambda tensor: rank_regression(tensor, ranks, 0.5, 0.9999), [similarities.requires_grad_()]
    )
    assert rank_regression(similarities, ranks, 0.6, 0.7).sum().item() == 0.0


def test_cosines_of_right_and_equal_angles():
    """A row of length 2e-9 becomes one of 0.2, since a row is divided by no less than 1e-8."""
    torch.testing.assert_close(unit(torch.tensor([[2e-9, 0.0]])), torch.tensor([[0.2, 0.0]]))
    table = cosines(double([[2, 0], [0, 0]]), double([[5, 0], [0, 1], [3, 4]]))

    torch.testing.assert_close(table, double([[1.0, 0.0, 0.6], [0.0, 0.0, 0.0]]))


def test_squared_distance_is_the_sum_over_all_numbers():
    """The differences (.5, 0) and (2) have squares .25 + 0 + 4; no mean and no root of them."""
    tuned = [
        torch.tensor([1.5, 3.0], requires_grad=True),
        torch.tensor([[-1.0]], requires_grad=True),
    ]
    start = [
        torch.tensor([1.0, 3.0], requires_grad=True),
        torch.tensor([[-3.0]], requires_grad=True),
    ]

    distance = squared_distance(zip(tuned, start, strict=True))
    distance.backward()

    assert distance.tolist() == 4.25
    twice_the_differences = [[1.0, 0.0], [[4.0]]]
    assert [tensor.grad.tolist() for tensor in tuned] == twice_the_differences
    assert [tensor.grad for tensor in start] == [None, None]


def test_squared_distance_with_few_kernels_is_the_same():
    """It runs on a GPU only, and a CPU has its operations."""
    tuned = [double([1.5, 3.0]).requires_grad_(), double([[-1.0]]).requires_grad_()]
    start = [double([1.0, 3.0]), double([[-3.0]])]

    def squared_distance_of(*values):
        return SquaredDistance.apply(2, *values, *start)

    assert squared_distance_of(*tuned).item() == 4.25
    assert gradcheck(squared_distance_of, tuned)


@half_types
def test_squared_distance_of_half_precision_is_float32(dtype):
    """Ten thousand squares of 256 are 655,360,000: float16 ends at 65,504."""
    tuned = torch.full((10_000,), 256.0, dtype=dtype)

    assert squared_distance([(tuned, torch.zeros_like(tuned))]).item() == 256.0**2 * 10_000


def ngrams(count):
    generator = torch.Generator().manual_seed(count)
    local = torch.randn(count, 4, 3, generator=generator, dtype=torch.float64)
    lengths = torch.randint(1, 5, (count, 1), generator=generator)
    vectors = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    return local, torch.arange(4) < lengths, vectors


@pytest.mark.parametrize("count", range(1, 6))
def test_the_values_are_those_of_loops(count):
    """One sentence has no others."""
    local, tokens, vectors = ngrams(count)
    sentences = [sentence[real] for sentence, real in zip(local, tokens, strict=True)]
    expected = [list(map(float, values)) for values in loop_information(sentences, vectors)]
    by_batch = local_information(local, tokens, vectors)

    assert [values.tolist() for values in by_batch] == [
        pytest.approx(expected_values, abs=1e-12) for expected_values in expected
    ]


def test_large_products_and_autocast_are_exact():
    local, tokens, vectors = (
        value.float() if value.is_floating_point() else value for value in ngrams(3)
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = local_information(local, tokens, vectors)
    huge, _ = local_information(-1e4 * local.abs(), tokens, vectors.abs())

    assert all(map(torch.equal, inside, local_information(local, tokens, vectors)))
    assert huge.isfinite().all()


def entailment(positive, heat, weighting):
    options = {"is_positive": torch.tensor(positive), "temperature": heat, "weighting": weighting}
    return partial(entailment_contrast, **options)


@every_weighting
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_batch_without_entailments_has_zero_loss(weighting, count):
    values = pair_of(count)
    loss = entailment([False] * count, 0.05, weighting)

    losses = loss(*values)

    assert losses.shape == (0,)
    assert losses.sum() == 0
    assert all((slope == 0).all() for slope in gradients(loss, values))


@pytest.mark.parametrize("weighting", ["code", "exponent"])
def test_a_detached_alpha_is_a_constant(weighting):
    """The value is the same; the gradient is the slope of the formula with alpha as it was."""
    rows_a, rows_b = pair_of(3)
    positive = [True, False, True]
    loss = entailment(positive, HALF, weighting)
    alphas = {n: alphas_of(n, [*rows_a, *rows_b], HALF) for n in (0, 2, 3, 5)}

    def frozen(step):
        moved = rows_a.clone()
        moved[1, 2] += step
        return sum(loop_entailment(moved, rows_b, positive, HALF, weighting, alphas)).item()

    slope = gradients(partial(loss, detach=True), [rows_a, rows_b])[0][1, 2].item()

    assert torch.equal(loss(rows_a, rows_b), loss(rows_a, rows_b, detach=True))
    assert slope == pytest.approx((frozen(1e-5) - frozen(-1e-5)) / 2e-5, abs=1e-7)
    assert slope != pytest.approx(gradients(loss, [rows_a, rows_b])[0][1, 2].item(), abs=1e-3)


@every_weighting
def test_an_alpha_that_underflows_has_a_gradient(weighting):
    """One negative like the anchor and one opposed to it, e^200 apart: float32 holds no
    such ratio.
    """
    rows_a = torch.tensor([[1.0, 0.0], [1.0, 0.1]])
    rows_b = torch.tensor([[1.0, 0.2], [-1.0, 0.0]])
    loss = entailment([True, False], 0.01, weighting)

    assert loss(rows_a, rows_b).isfinite().all()
    assert all(slope.isfinite().all() for slope in gradients(loss, [rows_a, rows_b]))
