"""Moments, and each kind of transform, against hand arithmetic, loops, and scikit-learn."""

import numpy as np
import pytest

from sentkit.errors import UsageError
from sentkit.transforms.kinds import KINDS, FitOptions, ica, moments_of
from support import dot

FOUR = np.array([[2, 1], [0, 1], [1, 3], [3, 0]], dtype=np.float32)


def fit(kind, vectors, **options):
    return KINDS[kind](moments_of(vectors), FitOptions(**options))


def applied(transform, vectors):
    return (vectors.astype(np.float64) - transform.mean) @ transform.kernel


def largest_numbers_are_positive(transform):
    """Of each direction."""
    return bool((transform.kernel.max(axis=0) > -transform.kernel.min(axis=0)).all())


@pytest.fixture
def rows():
    """600 vectors of 12 numbers that hang together, of many sizes, with their mean off zero."""
    random = np.random.default_rng(1)
    mixed = (
        random.normal(size=(600, 12)) @ random.normal(size=(12, 12)) * 10.0 ** np.linspace(0, 1, 12)
    )
    return (mixed + 5).astype(np.float32)


def test_zca_is_the_inverse_root_of_the_covariance(rows):
    """Symmetric, so the whitened numbers stay as close to the centred ones as any whitening can."""
    transform = fit("zca", rows)
    centred = rows - rows.mean(axis=0)
    white = applied(transform, rows)

    assert transform.kernel == pytest.approx(transform.kernel.T, abs=1e-12)
    unit = transform.kernel @ np.cov(rows.astype(np.float64).T) @ transform.kernel
    assert unit == pytest.approx(np.eye(12), abs=1e-9)
    assert (
        np.square(white - centred).sum()
        < np.square(applied(fit("whitening", rows), rows) - centred).sum()
    )


@pytest.mark.parametrize("dim", [1, 5, 12])
def test_svd_is_the_singular_value_decomposition_without_centring(rows, dim):
    """X V, up to the signs of the columns; V by numpy from the vectors, ours from the moments."""
    wide = rows.astype(np.float64)
    left_vectors, values, _ = np.linalg.svd(wide, full_matrices=False)
    expected = (left_vectors * values)[:, :dim]
    transform = fit("svd", rows, dim=dim)
    projected = applied(transform, rows)

    assert (transform.mean.tolist(), transform.record) == ([0] * 12, {"dim": dim})
    assert largest_numbers_are_positive(transform)
    assert projected * np.sign((projected * expected).sum(axis=0)) == pytest.approx(
        expected, abs=1e-7 * values[0]
    )


@pytest.mark.parametrize("dim", [1, 5, 12])
def test_whitening_and_pca_are_those_of_scikit_learn(rows, dim):
    """Free of signs: the products of the vectors, and the size of every coordinate."""
    from sklearn.decomposition import PCA

    for kind, whiten in (("whitening", True), ("pca", False)):
        expected = PCA(dim, whiten=whiten, svd_solver="full").fit_transform(rows.astype(np.float64))
        transform = fit(kind, rows, dim=dim)
        whitened = applied(transform, rows)
        scale = np.abs(expected).max()
        assert largest_numbers_are_positive(transform)
        assert whitened.shape == (600, dim)
        assert np.abs(whitened @ whitened.T - expected @ expected.T).max() < 1e-8 * scale**2
        assert np.abs(np.abs(whitened) - np.abs(expected)).max() < 1e-6 * scale


@pytest.mark.parametrize("kind", ["center", "standardize"])
def test_center_and_standardize_are_those_of_scikit_learn(rows, kind):
    from sklearn.preprocessing import StandardScaler

    expected = StandardScaler(with_std=kind == "standardize").fit_transform(rows.astype(np.float64))

    assert applied(fit(kind, rows), rows) == pytest.approx(expected, abs=1e-9)


def test_standardize_makes_numbers_that_never_change_zero_for_good():
    """Over a floor instead, 0.1 + 1e-6 in another vector would become a million."""
    vectors = np.column_stack([FOUR, np.full((4, 2), 0.1)]).astype(np.float32)
    transform = fit("standardize", vectors)
    other = np.array([[9, 9, 0.1 + 1e-6, -3]], dtype=np.float32)

    assert transform.warnings == ("2 of 4 numbers are the same in all vectors and become 0",)
    assert applied(transform, other)[0, 2:].tolist() == [0, 0]
    assert applied(transform, vectors)[:, :2].std(axis=0) == pytest.approx([1, 1])


@pytest.mark.parametrize("remove", [1, 3, 11])
def test_all_but_the_top_subtracts_its_projections(rows, remove):
    """One vector and one direction after the other, directions by a singular value
    decomposition.
    """
    wide = rows.astype(np.float64) - rows.astype(np.float64).mean(axis=0)
    directions = np.linalg.svd(wide, full_matrices=False)[2][:remove]
    expected = [
        vector - sum(dot(vector, direction) * direction for direction in directions)
        for vector in wide
    ]

    assert applied(fit("abtt", rows, remove=remove), rows) == pytest.approx(
        np.array(expected), abs=1e-8
    )


