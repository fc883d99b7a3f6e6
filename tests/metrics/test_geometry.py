"""The geometry of vectors, against numpy, scipy and plain loops."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sentkit.errors import UsageError
from sentkit.metrics import geometry
from sentkit.metrics.geometry import (
    AxisMoments,
    Directions,
    eigenvalues,
    measured,
    nonzero_directions,
    spectrum,
    uniformity,
)

pytestmark = pytest.mark.filterwarnings("error")  # on stderr they would be noise


def rows(n, d, seed=0):
    random = np.random.default_rng(seed)
    return (random.standard_normal((n, d)) @ random.standard_normal((d, d)) + 0.5).astype(np.float32)


def record(*blocks):
    return measured(blocks, None, geometry=True)["geometry"]


def test_a_space_of_random_vectors_agrees_with_the_libraries():
    """Every member, from numpy and scipy, in float64 on all rows at once."""
    vectors = rows(1500, 12)
    wide = vectors.astype(np.float64)
    found = record(vectors)
    values = np.sort(np.linalg.eigvalsh(np.cov(wide.T)))[::-1]
    shares = values / values.sum()
    uncentred = np.linalg.svd(wide, compute_uv=False) ** 2
    units = wide / np.linalg.norm(wide, axis=1, keepdims=True)
    cosines = (units @ units.T)[np.triu_indices(1500, 1)]
    correlations = np.abs(np.corrcoef(wide.T))[np.triu_indices(12, 1)]
    skewness, kurtosis = np.abs(stats.skew(wide)), stats.kurtosis(wide)

    assert found == {
        "vectors": 1500,
        "left_out": 0,
        "directions": 1500,
        "mean_cosine": pytest.approx(cosines.mean()),
        "uniformity": pytest.approx(math.log(np.exp(4 * cosines - 4).mean()), abs=1e-6),
        "uniformity_sample": None,
        "isoscore": pytest.approx((1 / (shares**2).sum() - 1) / 11),
        "effective_rank": pytest.approx(math.exp(stats.entropy(values))),
        "rank": 12,
        "component_share": {
            "first": pytest.approx(shares[0]),
            "first_3": pytest.approx(shares[:3].sum()),
            "first_10": pytest.approx(shares[:10].sum()),
            "first_uncentred": pytest.approx(uncentred[0] / uncentred.sum()),
        },
        "axis_correlation": pytest.approx(correlations.mean()),
        "constant_axes": 0,
        "skewness": {
            "mean_absolute": pytest.approx(skewness.mean()),
            "largest": pytest.approx(stats.skew(wide)[skewness.argmax()]),
            "axis": skewness.argmax(),
        },
        "excess_kurtosis": {
            "mean": pytest.approx(kurtosis.mean()),
            "max": pytest.approx(kurtosis.max()),
            "axis": kurtosis.argmax(),
        },
    }


@given(st.sets(st.integers(1, 99)), st.integers(1, 120))
def test_the_blocks_that_come_in_do_not_matter(cuts, size):
    """To the last bit: rows are regrouped first."""
    vectors = rows(100, 4)
    vectors[10], vectors[50] = np.nan, 0.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(geometry, "ROWS_PER_BLOCK", size)
        patch.setattr(geometry, "SAMPLE_VECTORS", 60)
        cut, whole = record(*np.split(vectors, sorted(cuts))), record(vectors)

    assert cut == whole
    assert (whole["vectors"], whole["left_out"], whole["directions"]) == (99, 1, 98)


def test_nan_and_infinity_are_left_out():
    vectors = rows(30, 3)
    broken = np.insert(vectors, [4, 30], [[np.nan, 0, 0], [1, np.inf, -np.inf]], axis=0).astype(np.float32)

    assert record(broken) == {**record(vectors), "left_out": 2}


def test_zeros_are_points_of_the_space_without_a_direction():
    """They count in the covariance, and not on the unit sphere."""
    vectors = rows(30, 3)
    found, without = record(np.vstack([vectors, np.zeros((2, 3), np.float32)])), record(vectors)

    assert (found["vectors"], found["directions"]) == (32, 30)
    assert found["mean_cosine"] == pytest.approx(without["mean_cosine"])
    assert found["uniformity"] == pytest.approx(without["uniformity"])
    assert found["isoscore"] != without["isoscore"]


def test_constant_axes_are_counted():
    """They do not affect the values of the other axes."""
    vectors = rows(40, 3)
    wider = np.insert(vectors, 1, np.float32(0.1), axis=1)
    found, without = record(wider), record(vectors)

    assert found["constant_axes"] == 1
    assert found["rank"] == 3
    assert found["axis_correlation"] == pytest.approx(without["axis_correlation"])
    assert found["skewness"]["mean_absolute"] == pytest.approx(without["skewness"]["mean_absolute"])
    assert found["skewness"]["axis"] == [0, 2, 3][without["skewness"]["axis"]]


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_skewness_has_its_sign(sign):
    """Of a coin with p = 1/4 it is (1 - 2p) / sqrt(pq); the other axis has none."""
    vectors = np.array([[0, 0], [0, 1], [0, 0], [sign, 1]], np.float32)

    assert record(vectors)["skewness"] == {
        "mean_absolute": pytest.approx(0.5 / 0.1875**0.5 / 2),
        "largest": pytest.approx(sign * 0.5 / 0.1875**0.5),
        "axis": 0,
    }


def test_beyond_the_limit_uniformity_is_of_a_sample(monkeypatch):
    """The record has the sample; other values use all vectors; the sample is deterministic."""
    vectors = rows(300, 4)
    whole = record(vectors)
    monkeypatch.setattr(geometry, "SAMPLE_VECTORS", 200)
    sampled = record(vectors)

    assert sampled["uniformity_sample"] == {"vectors": 200, "seed": 0}
    assert sampled["uniformity"] != whole["uniformity"]
    assert sampled["uniformity"] == pytest.approx(whole["uniformity"], abs=0.2)
    assert {**sampled, "uniformity": 0, "uniformity_sample": None} == {**whole, "uniformity": 0}
    assert record(vectors) == sampled


def undefined(found):
    """The members that are null, and those of which all members are."""
    return {
        name
        for name, value in found.items()
        if value is None or (isinstance(value, dict) and set(value.values()) == {None})
    } - {"uniformity_sample"}


SPECTRAL = {"isoscore", "effective_rank", "component_share", "axis_correlation"}
SHAPES = {"skewness", "excess_kurtosis"}


def test_of_nothing_nothing_is_defined():
    for found in (record(), record(rows(3, 4) * np.float32("nan"))):
        assert undefined(found) == {"mean_cosine", "uniformity"} | SPECTRAL | SHAPES


def test_one_vector_and_equal_vectors_have_no_spread():
    """Without centring, one direction has all the variance."""
    one, equal = record(rows(1, 4)), record(np.tile(rows(1, 4), (5, 1)))
    spread = (SPECTRAL - {"component_share"}) | SHAPES
    shares = {"first": None, "first_3": None, "first_10": None, "first_uncentred": 1}

    assert undefined(one) == {"mean_cosine", "uniformity"} | spread
    assert undefined(equal) == spread
    assert one["component_share"] == pytest.approx(shares)
    assert (equal["rank"], equal["constant_axes"]) == (0, 4)
    assert equal["mean_cosine"] == pytest.approx(1)


def test_too_wide_vectors_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their covariance needs too much memory."""
    monkeypatch.setattr(geometry, "MAX_SCATTER_WIDTH", 5)

    with pytest.raises(UsageError, match="vectors of 6 numbers: inspect has no geometry above 5"):
        record(rows(50, 6))


