"""Words doubled, replaced and bared."""

import pytest

from sentkit.augment.case_and_punctuation import bare, lower, no_punctuation
from sentkit.augment.repetition import repeat
from sentkit.augment.shares import parse_share
from sentkit.augment.synonyms import synonym

SYNONYMS = {"big": ("large",), "dog": ("domestic dog", "hound"), "don't": ("never",)}


@pytest.mark.parametrize(
    ("rate", "n", "more"), [("0.32", 0, 0), ("0.32", 1, 0), ("0.32", 2, 1), ("0.32", 25, 8), ("1", 3, 3)]
)
def test_so_many_words_are_doubled(words, draw, rate, n, more):
    said, note = repeat(words(n), draw(n), parse_share(rate))
    expected = []
    for place in range(n):
        expected += [f"w{place}"] * (2 if place in note["at"] else 1)

    assert list(said) == expected
    assert len(said) == n + more


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("dog", ("", "dog", "")),
        ('("dog"),', ('("', "dog", '"),')),
        ("don't.", ("", "don't", ".")),
        ("well-known", ("", "well-known", "")),
        ("«Straße»", ("«", "Straße", "»")),
        ("50%", ("", "50%", "")),
        ("...", ("...", "", "")),
        ("$5,", ("", "$5", ",")),
    ],
)
def test_a_word_without_what_is_around_it(word, parts):
    assert bare(word) == parts


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Well , he said: “don't!”", "Well he said don't"),
        ("A 3.5 % rise - (big).", "A 3.5 % rise big"),
        ("... !", "... !"),
        ("", ""),
    ],
)
def test_punctuation_goes(draw, text, left):
    """Around words and alone; a text of nothing else stays."""
    assert " ".join(no_punctuation(text.split(), draw())[0]) == left


def test_capitals_go(draw):
    assert lower(["A", "ÉTÉ", "x"], draw())[0] == ["a", "été", "x"]


def test_a_synonym_takes_the_punctuation_and_the_capital(draw):
    text = '"Big dogs don\'t," says BIG.'
    changed, note = synonym(text.split(), draw(), parse_share("1"), SYNONYMS)

    assert " ".join(changed) == '"Large dogs never," says LARGE.'
    assert note == {"at": [0, 2, 4], "words": ["Large", "never", "LARGE"]}


def test_a_synonym_of_two_words_is_two_words(draw):
    """Both synonyms are drawn by one key or another, and what follows sees their words."""
    found = {tuple(synonym(["dog"] * 2, draw(key), parse_share("0.5"), SYNONYMS)[0]) for key in range(40)}

    assert found == {
        ("domestic", "dog", "dog"),
        ("dog", "domestic", "dog"),
        ("hound", "dog"),
        ("dog", "hound"),
    }


@pytest.mark.parametrize(("rate", "count"), [("0.3", 3), ("0.5", 4), ("0.1", 1), ("0", 0)])
def test_so_many_words_become_synonyms(words, draw, rate, count):
    """Of ten words by the share, of those that have one at most: here four."""
    text = [*words(6), "big", "dog", "big", "dog"]
    _, note = synonym(text, draw(), parse_share(rate), SYNONYMS)

    assert len(note["at"]) == count
    assert set(note["at"]) <= {6, 7, 8, 9}


def test_nothing_is_replaced_where_nothing_is_known(words, draw):
    assert synonym(words(9), draw(), parse_share("1"), SYNONYMS) == (words(9), {"at": [], "words": []})


@pytest.mark.parametrize(
    ("word", "expected"),
    [("DOG", "HOUND"), ("Dog,", "Hound,"), ("U.S.", "America"), ("Don\u2019t", "Never"), ("...", "...")],
)
def test_a_synonym_is_looked_up_as_it_is_meant(draw, word, expected):
    """A word with marks of its own first as a whole; an apostrophe of typesetters as any other."""
    synonyms = {"dog": ("hound",), "u.s.": ("America",), "don't": ("never",)}
    changed, _ = synonym([word, "x"], draw(), parse_share("1"), synonyms)

    assert list(changed) == [expected, "x"]
