"""CT and IS-BERT tell a sentence from the other sentences of a batch by products of vectors.

CT, contrastive tension (ICLR 2021), has two encoders with the same initial weights, and trains both. --dev
selects one of them; without --dev, the checkpoint contains the first, which also encodes the other sentences.
The log counts from 1.

IS-BERT (arXiv 2009.12061) increases the mutual information of a sentence and its n-grams. A convolution
computes features of n-grams from the token states, and the vector of a sentence is their mean. The loss
contrasts the features of the sentence with those of the other sentences of the batch. The convolution is part
of the checkpoint.
"""

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sentkit.errors import DataError, UsageError
from sentkit.formats.checkpoints.readout import CONV, parse_readout
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.readouts import REDUCTIONS, Convolution, apply_readouts, widened
from sentkit.model.transformer.transformers_model import TransformersModel
from sentkit.training.base import Base
from sentkit.training.data.corpus import Batch, Corpus, Ids
from sentkit.training.method import (
    Draw,
    Finished,
    Method,
    Needs,
    Outputs,
    PackedMethod,
    Term,
    mean_of,
    readout_of,
)
from sentkit.training.methods import recipes


class ContrastiveTension(PackedMethod):
    Settings: ClassVar = recipes.ContrastiveTension
    needs: ClassVar = Needs(packed="dropout that a setting changes", row_wise=True)
    corpus: Corpus

    def __init__(self, body: Bert, settings: recipes.ContrastiveTension) -> None:
        super().__init__(body, settings)
        self.second = deepcopy(body)  # encodes only the rows; `body`, the first encoder, also the drawn texts

    @classmethod
    def check_rows(cls, corpus: Corpus, settings: Any, source: str) -> None:
        first = corpus.text(0, 0)
        if all(np.array_equal(first, corpus.text(row, 0)) for row in range(1, len(corpus))):
            raise DataError(f"all {len(corpus)} texts are equal: no other sentence to draw", source=source)

    def prepare(self, corpus: Corpus) -> None:
        self.corpus = corpus

    def encoders(self) -> Sequence[Bert]:
        return self.body, self.second

    def draw(self, batch: Batch, random: Draw) -> Mapping[str, Sequence[list[Ids]]]:
        dice = random("negatives")
        return {"negatives": [self.others(text, dice) for text in batch.texts[0]]}

    def others(self, text: Ids, dice: np.random.Generator) -> list[Ids]:
        """Draw texts of the corpus that differ from this text."""
        others: list[Ids] = []
        while len(others) < self.settings.negatives:
            other = self.corpus.text(int(dice.integers(len(self.corpus))), 0)
            if not np.array_equal(other, text):
                others.append(other)
        return others

    def encode(self, batch: Batch) -> Outputs:
        [texts] = batch.texts
        rows = zip(texts, batch.draws["negatives"], strict=True)
        candidates = [text for own, others in rows for text in (own, *others)]
        right = self.vectors(self.pack(candidates))
        [left] = apply_readouts(self.second, self.pack(texts), [parse_readout(readout_of(self))])
        return {"products": products(left, right)}

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        return {"tension": mean_of(contrastive_tension(outputs["products"]))}

    def finished(self) -> Finished:
        return Finished(heads={})  # the checkpoint contains only one of the encoders


def products(left: Tensor, right: Tensor) -> Tensor:
    """Return the products of each left row with its k right rows: (b, d), (b * k, d) -> (b, k)."""
    return (left[:, None] * right.view(len(left), -1, left.shape[1])).sum(2)


def contrastive_tension(products: Tensor) -> Tensor:
    """-log sigmoid(z) of the first product of a row, and -log sigmoid(-z) of the others: (b, k) -> (b, k).

    CT, ICLR 2021. The first product is that of a sentence with itself, the others with other sentences.
    """
    products = widened(products)
    return -F.logsigmoid(torch.cat([products[:, :1], -products[:, 1:]], 1))


KERNELS = (1, 3, 5)  # tokens of an n-gram


class ISBERT(Method):
    Settings: ClassVar = recipes.ISBERT
    needs: ClassVar = Needs(reductions=(CONV,))

    def __init__(self, body: Bert | TransformersModel, settings: recipes.ISBERT) -> None:
        super().__init__(body, settings)
        if body.convolution is None:
            body.convolution = Convolution(body.width, settings.channels, KERNELS)

    @classmethod
    def check(cls, base: Base, settings: recipes.ISBERT) -> None:
        """Raise a UsageError if the base has a convolution with another number of features."""
        own = base.body(None).convolution if base.checkpoint.declared.convolution else None
        if own is not None and own.channels != settings.channels:
            problem = f"channels={settings.channels}: the convolution of the base has {own.channels}"
            raise UsageError(problem, advice=f"use --set channels={own.channels}")

    @classmethod
    def readouts(cls, settings: Any) -> tuple[str, ...]:
        return (CONV,)

    def encode(self, batch: Batch) -> Outputs:
        packed = self.pack(batch.texts[0])
        *_, states = self.body.states(packed)
        assert self.body.convolution is not None, "set at the start"
        features = self.body.convolution(states, packed)  # (n, k)
        # All processes need the same number of columns.
        spare = self.settings.max_length - packed.longest
        return {
            "local": F.pad(packed.pad(widened(features)), (0, 0, 0, spare)),  # (b, max_length, k)
            "tokens": F.pad(packed.pad(torch.ones_like(packed.ids)), (0, spare)),  # 0 after the end
            "vectors": REDUCTIONS[CONV](features, packed),
        }

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        own, others = local_information(outputs["local"], outputs["tokens"] > 0, outputs["vectors"])
        return {"own": mean_of(own), "others": mean_of(others)}


def local_information(local: Tensor, tokens: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Bound of the mutual information of n tokens and b sentences: (b, t, d), (b, t), (b, d) -> (n,), (m,).

    IS-BERT, arXiv 2009.12061. With the product z of a token's features and a sentence's vector, the first
    values are softplus(-z) - log 2 of each token and its own sentence. The others are softplus(z) - log 2 of
    each token and each other sentence. `tokens` is false at padding. The loss is the sum of both means.
    """
    with torch.autocast(local.device.type, enabled=False):  # autocast uses half precision
        products = widened(local[tokens]) @ widened(vectors).T  # (n, b)
    sentence = torch.arange(len(vectors), device=vectors.device)
    own = sentence[:, None].expand(tokens.shape)[tokens][:, None] == sentence  # (n, b)
    return F.softplus(-products[own]) - math.log(2), F.softplus(products[~own]) - math.log(2)
