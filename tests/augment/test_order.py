"""Words that change places: none is lost, and the note says which moved."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentkit.augment.draw import Draw
from sentkit.augment.operations import parse_share, parse_spans, reorder, swap

some = settings(max_examples=60)


@pytest.mark.parametrize(
    ("spans", "n", "pairs", "length"),
    [
        ("5x0.05", 100, 5, 5),
        ("5x0.05", 60, 5, 3),
        ("5x0.05", 20, 5, 1),
        ("5x0.05", 9, 4, 1),
        ("5x0.05", 2, 1, 1),
        ("5x0.05", 1, 0, 0),
        ("5x0.05", 0, 0, 0),
        ("1x0.3", 10, 1, 3),
        ("2x0.3", 10, 1, 3),
        ("1x1", 7, 1, 3),
    ],
)
def test_number_of_exchanged_spans(words, draw, spans, n, pairs, length):
    moved, note = reorder(words(n), draw(n), parse_spans(spans))
    expected = words(n)
    for a, b in note["at"]:
        for place in range(length):
            expected[a + place], expected[b + place] = f"w{b + place}", f"w{a + place}"

    assert (len(note["at"]), note["length"]) == (pairs, length)
    assert list(moved) == expected
    assert sum(a != b for a, b in zip(moved, words(n), strict=True)) == 2 * pairs * length


@some
@given(
    st.lists(st.sampled_from("abcdef"), max_size=50), st.integers(0, 9), st.sampled_from(["3x0.1", "9x0.3"])
)
def test_reordering_keeps_all_words(words, key, spans):
    moved, _ = reorder(words, Draw(b"%d" % key), parse_spans(spans))
    swapped, _ = swap(words, Draw(b"%d" % key), parse_share("0.3"))

    assert Counter(moved) == Counter(swapped) == Counter(words)


@pytest.mark.parametrize(
    ("rate", "n", "swaps"),
    [
        (None, 0, 0),
        (None, 1, 0),
        (None, 2, 1),
        (None, 50, 1),
        ("0.1", 50, 5),
        ("0.1", 5, 1),
        ("1", 7, 3),
        ("0", 7, 0),
    ],
)
def test_number_of_swapped_neighbours(words, draw, rate, n, swaps):
    """Disjoint pairs, according to the share, as far as they fit."""
    share = None if rate is None else parse_share(rate)
    moved, note = swap(words(n), draw(n), share)
    expected = words(n)
    for place in note["at"]:
        expected[place], expected[place + 1] = f"w{place + 1}", f"w{place}"

    assert list(moved) == expected
    assert len(note["at"]) == swaps
    assert all(b - a >= 2 for a, b in zip(note["at"], note["at"][1:], strict=False))