@pytest.mark.parametrize(("width", "removed"), [(12, 1), (149, 1), (200, 2), (768, 8)])
def test_one_direction_in_a_hundred_is_removed_when_nobody_says(width, removed):
    vectors = np.random.default_rng(0).normal(size=(2 * width, width))
    transform = fit("abtt", vectors)

    assert transform.record == {"remove": removed}
    assert np.linalg.matrix_rank(transform.kernel) == width - removed


@pytest.mark.parametrize(
    ("kind", "end"),
    [
        ("whitening", "4 independent directions after centering: 4 of 8 are kept"),
        ("pca", "4 independent directions after centering: 4 of 8 are kept"),
        ("svd", "5 independent directions: 5 of 8 are kept"),
        (
            "abtt",
            "4 independent directions after centering: 4 of 7 are removed, and nothing of these "
            "vectors remains",
        ),
    ],
)
def test_fewer_vectors_than_numbers_span_fewer_directions(kind, end):
    """Those of five vectors. The others hold nothing but rounding, which 1 / sqrt would
    make huge.
    """
    vectors = np.random.default_rng(2).normal(size=(5, 8)).astype(np.float32)
    transform = fit(kind, vectors, **({"remove": 7} if kind == "abtt" else {}))

    assert transform.warnings == (f"5 vectors of 8 numbers have only {end}",)
    assert transform.kernel.shape == (8, 8 if kind == "abtt" else int(end[0]))
    assert np.abs(transform.kernel).max() < 10


@pytest.mark.parametrize(("remove", "is_warning"), [(1, False), (2, True)])
def test_a_removal_of_all_directions_is_a_warning(remove, is_warning):
    """Around their mean, the three vectors have the directions (1, -1, 0, 0) and (1, 1, -2, 0)."""
    vectors = np.array([[4, 0, 0, 5], [0, 4, 0, 5], [0, 0, 4, 5]], np.float32)
    transform = fit("abtt", vectors, remove=remove)
    problem = (
        "3 vectors of 4 numbers have only 2 independent directions after centering: 2 of 2 are "
        "removed, and nothing of these vectors remains"
    )

    assert transform.warnings == ((problem,) if is_warning else ())
    assert (np.abs(applied(transform, vectors)).max() < 1e-12) == is_warning


def test_zca_of_few_vectors_scales_only_their_directions():
    vectors = np.random.default_rng(2).normal(size=(5, 8)).astype(np.float32)
    transform = fit("zca", vectors)
    white = applied(transform, vectors)

    assert transform.warnings == (
        "5 vectors of 8 numbers have only 4 independent directions after centering:"
        " 4 of 8 are scaled, and the rest are 0",
    )
    assert (np.linalg.matrix_rank(transform.kernel), transform.kernel.shape) == (4, (8, 8))
    assert np.linalg.eigvalsh(np.cov(white.T)) == pytest.approx([0] * 4 + [1] * 4, abs=1e-9)


def test_linearly_dependent_numbers_reduce_the_rank():
    """The third is the sum of the first two."""
    vectors = np.column_stack([FOUR, FOUR.sum(axis=1)]).astype(np.float32)
    options = fit("whitening", vectors, dim=2)

    assert fit("whitening", vectors).warnings == (
        "4 vectors of 3 numbers have only 2 independent directions after centering: 2 of 3 are "
        "kept, and more vectors add none (a layer norm at the end removes one)",
    )
    assert (options.kernel.shape, options.warnings) == ((3, 2), ())
    assert np.cov(applied(options, vectors).T) == pytest.approx(np.eye(2), abs=1e-9)


def test_a_mean_far_from_zero_costs_nothing():
    """Whole numbers around 10,000 are exact in float32, so the result is the same to float64's
    rounding.
    """
    vectors = np.random.default_rng(3).integers(-40, 40, size=(500, 6)).astype(np.float32)
    near = fit("whitening", vectors)
    far = fit("whitening", vectors + np.float32(1e4))

    assert far.kernel == pytest.approx(near.kernel, rel=1e-9, abs=1e-12)
    assert far.mean - 1e4 == pytest.approx(near.mean, abs=1e-9)


@pytest.mark.parametrize("kind", ["whitening", "pca", "svd"])
def test_more_numbers_than_there_are_are_refused(kind):
    with pytest.raises(UsageError, match="--dim 3: the vectors have only 2 numbers"):
        fit(kind, FOUR, dim=3)


def added(shards, **options):
    first, *other_moments = (moments_of(shard, **options) for shard in shards)
    for moments in other_moments:
        first = first + moments
    return first


@pytest.mark.parametrize("value", [0.1, 1e-30, -12345.678, 3e38])
def test_a_constant_number_has_deviation_zero(value):
    """The mean of equal numbers need not be that number, in floating point."""
    vectors = np.full((100_003, 1), value, dtype=np.float32)

    assert added(np.array_split(vectors, 97)).deviations.tolist() == [0]


