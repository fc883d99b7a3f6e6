"""Averages by name against sums written as loops."""

import numpy as np
import pytest

from sentkit.transforms import averages
from sentkit.transforms.averages import Averages

NAMES = ["b", "a", "b", "", "é", "a", "b", "ice cream"]


@pytest.mark.parametrize("block", [1, 2, 3, averages.NAMES_PER_BLOCK])
def test_each_name_has_the_average_of_its_vectors(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """Names are in the order of their first occurrence, for any block size."""
    monkeypatch.setattr(averages, "NAMES_PER_BLOCK", block)
    vectors = np.random.default_rng(0).standard_normal((len(NAMES), 5)).astype(np.float32)
    found = Averages(5)
    for name, vector in zip(NAMES, vectors, strict=True):
        found.add(name, vector)

    expected = {"b": 3, "a": 2, "": 1, "é": 1, "ice cream": 1}
    assert [(name, count) for name, count, _ in found] == [*expected.items()]
    for name, _, average in found:
        own = [vector.tolist() for other, vector in zip(NAMES, vectors, strict=True) if other == name]
        assert average.dtype == np.float32
        assert average.tolist() == pytest.approx([sum(axis) / len(own) for axis in zip(*own, strict=True)])


def test_one_vector_is_its_own_average_to_the_last_bit() -> None:
    vector = np.array([1 / 3, 1e-30, -7e30], np.float32)
    found = Averages(3)
    found.add("a", vector)

    ((_, _, average),) = found
    assert np.array_equal(average, vector)


def test_small_vectors_beside_large_ones_are_not_lost() -> None:
    """2^25 and 25 times 1: in float32 the ones would vanish, and the average be 2^25 / 26."""
    found = Averages(1)
    found.add("a", np.array([2**25], np.float32))
    for _ in range(25):
        found.add("a", np.array([1], np.float32))

    ((_, _, average),) = found
    assert average[0] == np.float32((2**25 + 25) / 26)


def test_sums_are_never_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name beyond the last block makes a new one, and leaves the others where they are."""
    monkeypatch.setattr(averages, "NAMES_PER_BLOCK", 2)
    found = Averages(4)
    held: list[int] = []
    for number in range(7):
        found.add(str(number), np.ones(4, np.float32))
        held.append(found.sums[0].ctypes.data)

    assert len(set(held)) == 1
    assert [block.shape for block in found.sums] == [(2, 4)] * 4


def test_nothing_has_no_averages() -> None:
    assert not Averages(3)
    assert list(Averages(3)) == []
