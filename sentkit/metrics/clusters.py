"""Clusters: agreement with gold classes or other clusters, stability, the silhouette, and keywords.

Letters in shapes: n rows, s sampled rows, d dimensions, c classes, k clusters.
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


def agreement_measures(classes: Indices, clusters: Indices) -> dict[str, float]:
    """All measures, by name. V-measure equals NMI with the arithmetic mean of the entropies.

    The rows of cluster -1 count as wrong in the accuracy; for the others they are one more cluster.
    """
    from sklearn import metrics

    _, _, matched_rows = matching(classes, clusters)
    accuracy = matched_rows / len(classes)
    homogeneity, completeness, v = metrics.homogeneity_completeness_v_measure(classes, clusters)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about classes of few rows
        ami = metrics.adjusted_mutual_info_score(classes, clusters)
    return {
        "acc": float(accuracy),
        "nmi": float(v),
        "ari": adjusted_rand(classes, clusters),
        "ami": float(ami),
        "homogeneity": float(homogeneity),
        "completeness": float(completeness),
        "v_measure": float(v),
    }


def matching(classes: Indices, clusters: Indices) -> tuple[Indices, Indices, int]:
    """The one-to-one assignment of classes and clusters that covers most rows (Kuhn, 1955); their
    number.

    Class i of the first array is assigned to the cluster of the second array at the same index.
    The rows of cluster -1 are in no cluster: no class is assigned to it.
    """
    from scipy.optimize import linear_sum_assignment
    from sklearn.metrics.cluster import contingency_matrix

    table = contingency_matrix(classes, clusters)
    table[:, np.unique(clusters) < 0] = 0
    i, j = linear_sum_assignment(table, maximize=True)
    has_rows = table[i, j] > 0  # others are assigned only because each class gets a cluster
    i, j = i[has_rows], j[has_rows]
    return i, j, int(table[i, j].sum())


def adjusted_rand(labels_a: Indices, labels_b: Indices) -> float:
    """The Rand index, corrected for chance (Hubert and Arabie, 1985)."""
    from sklearn.metrics import adjusted_rand_score

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about classes of few rows
        return float(adjusted_rand_score(labels_a, labels_b))


def agreement(clusterings: Sequence[Indices]) -> float | None:
    """The mean adjusted Rand index over all pairs; None for a single clustering."""
    rand_indices = [adjusted_rand(a, b) for a, b in combinations(clusterings, 2)]
    if not rand_indices:
        return None
    return sum(rand_indices) / len(rand_indices)


def agreeing(labels: Indices, clusterings: Sequence[Indices]) -> Float64:
    """For each row, (n,): the share of `clusterings` in which its cluster matches the one in
    `labels`.
    """
    clusters = np.unique(labels, return_inverse=True)[1]  # numbered from 0
    counts = np.zeros(len(labels))
    for other_labels in clusterings:
        names, other_clusters = np.unique(other_labels, return_inverse=True)
        matched_cluster = np.full(len(names), -1)  # unmatched clusters agree with nothing
        matched, other_matched, _ = matching(labels, other_labels)
        matched_cluster[other_matched] = matched
        counts += matched_cluster[other_clusters] == clusters
    return counts / max(1, len(clusterings))


SAMPLE_ROWS = 4000  # rows; all their distances are held in memory


def sample_for_silhouette(
    count: int, random: np.random.Generator, max_rows: int = SAMPLE_ROWS
) -> Indices:
    """The indices of all rows or, of many, of a random sample, in ascending order, (s,)."""
    if count <= max_rows:
        return np.arange(count)
    return np.sort(random.choice(count, max_rows, replace=False))


def distances_among(rows: Float32) -> Float32:
    """The Euclidean distance of each row to each row, (n, d) -> (n, n)."""
    from sklearn.metrics import pairwise_distances

    wide = rows.astype(np.float64)
    # About the mean, the products within `pairwise_distances` are small, and so are their errors.
    return pairwise_distances(wide - wide.mean(axis=0)).astype(np.float32)


def silhouette(distances: Float32, labels: Indices) -> float | None:
    """The mean over all rows, from their distances (n, n) and clusters (n,).

    None if there is one cluster only, or one row in each cluster.
    """
    from sklearn.metrics import silhouette_score

    if not 1 < len(np.unique(labels)) < len(labels):
        return None
    return float(silhouette_score(distances, labels, metric="precomputed"))


RATIO = 2.0  # lowest frequency of a keyword in its cluster, relative to that in the others
STOP_WORDS = frozenset(
    """
    about after again all also am an and any are as at be because been before being but by can
    could did do does doing down each few for from further get had has have having he her here
    hers him his how if in into is it its itself just me more most my no nor not now of off on
    once only or other our ours out over own same she should so some such than that the their
    theirs them then there these they this those through to too under until up us use using very
    was we were what when where which while who whom why will with would you your yours
    """.split()  # noqa: SIM905
)


def keywords(texts: Iterable[tuple[int, str]], clusters: int, count: int) -> list[list[str]]:
    """The `count` words with the highest weight in each cluster; texts come with their cluster
    number.

    This is class-based tf-idf (Grootendorst, arXiv 2203.05794). The weight is sqrt(tf) log(1 + A /
    f). tf is the frequency of the word within the words of the cluster, f its count in all
    clusters, and A the mean number of words per cluster. The square root is BERTopic's: without it,
    common words rank first. A keyword is at least RATIO times as frequent in the cluster as in the
    others: this leaves out the stop words of any language. STOP_WORDS are those of English, for few
    texts. Ties are in alphabetical order.
    """
    counts_of_clusters: list[Counter[str]] = [Counter() for _ in range(clusters)]
    for cluster, text in texts:
        if cluster >= 0:  # not noise
            counts_of_clusters[cluster].update(words_of(text))
    all_counts: Counter[str] = Counter()
    for counts in counts_of_clusters:
        all_counts.update(counts)
    return [keywords_of(counts, all_counts, clusters, count) for counts in counts_of_clusters]


def keywords_of(
    counts: Counter[str], all_counts: Counter[str], clusters: int, count: int
) -> list[str]:
    """The keywords of a cluster from the counts of its words and of those of all clusters."""
    total = counts.total()
    other_total = all_counts.total() - total
    mean_total = all_counts.total() / max(1, clusters)
    weighted_words = list[tuple[float, str]]()  # the highest weight first
    for name, in_cluster in counts.items():
        elsewhere = all_counts[name] - in_cluster
        if name in STOP_WORDS or in_cluster * other_total < RATIO * elsewhere * total:
            continue
        weight = math.sqrt(in_cluster / total) * math.log(1.0 + mean_total / all_counts[name])
        weighted_words.append((-weight, name))
    return [name for _, name in heapq.nsmallest(count, weighted_words)]


def rows_with_keyword(
    texts: Iterable[tuple[int, str]], keywords_of_clusters: Sequence[Sequence[str]]
) -> list[int]:
    """The number of texts of each cluster that have one of its keywords or more."""
    keyword_sets = [set(names) for names in keywords_of_clusters]
    counts = [0] * len(keyword_sets)
    for cluster, text in texts:
        if cluster >= 0 and not keyword_sets[cluster].isdisjoint(words_of(text)):
            counts[cluster] += 1
    return counts


def words_of(text: str) -> list[str]:
    return word().findall(unicodedata.normalize("NFC", text).lower())


@cache
def word() -> re.Pattern[str]:
    """A word: two letters or more, as in scikit-learn, and combining marks, which many scripts
    need.
    """
    marks = "".join(chr(n) for n in range(0x110000) if unicodedata.category(chr(n)) in ("Mn", "Mc"))
    return re.compile(rf"\w[\w{marks}]+")
