"""Words that go: how many, which stay, and where the mark stands."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentkit.augment.draw import Draw
from sentkit.augment.operations import delete, parse_share, parse_spans, span_delete, without

some = settings(max_examples=60)


@pytest.mark.parametrize(
    ("rate", "n", "gone"),
    [
        ("0.7", 0, 0),
        ("0.7", 1, 0),
        ("0.7", 2, 1),
        ("0.7", 3, 2),
        ("0.7", 10, 7),
        ("0.7", 20, 14),
        ("0.29", 100, 29),
        ("0.05", 2, 1),
        ("0.05", 19, 1),
        ("0.05", 40, 2),
        ("1", 1, 0),
        ("1", 2, 1),
        ("1", 9, 8),
        ("0", 9, 0),
    ],
)
def test_number_of_deleted_words(words, draw, rate, n, gone):
    """Rounded down, at least one of two, and one word is kept; the others keep their order."""
    left, note = delete(words(n), draw(n), parse_share(rate))

    assert len(left) == n - gone
    assert list(left) == [f"w{place}" for place in range(n) if place not in note["at"]]
    assert len(note["at"]) == gone


@pytest.mark.parametrize(
    ("spans", "n", "count", "length"),
    [
        ("5x0.05", 100, 5, 5),
        ("5x0.05", 59, 5, 2),
        ("5x0.05", 20, 5, 1),
        ("5x0.05", 4, 3, 1),
        ("5x0.05", 2, 1, 1),
        ("5x0.05", 1, 0, 0),
        ("2x0.5", 10, 1, 5),
        ("1x1", 10, 1, 9),
        ("5x0", 10, 0, 0),
    ],
)
def test_number_of_deleted_spans(words, draw, spans, n, count, length):
    left, note = span_delete(words(n), draw(n), parse_spans(spans))
    gone = {start + place for start in note["at"] for place in range(length)}

    assert (len(note["at"]), note["length"]) == (count, length)
    assert list(left) == [f"w{place}" for place in range(n) if place not in gone]
    assert len(left) == n - count * length


@pytest.mark.parametrize(
    ("gone", "expected"),
    [
        ([], "a b c d e"),
        ([0], "# b c d e"),
        ([4], "a b c d #"),
        ([1, 2], "a # d e"),
        ([0, 2, 4], "# b # d #"),
        ([0, 1, 3, 4], "# c #"),
        ([1, 2, 3, 4], "a #"),
    ],
)
def test_a_mark_replaces_each_run(gone, expected):
    runs = {place for place in gone if place - 1 not in gone}

    assert " ".join(without("abcde", set(gone), runs, "#")) == expected
    assert "".join(without("abcde", set(gone), runs, None)) == expected.replace("#", "").replace(" ", "")


@pytest.mark.parametrize("n", range(2, 60))
def test_a_mark_replaces_each_span(words, draw, n):
    """Also if two spans are adjacent."""
    left, note = span_delete(words(n), draw(n), parse_spans("5x0.05"), "[DEL]")

    assert left.count("[DEL]") == len(note["at"])


@some
@given(st.integers(0, 40), st.integers(0, 10), st.sampled_from(["0.1", "0.5", "0.7", "0.95"]))
def test_marks_and_words_restore_the_text(n, key, rate):
    """No two marks are adjacent; with the deleted runs in their places, the text is complete."""
    words = [f"w{place}" for place in range(n)]
    left, note = delete(words, Draw(b"%d" % key), parse_share(rate), "[DEL]")
    runs = [place for place in note["at"] if place - 1 not in note["at"]]

    assert left.count("[DEL]") == len(runs)
    assert "[DEL] [DEL]" not in " ".join(left)
    assert [word for word in left if word != "[DEL]"] == [
        word for place, word in enumerate(words) if place not in note["at"]
    ]
