"""Sampling that does not depend on the other rows of a batch: noise for each row, then greedy search.

The token with the largest log p + g, where each g is a standard Gumbel number, is a sample from p (the
Gumbel-max trick; see arXiv 1411.0030). Therefore greedy search over noisy scores is sampling.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sentkit.model.text.tokens import Tokens
from sentkit.model.translation.options import Sampling


class GumbelNoise:
    """Adds noise to the scores of a batch at each step. The generator of a row depends on seed and tokens."""

    def __init__(self, seed: int, batch: Sequence[Tokens]) -> None:
        self.generators = [np.random.default_rng([seed, *tokens.ids]) for tokens in batch]

    def __call__(self, input_ids: Any, scores: Any) -> Any:  # (b, t), (b, v) -> (b, v)
        # If w has the standard exponential distribution, -log w has the standard Gumbel distribution.
        waits = [generator.standard_exponential(scores.shape[-1]) for generator in self.generators]
        return scores - scores.new_tensor(np.log(waits))


def processors(sampling: Sampling, batch: Sequence[Tokens]) -> list[Any]:
    """Return the score processors for `generate` in order: temperature, top-k, top-p, noise."""
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    warpers: list[Any] = [TemperatureLogitsWarper(float(sampling.temperature))]
    if sampling.top_k is not None:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p is not None:
        warpers.append(TopPLogitsWarper(float(sampling.top_p)))
    return [*warpers, GumbelNoise(sampling.seed, batch)]
