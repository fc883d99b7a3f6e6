"""The algorithms, by name, and what may be asked of each."""

from dataclasses import dataclass

from sentkit.labels.clusters.algorithms.clustering import Find
from sentkit.labels.clusters.algorithms.kmeans import kmeans
from sentkit.labels.clusters.algorithms.libraries import agglomerative, faiss, hdbscan, minibatch


@dataclass(frozen=True, slots=True)
class Algorithm:
    find: Find
    flags: tuple[str, ...]  # those of its own
    random: bool = True  # another seed may change what it finds
    counted: bool = True  # it is told how many clusters
    largest: int | None = None  # rows: time and memory grow with their square


ALGORITHMS: dict[str, Algorithm] = {
    "kmeans": Algorithm(kmeans, ("--n-init",)),
    "minibatch": Algorithm(minibatch, ("--n-init",)),
    "agglomerative": Algorithm(agglomerative, ("--linkage",), random=False, largest=20_000),
    "hdbscan": Algorithm(hdbscan, ("--min-cluster-size",), random=False, counted=False, largest=50_000),
    "faiss": Algorithm(faiss, ("--n-init",)),
}
