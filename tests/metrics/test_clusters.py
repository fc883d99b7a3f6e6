"""Agreement of clusterings and their keywords, against worked examples and plain loops."""

import math
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score, silhouette_score

from sentkit.metrics.clusters import (
    agreeing,
    agreement,
    agreement_measures,
    distances_among,
    keywords,
    rows_with_keyword,
    sample_for_silhouette,
    silhouette,
)


def test_accuracy_is_that_of_the_best_of_all_matchings():
    random = np.random.default_rng(3)
    classes = random.integers(4, size=30)
    clusters = random.integers(5, size=30)
    best = max(
        sum(order[c] == t for t, c in zip(classes, clusters, strict=True)) / 30
        for order in permutations([0, 1, 2, 3, -1])
    )

    assert agreement_measures(classes, clusters)["acc"] == best


def test_rows_in_no_cluster_count_as_wrong():
    """Without -1, classes 0 and 1 match clusters 0 and 1: 3 of 6 rows. As a cluster of its own, it
    would add the three rows of class 2. The other measures are those of scikit-learn.
    """
    classes = np.array([0, 0, 1, 2, 2, 2])
    clusters = np.array([0, 0, 1, -1, -1, -1])
    measures = agreement_measures(classes, clusters)

    assert (measures["acc"], measures["nmi"], measures["ari"]) == (0.5, 1.0, 1.0)
    assert agreeing(classes, [clusters]).tolist() == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    assert agreement_measures(classes, np.full(6, -1))["acc"] == 0.0
    assert agreeing(classes, [np.full(6, -1)]).tolist() == [0.0] * 6


def test_agreement_is_the_mean_over_all_pairs():
    clusterings = [np.random.default_rng(s).integers(3, size=40) for s in range(3)]
    pairs = [(0, 1), (0, 2), (1, 2)]
    expected = sum(adjusted_rand_score(clusterings[a], clusterings[b]) for a, b in pairs) / 3

    assert agreement(clusterings) == pytest.approx(expected, abs=1e-12)
    assert agreement(clusterings[:1]) is None


def test_a_row_agrees_where_it_is_in_the_matched_cluster():
    """The first differs in names alone; the second moves the third row; the third puts it apart."""
    labels = np.array([0, 0, 0, 1, 1])
    other_labels = [np.array([7, 7, 7, 2, 2]), np.array([1, 1, 0, 0, 0]), np.array([0, 0, 9, 3, 3])]

    assert agreeing(labels, other_labels).tolist() == [1.0, 1.0, 1 / 3, 1.0, 1.0]


@pytest.fixture
def rows():
    return np.random.default_rng(0).standard_normal((300, 8)).astype(np.float32) + np.float32(3)


def test_a_row_far_away_leaves_the_others_their_distances(rows):
    rows[0] = 1e10
    labels = (rows[:, 0] > 3).astype(int)
    expected = silhouette_score(rows.astype(np.float64), labels)

    assert silhouette(distances_among(rows), labels) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("max_rows", [100, 300])
@pytest.mark.parametrize("clusters", [2, 5, 40])
def test_the_silhouette_is_that_of_scikit_learn(rows, clusters, max_rows):
    """Among forty clusters some have one row."""
    sample = sample_for_silhouette(len(rows), np.random.default_rng(1), max_rows=max_rows)
    labels = (clusters * np.random.default_rng(2).random(300) ** 3).astype(int)
    expected = silhouette_score(rows[sample].astype(np.float64), labels[sample])

    assert np.unique(sample).tolist() == sample.tolist()  # in ascending order
    assert len(sample) == max_rows
    mean = silhouette(distances_among(rows[sample]), labels[sample])
    assert mean == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("labels", [np.zeros(300, int), np.arange(300)])
def test_there_is_none_of_one_cluster_nor_of_single_rows(rows, labels):
    assert silhouette(distances_among(rows), labels) is None


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
    counts = Counter(WORDS[cluster])
    counts_of_all = Counter(WORDS[0] + WORDS[1])
    mean = sum(map(len, WORDS)) / 2
    return math.sqrt(counts[word] / len(WORDS[cluster])) * math.log(1 + mean / counts_of_all[word])


def distinguishes(word, cluster):
    share, share_of_other = (WORDS[c].count(word) / len(WORDS[c]) for c in (cluster, 1 - cluster))
    return share >= 2 * share_of_other and word not in ("the", "and")


def test_the_words_of_the_highest_weight_come_first():
    """Equal to a loop; without words of one letter, noise and stop words; ties in alphabetical
    order.
    """
    words = [[word for word in {*WORDS[c]} if distinguishes(word, c)] for c in (0, 1)]
    expected = [sorted(words[c], key=lambda word: (-weight(word, c), word))[:4] for c in (0, 1)]

    assert keywords(TEXTS, 2, 4) == expected
    assert [words[0] for words in expected] == ["cat", "fell"]


def test_words_that_are_as_frequent_in_other_clusters_are_no_keywords():
    """The stop words of a language are such words. A word of one cluster alone is always one."""
    german = [(0, "der hund und die katze schlafen"), (1, "der markt und die bank fallen")]
    more = [(0, "und der vogel singt"), (1, "und der kurs steigt")]

    first, second = map(set, keywords(german + more, 2, 9))
    assert first > {"hund", "katze", "vogel"}
    assert second > {"markt", "bank", "kurs"}
    assert not {"der", "und", "die"} & (first | second)
    assert keywords([(0, "der hund"), (0, "der markt")], 1, 9) == [["hund", "markt", "der"]]


def test_a_cluster_without_words_has_no_keywords():
    """And none has any if none are wanted."""
    assert keywords([(0, "a b c"), (1, "cat")], 3, 5) == [[], ["cat"], []]
    assert keywords(TEXTS, 2, 0) == [[], []]


def test_words_of_any_script_are_whole():
    """Vowel signs of Devanagari, and an accent as a separate character."""
    assert keywords([(0, "हिन्दी भाषा cafe\u0301")], 1, 5) == [sorted(["हिन्दी", "भाषा", "café"])]


def test_rows_with_a_keyword_of_their_cluster_are_counted():
    """Each row once; noise and the keywords of other clusters do not count."""
    texts = [(0, "A cat, a cat"), (0, "a dog"), (0, "rain"), (1, "cat"), (-1, "cat"), (1, "")]

    assert rows_with_keyword(texts, [["cat", "dog"], ["rain"]]) == [2, 0]
    assert rows_with_keyword([], [[], []]) == [0, 0]
