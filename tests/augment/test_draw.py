"""Draws, by their definitions and by counting; tests/commands/test_augment.py computes some from
digests.
"""

from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentkit.augment.operations import Draw

SIZES = [(5, 2), (5, 3), (4, 1)]


@given(st.binary(max_size=8), st.integers(0, 60), st.data())
def test_places_are_different_and_in_range(key, n, data):
    k = data.draw(st.integers(0, n))
    drawn = Draw(key).sorted(n, k)

    assert drawn == sorted(set(drawn))
    assert len(drawn) == k
    assert all(0 <= index < n for index in drawn)
    assert sorted(Draw(key).shuffled(n)) == list(range(n))


@pytest.mark.parametrize(("n", "k"), [(6, 1), (6, 3), (6, 4), (5, 2), (5, 3), (1, 1)])
def test_the_smaller_side_is_drawn(n, k):
    """The first steps of a shuffle have the numbers, or the others if these are fewer."""
    shuffled = Draw(b"key").shuffled(n)
    expected = sorted(shuffled[:k])
    if 2 * k > n:
        expected = sorted(set(range(n)) - set(shuffled[: n - k]))

    assert Draw(b"key").sorted(n, k) == expected


@pytest.mark.parametrize(
    ("drawn", "choices"),
    [
        *((lambda draw, n=n, k=k: draw.sorted(n, k), combinations(range(n), k)) for n, k in SIZES),
        (lambda draw: draw.spans(6, 2, 2), [(0, 2), (0, 3), (0, 4), (1, 3), (1, 4), (2, 4)]),
    ],
    ids=[*(f"{k} of {n}" for n, k in SIZES), "two spans of two words in six"],
)
def test_all_choices_are_equally_likely(drawn, choices):
    """With 6000 keys, each count is within five standard deviations."""
    draws = [Draw(b"%d" % key) for key in range(6000)]
    counts = Counter(tuple(drawn(draw)) for draw in draws)
    choices = set(choices)
    share = 6000 / len(choices)

    assert set(counts) == choices
    assert all(abs(count - share) < 5 * share**0.5 for count in counts.values())