def shifted(n, d, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d)) + 0.3


def filled(*blocks, seed=0):
    found = Directions(blocks[0].shape[1], seed)
    for block in blocks:
        found.add(nonzero_directions(block))
    return found


def unit(vector):
    length = math.sqrt(sum(float(x) ** 2 for x in vector))
    return [float(x) / length for x in vector]


def by_loop(vectors):
    """The mean cosine and the uniformity, pair by pair."""
    pairs = list(combinations([unit(vector) for vector in vectors], 2))
    cosines = [sum(x * y for x, y in zip(a, b, strict=True)) for a, b in pairs]
    squares = [sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) for a, b in pairs]
    return sum(cosines) / len(pairs), math.log(sum(math.exp(-2 * each) for each in squares) / len(pairs))


@pytest.mark.parametrize("blocks", [(512, 2048), (8, 3), (3, 8), (1, 1)])
def test_all_pairs_are_taken_once(monkeypatch, blocks):
    """Equal to a loop over pairs, for all block sizes."""
    monkeypatch.setattr(geometry, "LEFT_ROWS", blocks[0])
    monkeypatch.setattr(geometry, "RIGHT_ROWS", blocks[1])
    vectors = shifted(31, 5)
    vectors[7] = vectors[20]
    found = filled(vectors)

    assert (found.mean_cosine(), uniformity(found.sample)) == pytest.approx(by_loop(vectors), abs=1e-6)


