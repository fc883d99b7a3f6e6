"""Texts become row indexes of whole words."""

import pytest

from sentkit.errors import UsageError
from sentkit.model.static import tokenizers
from sentkit.model.static.tokenizers import CollectedWords, WordLookup, words_of

WORDS = ["the", "Paris", "paris", ".", "U.S.", "...", "don't", "cat", ",", "café"]
INDEXES = {word: index for index, word in enumerate(WORDS)}


def looked_up(text, most=None):
    (found,) = WordLookup(INDEXES, max_length=most, prompt="")([text])
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
def test_texts_are_split_into_words_and_runs_of_marks(text, words):
    """Vowel signs and accents are parts of words."""
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
def test_words_are_looked_up_as_written_then_in_lower_case(text, known, unknown):
    """Strings between spaces come first. Marks without a vector do not count as unknown words."""
    found = looked_up(text)

    assert found.ids == [INDEXES[word] for word in known]
    assert (found.unknown, found.count, found.truncated) == (unknown, len(known) + unknown, False)


@pytest.mark.parametrize(("most", "known"), [(3, ["the", "cat", "cat"]), (2, ["the", "cat"])])
def test_only_known_words_count_towards_the_limit(most, known):
    """A prompt precedes every text."""
    found = looked_up("the zebra cat cat", most=most)
    [prompted] = WordLookup(INDEXES, max_length=most, prompt="the ")(["zebra cat cat"])

    assert found.ids == [INDEXES[word] for word in known]
    assert (found.unknown, found.count, found.truncated) == (1, 4, most == 2)
    assert prompted == found


def test_collected_words_are_unique_and_in_lower_case():
    words = CollectedWords(max_length=None, prompt="")
    first, second = words(["The cat. The dog.", "a DOG"])

    assert words.indexes == {"the": 0, "cat": 1, ".": 2, "dog": 3, "a": 4}
    assert (first.ids, first.count, second.ids) == ([0, 1, 2, 3], 4, [4, 3])


def test_the_hash_of_a_vocabulary_ignores_its_order():
    hashes = []
    for texts in (["a b", "c"], ["c b", "a"], ["a b", "d"]):
        words = CollectedWords(max_length=None, prompt="")
        words(texts)
        hashes.append(words.hash)

    assert hashes[0] == hashes[1] != hashes[2]


def test_too_many_words_are_an_error_that_names_the_size_of_a_vector(monkeypatch):
    monkeypatch.setattr(tokenizers, "MAX_WORDS", 3)
    words = CollectedWords(max_length=None, prompt="")
    words(["a b", "b c"])
    with pytest.raises(UsageError, match="words:binary accepts at most 3 different words") as caught:
        words(["d"])

    assert caught.value.advice == "use fewer rows or another model"
