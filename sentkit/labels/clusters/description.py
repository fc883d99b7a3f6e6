"""Descriptions of clusters: size, keywords, and the rows nearest to the centre.

The keywords distinguish a cluster: class-based tf-idf (Grootendorst, arXiv 2203.05794).
"""

import heapq
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from sentkit.arrays import Float32
from sentkit.labels.clusters.algorithms.clustering import Clustering
from sentkit.labels.clusters.algorithms.nearest_centroid import distances
from sentkit.labels.clusters.vector_rows import Points

Description = dict[str, Any]  # a JSON object


@dataclass(frozen=True, slots=True)
class DescriptionOptions:
    """The text of a row is the first of the fields `names` that is a string."""

    names: tuple[str, ...] = ("text",)
    keywords: int = 10
    nearest: int = 3


def descriptions(
    points: Points, clustering: Clustering, options: DescriptionOptions
) -> Iterator[Description]:
    """A record for each cluster. Keywords need texts."""
    central = nearest_rows(points.rows, clustering, options.nearest)
    needed = {row for own in central for row in own}
    kept: dict[int, dict[str, Any]] = {}

    def texts() -> Iterator[tuple[int, str]]:
        labels = clustering.labels.tolist()
        for place, (row, label) in enumerate(zip(points.kept_rows(), labels, strict=True)):
            fields = (row.values.get(name) for name in options.names)
            text = next((value for value in fields if isinstance(value, str)), None)
            if place in needed:
                kept[place] = points.inputs.place_of(row) | ({} if text is None else {"text": text})
            if text is not None:
                yield label, text

    best = keywords(texts(), len(clustering.centres), options.keywords)
    for label, size in enumerate(clustering.sizes.tolist()):
        rows = [kept[place] for place in central[label]]
        yield {"cluster": label, "size": size, "keywords": best[label], "nearest": rows}


def nearest_rows(rows: Float32, clustering: Clustering, count: int) -> list[list[int]]:
    """For each cluster, its rows nearest to its centre, nearest first."""
    inside = np.flatnonzero(clustering.labels >= 0)
    labels = clustering.labels[inside]
    order = inside[np.lexsort((distances(rows, clustering.centres, inside, labels), labels))]
    ends = np.cumsum(clustering.sizes)
    return [part[:count].tolist() for part in np.split(order, ends[:-1])]


def keywords(texts: Iterable[tuple[int, str]], clusters: int, count: int) -> list[list[str]]:
    """The `count` words with the highest weight in each cluster; texts come with their cluster number.

    The weight is sqrt(tf) * log(1 + A / f). tf is the frequency of the word within the words of the cluster,
    f its count in all clusters, and A the mean number of words per cluster. The square root is BERTopic's:
    without it, common words rank first. Ties are in alphabetical order.
    """
    inside: list[Counter[str]] = [Counter() for _ in range(clusters)]
    for cluster, text in texts:
        if cluster >= 0:
            inside[cluster].update(word().findall(unicodedata.normalize("NFC", text).lower()))
    everywhere: Counter[str] = Counter()
    for words in inside:
        everywhere.update(words)
    mean = everywhere.total() / max(1, clusters)
    best = []
    for words in inside:
        total = words.total()
        weights = (
            (-math.sqrt(times / total) * math.log(1.0 + mean / everywhere[each]), each)
            for each, times in words.items()
        )
        best.append([each for _, each in heapq.nsmallest(count, weights)])
    return best


@cache
def word() -> re.Pattern[str]:
    """A word: two letters or more, as in scikit-learn, and combining marks, which many scripts need."""
    marks = "".join(chr(n) for n in range(0x110000) if unicodedata.category(chr(n)) in ("Mn", "Mc"))
    return re.compile(rf"\w[\w{marks}]+")
