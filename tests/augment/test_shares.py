"""Shares of words: the written decimal, rounded down, but at least one word of two."""

from decimal import ROUND_FLOOR, Decimal

import pytest

from sentkit.augment.operations import parse_share, parse_spans

LENGTHS = (*range(23), 50, 99, 100, 101, 1000)


def test_a_share_of_words_is_exact():
    """It is rounded down, but is at least one word of two, except for a share of 0.

    Floats fail: 0.29 * 100 is 28.999, but 0.29 of 100 words is 29.
    """
    texts = [f"{n / 1000:.3f}" for n in range(1001)]
    for text in (*texts, ".7", "0.3", "1", "1.", "0"):
        share, number = parse_share(text), Decimal(text)
        floors = [int((number * n).to_integral_value(ROUND_FLOOR)) for n in LENGTHS]
        least = [1 if number and n >= 2 else 0 for n in LENGTHS]

        assert [share.of(n) for n in LENGTHS] == [*map(max, floors, least)], text


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
def test_invalid_shares_are_refused(text):
    with pytest.raises(ValueError, match="expected a share from 0 to 1"):
        parse_share(text)


@pytest.mark.parametrize(
    ("n", "room", "each", "expected"),
    [
        (100, 99, 1, (5, 5)),  # five spans of 5 %
        (20, 19, 1, (5, 1)),
        (19, 18, 1, (5, 1)),  # 0.95 words become one
        (5, 4, 1, (4, 1)),  # the fifth would delete the last word
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
def test_spans_that_do_not_fit_are_omitted(n, room, each, expected):
    """The number of spans or pairs of 5x0.05, and their length, worked by hand."""
    assert parse_spans("5x0.05").fit(n, room, each=each) == expected


def test_a_long_span_is_shortened():
    """Half of seven words is three, and a pair of such spans has six."""
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
def test_invalid_spans_are_refused(text, problem):
    with pytest.raises(ValueError, match=problem):
        parse_spans(text)
