"""The algorithms by name, with their flags and properties."""

from dataclasses import dataclass

from sentkit.labels.clusters.algorithms.clustering import Find
from sentkit.labels.clusters.algorithms.kmeans import kmeans
from sentkit.labels.clusters.algorithms.libraries import agglomerative, faiss, hdbscan, minibatch


@dataclass(frozen=True, slots=True)
class Algorithm:
    find: Find
    flags: tuple[str, ...]  # flags of this algorithm only
    random: bool = True  # the seed can change the result
    counted: bool = True  # takes the number of clusters
    largest: int | None = None  # rows: time and memory are quadratic


ALGORITHMS: dict[str, Algorithm] = {
    "kmeans": Algorithm(kmeans, ("--n-init",)),
    "minibatch": Algorithm(minibatch, ("--n-init",)),
    "agglomerative": Algorithm(agglomerative, ("--linkage",), random=False, largest=20_000),
    "hdbscan": Algorithm(hdbscan, ("--min-cluster-size",), random=False, counted=False, largest=50_000),
    "faiss": Algorithm(faiss, ("--n-init",)),
}
