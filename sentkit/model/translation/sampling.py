"""Sampling that a row's neighbours do not change: noise of its own for each row, then the largest score.

The largest of log p + g, with g drawn from the standard Gumbel distribution for each token, is a draw from p
(the Gumbel-max trick; see arXiv 1411.0030). So a greedy search over noisy scores is a sample.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sentkit.model.text.tokenizer import Tokens
from sentkit.model.translation.options import Sampling


class GumbelNoise:
    """Called at each step with the scores of a batch; row i draws from a generator of its seed and tokens."""

    def __init__(self, seed: int, batch: Sequence[Tokens]) -> None:
        self.generators = [np.random.default_rng([seed, *tokens.ids]) for tokens in batch]

    def __call__(self, input_ids: Any, scores: Any) -> Any:  # (b, t), (b, v) -> (b, v)
        # Minus the logarithm of a standard exponential is a standard Gumbel.
        waits = [generator.standard_exponential(scores.shape[-1]) for generator in self.generators]
        return scores - scores.new_tensor(np.log(waits))


def processors(sampling: Sampling, batch: Sequence[Tokens]) -> list[Any]:
    """What `generate` does to the scores of a step, in this order: tempered, cut, made noisy."""
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    found: list[Any] = [TemperatureLogitsWarper(float(sampling.temperature))]
    if sampling.top_k is not None:
        found.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p is not None:
        found.append(TopPLogitsWarper(float(sampling.top_p)))
    return [*found, GumbelNoise(sampling.seed, batch)]
