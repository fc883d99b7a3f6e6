"""The words that tell a cluster from the others: class-based tf-idf (Grootendorst, arXiv 2203.05794)."""

import heapq
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache


@cache
def word() -> re.Pattern[str]:
    """Two letters or more, as scikit-learn takes words, and the marks that many scripts write on letters."""
    marks = "".join(chr(n) for n in range(0x110000) if unicodedata.category(chr(n)) in ("Mn", "Mc"))
    return re.compile(rf"\w[\w{marks}]+")


def words_of(text: str) -> list[str]:
    return word().findall(unicodedata.normalize("NFC", text).lower())


def keywords(texts: Iterable[tuple[int, str]], clusters: int, count: int) -> list[list[str]]:
    """Of each cluster the `count` words of the highest weight, from texts with the numbers of their clusters.

    The weight is the root of tf, times log(1 + A / f): tf is the share of the word in the cluster's words, f
    how often it stands in all clusters, and A the mean number of words of a cluster. The root is BERTopic's:
    without it the words of every sentence come first. Equal weights are in the order of the alphabet.
    """
    inside: list[Counter[str]] = [Counter() for _ in range(clusters)]
    for cluster, text in texts:
        if cluster >= 0:
            inside[cluster].update(words_of(text))
    everywhere: Counter[str] = Counter()
    for words in inside:
        everywhere.update(words)
    mean = everywhere.total() / max(1, clusters)
    return [_best(words, everywhere, mean, count) for words in inside]


def _best(words: Counter[str], everywhere: Counter[str], mean: float, count: int) -> list[str]:
    total = words.total()
    weights: Sequence[tuple[float, str]] = [
        (-math.sqrt(times / total) * math.log(1.0 + mean / everywhere[word]), word)
        for word, times in words.items()
    ]
    return [word for _, word in heapq.nsmallest(count, weights)]
