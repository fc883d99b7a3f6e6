"""TSDAE (arXiv 2104.06979): a decoder restores a sentence from the vector of some of its words.

The decoder has the weights of the encoder. Its cross-attention has one key, the sentence vector, of weight 1:
it adds the same projected vector to all states of a layer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from sentkit.formats.rows.kinds import SENTENCE
from sentkit.model.checkpoint.heads import LanguageHead, read_head
from sentkit.model.text.tokenizer import Tokenizer
from sentkit.model.transformer.architecture import Architecture
from sentkit.model.transformer.bert import Bert, Dropout
from sentkit.model.transformer.readouts import widened
from sentkit.training.base import Base
from sentkit.training.data.batches import Batch, Ids
from sentkit.training.data.examples import Reads
from sentkit.training.method import Draw, Needs, Outputs, PackedMethod, Term
from sentkit.training.methods import recipes
from sentkit.training.methods.mlm import head_of

SPREAD = 0.02  # standard deviation of new weights, as in BERT


class TSDAE(PackedMethod):
    Settings: ClassVar = recipes.TSDAE
    needs: ClassVar = Needs(packed="a decoder with its weights", row_wise=True)

    def __init__(
        self, body: Bert, settings: recipes.TSDAE, head: LanguageHead, starts: NDArray[np.bool_]
    ) -> None:
        super().__init__(body, settings)
        self.head = head
        self.starts = starts
        self.cross = nn.ModuleList(CrossAttention(body.architecture) for _ in body.blocks)

    @classmethod
    def build(cls, base: Base, settings: recipes.TSDAE) -> "TSDAE":
        body = cls.bert(base, settings)
        architecture = body.architecture
        has_head = read_head(base.stored, architecture, source=base.checkpoint.name) is not None
        head = head_of(base, architecture, "own" if has_head and settings.head == "auto" else "fresh")
        return cls(body, settings, head, word_starts(base.transformer_tokenizer, architecture.vocabulary))

    @classmethod
    def reads(cls, base: Base, settings: recipes.TSDAE) -> Reads:
        return Reads((SENTENCE,))

    def draw(self, batch: Batch, random: Draw) -> Mapping[str, Sequence[Ids]]:
        dice = random("deletion")
        return {"noisy": [self.noisy(text, dice) for text in batch.texts[0]]}

    def noisy(self, ids: Ids, dice: np.random.Generator) -> Ids:
        """Delete each word with the same probability. The special tokens at both ends stay."""
        words = self.starts[ids[1:-1]]
        if not len(words):
            return ids
        words[0] = True
        kept = dice.random(int(words.sum())) >= self.settings.deletion
        if not kept.any():
            kept[dice.integers(len(kept))] = True
        return np.concatenate([ids[:1], ids[1:-1][kept[words.cumsum() - 1]], ids[-1:]])

    def encode(self, batch: Batch) -> Outputs:
        """Return for each row the sum of cross entropies of all tokens after the first."""
        [texts] = batch.texts
        vectors = self.vectors(self.pack(batch.draws["noisy"]))  # (b, d)
        packed = replace(self.pack([text[:-1] for text in texts]), causal=True)
        packed = self.body.with_bias(packed)
        rows = packed.to_device(np.repeat(np.arange(len(texts)), packed.lengths))
        states = self.body.embed(packed)
        for block, cross in zip(self.body.blocks, self.cross, strict=True):
            states = block(states, packed, between=partial(cross, vectors=vectors, rows=rows))
        logits = self.head(states, self.body.words.weight)  # (n, v)
        target = packed.to_device(np.concatenate([text[1:] for text in texts]).astype(np.int64))
        values = F.cross_entropy(widened(logits), target, reduction="none")
        by_row = pad_sequence(list(values.split(packed.lengths)), batch_first=True)  # (b, most in a row)
        return {"nll": by_row.sum(1), "tokens": torch.tensor(packed.lengths)}

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        return {"restore": Term(outputs["nll"].sum(), float(outputs["tokens"].sum()))}


class CrossAttention(nn.Module):
    """Attention to one vector for each sentence, with a residual connection and a LayerNorm."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        width = architecture.width
        self.value, self.mix = nn.Linear(width, width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, architecture.norm_epsilon)
        self.dropout = Dropout(architecture.dropout)
        for layer in (self.value, self.mix):
            nn.init.normal_(layer.weight, std=SPREAD)
            nn.init.zeros_(layer.bias)

    def forward(self, states: Tensor, vectors: Tensor, rows: Tensor) -> Tensor:
        """Return the states (n, d) after attention to the vectors (b, d); `rows` are the sentences (n,)."""
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
