import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sentkit.metrics.geometry import geometry
from sentkit.metrics.geometry.geometry import Geometry

pytestmark = pytest.mark.filterwarnings("error")  # on stderr they would be noise


def rows(n: int, d: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    return (random.standard_normal((n, d)) @ random.standard_normal((d, d)) + 0.5).astype(np.float32)


def record(*blocks: np.ndarray) -> dict:
    found = Geometry()
    for block in blocks:
        found.add(block)
    return found.record()


def test_a_space_of_random_vectors_agrees_with_the_libraries() -> None:
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
def test_the_blocks_that_come_in_do_not_matter(cuts: set[int], size: int) -> None:
    """To the last bit: rows are regrouped first."""
    vectors = rows(100, 4)
    vectors[10], vectors[50] = np.nan, 0.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(geometry, "ROWS_PER_BLOCK", size)
        patch.setattr(geometry, "SAMPLE_VECTORS", 60)
        cut, whole = record(*np.split(vectors, sorted(cuts))), record(vectors)

    assert cut == whole
    assert (whole["vectors"], whole["left_out"], whole["directions"]) == (99, 1, 98)


def test_nan_and_infinity_are_left_out() -> None:
    vectors = rows(30, 3)
    broken = np.insert(vectors, [4, 30], [[np.nan, 0, 0], [1, np.inf, -np.inf]], axis=0).astype(np.float32)

    assert record(broken) == {**record(vectors), "left_out": 2}


def test_zeros_are_points_of_the_space_without_a_direction() -> None:
    """They count in the covariance, and not on the unit sphere."""
    vectors = rows(30, 3)
    found, without = record(np.vstack([vectors, np.zeros((2, 3), np.float32)])), record(vectors)

    assert (found["vectors"], found["directions"]) == (32, 30)
    assert found["mean_cosine"] == pytest.approx(without["mean_cosine"])
    assert found["uniformity"] == pytest.approx(without["uniformity"])
    assert found["isoscore"] != without["isoscore"]


def test_constant_axes_are_counted() -> None:
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
def test_the_largest_skewness_has_its_sign(sign: int) -> None:
    """Of a coin with p = 1/4 it is (1 - 2p) / sqrt(pq); the other axis has none."""
    vectors = np.array([[0, 0], [0, 1], [0, 0], [sign, 1]], np.float32)

    assert record(vectors)["skewness"] == {
        "mean_absolute": pytest.approx(0.5 / 0.1875**0.5 / 2),
        "largest": pytest.approx(sign * 0.5 / 0.1875**0.5),
        "axis": 0,
    }


def test_beyond_the_limit_uniformity_is_of_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
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


def undefined(found: dict) -> set[str]:
    """The members that are null, and those of which all members are."""
    return {
        name
        for name, value in found.items()
        if value is None or (isinstance(value, dict) and set(value.values()) == {None})
    } - {"uniformity_sample"}


SPECTRAL = {"isoscore", "effective_rank", "component_share", "axis_correlation"}
SHAPES = {"skewness", "excess_kurtosis"}


def test_of_nothing_nothing_is_defined() -> None:
    for found in (Geometry().record(), record(rows(3, 4) * np.float32("nan"))):
        assert undefined(found) == {"mean_cosine", "uniformity"} | SPECTRAL | SHAPES


def test_one_vector_and_equal_vectors_have_no_spread() -> None:
    """Without centring, one direction has all the variance."""
    one, equal = record(rows(1, 4)), record(np.tile(rows(1, 4), (5, 1)))
    spread = (SPECTRAL - {"component_share"}) | SHAPES
    shares = {"first": None, "first_3": None, "first_10": None, "first_uncentred": 1}

    assert undefined(one) == {"mean_cosine", "uniformity"} | spread
    assert undefined(equal) == spread
    assert one["component_share"] == pytest.approx(shares)
    assert (equal["rank"], equal["constant_axes"]) == (0, 4)
    assert equal["mean_cosine"] == pytest.approx(1)


def test_of_too_wide_vectors_the_covariance_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record states why these fields are null."""
    vectors = rows(50, 6)
    held = record(vectors)
    monkeypatch.setattr(geometry, "MAX_SCATTER_WIDTH", 5)
    found = record(vectors)

    assert found["covariance"] == "not held: vectors of 6 numbers, more than 5"
    assert undefined(found) == SPECTRAL | {"rank"}
    rest = held.keys() - SPECTRAL - {"rank"}
    assert {name: found[name] for name in rest} == {name: held[name] for name in rest}
    assert "covariance" not in held
