"""The loss of IS-BERT: loops, large products and autocast."""

import pytest
import torch

from sentkit.training.methods.products import local_information
from training.losses.formulas import loop_information


def drawn(count):
    generator = torch.Generator().manual_seed(count)
    local = torch.randn(count, 4, 3, generator=generator, dtype=torch.float64)
    lengths = torch.randint(1, 5, (count, 1), generator=generator)
    vectors = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    return local, torch.arange(4) < lengths, vectors


@pytest.mark.parametrize("count", range(1, 6))
def test_the_values_are_those_of_loops(count):
    """One sentence has no others."""
    local, tokens, vectors = drawn(count)
    sentences = [sentence[real] for sentence, real in zip(local, tokens, strict=True)]
    expected = [list(map(float, values)) for values in loop_information(sentences, vectors)]
    found = local_information(local, tokens, vectors)

    assert [each.tolist() for each in found] == [pytest.approx(each, abs=1e-12) for each in expected]


def test_large_products_and_autocast_are_exact():
    local, tokens, vectors = (value.float() if value.is_floating_point() else value for value in drawn(3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = local_information(local, tokens, vectors)
    huge, _ = local_information(-1e4 * local.abs(), tokens, vectors.abs())

    assert all(map(torch.equal, inside, local_information(local, tokens, vectors)))
    assert huge.isfinite().all()
