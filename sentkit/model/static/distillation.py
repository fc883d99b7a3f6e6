"""A table of token vectors, made from an encoder: each token of its vocabulary is encoded alone.

Axes: v tokens, d numbers of the encoder's vectors, k numbers of the table.
"""

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sentkit.model.text.tokenizer import Tokenizer
from sentkit.model.text.tokens import TokenBlock
from sentkit.transforms.kinds import FitOptions, moments_of, rotated

SIF_A = 1e-4
TOKENS_AT_ONCE = 1024
BRACKETS = re.compile(r"\[.+\]|<.+>")
MARKS = ("##", "Ġ", "▁")  # of a token inside a word, or after a space


def token_batches(tokenizer: Tokenizer) -> Iterator[TokenBlock]:
    """Yield every number of the vocabulary as a text of one token, after the tokens of a declared
    prompt, and with the special tokens around both.
    """
    # The ids around a text, from those of a short one.
    [example] = tokenizer(["a"])
    [ids_of_example] = tokenizer.alone(["a"])
    end = len(example.ids) - tokenizer.after
    before = example.ids[: end - len(ids_of_example)]
    after = example.ids[end:]

    size = vocabulary_size(tokenizer)
    for start in range(0, size, TOKENS_AT_ONCE):
        numbers = range(start, min(start + TOKENS_AT_ONCE, size))
        texts = [[*before, number, *after] for number in numbers]
        yield TokenBlock.of([tokenizer.tokens_of(ids) for ids in texts])


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """The number of rows of a table: the highest token number, plus one. Numbers can be unused."""
    return int(max(tokenizer.backend.get_vocab().values())) + 1


def token_table(
    vectors: NDArray[np.float32], weights: NDArray[np.float64], dim: int
) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    """Return the principal components times the weights, (v, k), and warnings. Takes (v, d) and
    (v,).
    """
    fit = rotated(moments_of(vectors), FitOptions(dim=dim))
    table = (vectors - fit.mean) @ fit.kernel * weights[:, None]
    return table.astype(np.float32), fit.warnings


def zipf_weights(tokenizer: Tokenizer) -> NDArray[np.float64]:
    """Return log(1 + rank) of each token, (v,). The rank is the position in the vocabulary.

    Vocabularies list tokens by frequency, after single characters and reserved tokens, such as
    [unused1]. These and the special tokens have rank 1, the same as the most frequent word.
    """
    is_ranked = np.zeros(vocabulary_size(tokenizer), np.bool_)
    for token, number in tokenizer.backend.get_vocab().items():
        for mark in MARKS:
            token = token.removeprefix(mark)
        is_special = number in tokenizer.wordless or BRACKETS.fullmatch(token) is not None
        is_ranked[number] = len(token) > 1 and not is_special
    ranks = np.where(is_ranked, np.cumsum(is_ranked), 1)
    return np.log1p(ranks)


def sif_weights(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return a / (a + frequency) of each token, (v,), as in SIF (ICLR 2017)."""
    return SIF_A / (SIF_A + counts / counts.sum())
