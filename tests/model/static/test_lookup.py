"""Texts to words, where encoders know whole words."""

import pytest

from sentkit.errors import UsageError
from sentkit.model.static import lookup
from sentkit.model.static.lookup import Gathering, Lookup, words_of
from sentkit.model.text.tokenizer import Tokens

WORDS = ["the", "Paris", "paris", ".", "U.S.", "...", "don't", "cat", ",", "café"]
PLACES = {word: place for place, word in enumerate(WORDS)}


def looked_up(text: str, most: int | None = None) -> Tokens:
    (found,) = Lookup(PLACES, max_length=most, prompt="")([text])
    return found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A man is here.", ["A", "man", "is", "here", "."]),
        ('"Well," he said...', ['"', "Well", ',"', "he", "said", "..."]),
        ("don't re-do", ["don", "'", "t", "re", "-", "do"]),
        ("مرحبا، كيف؟", ["مرحبا", "،", "كيف", "؟"]),
        ("कृपया। cafe\u0301", ["कृपया", "।", "cafe\u0301"]),
        ("“так”…", ["“", "так", "”…"]),
        (" \t\n\u3000", []),
        ("", []),
    ],
)
def test_a_text_is_cut_into_words_and_runs_of_marks(text: str, words: list[str]) -> None:
    """A vowel sign or an accent is part of its word."""
    assert words_of(text) == words


@pytest.mark.parametrize(
    ("text", "known", "unknown"),
    [
        ("the cat", ["the", "cat"], 0),
        ("The CAT", ["the", "cat"], 0),
        ("Paris paris PARIS", ["Paris", "paris", "paris"], 0),
        ("the U.S.", ["the", "U.S."], 0),
        ("the U.S.!", ["the", "."], 2),
        ("cat, cat...", ["cat", ",", "cat", "..."], 0),
        ("don't", ["don't"], 0),
        ("don't!", [], 2),
        ("zebra cat", ["cat"], 1),
        ("?! cat", ["cat"], 0),
        ("CAFÉ", ["café"], 0),
        ("", [], 0),
    ],
)
def test_words_are_looked_up_as_written_then_in_lower_case(text: str, known: list[str], unknown: int) -> None:
    """What stands between blanks comes first. A mark without a vector is no unknown word."""
    found = looked_up(text)

    assert found.ids == [PLACES[word] for word in known]
    assert (found.unknown, found.count, found.cut) == (unknown, len(known) + unknown, False)


def test_a_cut_counts_the_words_that_are_not_known_too() -> None:
    found = looked_up("the zebra cat cat", most=3)

    assert found.ids == [PLACES["the"], PLACES["cat"]]
    assert (found.unknown, found.count, found.cut) == (1, 4, True)


def test_a_prefix_stands_before_every_text() -> None:
    (found,) = Lookup(PLACES, max_length=None, prompt="the ")(["cat"])

    assert found.ids == [PLACES["the"], PLACES["cat"]]


def test_a_set_has_each_word_once_in_lower_case() -> None:
    gathering = Gathering(max_length=None, prompt="")
    first, second = gathering(["The cat. The dog.", "a DOG"])

    assert gathering.places == {"the": 0, "cat": 1, ".": 2, "dog": 3, "a": 4}
    assert (first.ids, first.count, second.ids) == ([0, 1, 2, 3], 4, [4, 3])


def test_the_hash_of_a_vocabulary_is_not_of_its_order() -> None:
    hashes = []
    for texts in (["a b", "c"], ["c b", "a"], ["a b", "d"]):
        gathering = Gathering(max_length=None, prompt="")
        gathering(texts)
        hashes.append(gathering.hash)

    assert hashes[0] == hashes[1] != hashes[2]


def test_too_many_words_are_refused_with_the_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "MOST_WORDS", 3)
    gathering = Gathering(max_length=None, prompt="")
    gathering(["a b", "b c"])
    with pytest.raises(UsageError, match="words:binary is for up to 3 different words") as caught:
        gathering(["d"])

    assert "KB" in str(caught.value.advice)