def test_every_row_is_as_likely_in_the_sample(monkeypatch):
    """Over 2000 seeds each of 12 rows comes 500 times among 3, within five standard deviations (19 each)."""
    monkeypatch.setattr(geometry, "SAMPLE_VECTORS", 3)
    vectors = np.column_stack([np.arange(12.0), np.ones(12)])
    seen = np.zeros(12)
    for seed in range(2000):
        sample = filled(vectors[:5], vectors[5:], seed=seed).sample
        chosen = np.rint(sample[:, 0] / sample[:, 1]).astype(int)
        assert len(set(chosen)) == 3
        seen[chosen] += 1

    assert np.abs(seen - 500).max() < 5 * math.sqrt(2000 * 0.25 * 0.75)


def test_zeros_point_nowhere():
    """Zero vectors are omitted; the shortest other vector is not. One vector has no other."""
    vectors = np.array([[0.0, 0], [3, 4], [0, np.float32(1e-45)], [0, 0]])

    assert filled(vectors).count == 2
    assert filled(vectors).mean_cosine() == pytest.approx(0.8)
    for few in (vectors[:1], vectors[:2]):
        assert (filled(few).mean_cosine(), uniformity(filled(few).sample)) == (None, None)


def test_a_mean_cosine_is_never_beyond_one():
    """Rounding makes the sum of equal vectors too long."""
    found = [filled(np.tile(shifted(1, 300, seed=n), (n, 1))).mean_cosine() for n in range(2, 40)]

    assert found == pytest.approx([1] * 38)
    assert max(found) <= 1  # type: ignore[type-var]


def mixed(n, d, seed=0):
    """Mixed axes, the later ones more skewed; exact in float64, as all that is read comes from float32."""
    random = np.random.default_rng(seed)
    axes = random.standard_normal((n, d)) @ random.standard_normal((d, d))
    return (axes + np.exp(np.arange(d) / d * axes / 2)).astype(np.float32).astype(np.float64)


def moments(*blocks):
    found = AxisMoments(blocks[0].shape[1])
    for block in blocks:
        found.add(block)
    return found


def expect_reference(found, vectors, *, rel=1e-10):
    """numpy's covariance and correlation, scipy's skewness and kurtosis, of all rows at once."""
    _, skewness, kurtosis = found.shapes()
    assert found.axes.count == len(vectors)
    np.testing.assert_allclose(found.axes.mean, vectors.mean(axis=0), rtol=1e-12, atol=1e-12)
    scale = np.abs(np.cov(vectors.T)).max()
    np.testing.assert_allclose(
        found.axes.scatter / (len(vectors) - 1), np.cov(vectors.T), rtol=rel, atol=rel * scale
    )
    np.testing.assert_allclose(skewness, stats.skew(vectors), rtol=rel, atol=rel)
    np.testing.assert_allclose(kurtosis, stats.kurtosis(vectors), rtol=rel, atol=rel)


@given(st.sets(st.integers(1, 199)), st.integers(0, 5))
def test_however_the_rows_are_cut(cuts, seed):
    """Blocks of one row and of many, in any order of sizes, make the moments of the whole."""
    vectors = mixed(200, 5, seed)

    expect_reference(moments(*np.split(vectors, sorted(cuts))), vectors)


