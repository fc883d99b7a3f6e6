"""The algorithms, by name."""

from sentkit.labels.clusters.clustering import Algorithm
from sentkit.labels.clusters.kmeans import kmeans
from sentkit.labels.clusters.libraries import agglomerative, faiss, hdbscan, minibatch

ALGORITHMS: dict[str, Algorithm] = {
    "kmeans": kmeans,
    "minibatch": minibatch,
    "agglomerative": agglomerative,
    "hdbscan": hdbscan,
    "faiss": faiss,
}
RANDOM = ("kmeans", "minibatch", "faiss")  # those that another seed may change
