"""Methods that predict tokens: a masked language model, CLEAR and TSDAE.

The first (BERT, arXiv 1810.04805) predicts masked tokens of a text. CLEAR (arXiv 2012.15466) also contrasts
two variants of a sentence, which `sentkit augment` makes: deletion of words or spans, reordering of spans,
synonyms.

In TSDAE (arXiv 2104.06979), a decoder restores a sentence from the vector of some of its words. The decoder
has the weights of the encoder. Its cross-attention has one key, the sentence vector, of weight 1: it adds the
same projected vector to all states of a layer.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.readout import POOLED
from sentkit.formats.rows.kinds import PAIR
from sentkit.model.checkpoint.heads import HEADS, LanguageHead, fresh_head, head_tensors, read_head
from sentkit.model.text.tokenizer import MASKS, Tokenizer
from sentkit.model.transformer.architecture import Architecture
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.device import Dropout
from sentkit.model.transformer.packed import Packed, first_tokens, pack
from sentkit.model.transformer.readouts import widened
from sentkit.training.base import Base
from sentkit.training.data.corpus import Batch, Ids
from sentkit.training.data.examples import Reads
from sentkit.training.losses import paired_contrast
from sentkit.training.method import Draw, Finished, Needs, Outputs, PackedMethod, Term, mean_of, own_tensors
from sentkit.training.methods import recipes

FRESH = "--set head=fresh starts with an untrained head"
SPECIAL = {  # well-known names of special tokens
    *("[UNK]", "<unk>", "[CLS]", "<s>", "[SEP]", "</s>", "[PAD]", "<pad>", "[MASK]", "<mask>"),
}


class MaskedLanguageModel(PackedMethod):
    Settings: ClassVar = recipes.MaskedLanguageModel
    needs: ClassVar = Needs(
        packed="a language model head",
        head=True,
        reductions=("cls", "mean", "max", "token", *POOLED),  # training uses no readout
        row_wise=True,
    )

    head: LanguageHead
    vocabulary: "Vocabulary"

    @classmethod
    def check(cls, base: Base, settings: recipes.MaskedLanguageModel) -> None:
        check_prediction(base, settings.head)

    @classmethod
    def build(cls, base: Base, settings: recipes.MaskedLanguageModel) -> Self:
        method = super().build(base, settings)
        method.head, method.vocabulary = head_of(base, settings.head), vocabulary_of(base)
        return method

    def draw(self, batch: Batch, random: Draw) -> Mapping[str, Sequence[Any]]:
        settings = self.settings
        shares = settings.mask_rate, settings.mask_share, settings.random_share
        return self.vocabulary.draw(batch, random, *shares)

    def encode(self, batch: Batch) -> Outputs:
        return predicted(self.body, self.head, batch, self.device)

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        return {"mlm": Term(outputs["nll"].sum(), float(outputs["masked"].sum()))}

    def finished(self) -> Finished:
        return with_language_head(self.head, self.body.architecture, {})


def with_language_head(head: LanguageHead, architecture: Architecture, heads: dict[str, Tensor]) -> Finished:
    """Return a masked language model: the checkpoint contains the head."""
    config = {"architectures": [f"{HEADS[architecture.family].kind}ForMaskedLM"], "tie_word_embeddings": True}
    return Finished(heads=heads, tensors=head_tensors(head, architecture), config=config)


def predicted(body: Bert, head: LanguageHead, batch: Batch, device: torch.device) -> Outputs:
    """Return for each row the sum of cross entropies and the number of its chosen tokens, (b,) and (b,).

    Only these tokens have logits. The numbers stay on the host, so that a loss reads them without waiting.
    """
    chosen, shown = ([each for row in batch.draws[name] for each in row] for name in ("chosen", "shown"))
    texts = [text for row in zip(*batch.texts, strict=True) for text in row]
    changed = [np.array(ids) for ids in texts]
    for ids, places, tokens in zip(changed, chosen, shown, strict=True):
        ids[places] = tokens
    counts = [len(places) for places in chosen]
    packed = pack(changed, device)
    rows = np.concatenate(chosen) + np.repeat(first_tokens(packed.lengths), counts)  # (m,)
    *_, states = body.states(packed)
    logits = head(states[packed.to_device(rows)], body.words.weight)  # (m, v)
    truth = [ids[places] for ids, places in zip(texts, chosen, strict=True)]
    nll = summed_cross_entropy(logits, truth, packed)
    return {
        "nll": nll.view(len(batch), -1).sum(1),
        "masked": torch.tensor(counts).view(len(batch), -1).sum(1),
    }


def summed_cross_entropy(logits: Tensor, truth: Sequence[NDArray[Any]], packed: Packed) -> Tensor:
    """Return the sum of the cross entropies of the tokens of each text: (m, v) -> (texts,)."""
    target = packed.to_device(np.concatenate(truth).astype(np.int64))
    values = F.cross_entropy(widened(logits), target, reduction="none")
    return pad_sequence(list(values.split([len(each) for each in truth])), batch_first=True).sum(1)


class TokenPrediction(nn.Module):
    """A masked language model as an additional term of another method."""

    def __init__(self, base: Base, rate: float, kind: str = "own") -> None:
        super().__init__()
        self.head = head_of(base, kind)
        self.vocabulary = vocabulary_of(base)
        self.rate = rate

    def draw(self, batch: Batch, random: Draw) -> Mapping[str, Sequence[Any]]:
        return self.vocabulary.draw(batch, random, self.rate)

    def outputs(self, body: Bert, batch: Batch, device: torch.device) -> Outputs:
        return predicted(body, self.head, batch, device)


def check_prediction(base: Base, kind: str, advice: str = FRESH) -> None:
    vocabulary_of(base)
    if kind == "own":
        own_head(base, advice)


def head_of(base: Base, kind: str) -> LanguageHead:
    """Return a copy of the base's head, or a head with random weights."""
    if kind == "fresh":
        return fresh_head(base.packed, torch.default_generator)
    # The head may share tensors with the base, which other seeds also use.
    return copy.deepcopy(own_head(base))


