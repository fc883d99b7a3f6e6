"""How alike several clusterings are: by the Rand index, and of each row by the cluster it is in."""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from sentkit.metrics.clustering.agreement import Labels, adjusted_rand, contingency, matching


def agreement(clusterings: Sequence[Labels]) -> float | None:
    """The mean adjusted Rand index of every two; None where there is one alone."""
    found = [adjusted_rand(contingency(*pair)) for pair in combinations(clusterings, 2)]
    return sum(found) / len(found) if found else None


def agreeing(labels: Labels, others: Sequence[Labels]) -> NDArray[np.float64]:
    """(n,): for each row the share of the others in which it is in the cluster matched with its own."""
    own = np.unique(labels, return_inverse=True)[1]
    counts = np.zeros(len(labels))
    for other in others:
        columns, theirs = np.unique(other, return_inverse=True)
        matched = np.full(len(columns), -1)  # a cluster without a partner agrees with nothing
        partners, clusters = matching(contingency(labels, other))
        matched[clusters] = partners
        counts += matched[theirs] == own
    return counts / max(1, len(others))
