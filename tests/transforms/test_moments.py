"""Moments against the formulas written as loops, for all divisions into blocks."""

from typing import Any

import numpy as np
import pytest

from sentkit.transforms.kinds import Moments, moments_of


def added(parts: list[Any], **how: bool) -> Moments:
    first, *others = (moments_of(part, **how) for part in parts)
    for other in others:
        first = first + other
    return first


@pytest.mark.parametrize("value", [0.1, 1e-30, -12345.678, 3e38])
def test_a_constant_number_has_deviation_zero(value: float) -> None:
    """The mean of equal numbers need not be that number, in floating point."""
    vectors = np.full((100_003, 1), value, dtype=np.float32)

    assert added(np.array_split(vectors, 97)).deviations.tolist() == [0]


def test_a_number_that_changes_once_in_its_last_bit_has_one() -> None:
    vectors = np.full((100_000, 1), 1.0, dtype=np.float32)
    vectors[777] = np.nextafter(np.float32(1), np.float32(2))

    assert moments_of(vectors).deviations[0] == pytest.approx(2**-23 * (1e-5 * (1 - 1e-5)) ** 0.5, rel=1e-3)


@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("cuts", [[1], [1000], [500, 501, 502], list(range(100, 2000, 100))])
def test_moments_of_parts_add_up_to_those_of_all(cuts: Any, offset: float) -> None:
    """Also where the mean is far from zero: sums of plain squares would lose eight digits there."""
    vectors = (np.random.default_rng(0).normal(size=(2000, 5)) + offset).astype(np.float32)
    exact = vectors.astype(np.longdouble)
    centred = exact - exact.mean(axis=0)
    total = added(np.split(vectors, cuts))

    assert total.count == 2000
    assert np.allclose(total.mean, np.asarray(exact.mean(axis=0), np.float64), rtol=1e-14)
    assert np.allclose(total.scatter, np.asarray(centred.T @ centred, np.float64), rtol=1e-11, atol=1e-7)


def test_one_vector_has_a_mean_and_no_scatter() -> None:
    found = moments_of(np.array([[2, 1, 5]], np.float32))

    assert (found.count, found.mean.tolist()) == (1, [2, 1, 5])
    assert not found.scatter.any()


def test_the_diagonal_alone_is_that_of_the_scatter() -> None:
    """In parts too."""
    vectors = np.random.default_rng(1).normal(size=(50, 4))
    whole = moments_of(vectors)
    found = added(np.split(vectors, [7]), diagonal=True)

    assert found.scatter.shape == (4,)
    assert found.squares == pytest.approx(np.diag(whole.scatter), rel=1e-12)
    assert found.deviations == pytest.approx(whole.deviations, rel=1e-12)
