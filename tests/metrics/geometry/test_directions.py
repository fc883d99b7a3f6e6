import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentkit.metrics.geometry import geometry
from sentkit.metrics.geometry.geometry import Directions, nonzero_directions, uniformity


def rows(n: int, d: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d)) + 0.3


def filled(*blocks: np.ndarray, seed: int = 0) -> Directions:
    found = Directions(blocks[0].shape[1], seed)
    for block in blocks:
        found.add(nonzero_directions(block))
    return found


def unit(vector: np.ndarray) -> list[float]:
    length = math.sqrt(sum(float(x) ** 2 for x in vector))
    return [float(x) / length for x in vector]


def by_loop(vectors: np.ndarray) -> tuple[float, float]:
    """The mean cosine and the uniformity, pair by pair."""
    pairs = list(combinations([unit(vector) for vector in vectors], 2))
    cosines = [sum(x * y for x, y in zip(a, b, strict=True)) for a, b in pairs]
    squares = [sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) for a, b in pairs]
    return sum(cosines) / len(pairs), math.log(sum(math.exp(-2 * each) for each in squares) / len(pairs))


@pytest.mark.parametrize("blocks", [(512, 2048), (8, 3), (3, 8), (1, 1)])
def test_all_pairs_are_taken_once(monkeypatch: pytest.MonkeyPatch, blocks: tuple[int, int]) -> None:
    """Equal to a loop over pairs, for all block sizes."""
    monkeypatch.setattr(geometry, "LEFT_ROWS", blocks[0])
    monkeypatch.setattr(geometry, "RIGHT_ROWS", blocks[1])
    vectors = rows(31, 5)
    vectors[7] = vectors[20]
    found = filled(vectors)

    assert (found.mean_cosine(), uniformity(found.sample)) == pytest.approx(by_loop(vectors), abs=1e-6)


@given(st.sets(st.integers(1, 59)), st.integers(1, 80))
def test_however_the_rows_are_cut(cuts: set[int], limit: int) -> None:
    """The sum and the sample are the same from blocks of any sizes, whether or not all rows fit."""
    vectors = rows(60, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(geometry, "SAMPLE_VECTORS", limit)
        cut, whole = filled(*np.split(vectors, sorted(cuts))), filled(vectors)

    assert cut.count == whole.count == 60
    assert len(cut.sample) == len(whole.sample) == min(limit, 60)
    assert cut.sample[:60].tolist() == whole.sample[:60].tolist()
    assert cut.mean_cosine() == pytest.approx(whole.mean_cosine(), abs=1e-12)


def test_every_row_is_as_likely_in_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_sample_is_of_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(geometry, "SAMPLE_VECTORS", 10)
    first, again, other = (filled(rows(100, 4), seed=seed) for seed in (0, 0, 1))

    assert first.sample.tolist() == again.sample.tolist() != other.sample.tolist()
    assert uniformity(first.sample) == pytest.approx(by_loop(first.sample)[1], abs=1e-6)


def test_zeros_point_nowhere() -> None:
    """Zero vectors are omitted; the shortest other vector is not."""
    vectors = np.array([[0.0, 0], [3, 4], [0, np.float32(1e-45)], [0, 0]])

    assert filled(vectors).count == 2
    assert filled(vectors).mean_cosine() == pytest.approx(0.8)


@pytest.mark.parametrize("count", [0, 1])
def test_one_vector_has_no_other(count: int) -> None:
    found = filled(rows(count, 3))

    assert (found.mean_cosine(), uniformity(found.sample)) == (None, None)


def test_a_mean_cosine_is_never_beyond_one() -> None:
    """Rounding makes the sum of equal vectors too long."""
    found = [filled(np.tile(rows(1, 300, seed=n), (n, 1))).mean_cosine() for n in range(2, 40)]

    assert found == pytest.approx([1] * 38)
    assert max(found) <= 1  # type: ignore[type-var]


def test_a_few_wide_vectors_take_no_more_than_themselves() -> None:
    """The sample grows with the rows."""
    found = filled(rows(2, 1000), rows(3, 1000, seed=1))

    assert found.sample.shape == (5, 1000)
    assert uniformity(found.sample) is not None
