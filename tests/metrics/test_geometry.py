"""The geometry of vectors, against numpy, scipy and plain loops."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.spatial.distance import pdist

from sentkit.errors import UsageError
from sentkit.metrics import geometry
from sentkit.metrics.geometry import Directions, measured, nonzero_directions, spectrum

pytestmark = pytest.mark.filterwarnings("error")  # on stderr they would be noise


def rows(n, d, seed=0):
    random = np.random.default_rng(seed)
    return (random.standard_normal((n, d)) @ random.standard_normal((d, d)) + 0.5).astype(
        np.float32
    )


def record(*blocks):
    return measured(blocks, None, geometry=True)["geometry"]


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


def directions_of(vectors):
    """The mean cosine and the uniformity."""
    cosines = 1 - pdist(vectors, "cosine")
    return cosines.mean(), math.log(np.exp(4 * cosines - 4).mean())


def test_a_space_of_random_vectors_agrees_with_the_libraries():
    """Every member, from numpy and scipy, in float64 on all rows at once. The means of the blocks
    differ.
    """
    wide = np.sort(rows(1500, 12), axis=0).astype(np.float64)
    vectors = wide.astype(np.float32)
    exactly = partial(pytest.approx, rel=1e-10)
    result = record(vectors)
    values = np.sort(np.linalg.eigvalsh(np.cov(wide.T)))[::-1]
    shares = values / values.sum()
    uncentred = np.linalg.svd(wide, compute_uv=False) ** 2
    cosine, uniformity = directions_of(wide)
    correlations = np.abs(np.corrcoef(wide.T))[np.triu_indices(12, 1)]
    skewness = np.abs(stats.skew(wide))
    kurtosis = stats.kurtosis(wide)

    assert result == {
        "vectors": 1500,
        "left_out": 0,
        "directions": 1500,
        "mean_cosine": exactly(cosine),
        "uniformity": pytest.approx(uniformity, abs=1e-6),
        "uniformity_sample": None,
        "isoscore": exactly(published_isoscore(wide)),
        "effective_rank": exactly(math.exp(stats.entropy(values))),
        "rank": 12,
        "component_share": {
            "first": exactly(shares[0]),
            "first_3": exactly(shares[:3].sum()),
            "first_10": exactly(shares[:10].sum()),
            "first_uncentred": exactly(uncentred[0] / uncentred.sum()),
        },
        "axis_correlation": exactly(correlations.mean()),
        "constant_axes": 0,
        "skewness": {
            "mean_absolute": exactly(skewness.mean()),
            "largest": exactly(stats.skew(wide)[skewness.argmax()]),
            "axis": skewness.argmax(),
        },
        "excess_kurtosis": {
            "mean": exactly(kurtosis.mean()),
            "max": exactly(kurtosis.max()),
            "axis": kurtosis.argmax(),
        },
    }


@given(st.sets(st.integers(1, 99)), st.integers(1, 120))
def test_the_blocks_that_come_in_do_not_matter(cuts, size):
    """To the last bit: rows are regrouped first."""
    vectors = rows(100, 4)
    vectors[10] = np.nan
    vectors[20, 1:3] = (-np.inf, np.inf)
    vectors[50] = 0.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(geometry, "ROWS_PER_BLOCK", size)
        patch.setattr(geometry, "SAMPLE_VECTORS", 60)
        cut = record(*np.split(vectors, sorted(cuts)))
        whole = record(vectors)
        finite = record(np.delete(vectors, [10, 20], axis=0))

    assert cut == whole == finite | {"left_out": 2}
    assert (whole["vectors"], whole["directions"]) == (98, 97)


def test_zeros_are_points_of_the_space_without_a_direction():
    """They count in the covariance, and not on the unit sphere; the shortest other vector does."""
    vectors = rows(30, 3)
    with_zeros = record(np.vstack([vectors, np.zeros((2, 3), np.float32)]))
    without = record(vectors)

    assert (with_zeros["vectors"], with_zeros["directions"]) == (32, 30)
    assert with_zeros["mean_cosine"] == pytest.approx(without["mean_cosine"])
    assert with_zeros["uniformity"] == pytest.approx(without["uniformity"])
    assert with_zeros["isoscore"] != without["isoscore"]
    short = np.array([[0, 0], [3, 4], [0, 1e-45], [0, 0]], np.float32)
    assert (record(short)["directions"], record(short)["mean_cosine"]) == (2, pytest.approx(0.8))
    for result in (record(short[:1]), record(short[:2])):
        assert (result["mean_cosine"], result["uniformity"]) == (None, None)


@pytest.mark.parametrize("value", [0.1, 1e4, -3.3e38, 1e-45])
def test_constant_axes_are_counted(value):
    """They do not affect the values of the other axes, in any number of rows and blocks."""
    vectors = rows(2100, 3)
    wider = np.insert(vectors, 1, np.float32(value), axis=1)
    result = record(wider)
    without = record(vectors)

    assert result["constant_axes"] == 1
    assert result["rank"] == 3
    assert result["axis_correlation"] == pytest.approx(without["axis_correlation"])
    for name in ("skewness", "excess_kurtosis"):
        without[name]["axis"] = [0, 2, 3][without[name]["axis"]]
        assert result[name] == pytest.approx(without[name])


def test_a_far_mean_costs_no_digits():
    """Rows shifted by 1e4, exactly: their shape is that of the rows before, to nine digits."""
    near = np.round(rows(3000, 6) * 64) / 64
    result = record(near + np.float32(1e4))
    expected = record(near)

    for name in ("isoscore", "effective_rank", "axis_correlation", "skewness", "excess_kurtosis"):
        assert result[name] == pytest.approx(expected[name], rel=1e-9)


@pytest.mark.parametrize("scale", [3e38, 1e-44])
def test_the_largest_and_the_least_numbers_are_held(scale):
    """Of a coin with p = 3/4: (1 - 2p) / sqrt(pq) and (1 - 6pq) / pq."""
    result = record((np.array([[-1.0], [1.0], [1.0], [1.0]]) * scale).astype(np.float32))

    assert result["skewness"]["largest"] == pytest.approx(-0.5 / 0.1875**0.5)
    assert result["excess_kurtosis"]["max"] == pytest.approx((1 - 6 * 0.1875) / 0.1875)


@pytest.mark.parametrize("blocks", [(512, 2048), (8, 3), (3, 8), (1, 1)])
def test_all_pairs_are_taken_once(monkeypatch, blocks):
    monkeypatch.setattr(geometry, "BLOCK_ROWS", blocks[0])
    monkeypatch.setattr(geometry, "BLOCK_COLUMNS", blocks[1])
    vectors = rows(31, 5)
    vectors[7] = vectors[20]
    result = record(vectors)

    assert (result["mean_cosine"], result["uniformity"]) == pytest.approx(
        directions_of(vectors), abs=1e-6
    )


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


def undefined(result):
    """The members that are null, and those of which all members are."""
    return {
        name
        for name, value in result.items()
        if value is None or (isinstance(value, dict) and set(value.values()) == {None})
    } - {"uniformity_sample"}


SPECTRAL = {"isoscore", "effective_rank", "component_share", "axis_correlation"}
SHAPES = {"skewness", "excess_kurtosis"}


def test_of_nothing_nothing_is_defined():
    for result in (record(), record(rows(3, 4) * np.float32("nan"))):
        assert undefined(result) == {"mean_cosine", "uniformity"} | SPECTRAL | SHAPES


def test_one_vector_and_equal_vectors_have_no_spread():
    """Without centring, one direction has all the variance."""
    one = record(rows(1, 4))
    equal = record(np.tile(rows(1, 4), (5, 1)))
    spread = (SPECTRAL - {"component_share"}) | SHAPES
    shares = {"first": None, "first_3": None, "first_10": None, "first_uncentred": 1}

    assert undefined(one) == {"mean_cosine", "uniformity"} | spread
    assert undefined(equal) == spread
    assert one["component_share"] == pytest.approx(shares)
    assert (equal["rank"], equal["constant_axes"]) == (0, 4)
    assert equal["mean_cosine"] == pytest.approx(1)


def test_too_wide_vectors_are_refused(monkeypatch):
    monkeypatch.setattr(geometry, "MAX_SCATTER_WIDTH", 5)

    with pytest.raises(UsageError, match="vectors of 6 numbers: inspect has no geometry above 5"):
        record(rows(50, 6))


def filled(*blocks, seed=0):
    directions = Directions(blocks[0].shape[1], seed)
    for block in blocks:
        directions.add(nonzero_directions(block))
    return directions


def test_every_row_is_as_likely_in_the_sample(monkeypatch):
    """Over 2000 seeds each of 12 rows comes 500 times among 3, within five standard deviations (19
    each).
    """
    monkeypatch.setattr(geometry, "SAMPLE_VECTORS", 3)
    vectors = np.column_stack([np.arange(12.0), np.ones(12)])
    counts = np.zeros(12)
    for seed in range(2000):
        sample = filled(vectors[:5], vectors[5:], seed=seed).sample
        chosen = np.rint(sample[:, 0] / sample[:, 1]).astype(int)
        assert len(set(chosen)) == 3
        counts[chosen] += 1

    assert np.abs(counts - 500).max() < 5 * math.sqrt(2000 * 0.25 * 0.75)


def test_a_mean_cosine_is_never_beyond_one():
    """Rounding makes the sum of equal vectors too long."""
    mean_cosines = []
    for n in range(2, 40):
        equal_rows = np.tile(rows(1, 300, seed=n), (n, 1))
        mean_cosines.append(filled(equal_rows.astype(float)).mean_cosine())

    assert mean_cosines == pytest.approx([1] * 38)
    assert max(mean_cosines) <= 1


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

    assert (
        measured(np.split(vectors, 200), None, geometry=False)["duplicates"]
        == len(vectors) - distinct
    )


def test_equal_vectors_in_different_places_of_blocks_are_duplicates():
    rows = np.random.default_rng(1).standard_normal((5, 1, 7)).astype(np.float32)
    blocks = [rows, rows[3:4], np.concatenate([rows[:1], rows[:1]])]

    assert measured(blocks, None, geometry=False)["duplicates"] == 3
