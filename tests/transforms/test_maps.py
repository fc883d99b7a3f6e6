"""Maps between spaces against scipy, a plain ridge solution, and a loop over the penalties."""

import numpy as np
import pytest
from scipy.linalg import orthogonal_procrustes

from sentkit.transforms.maps import PENALTIES, orthogonal_map, pair_moments_of, ridge_map


@pytest.fixture(scope="module")
def pairs():
    """400 vectors of 6 numbers with their mean off zero, and noisy images of 4 and of 6 numbers."""
    random = np.random.default_rng(3)
    old = random.normal(size=(400, 6)) * [1, 2, 3, 0.5, 1, 1] + 4
    noise = random.normal(size=(400, 6)) * 0.3
    new = old @ random.normal(size=(6, 6)) + noise - 2
    return old, new


def test_the_sums_of_blocks_are_those_of_all(pairs):
    old, new = pairs
    blocks = [slice(0, 1), slice(1, 150), slice(150, 400)]
    total = pair_moments_of(old[blocks[0]], new[blocks[0]])
    for block in blocks[1:]:
        total += pair_moments_of(old[block], new[block])
    centred_old = old - old.mean(axis=0)
    centred_new = new - new.mean(axis=0)

    assert total.count == 400
    assert total.mean_old == pytest.approx(old.mean(axis=0), abs=1e-12)
    assert total.mean_new == pytest.approx(new.mean(axis=0), abs=1e-12)
    assert total.scatter_old == pytest.approx(centred_old.T @ centred_old, rel=1e-11, abs=1e-9)
    assert total.cross == pytest.approx(centred_old.T @ centred_new, rel=1e-11, abs=1e-9)


def test_an_orthogonal_map_is_the_procrustes_solution_of_scipy(pairs):
    old, new = pairs
    expected, _ = orthogonal_procrustes(old - old.mean(axis=0), new - new.mean(axis=0))
    space_map = orthogonal_map(pair_moments_of(old, new))

    assert space_map.kernel == pytest.approx(expected, abs=1e-10)
    assert space_map.kernel @ space_map.kernel.T == pytest.approx(np.eye(6), abs=1e-12)
    assert space_map.penalty is None


def test_a_rotation_and_a_shift_are_recovered(pairs):
    old, new = pairs
    rotation, _ = np.linalg.qr(new[:6])
    shift = np.arange(6)
    space_map = orthogonal_map(pair_moments_of(old, old @ rotation + shift))

    assert space_map.kernel == pytest.approx(rotation, abs=1e-10)
    mapped = (old - space_map.mean_old) @ space_map.kernel + space_map.mean_new
    assert mapped == pytest.approx(old @ rotation + shift, abs=1e-9)


@pytest.mark.parametrize("noise", [0.0, 3.0, 300.0])
def test_a_ridge_map_is_the_plain_solution_of_the_best_penalty(pairs, noise):
    """The penalty is p times the mean variance, and p is best on the held-out rows."""
    old, new = pairs
    new = new[:, :4] + noise * np.random.default_rng(4).normal(size=(400, 4))
    fitted, held_out = slice(0, 30), slice(30, 400)  # few rows, so that the penalty matters
    mean_old, mean_new = old[fitted].mean(axis=0), new[fitted].mean(axis=0)
    x, y = old[fitted] - mean_old, new[fitted] - mean_new
    solutions, errors = [], []
    for penalty in PENALTIES:
        alpha = penalty * np.trace(x.T @ x) / 6
        kernel = np.linalg.solve(x.T @ x + alpha * np.eye(6), x.T @ y)
        predicted = (old[held_out] - mean_old) @ kernel + mean_new
        solutions.append(kernel)
        errors.append(np.square(predicted - new[held_out]).sum())
    best = int(np.argmin(errors))
    space_map = ridge_map(
        pair_moments_of(old[fitted], new[fitted]), pair_moments_of(old[held_out], new[held_out])
    )

    assert space_map.penalty == PENALTIES[best]
    assert space_map.kernel == pytest.approx(solutions[best], rel=1e-8, abs=1e-10)
    assert space_map.mean_new == pytest.approx(mean_new, abs=1e-12)


def test_the_penalty_grows_with_the_noise(pairs):
    """Half decades from 1e-6 to 100: at no noise the smallest, at much noise a large one."""
    old, new = pairs
    random = np.random.default_rng(5)
    noisy = random.normal(size=(400, 4))
    few, others = slice(0, 30), slice(30, 400)
    exact = old @ new[:6, :4]
    by_noise = [
        ridge_map(
            pair_moments_of(old[few], target[few]), pair_moments_of(old[others], target[others])
        )
        for target in (exact, noisy)
    ]

    assert PENALTIES[0] == pytest.approx(1e-6)
    assert PENALTIES[-1] == pytest.approx(100)
    assert by_noise[0].penalty == PENALTIES[0]
    assert by_noise[1].penalty >= 1


def test_a_ridge_map_of_dependent_numbers_is_finite():
    """The scatter of three equal numbers has rank 1."""
    random = np.random.default_rng(6)
    column = random.normal(size=(60, 1))
    old = np.repeat(column, 3, axis=1)
    new = np.hstack([2 * column, -column])
    space_map = ridge_map(pair_moments_of(old[:40], new[:40]), pair_moments_of(old[40:], new[40:]))
    mapped = (old - space_map.mean_old) @ space_map.kernel + space_map.mean_new

    assert mapped == pytest.approx(new, abs=1e-4)
