"""Clusters: agreement with gold classes or other clusters, stability, the silhouette, and keywords.

Letters in shapes: n rows, c classes, k clusters.
"""

import heapq
import math
import re
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import combinations

import numpy as np

from sentkit.arrays import Float32, Float64, Indices

MEASURES = ("acc", "nmi", "ari", "ami", "homogeneity", "completeness", "v_measure")


def measures(classes: Indices, clusters: Indices) -> dict[str, float]:
    """All measures, by name. V-measure equals NMI with the arithmetic mean of the entropies."""
    from sklearn import metrics

    right = matching(classes, clusters)[2] / len(classes)  # in the cluster that is assigned to their class
    homogeneity, completeness, v = metrics.homogeneity_completeness_v_measure(classes, clusters)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about classes of few rows
        ami = metrics.adjusted_mutual_info_score(classes, clusters)
    values = (right, v, adjusted_rand(classes, clusters), ami, homogeneity, completeness, v)
    return dict(zip(MEASURES, map(float, values), strict=True))


def matching(classes: Indices, clusters: Indices) -> tuple[Indices, Indices, int]:
    """The one-to-one assignment of classes and clusters that covers most rows (Kuhn, 1955); their number."""
    from scipy.optimize import linear_sum_assignment
    from sklearn.metrics.cluster import contingency_matrix

    table = contingency_matrix(classes, clusters)
    i, j = linear_sum_assignment(table, maximize=True)
    return i, j, int(table[i, j].sum())


def adjusted_rand(one: Indices, other: Indices) -> float:
    """The Rand index, corrected for chance (Hubert and Arabie, 1985)."""
    from sklearn.metrics import adjusted_rand_score

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about classes of few rows
        return float(adjusted_rand_score(one, other))


def agreement(clusterings: Sequence[Indices]) -> float | None:
    """The mean adjusted Rand index over all pairs; None for a single clustering."""
    indexes = [adjusted_rand(*pair) for pair in combinations(clusterings, 2)]
    return sum(indexes) / len(indexes) if indexes else None


def agreeing(labels: Indices, others: Sequence[Indices]) -> Float64:
    """For each row, (n,): the share of `others` in which its cluster matches the one in `labels`."""
    own = np.unique(labels, return_inverse=True)[1]
    counts = np.zeros(len(labels))
    for other in others:
        columns, theirs = np.unique(other, return_inverse=True)
        matched = np.full(len(columns), -1)  # unmatched clusters agree with nothing
        partners, clusters, _ = matching(labels, other)
        matched[clusters] = partners
        counts += matched[theirs] == own
    return counts / max(1, len(others))


SAMPLE_ROWS = 4000  # rows; all their distances are held in memory


class Silhouette:
    """A sample of rows with their distances, which are reused for many clusterings."""

    def __init__(self, rows: Float32, random: np.random.Generator, most: int = SAMPLE_ROWS) -> None:
        from sklearn.metrics import pairwise_distances

        many = len(rows) > most
        self.places = np.sort(random.choice(len(rows), most, replace=False)) if many else np.arange(len(rows))
        sample = rows[self.places].astype(np.float64)
        self.distances = pairwise_distances(sample - sample.mean(axis=0)).astype(np.float32)

    def of(self, labels: Indices) -> float | None:
        """The mean over the sample; None if it has one cluster only, or one row in each cluster."""
        from sklearn.metrics import silhouette_score

        own = labels[self.places]
        if not 1 < len(np.unique(own)) < len(own):
            return None
        return float(silhouette_score(self.distances, own, metric="precomputed"))


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

    This is class-based tf-idf (Grootendorst, arXiv 2203.05794). The weight is sqrt(tf) log(1 + A / f). tf is
    the frequency of the word within the words of the cluster, f its count in all clusters, and A the mean
    number of words per cluster. The square root is BERTopic's: without it, common words rank first. A keyword
    is at least RATIO times as frequent in the cluster as in the others: this leaves out the stop words of any
    language. STOP_WORDS are those of English, for few texts. Ties are in alphabetical order.
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
