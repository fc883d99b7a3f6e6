import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sentkit.metrics.geometry.geometry import AxisMoments, mean_absolute_correlation


def rows(n: int, d: int, seed: int = 0) -> np.ndarray:
    """Mixed axes, the later ones more skewed; exact in float64, as all that is read comes from float32."""
    random = np.random.default_rng(seed)
    mixed = random.standard_normal((n, d)) @ random.standard_normal((d, d))
    return (mixed + np.exp(np.arange(d) / d * mixed / 2)).astype(np.float32).astype(np.float64)


def moments(*blocks: np.ndarray) -> AxisMoments:
    found = AxisMoments(blocks[0].shape[1])
    for block in blocks:
        found.add(block)
    return found


def expect_reference(found: AxisMoments, vectors: np.ndarray, *, rel: float = 1e-10) -> None:
    """numpy's covariance and correlation, scipy's skewness and kurtosis, of all rows at once."""
    _, skewness, kurtosis = found.shapes()
    assert found.axes.count == len(vectors)
    np.testing.assert_allclose(found.axes.mean, vectors.mean(axis=0), rtol=1e-12, atol=1e-12)
    scale = np.abs(np.cov(vectors.T)).max()
    np.testing.assert_allclose(
        found.whole.scatter / (len(vectors) - 1), np.cov(vectors.T), rtol=rel, atol=rel * scale
    )
    np.testing.assert_allclose(skewness, stats.skew(vectors), rtol=rel, atol=rel)
    np.testing.assert_allclose(kurtosis, stats.kurtosis(vectors), rtol=rel, atol=rel)


@given(st.sets(st.integers(1, 199)), st.integers(0, 5))
def test_however_the_rows_are_cut(cuts: set[int], seed: int) -> None:
    """Blocks of one row and of many, in any order of sizes, make the moments of the whole."""
    vectors = rows(200, 5, seed)

    expect_reference(moments(*np.split(vectors, sorted(cuts))), vectors)


def test_a_far_mean_costs_no_digits() -> None:
    """Rows shifted by 1e4, exactly: their shape is that of the rows before, to ten digits."""
    near = np.round(rows(3000, 6) * 64) / 64
    far = near + 1e4

    found = moments(*np.split(far, [1, 1024, 2048]))

    np.testing.assert_allclose(found.shapes()[1], stats.skew(near), rtol=1e-9)
    np.testing.assert_allclose(found.shapes()[2], stats.kurtosis(near), rtol=1e-9)
    np.testing.assert_allclose(found.whole.scatter / 2999, np.cov(near.T), rtol=1e-10, atol=1e-10)


def test_a_mean_that_drifts_costs_no_digits() -> None:
    """Each block lies elsewhere: the joins, not the blocks, hold nearly all of the moments."""
    blocks = [rows(50, 3, seed) + 100.0 * seed**2 for seed in range(6)]

    expect_reference(moments(*blocks), np.concatenate(blocks))


@pytest.mark.parametrize("value", [0.1, 1e4, -3.3e38, 1e-45])
def test_a_constant_axis_has_no_shape(value: float) -> None:
    """It leaves an exact zero, in any number of rows and blocks, and no warning."""
    constant = np.full((2100, 1), np.float32(value), np.float64)
    vectors = np.hstack([rows(2100, 2), constant])

    found = moments(*np.split(vectors, [3, 1027]))

    assert found.axes.squares[2] == found.whole.scatter[2, 2] == 0.0
    assert found.shapes()[0].tolist() == [0, 1]


def test_the_largest_and_the_least_numbers_are_held() -> None:
    """Fourth powers of any float32 are within float64."""
    for scale in (3e38, 1e-44):
        vectors = (np.array([[-1.0], [1.0], [1.0], [1.0]]) * scale).astype(np.float32).astype(np.float64)

        _, skewness, kurtosis = moments(vectors).shapes()

        # Of a coin with p = 3/4: (1 - 2p) / sqrt(pq) and (1 - 6pq) / pq.
        assert skewness == pytest.approx([-0.5 / 0.1875**0.5])
        assert kurtosis == pytest.approx([(1 - 6 * 0.1875) / 0.1875])


def test_constant_axes_correlate_with_nothing() -> None:
    """They are left out, and one axis alone has no other."""
    vectors = rows(300, 3)
    vectors[:, 1] = 7.0
    expected = abs(np.corrcoef(vectors[:, 0], vectors[:, 2])[0, 1])

    assert mean_absolute_correlation(moments(vectors).whole.scatter) == pytest.approx(expected)
    assert mean_absolute_correlation(moments(vectors[:, :2]).whole.scatter) is None
    assert mean_absolute_correlation(moments(vectors[:1]).whole.scatter) is None
