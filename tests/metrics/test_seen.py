"""Pairs of texts in training rows: against plain loops."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from sentkit.errors import DataError
from sentkit.formats.rows.rows import Row
from sentkit.metrics.seen_pairs import SeenPairs, normal_form, texts_of

WORDS = some.sampled_from("abcdefg")


@pytest.mark.parametrize(
    "text",
    [
        *("A man  eats .", "a man eats", " A MAN EATS!"),
        *("a man\teats.\n", "\uff41 man eats\u3002", "a man eats..."),
    ],
)
def test_case_space_form_and_final_punctuation_do_not_matter(text):
    assert normal_form(text) == "amaneats"


@pytest.mark.parametrize(
    ("one", "other"),
    [("a cat", "a cats"), ("is it", "it is"), ("C++", "C"), ("?", "!"), ("a.b", "ab")],
)
def test_other_differences_matter(one, other):
    assert normal_form(one) != normal_form(other)


@given(
    some.lists(some.tuples(WORDS, WORDS), min_size=1, max_size=8),
    some.lists(some.lists(WORDS, min_size=1, max_size=3), max_size=8),
)
def test_levels_are_those_of_plain_loops(pairs, rows):
    seen_pairs = SeenPairs()
    for text_a, text_b in pairs:
        seen_pairs.add(text_a.upper(), text_b + ".")
    for number, row in enumerate(rows, start=1):
        seen_pairs.take(Row(b"{}", {}, "f", number), row)

    for index, pair in enumerate(pairs):
        of_pair = [n for n, row in enumerate(rows, start=1) if pair in permutations(row, 2)]
        of_texts = [[n for n, row in enumerate(rows, start=1) if text in row] for text in pair]
        expected = [of_pair] if of_pair else [lines for lines in of_texts if lines]
        assert seen_pairs.level(index) == (3 if of_pair else len(expected))
        assert seen_pairs.places(index) == [f"f:{lines[0]}" for lines in expected]


def test_a_blank_text_is_never_seen():
    seen = SeenPairs()
    seen.add("", " ")
    seen.take(Row(b"{}", {}, "f", 1), ["", " "])

    assert seen.level(0) == 0


def test_a_row_gives_all_its_texts():
    """The names of --field come first, and the standard names are valid too."""
    values = {"anchor": "a", "q": "b", "positive": "c", "negatives": ["d", "e"], "label": "x"}
    assert texts_of(Row(b"{}", values, "f", 1), {"text": "q", "anchor": "x"}) == [
        "b",
        "a",
        "c",
        "d",
        "e",
    ]


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"body": "a"}, "no text in this row"),
        ({"text": 7}, '"text" is a number'),
        ({"negatives": "a"}, '"negatives" is a string'),
    ],
)
def test_rows_without_texts_are_refused(values, problem):
    with pytest.raises(DataError, match=f"^f:3: {problem}"):
        texts_of(Row(b'{"body":1}', values, "f", 3), {})
