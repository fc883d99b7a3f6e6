"""Keywords by class-based tf-idf."""

import math
from collections import Counter

from sentkit.labels.clusters.reports import keywords

TEXTS = [
    (0, "The cat sleeps, the cat eats"),
    (0, "a cat and a dog"),
    (1, "the market fell; markets FELL"),
    (1, "the bank and the market"),
    (-1, "noise noise noise"),
]
WORDS = [
    ["the", "cat", "sleeps", "the", "cat", "eats", "cat", "and", "dog"],
    ["the", "market", "fell", "markets", "fell", "the", "bank", "and", "the", "market"],
]


def weight(word, cluster):
    own, everywhere = Counter(WORDS[cluster]), Counter(WORDS[0] + WORDS[1])
    mean = sum(map(len, WORDS)) / 2
    return math.sqrt(own[word] / len(WORDS[cluster])) * math.log(1 + mean / everywhere[word])


def test_the_words_of_the_highest_weight_come_first():
    """Equal to a loop; without words of one letter and noise; ties in alphabetical order."""
    expected = [sorted(set(WORDS[c]), key=lambda word: (-weight(word, c), word))[:4] for c in (0, 1)]

    assert keywords(TEXTS, 2, 4) == expected
    assert [words[0] for words in expected] == ["cat", "fell"]


def test_a_cluster_without_words_has_no_keywords():
    """And none has any if none are wanted."""
    assert keywords([(0, "a b c"), (1, "cat")], 3, 5) == [[], ["cat"], []]
    assert keywords(TEXTS, 2, 0) == [[], []]


def test_words_of_any_script_are_whole():
    """Vowel signs of Devanagari, and an accent as a separate character."""
    assert keywords([(0, "हिन्दी भाषा cafe\u0301")], 1, 5) == [sorted(["हिन्दी", "भाषा", "café"])]
