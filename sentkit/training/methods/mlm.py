"""A masked language model (BERT, arXiv 1810.04805): predict masked tokens of a text.

It is a method, and `TokenPrediction` is an additional term of other methods.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from sentkit.errors import DataError, UsageError
from sentkit.formats.checkpoints.readout import POOLED
from sentkit.model.checkpoint.heads import HEADS, LanguageHead, fresh_head, head_tensors, read_head
from sentkit.model.text.tokenizer import MASKS
from sentkit.model.transformer.architecture import Architecture
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.packed import Packed, first_tokens, pack
from sentkit.model.transformer.readouts import at_least_float32
from sentkit.training.base import Base
from sentkit.training.data.corpus import Batch, Corpus, Ids
from sentkit.training.method import Draw, Finished, Needs, Outputs, PackedMethod, Term
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
        method.head = head_of(base, settings.head)
        method.vocabulary = vocabulary_of(base)
        return method

    def prepare(self, corpus: Corpus) -> None:
        texts = (corpus.text(row, column=0) for row in range(len(corpus)))
        if not any(self.vocabulary.is_ordinary[ids].any() for ids in texts):
            problem = "all tokens of the rows are unknown or special, so none can be predicted"
            advice = "use a base whose tokenizer knows the characters of the rows"
            raise DataError(problem, source="training", advice=advice)

    def draw(self, batch: Batch, random: Draw) -> Mapping[str, Sequence[Any]]:
        settings = self.settings
        return self.vocabulary.draw(
            batch, random, settings.mask_rate, settings.mask_share, settings.random_share
        )

    def encode(self, batch: Batch) -> Outputs:
        return predicted(self.body, self.head, batch, self.device)

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        return {"mlm": Term(outputs["nll"].sum(), float(outputs["masked"].sum()))}

    def finished(self) -> Finished:
        return with_language_head(self.head, self.body.architecture, {})


def with_language_head(
    head: LanguageHead, architecture: Architecture, heads: dict[str, Tensor]
) -> Finished:
    """Return a masked language model: the checkpoint contains the head."""
    config = {
        "architectures": [f"{HEADS[architecture.family].kind}ForMaskedLM"],
        "tie_word_embeddings": True,
    }
    return Finished(heads=heads, tensors=head_tensors(head, architecture), config=config)


def predicted(body: Bert, head: LanguageHead, batch: Batch, device: torch.device) -> Outputs:
    """Return for each row the sum of cross entropies and the number of its chosen tokens, (b,) and
    (b,).

    Only these tokens have logits. The numbers stay on the host, so that a loss reads them without
    waiting.
    """
    # The texts of all rows, with the drawn tokens at the chosen positions.
    texts = [text for row in zip(*batch.texts, strict=True) for text in row]
    chosen = [positions for row in batch.draws["chosen"] for positions in row]
    shown = [tokens for row in batch.draws["shown"] for tokens in row]
    changed_texts = [np.array(ids) for ids in texts]
    for ids, positions, tokens in zip(changed_texts, chosen, shown, strict=True):
        ids[positions] = tokens

    # The logits of the chosen positions.
    counts = [len(positions) for positions in chosen]
    packed = pack(changed_texts, device)
    token_indices = np.concatenate(chosen) + np.repeat(first_tokens(packed.lengths), counts)  # (m,)
    *_, states = body.states(packed)
    logits = head(states[packed.to_device(token_indices)], body.words.weight)  # (m, v)

    targets = [ids[positions] for ids, positions in zip(texts, chosen, strict=True)]
    nll = summed_cross_entropy(logits, targets, packed)
    return {
        "nll": nll.view(len(batch), -1).sum(1),
        "masked": torch.tensor(counts).view(len(batch), -1).sum(1),
    }


def summed_cross_entropy(logits: Tensor, targets: Sequence[NDArray[Any]], packed: Packed) -> Tensor:
    """Return the sum of the cross entropies of the tokens of each text: (m, v) -> (texts,)."""
    all_targets = packed.to_device(np.concatenate(targets).astype(np.int64))
    values = F.cross_entropy(at_least_float32(logits), all_targets, reduction="none")
    values_of_texts = values.split([len(tokens) for tokens in targets])
    return pad_sequence(list(values_of_texts), batch_first=True).sum(1)


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
        head_of_base(base, advice)


def head_of(base: Base, kind: str) -> LanguageHead:
    """Return a copy of the base's head, or a head with random weights."""
    if kind == "fresh":
        return fresh_head(base.packed, torch.default_generator)
    # The head may share tensors with the base, which other seeds also use.
    return copy.deepcopy(head_of_base(base))