def test_a_far_mean_costs_no_digits():
    """Rows shifted by 1e4, exactly: their shape is that of the rows before, to ten digits."""
    near = np.round(mixed(3000, 6) * 64) / 64
    far = near + 1e4

    found = moments(*np.split(far, [1, 1024, 2048]))

    np.testing.assert_allclose(found.shapes()[1], stats.skew(near), rtol=1e-9)
    np.testing.assert_allclose(found.shapes()[2], stats.kurtosis(near), rtol=1e-9)
    np.testing.assert_allclose(found.axes.scatter / 2999, np.cov(near.T), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("value", [0.1, 1e4, -3.3e38, 1e-45])
def test_a_constant_axis_has_no_shape(value):
    """It leaves an exact zero, in any number of rows and blocks, and no warning."""
    constant = np.full((2100, 1), np.float32(value), np.float64)
    vectors = np.hstack([mixed(2100, 2), constant])

    found = moments(*np.split(vectors, [3, 1027]))

    assert found.axes.squares[2] == found.axes.scatter[2, 2] == 0.0
    assert found.shapes()[0].tolist() == [0, 1]


def test_the_largest_and_the_least_numbers_are_held():
    """Fourth powers of any float32 are within float64."""
    for scale in (3e38, 1e-44):
        vectors = (np.array([[-1.0], [1.0], [1.0], [1.0]]) * scale).astype(np.float32).astype(np.float64)

        _, skewness, kurtosis = moments(vectors).shapes()

        # Of a coin with p = 3/4: (1 - 2p) / sqrt(pq) and (1 - 6pq) / pq.
        assert skewness == pytest.approx([-0.5 / 0.1875**0.5])
        assert kurtosis == pytest.approx([(1 - 6 * 0.1875) / 0.1875])


def published_isoscore(vectors):
    """The recipe of arXiv:2108.07344 step by step: PCA, diagonal, length, defect, fraction."""
    width = vectors.shape[1]
    centred = vectors - vectors.mean(axis=0)
    rotated = centred @ np.linalg.svd(centred, full_matrices=False)[2].T
    diagonal = np.var(rotated, axis=0, ddof=1)
    normalized = math.sqrt(width) * diagonal / np.linalg.norm(diagonal)
    defect = np.linalg.norm(normalized - np.ones(width)) / math.sqrt(2 * (width - math.sqrt(width)))
    used = (width - defect**2 * (width - math.sqrt(width))) ** 2 / width**2
    return (width * used - 1) / (width - 1)


def test_isoscore_is_the_published_recipe():
    random = np.random.default_rng(0)
    vectors = random.standard_normal((200, 8)) * np.arange(1, 9)

    found = spectrum(eigenvalues(np.cov(vectors.T)))["isoscore"]
    assert found == pytest.approx(published_isoscore(vectors))


def test_rank_and_shares_by_hand():
    """The rank counts eigenvalues above the floor. Of one dimension there is no IsoScore."""
    shares = spectrum(np.array([5.0, 3.0, 1.0, 1.0]))["component_share"]
    one = spectrum(np.array([2.0]))

    assert spectrum(np.array([1e6, 1.0, 1e-5, 1e-7]))["rank"] == 3
    assert shares == pytest.approx({"first": 0.5, "first_3": 0.9, "first_10": 1.0})
    assert (one["isoscore"], one["effective_rank"]) == (None, 1)


@pytest.mark.parametrize("values", [(-1.0, 1.0), (0.0, 1.0), (0.5, 2.0)], ids=str)
def test_vectors_of_two_values_have_no_false_duplicates(values):
    """Their words differ in few bits, so a sum of products has few distinct values."""
    random = np.random.default_rng(0)
    vectors = np.array(values, np.float32)[random.integers(0, 2, (200_000, 64))]
    vectors[-3:] = vectors[:3]
    distinct = len({row.tobytes() for row in vectors})

    assert measured(np.split(vectors, 200), None, geometry=False)["duplicates"] == len(vectors) - distinct


def test_equal_vectors_in_different_places_of_blocks_are_duplicates():
    rows = np.random.default_rng(1).standard_normal((5, 1, 7)).astype(np.float32)
    blocks = [rows, rows[3:4], np.concatenate([rows[:1], rows[:1]])]

    assert measured(blocks, None, geometry=False)["duplicates"] == 3