def test_a_number_that_changes_once_in_its_last_bit_has_one():
    vectors = np.full((100_000, 1), 1.0, dtype=np.float32)
    vectors[777] = np.nextafter(np.float32(1), np.float32(2))

    assert moments_of(vectors).deviations[0] == pytest.approx(
        2**-23 * (1e-5 * (1 - 1e-5)) ** 0.5, rel=1e-3
    )


@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("cuts", [[1], [1000], [500, 501, 502], list(range(100, 2000, 100))])
def test_moments_of_parts_add_up_to_those_of_all(cuts, offset):
    """Also where the mean is far from zero: sums of plain squares would lose eight digits there."""
    vectors = (np.random.default_rng(0).normal(size=(2000, 5)) + offset).astype(np.float32)
    exact = vectors.astype(np.longdouble)
    centred = exact - exact.mean(axis=0)
    total = added(np.split(vectors, cuts))

    assert total.count == 2000
    assert np.allclose(total.mean, np.asarray(exact.mean(axis=0), np.float64), rtol=1e-14)
    assert np.allclose(
        total.scatter, np.asarray(centred.T @ centred, np.float64), rtol=1e-11, atol=1e-7
    )


def fit_ica(vectors, dim=None, **ica_options):
    """In blocks of 300, as a stream comes."""
    blocks = [vectors[first : first + 300] for first in range(0, len(vectors), 300)]
    return ica(blocks, moments_of(vectors), FitOptions(dim, **ica_options))


@pytest.fixture(scope="module")
def sources():
    """2000 rows of 8 independent sources: peaked, as components of embeddings are."""
    return np.random.default_rng(5).laplace(size=(2000, 8))


@pytest.fixture(scope="module")
def mixed(sources):
    random = np.random.default_rng(6)
    return (sources @ random.normal(size=(8, 8)) + 3 * random.normal(size=8)).astype(np.float32)


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("dim", [8, 3])
@pytest.mark.parametrize("tolerance", [1e-4, 1e-10])
def test_it_is_that_of_scikit_learn_up_to_signs(mixed, seed, dim, tolerance):
    """The same start, so the same components in the same order after as many iterations.

    The signs are the same too if they are kept.
    """
    from sklearn.decomposition import FastICA

    reference = FastICA(
        dim,
        whiten="unit-variance",
        whiten_solver="eigh",
        random_state=seed,
        max_iter=1000,
        tol=tolerance,
    )
    expected = reference.fit_transform(mixed.astype(np.float64))
    settings = {"dim": dim, "seed": seed, "tolerance": tolerance}
    with_signs, flipped = (fit_ica(mixed, **settings, keep_signs=keep) for keep in (True, False))
    components = applied(flipped, mixed)

    assert (flipped.record["iterations"], flipped.record["converged"]) == (reference.n_iter_, True)
    assert components * np.sign((components * expected).sum(axis=0)) == pytest.approx(
        expected, abs=1e-8
    )
    assert applied(with_signs, mixed) == pytest.approx(expected, abs=1e-8)
    assert np.abs(with_signs.kernel).tolist() == np.abs(flipped.kernel).tolist()
    assert [transform.record.get("keep_signs") for transform in (with_signs, flipped)] == [
        True,
        None,
    ]


@pytest.mark.parametrize(
    ("options", "deviation"),
    [
        ({"scale": 100.0, "variance": "arbitrary"}, 2.236068),  # 100 / sqrt(2000)
        ({"scale": 100.0, "variance": "unit"}, 100.0),
        ({"scale": 100.0}, 100.0),
        ({"variance": "arbitrary"}, 0.02236068),
        ({}, 1.0),
        ({"scale": "auto"}, None),
    ],
)
def test_scale_sets_the_deviation(mixed, options, deviation):
    """The deviation of each axis. With auto, it is as wide as the vectors were."""
    expected = deviation or mixed.astype(np.float64).std(axis=0).mean()

    assert applied(fit_ica(mixed, **options), mixed).std(axis=0) == pytest.approx(
        expected, rel=1e-6
    )


def test_components_are_skewed_to_the_positive_side(sources):
    """Sources with negative skewness become positive, unless their signs are kept."""
    vectors = -np.exp(sources[:, :4] / 3).astype(np.float32)
    components, with_signs = (
        applied(fit_ica(vectors, keep_signs=keep), vectors) for keep in (False, True)
    )

    assert ((components**3).mean(axis=0) > 0.5).all()
    assert ((with_signs**3).mean(axis=0) < -0.5).any()


def test_fewer_vectors_than_numbers_have_fewer_components_or_zeros(mixed):
    """Zeros are for what takes vectors of one width alone; the first components are the same."""
    fewer, filled = (fit_ica(mixed[:5], keep_width=keep) for keep in (False, True))
    warning = (
        "5 vectors of 8 numbers have only 4 independent directions after centering: 4 of 8 are kept"
    )

    assert (fewer.kernel.shape, filled.kernel.shape) == ((8, 4), (8, 8))
    assert (fewer.warnings[0], filled.warnings[0]) == (warning, warning + ", and the rest are 0")
    assert filled.kernel[:, :4].tolist() == fewer.kernel.tolist()
    assert not filled.kernel[:, 4:].any()
