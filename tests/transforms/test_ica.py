"""FastICA against scikit-learn's, and against sources that are known."""

from typing import Any

import numpy as np
import pytest

from sentkit.transforms.ica import IcaOptions, ica
from sentkit.transforms.kinds import Fit, FitOptions, moments_of


def fit(vectors: Any, dim: int | None = None, **ica_options: Any) -> Fit:
    """In blocks of 300, as a stream comes."""
    blocks = [vectors[first : first + 300] for first in range(0, len(vectors), 300)]
    return ica(blocks, moments_of(vectors), FitOptions(dim), IcaOptions(**ica_options))


def applied(found: Fit, vectors: Any) -> Any:
    return (vectors.astype(np.float64) - found.mean) @ found.kernel


@pytest.fixture(scope="module")
def sources() -> Any:
    """2000 rows of 8 independent sources: peaked, as components of embeddings are."""
    return np.random.default_rng(5).laplace(size=(2000, 8))


@pytest.fixture(scope="module")
def mixed(sources: Any) -> Any:
    random = np.random.default_rng(6)
    return (sources @ random.normal(size=(8, 8)) + 3 * random.normal(size=8)).astype(np.float32)


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("dim", [8, 3])
@pytest.mark.parametrize("tolerance", [1e-4, 1e-10])
def test_it_is_that_of_scikit_learn_up_to_signs(mixed: Any, seed: int, dim: int, tolerance: float) -> None:
    """The same start, so the same components in the same order after as many iterations.

    The signs are the same too if they are kept.
    """
    from sklearn.decomposition import FastICA

    stock = FastICA(
        dim, whiten="unit-variance", whiten_solver="eigh", random_state=seed, max_iter=1000, tol=tolerance
    )
    theirs = stock.fit_transform(mixed.astype(np.float64))
    kept, flipped = (
        fit(mixed, dim, seed=seed, tolerance=tolerance, keep_signs=keep) for keep in (True, False)
    )
    ours = applied(flipped, mixed)

    assert (flipped.record["iterations"], flipped.record["converged"]) == (stock.n_iter_, True)
    assert ours * np.sign((ours * theirs).sum(axis=0)) == pytest.approx(theirs, abs=1e-8)
    assert applied(kept, mixed) == pytest.approx(theirs, abs=1e-8)
    assert np.abs(kept.kernel).tolist() == np.abs(flipped.kernel).tolist()
    assert [found.record.get("keep_signs") for found in (kept, flipped)] == [True, None]


@pytest.mark.parametrize(
    ("options", "deviation"),
    [
        ({"scale": 100.0, "variance": "arbitrary"}, 2.236068),  # 100 / sqrt(2000)
        ({"scale": 100.0, "variance": "unit"}, 100.0),
        ({"scale": 100.0}, 100.0),
        ({"variance": "arbitrary"}, 0.02236068),
        ({}, 1.0),
    ],
)
def test_scale_sets_the_deviation(mixed: Any, options: Any, deviation: float) -> None:
    """The deviation of each axis."""
    assert applied(fit(mixed, **options), mixed).std(axis=0) == pytest.approx(np.full(8, deviation), rel=1e-6)


def test_scale_auto_is_as_wide_as_the_vectors_were(mixed: Any) -> None:
    expected = mixed.astype(np.float64).std(axis=0).mean()

    assert applied(fit(mixed, scale="auto"), mixed).std(axis=0) == pytest.approx(np.full(8, expected))


def test_components_are_skewed_to_the_positive_side(sources: Any) -> None:
    """Sources with negative skewness become positive, unless their signs are kept."""
    vectors = -np.exp(sources[:, :4] / 3).astype(np.float32)
    found, kept = (applied(fit(vectors, keep_signs=keep), vectors) for keep in (False, True))

    assert ((found**3).mean(axis=0) > 0.5).all()
    assert ((kept**3).mean(axis=0) < -0.5).any()


def test_fewer_vectors_than_numbers_have_fewer_components_or_zeros(mixed: Any) -> None:
    """Zeros are for what takes vectors of one width alone; the first components are the same."""
    fewer, found = (fit(mixed[:5], keep_width=keep) for keep in (False, True))
    told = "5 vectors of 8 numbers have only 4 independent directions after centering: 4 of 8 are kept"

    assert (fewer.kernel.shape, found.kernel.shape) == ((8, 4), (8, 8))
    assert (fewer.warnings[0], found.warnings[0]) == (told, told + ", and the rest are 0")
    assert found.kernel[:, :4].tolist() == fewer.kernel.tolist()
    assert not found.kernel[:, 4:].any()


def test_one_seed_is_one_result_and_another_seed_is_the_same_but_for_the_order(mixed: Any) -> None:
    first, again, other = (fit(mixed, seed=seed, tolerance=1e-12).kernel for seed in (1, 1, 2))
    likeness = np.abs(np.corrcoef(applied(fit(mixed, seed=1), mixed).T, (mixed @ other).T)[:8, 8:])

    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert likeness.max(axis=1) == pytest.approx(np.ones(8), abs=1e-3)


def test_blocks_of_any_size_give_the_same(mixed: Any) -> None:
    whole = ica([mixed], moments_of(mixed), FitOptions(), IcaOptions())

    assert whole.kernel == pytest.approx(fit(mixed).kernel, abs=1e-12)
