"""The token weights of a static model: worked arithmetic."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from sentkit.model.static.models import sif_weights, token_table, zipf_weights


def test_the_rank_is_the_place_among_words():
    """Special tokens, reserved tokens, single characters and numbers without a token have rank 1."""
    tokens = ["[PAD]", "[unused0]", "<extra_id_0>", "<s>", "a", "##b", "Ġc", "▁"]
    words = ["the", "##ing", "Ġof", "▁sea", "UNK", "cat"]
    vocabulary = {token: number for number, token in enumerate(tokens + words)} | {"sea": 15}
    backend = SimpleNamespace(get_vocab=lambda: vocabulary)
    tokenizer = SimpleNamespace(backend=backend, wordless=frozenset([12]))

    expected = [math.log(2)] * 9 + [math.log(n) for n in (3, 4, 5, 2, 6, 2, 7)]
    assert zipf_weights(tokenizer) == pytest.approx(expected, abs=1e-12)


def test_sif_weights_of_known_frequencies():
    """Frequencies of 0.9, 0.1 and 0."""
    expected = [1e-4 / 0.9001, 1e-4 / 0.1001, 1.0]

    assert sif_weights(np.array([9, 1, 0])) == pytest.approx(expected, rel=1e-12)


def test_all_components_keep_the_differences():
    """A rotation: products of the centred vectors stay, and a weight multiplies a row."""
    vectors = np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)
    weights = np.arange(1.0, 21.0)
    table, warnings = token_table(vectors, weights, 4)
    centred = (vectors - vectors.mean(0)) * weights[:, None]

    assert warnings == ()
    np.testing.assert_allclose(table @ table.T, centred @ centred.T, rtol=0, atol=1e-3)


def test_the_components_are_those_of_a_singular_value_decomposition():
    vectors = np.random.default_rng(0).standard_normal((30, 6)).astype(np.float32)
    table, _ = token_table(vectors, np.ones(30), 2)
    left, values, _ = np.linalg.svd(vectors - vectors.mean(0), full_matrices=False)

    np.testing.assert_allclose(np.abs(table), np.abs(left * values)[:, :2], rtol=0, atol=1e-5)