def head_of_base(base: Base, advice: str = FRESH) -> LanguageHead:
    """Return the base's head. Raise a UsageError if it has none."""
    head = read_head(base.stored, base.packed, source=base.checkpoint.name)
    if head is None:
        raise UsageError(f"{base.checkpoint.name} has no language model head", advice=advice)
    return head


@dataclass(frozen=True, slots=True)
class Vocabulary:
    mask: int
    is_ordinary: NDArray[np.bool_]  # (v,): true for ids of tokens that are not special
    ordinary: NDArray[np.int64]  # ids of tokens that are not special

    def draw_positions(
        self, ids: Ids, rate: float, random: np.random.Generator
    ) -> NDArray[np.int64]:
        """Draw sorted positions of tokens to predict. Special tokens are excluded.

        As in BERT's code, the count is the rounded share of the tokens and at least 1, so every
        text contributes to the loss. Unlike in BERT's code, special tokens do not increase the
        count. Otherwise 20 % of a short text would be predicted instead of the 15 % of the paper.
        """
        positions = np.flatnonzero(self.is_ordinary[ids])
        share = round(rate * len(positions))
        count = min(len(positions), max(1, share))
        return np.sort(random.choice(positions, count, replace=False, shuffle=False))

    def draw(
        self,
        batch: Batch,
        random: Draw,
        rate: float,
        mask_share: float = 0.8,
        random_share: float = 0.1,
    ) -> dict[str, list[list[NDArray[np.int64]]]]:
        """Draw for each text of each row the positions to predict, and the tokens to show there.

        A shown token is the mask with probability `mask_share`, a random token with `random_share`,
        else the token of the text.
        """
        of_positions = random("places")
        of_shares = random("dice")
        of_tokens = random("words")
        draws = dict[str, list[list[NDArray[np.int64]]]](chosen=[], shown=[])
        for row in zip(*batch.texts, strict=True):
            chosen = [self.draw_positions(ids, rate, of_positions) for ids in row]
            shown = []
            for ids, positions in zip(row, chosen, strict=True):
                shares = of_shares.random(len(positions))
                random_tokens = of_tokens.choice(self.ordinary, len(positions))
                tokens = np.where(shares < mask_share + random_share, random_tokens, ids[positions])
                shown.append(np.where(shares < mask_share, self.mask, tokens))
            draws["chosen"].append(chosen)
            draws["shown"].append(shown)
        return draws


def vocabulary_of(base: Base) -> Vocabulary:
    """The tokens of the base that can be masked and drawn."""
    backend = base.transformer_tokenizer.backend
    size = base.packed.vocabulary
    # Some tokenizers have more tokens than the embedding table has rows.
    id_of_token = {token: number for token, number in backend.get_vocab().items() if number < size}
    mask = next((id_of_token[token] for token in MASKS if token in id_of_token), None)
    if mask is None:
        raise UsageError(
            f"mlm needs a mask token, but this tokenizer has none of {', '.join(MASKS)}"
        )
    # Special tokens are marked in the tokenizer or have a well-known name.
    added = {
        token.content for token in backend.get_added_tokens_decoder().values() if token.special
    }
    special = added | SPECIAL
    ordinary = np.array(
        sorted(n for token, n in id_of_token.items() if token not in special), np.int64
    )
    if not len(ordinary):
        raise UsageError("this tokenizer has only special tokens; mlm needs other tokens")
    is_ordinary = np.zeros(size, np.bool_)
    is_ordinary[ordinary] = True
    return Vocabulary(mask, is_ordinary, ordinary)
