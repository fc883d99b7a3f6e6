"""How alike several clusterings are."""

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from sentkit.metrics.clustering.agreement import agreeing, agreement


def test_agreement_is_the_mean_over_all_pairs():
    found = [np.random.default_rng(s).integers(3, size=40) for s in range(3)]
    pairs = [(0, 1), (0, 2), (1, 2)]
    expected = sum(adjusted_rand_score(found[a], found[b]) for a, b in pairs) / 3

    assert agreement(found) == pytest.approx(expected, abs=1e-12)
    assert agreement(found[:1]) is None


def test_a_row_agrees_where_it_is_in_the_matched_cluster():
    """The first differs in names alone; the second moves the third row; the third puts it apart."""
    labels = np.array([0, 0, 0, 1, 1])
    others = [np.array([7, 7, 7, 2, 2]), np.array([1, 1, 0, 0, 0]), np.array([0, 0, 9, 3, 3])]

    assert agreeing(labels, others).tolist() == [1.0, 1.0, 1 / 3, 1.0, 1.0]
