"""Words that distinguish clusters of texts: class-based tf-idf (Grootendorst, arXiv 2203.05794)."""

import heapq
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import cache

RATIO = 2.0  # least frequency of a keyword in its cluster, relative to that in the others
STOP_WORDS = frozenset(
    """
    about after again all also am an and any are as at be because been before being but by can could did
    do does doing down each few for from further get had has have having he her here hers him his how if
    in into is it its itself just me more most my no nor not now of off on once only or other our ours
    out over own same she should so some such than that the their theirs them then there these they this
    those through to too under until up us use using very was we were what when where which while who
    whom why will with would you your yours
    """.split()  # noqa: SIM905
)


def keywords(texts: Iterable[tuple[int, str]], clusters: int, count: int) -> list[list[str]]:
    """The `count` words with the highest weight in each cluster; texts come with their cluster number.

    The weight is sqrt(tf) * log(1 + A / f). tf is the frequency of the word within the words of the cluster,
    f its count in all clusters, and A the mean number of words per cluster. The square root is BERTopic's:
    without it, common words rank first. A keyword is at least RATIO times as frequent in the cluster as in
    the others: this leaves out the stop words of any language. STOP_WORDS are those of English, for few
    texts. Ties are in alphabetical order.
    """
    inside: list[Counter[str]] = [Counter() for _ in range(clusters)]
    for cluster, text in texts:
        if cluster >= 0:
            inside[cluster].update(word().findall(unicodedata.normalize("NFC", text).lower()))
    everywhere: Counter[str] = Counter()
    for words in inside:
        everywhere.update(words)
    all_words = everywhere.total()
    mean = all_words / max(1, clusters)
    best = []
    for words in inside:
        total = words.total()
        weights = (
            (-math.sqrt(times / total) * math.log(1.0 + mean / everywhere[each]), each)
            for each, times in words.items()
            if each not in STOP_WORDS
            and times * (all_words - total) >= RATIO * (everywhere[each] - times) * total
        )
        best.append([each for _, each in heapq.nsmallest(count, weights)])
    return best


@cache
def word() -> re.Pattern[str]:
    """A word: two letters or more, as in scikit-learn, and combining marks, which many scripts need."""
    marks = "".join(chr(n) for n in range(0x110000) if unicodedata.category(chr(n)) in ("Mn", "Mc"))
    return re.compile(rf"\w[\w{marks}]+")
