"""Shares of words: the decimal that was written, rounded down, one at least."""

from decimal import ROUND_FLOOR, Decimal

import pytest

from sentkit.augment.shares import parse_share, parse_spans

LENGTHS = (0, 1, 2, 3, 4, 7, 10, 19, 20, 21, 50, 99, 100, 101, 1000)


@pytest.mark.parametrize(
    "text", ["0.29", "0.3", ".7", "0.07", "0.1", "0.99", "0.58", "1.0", "0.001", "1", "1."]
)
@pytest.mark.parametrize("n", LENGTHS)
def test_a_share_is_rounded_down_as_it_was_written(text, n):
    """0.29 of 100 is 29, though 0.29 * 100 is 28.999 in floats; of two words one at least."""
    exact = int((Decimal(text) * n).to_integral_value(ROUND_FLOOR))

    assert parse_share(text).of(n) == (exact or (1 if n >= 2 else 0))


def test_the_example_of_29_words():
    assert int(0.29 * 100) == 28
    assert parse_share("0.29").of(100) == 29


@pytest.mark.parametrize("n", LENGTHS)
def test_a_share_of_nothing_is_nothing(n):
    assert parse_share("0").of(n) == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-0.1",
        "1.01",
        "nan",
        "inf",
        "1e-1",
        "a",
        "0,5",
        " 0.3",
        "0.3\n",
        "1/2",
        "\u0660.\u0663",
        ".",
        "9" * 400,
    ],
)
def test_what_is_no_share_is_refused(text):
    with pytest.raises(ValueError, match="expected a share from 0 to 1"):
        parse_share(text)


@pytest.mark.parametrize(
    ("n", "room", "each", "expected"),
    [
        (100, 99, 1, (5, 5)),  # five spans of 5 %
        (20, 19, 1, (5, 1)),
        (19, 18, 1, (5, 1)),  # 0.95 of a word is one
        (5, 4, 1, (4, 1)),  # the fifth would take the last word
        (2, 1, 1, (1, 1)),
        (1, 0, 1, (0, 0)),
        (100, 100, 2, (5, 5)),  # five pairs
        (20, 20, 2, (5, 1)),
        (9, 9, 2, (4, 1)),  # eight words in four pairs
        (3, 3, 2, (1, 1)),
        (2, 2, 2, (1, 1)),
        (1, 1, 2, (0, 0)),
        (0, 0, 2, (0, 0)),
    ],
)
def test_as_many_spans_as_fit(n, room, each, expected):
    """Of 5x0.05, by hand: how many spans or pairs, and of how many words a span."""
    assert parse_spans("5x0.05").fit(n, room, each=each) == expected


def test_a_span_that_is_too_long_is_made_to_fit():
    """Half of seven words is three, and two such spans of a pair are six; of the whole none would fit."""
    assert parse_spans("1x0.5").fit(7, 7, each=2) == (1, 3)
    assert parse_spans("3x1").fit(7, 7, each=2) == (1, 3)
    assert parse_spans("3x1").fit(7, 6) == (1, 6)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("0.05", "expected COUNTxSHARE"),
        ("x0.05", "expected COUNTxSHARE"),
        ("-1x0.05", "expected COUNTxSHARE"),
        ("0x0.05", "expected a count of 1 or more"),
        ("5x", "expected a share"),
        ("5x1.5", "expected a share"),
    ],
)
def test_what_is_no_number_of_spans_is_refused(text, problem):
    with pytest.raises(ValueError, match=problem):
        parse_spans(text)
