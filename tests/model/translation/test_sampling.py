"""The largest of scores and noise is a draw from the softmax, from each row's own generator."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from sentkit.model.text.tokens import Tokens
from sentkit.model.translation.options import TranslationOptions
from sentkit.model.translation.translate import GumbelNoise, processors

SCORES = [1.0, 0.3, -0.5, 2.0, 0.0, -3.0]
MANY = 4_000


def seeded(seed: int, **more: Any) -> TranslationOptions:
    return TranslationOptions(sample=True, seed=seed, **more)


CUTS: list[tuple[TranslationOptions, float, list[int]]] = [  # the tokens that are left, the likeliest first
    (seeded(1), 1.0, [3, 0, 1, 4, 2, 5]),
    (seeded(2, temperature=0.5), 0.5, [3, 0, 1, 4, 2, 5]),
    (seeded(3, temperature=4.0), 4.0, [3, 0, 1, 4, 2, 5]),
    (seeded(5, top_p=1.0), 1.0, [3, 0, 1, 4, 2, 5]),
    # Of e^2, e, e^0.3, 1, e^-0.5, e^-3 the first three are 0.56, 0.21 and 0.10 of the whole.
    (seeded(6, top_p=0.8), 1.0, [3, 0, 1]),
    # At temperature 2 the first three tokens are 0.36, 0.22 and 0.15 of the whole.
    (seeded(8, temperature=2.0, top_p=0.6), 2.0, [3, 0, 1]),
]


def draws(sampling: TranslationOptions, steps: int = 1) -> list[list[int]]:
    """For each step the tokens that many texts draw from the same scores."""
    batch = [Tokens([number, 1], 2) for number in range(MANY)]
    chain = processors(sampling, batch)
    found = []
    for _ in range(steps):
        scores: Any = torch.tensor(SCORES).repeat(MANY, 1)
        for each in chain:
            scores = each(torch.zeros(MANY, 1, dtype=torch.long), scores)
        found.append(scores.argmax(1).tolist())
    return found


@pytest.mark.parametrize(("sampling", "temperature", "left"), CUTS)
def test_tokens_follow_the_distribution_of_the_model(
    sampling: TranslationOptions, temperature: float, left: list[int]
) -> None:
    """A chi-square test of 4,000 draws. Excluded tokens are never drawn; one token alone is always drawn."""
    assert set(draws(replace(sampling, top_p=0.01))[0]) == {3}
    (found,) = draws(sampling)
    counts = Counter(found)
    weights = np.exp(np.array(SCORES)[left] / temperature)
    expected = MANY * weights / weights.sum()

    assert counts.keys() <= set(left)
    assert stats.chisquare([counts[token] for token in left], expected).pvalue > 0.001


def test_two_steps_are_independent() -> None:
    """A chi-square test of their joint counts."""
    first, second = draws(seeded(1), steps=2)
    table = np.zeros((6, 6))
    for pair in zip(first, second, strict=True):
        table[pair] += 1

    assert stats.chi2_contingency(table[:5, :5]).pvalue > 0.001


def test_two_seeds_are_independent() -> None:
    (first,), (second,) = draws(seeded(1)), draws(seeded(2))
    agreement = np.mean(np.array(first) == np.array(second))
    chances = np.exp(SCORES) / np.exp(SCORES).sum()

    assert abs(agreement - (chances**2).sum()) < 4 * (0.25 / MANY) ** 0.5


def test_noise_depends_only_on_seed_and_tokens() -> None:
    one, two, three = (Tokens([number, 1], 2) for number in (5, 6, 7))
    scores, ids = torch.zeros(3, 4), torch.zeros(3, 1, dtype=torch.long)
    together = GumbelNoise(1, [one, two, three])(ids, scores)
    turned = GumbelNoise(1, [three, one, two])(ids, scores)
    alone = GumbelNoise(1, [two])(ids[:1], scores[:1])

    assert torch.equal(together, turned[[1, 2, 0]])
    assert torch.equal(together[1], alone[0])


def test_a_token_of_probability_0_is_never_drawn() -> None:
    scores = torch.full((1, 5), -torch.inf)
    scores[0, 2] = 0.0

    assert GumbelNoise(1, [Tokens([3], 1)])(scores, scores).argmax() == 2
