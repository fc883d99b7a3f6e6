"""The measures of a map against loops."""

import zlib

import numpy as np
import pytest

from sentkit.metrics.comparison.space_map import hashes_of, kept_neighbours, measures_of


def nearest_others(corpus, query, row, top):
    """The rows of the corpus nearest to a query by cosine, without one row."""
    cosines = corpus @ query / np.linalg.norm(corpus, axis=1)
    return [index for index in np.argsort(-cosines) if index != row][:top]


def test_kept_neighbours_against_a_loop():
    random = np.random.default_rng(0)
    new = random.normal(size=(90, 5)).astype(np.float32)
    mapped = (new + 0.4 * random.normal(size=(90, 5))).astype(np.float32)
    expected = []
    for row, query in enumerate(new):
        of_new = nearest_others(new, query, row, 10)
        of_mapped = nearest_others(mapped, query, row, 10)
        expected.append(len(set(of_new) & set(of_mapped)) / 10)

    assert kept_neighbours(mapped, new, 10) == pytest.approx(expected)
    assert 0.2 < np.mean(expected) < 0.95
    assert kept_neighbours(new, new, 10).tolist() == [1.0] * 90


def test_the_means_lie_in_their_intervals():
    """The half width of an interval of a mean is about 1.96 standard errors."""
    random = np.random.default_rng(1)
    new = random.normal(size=(400, 4)).astype(np.float32)
    mapped = (new + random.normal(size=(400, 4))).astype(np.float32)
    record = measures_of(mapped, new)
    cosines = np.vecdot(mapped, new) / (
        np.linalg.norm(mapped, axis=1) * np.linalg.norm(new, axis=1)
    )
    error = cosines.std() / 20
    low, high = record["cosine"]["interval"]

    assert record["vectors"] == 400
    assert record["cosine"]["mean"] == pytest.approx(cosines.mean(), abs=1e-6)
    assert (high - low) / 2 == pytest.approx(1.96 * error, rel=0.1)
    low, high = record["neighbours"]["interval"]
    assert low < record["neighbours"]["mean"] < high


def test_a_hash_depends_only_on_the_vector():
    vectors = np.array([[1, 2], [3, 4], [1, 2]], np.float32)

    expected = [zlib.crc32(row.astype("<f4").tobytes()) for row in vectors]
    assert hashes_of(vectors).tolist() == expected
    assert expected[0] == expected[2] != expected[1]
