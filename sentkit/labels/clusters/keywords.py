"""Keywords that distinguish a cluster: class-based tf-idf (Grootendorst, arXiv 2203.05794)."""

import heapq
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache


@cache
def word() -> re.Pattern[str]:
    """A word: two letters or more, as in scikit-learn, and combining marks, which many scripts need."""
    marks = "".join(chr(n) for n in range(0x110000) if unicodedata.category(chr(n)) in ("Mn", "Mc"))
    return re.compile(rf"\w[\w{marks}]+")


def words_of(text: str) -> list[str]:
    return word().findall(unicodedata.normalize("NFC", text).lower())


def keywords(texts: Iterable[tuple[int, str]], clusters: int, count: int) -> list[list[str]]:
    """The `count` words with the highest weight in each cluster; texts come with their cluster number.

    The weight is sqrt(tf) * log(1 + A / f). tf is the frequency of the word within the words of the cluster,
    f its count in all clusters, and A the mean number of words per cluster. The square root is BERTopic's:
    without it, common words rank first. Ties are in alphabetical order.
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