def own_head(base: Base, advice: str = FRESH) -> LanguageHead:
    """Return the base's head. Raise a UsageError if it has none."""
    head = read_head(base.stored, base.packed, source=base.checkpoint.name)
    if head is None:
        raise UsageError(f"{base.checkpoint.name} has no language model head", advice=advice)
    return head


@dataclass(frozen=True, slots=True)
class Vocabulary:
    mask: int
    ordinary: NDArray[np.bool_]  # (v,): true for ids of tokens that are not special
    words: NDArray[np.int64]  # ids of tokens that are not special

    def chosen(self, ids: Ids, rate: float, random: np.random.Generator) -> NDArray[np.int64]:
        """Draw sorted positions of tokens to predict. Special tokens are excluded.

        As in BERT's code, the count is the rounded share of the tokens and at least 1, so every text
        contributes to the loss. Unlike in BERT's code, special tokens do not increase the count. Otherwise
        20 % of a short text would be predicted instead of the 15 % of the paper.
        """
        places = np.flatnonzero(self.ordinary[ids])
        count = min(len(places), max(1, round(rate * len(places))))
        return np.sort(random.choice(places, count, replace=False, shuffle=False))

    def draw(
        self, batch: Batch, random: Draw, rate: float, mask: float = 0.8, other: float = 0.1
    ) -> dict[str, list[list[NDArray[np.int64]]]]:
        """Draw for each text of each row the positions to predict, and the tokens to show there."""
        places, dice, words = random("places"), random("dice"), random("words")
        drawn = dict[str, list[list[NDArray[np.int64]]]](chosen=[], shown=[])
        for row in zip(*batch.texts, strict=True):
            chosen = [self.chosen(ids, rate, places) for ids in row]
            shown = []
            for ids, each in zip(row, chosen, strict=True):
                values = dice.random(len(each))
                replaced = np.where(values < mask + other, words.choice(self.words, len(each)), ids[each])
                shown.append(np.where(values < mask, self.mask, replaced))
            drawn["chosen"].append(chosen)
            drawn["shown"].append(shown)
        return drawn


def vocabulary_of(base: Base) -> Vocabulary:
    backend, size = base.transformer_tokenizer.backend, base.packed.vocabulary
    # Some tokenizers have more tokens than the embedding table has rows.
    known = {word: number for word, number in backend.get_vocab().items() if number < size}
    mask = next((known[word] for word in MASKS if word in known), None)
    if mask is None:
        raise UsageError(f"mlm needs a mask token, but this tokenizer has none of {', '.join(MASKS)}")
    # Special tokens are marked in the tokenizer or have a well-known name.
    added = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    special = added | SPECIAL
    words = np.array(sorted(number for word, number in known.items() if word not in special), np.int64)
    if not len(words):
        raise UsageError("this tokenizer has only special tokens; mlm needs other tokens")
    ordinary = np.zeros(size, np.bool_)
    ordinary[words] = True
    return Vocabulary(mask, ordinary, words)


class CLEAR(PackedMethod):
    Settings: ClassVar = recipes.CLEAR
    needs: ClassVar = Needs(packed="a language model's head", head=True)

    tokens: TokenPrediction
    projection: nn.Sequential

    @classmethod
    def check(cls, base: Base, settings: recipes.CLEAR) -> None:
        check_prediction(base, settings.head)

    @classmethod
    def build(cls, base: Base, settings: recipes.CLEAR) -> Self:
        method = super().build(base, settings)
        method.tokens, width = TokenPrediction(base, settings.mlm_rate, settings.head), method.body.width
        method.projection = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        return method

    @classmethod
    def reads(cls, base: Base, settings: recipes.CLEAR) -> Reads:
        return Reads((PAIR,))

    def draw(self, batch: Batch, random: Draw) -> Mapping[str, Sequence[Any]]:
        return self.tokens.draw(batch, random)

    def encode(self, batch: Batch) -> Outputs:
        vectors = self.vectors(self.pack([text for texts in batch.texts for text in texts]))
        one, other = self.projection(vectors).chunk(2)
        return {"one": one, "other": other} | self.tokens.outputs(self.body, batch, self.device)

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        values = paired_contrast(outputs["one"], outputs["other"], self.settings.temperature)
        masked = float(outputs["masked"].sum())
        return {
            "contrast": mean_of(values),
            "mlm": Term(outputs["nll"].sum(), masked, self.settings.mlm_weight),
        }

    def finished(self) -> Finished:
        heads = own_tensors(self, "projection.")
        return with_language_head(self.tokens.head, self.body.architecture, heads)


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
        has_head = read_head(base.stored, base.packed, source=base.checkpoint.name) is not None
        method.head = head_of(base, "own" if has_head and settings.head == "auto" else "fresh")
        method.starts = word_starts(base.transformer_tokenizer, base.packed.vocabulary)
        method.cross = nn.ModuleList(CrossAttention(method.body.architecture) for _ in method.body.blocks)
        return method

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
        packed = self.body.related(packed)
        rows = packed.to_device(np.repeat(np.arange(len(texts)), packed.lengths))
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
