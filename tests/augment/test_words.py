"""Words doubled, replaced and bared."""

import pytest

from sentkit.augment.operations import bare, lower, no_punctuation, parse_share, repeat, synonym

SYNONYMS = {"big": ("large",), "dog": ("domestic dog", "hound"), "don't": ("never",)}


@pytest.mark.parametrize(
    ("rate", "n", "more"), [("0.32", 0, 0), ("0.32", 1, 0), ("0.32", 2, 1), ("0.32", 25, 8), ("1", 3, 3)]
)
def test_number_of_repeated_words(words, draw, rate, n, more):
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
def test_punctuation_around_a_word(word, parts):
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
def test_punctuation_is_removed(draw, text, left):
    """Around words and alone; a text of punctuation only is unchanged."""
    assert " ".join(no_punctuation(text.split(), draw())[0]) == left


def test_lower_case(draw):
    assert lower(["A", "ÉTÉ", "x"], draw())[0] == ["a", "été", "x"]


def test_a_synonym_keeps_punctuation_and_capital(draw):
    text = '"Big dogs don\'t," says BIG.'
    changed, note = synonym(text.split(), draw(), parse_share("1"), SYNONYMS)

    assert " ".join(changed) == '"Large dogs never," says LARGE.'
    assert note == {"at": [0, 2, 4], "words": ["Large", "never", "LARGE"]}


def test_a_synonym_may_have_two_words(draw):
    """Each synonym is drawn by some key, and later operations receive its words."""
    found = {tuple(synonym(["dog"] * 2, draw(key), parse_share("0.5"), SYNONYMS)[0]) for key in range(40)}

    assert found == {
        ("domestic", "dog", "dog"),
        ("dog", "domestic", "dog"),
        ("hound", "dog"),
        ("dog", "hound"),
    }


@pytest.mark.parametrize(("rate", "count"), [("0.3", 3), ("0.5", 4), ("0.1", 1), ("0", 0)])
def test_number_of_synonyms(words, draw, rate, count):
    """Only four of the ten words have a synonym."""
    text = [*words(6), "big", "dog", "big", "dog"]
    _, note = synonym(text, draw(), parse_share(rate), SYNONYMS)

    assert len(note["at"]) == count
    assert set(note["at"]) <= {6, 7, 8, 9}


def test_words_without_synonyms_are_unchanged(words, draw):
    assert synonym(words(9), draw(), parse_share("1"), SYNONYMS) == (words(9), {"at": [], "words": []})


@pytest.mark.parametrize(
    ("word", "expected"),
    [("DOG", "HOUND"), ("Dog,", "Hound,"), ("U.S.", "America"), ("Don\u2019t", "Never"), ("...", "...")],
)
def test_lookup_of_synonyms(draw, word, expected):
    """A word that contains punctuation is looked up whole first; apostrophes are normalized."""
    synonyms = {"dog": ("hound",), "u.s.": ("America",), "don't": ("never",)}
    changed, _ = synonym([word, "x"], draw(), parse_share("1"), synonyms)

    assert list(changed) == [expected, "x"]
