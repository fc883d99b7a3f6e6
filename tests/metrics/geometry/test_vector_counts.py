import numpy as np
import pytest

from sentkit.metrics.geometry.description import measured


@pytest.mark.parametrize("values", [(-1.0, 1.0), (0.0, 1.0), (0.5, 2.0)], ids=str)
def test_vectors_of_two_values_have_no_false_duplicates(values: tuple[float, float]) -> None:
    """Their words differ in few bits, so a sum of products has few distinct values."""
    random = np.random.default_rng(0)
    vectors = np.array(values, np.float32)[random.integers(0, 2, (200_000, 64))]
    vectors[-3:] = vectors[:3]
    distinct = len({row.tobytes() for row in vectors})

    assert measured(np.split(vectors, 200), None)["duplicates"] == len(vectors) - distinct


def test_equal_vectors_in_different_places_of_blocks_are_duplicates() -> None:
    rows = np.random.default_rng(1).standard_normal((5, 1, 7)).astype(np.float32)
    blocks = [rows, rows[3:4], np.concatenate([rows[:1], rows[:1]])]

    assert measured(blocks, None)["duplicates"] == 3
