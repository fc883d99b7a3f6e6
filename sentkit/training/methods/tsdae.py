"""TSDAE (arXiv 2104.06979): a decoder restores a sentence from the vector of some of its words.

The decoder has the weights of the encoder. Its cross-attention has one key, the sentence vector, of
weight 1: it adds the same projected vector to all states of a layer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sentkit.model.checkpoint.heads import LanguageHead, read_head
from sentkit.model.text.tokenizer import Tokenizer
from sentkit.model.transformer.architecture import Architecture
from sentkit.model.transformer.layers import Dropout
from sentkit.training.base import Base
from sentkit.training.data.corpus import Batch, Ids
from sentkit.training.method import Draw, Needs, Outputs, PackedMethod, Term
from sentkit.training.methods import recipes
from sentkit.training.methods.mlm import head_of, summed_cross_entropy

SPREAD = 0.02  # standard deviation of new weights, as in BERT


class TSDAE(PackedMethod):
    Settings: ClassVar = recipes.TSDAE
    needs: ClassVar = Needs(packed="a decoder with its weights", head=True, row_wise=True)

    head: LanguageHead
    starts: NDArray[np.bool_]
    cross: nn.ModuleList

    @classmethod
    def build(cls, base: Base, settings: recipes.TSDAE) -> Self:
        method = super().build(base, settings)
        head = read_head(base.stored, base.packed, source=base.checkpoint.name)
        if head is not None and settings.head == "auto":
            method.head = head_of(base, "own")
        else:
            method.head = head_of(base, "fresh")
        method.starts = word_starts(base.transformer_tokenizer, base.packed.vocabulary)
        method.cross = nn.ModuleList(
            CrossAttention(method.body.architecture) for _ in method.body.blocks
        )
        return method

    def draw(self, batch: Batch, random: Draw) -> Mapping[str, Sequence[Ids]]:
        generator = random("deletion")
        return {"noisy": [self.noisy(text, generator) for text in batch.texts[0]]}

    def noisy(self, ids: Ids, generator: np.random.Generator) -> Ids:
        """Delete each word with the same probability. The special tokens at both ends stay."""
        tokens = ids[1:-1]
        if not len(tokens):
            return ids
        starts_word = self.starts[tokens]
        starts_word[0] = True
        words = int(starts_word.sum())
        keeps_word = generator.random(words) >= self.settings.deletion
        if not keeps_word.any():
            keeps_word[generator.integers(words)] = True
        word_of_token = starts_word.cumsum() - 1
        return np.concatenate([ids[:1], tokens[keeps_word[word_of_token]], ids[-1:]])

    def encode(self, batch: Batch) -> Outputs:
        """Return for each row the sum of cross entropies of all tokens after the first."""
        [texts] = batch.texts
        vectors = self.vectors(self.pack(batch.draws["noisy"]))  # (b, d)

        # The decoder sees the tokens before a token, and the vector of its sentence.
        packed = replace(self.pack([text[:-1] for text in texts]), causal=True)
        packed = self.body.related(packed)
        sentence_of_token = np.repeat(np.arange(len(texts)), packed.lengths)
        rows = packed.to_device(sentence_of_token)
        states = self.body.embed(packed)
        for block, cross in zip(self.body.blocks, self.cross, strict=True):
            states = block(states, packed, between=partial(cross, vectors=vectors, rows=rows))
        logits = self.head(states, self.body.words.weight)  # (n, v)
        nll = summed_cross_entropy(logits, [text[1:] for text in texts], packed)
        return {"nll": nll, "tokens": torch.tensor(packed.lengths)}

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        return {"restore": Term(outputs["nll"].sum(), float(outputs["tokens"].sum()))}


class CrossAttention(nn.Module):
    """Attention to one vector for each sentence, with a residual connection and a LayerNorm."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        width = architecture.width
        self.value = nn.Linear(width, width)
        self.mix = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, architecture.norm_epsilon)
        self.dropout = Dropout(architecture.dropout)
        for layer in (self.value, self.mix):
            nn.init.normal_(layer.weight, std=SPREAD)
            nn.init.zeros_(layer.bias)

    def forward(self, states: Tensor, vectors: Tensor, rows: Tensor) -> Tensor:
        """Return the states (n, d) after attention to the vectors (b, d); `rows` are the sentences
        (n,).
        """
        change = self.mix(self.value(vectors.to(self.value.weight.dtype)))
        return self.norm(states + self.dropout(change[rows].to(states.dtype)))


def word_starts(tokenizer: Tokenizer, size: int) -> NDArray[np.bool_]:
    """Return which token ids begin a word, (v,)."""
    from tokenizers.models import WordPiece

    model = tokenizer.backend.model
    starts = np.ones(size, np.bool_)
    for token, number in tokenizer.backend.get_vocab().items():
        if number >= size:
            continue
        if isinstance(model, WordPiece):
            starts[number] = not token.startswith(model.continuing_subword_prefix)
        else:
            starts[number] = token.startswith(("Ġ", "▁"))  # the space before a word
    return starts
