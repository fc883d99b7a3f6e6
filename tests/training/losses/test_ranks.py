"""Rank similarities of RankEncoder: worked numbers, and scipy's correlation."""

import pytest
import torch
from scipy.stats import spearmanr
from torch.autograd import gradcheck

from sentkit.training.methods.simcse import rank_regression, rank_vectors


def double(values):
    return torch.tensor(values, dtype=torch.float64)


def test_rank_similarities_are_those_of_scipy():
    """With ties, and with a row of equal numbers, which has no ranking."""
    values = torch.randint(0, 5, (6, 9), generator=torch.Generator().manual_seed(0)).double()
    expected = spearmanr(values.numpy(), axis=1).statistic
    ranks = rank_vectors(torch.cat([values, torch.ones(1, 9, dtype=torch.float64)]))
    products = ranks @ ranks.T

    torch.testing.assert_close(products[:6, :6], double(expected.tolist()), rtol=0, atol=1e-12)
    assert products[6].abs().max() == 0


def test_pairs_out_of_the_range_have_no_error():
    ranks, own = double([[1.0, 0.5], [0.4, 0.9999]]), double([[0.2, 0.7], [0.2, 0.9]])
    values = rank_regression(own, ranks, 0.5, 0.9999)

    assert values.tolist() == pytest.approx([0.04, 0.00998001], abs=1e-9)
    assert gradcheck(lambda given: rank_regression(given, ranks, 0.5, 0.9999), [own.requires_grad_()])
    assert rank_regression(own, ranks, 0.6, 0.7).sum().item() == 0.0
