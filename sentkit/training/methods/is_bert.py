"""IS-BERT (arXiv 2009.12061): increases the mutual information of a sentence and its n-grams.

A convolution computes features of n-grams from the token states, and the vector of a sentence is their mean.
The loss contrasts the features of the sentence with those of the other sentences of the batch. The
convolution is part of the checkpoint.
"""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.readout import CONV
from sentkit.formats.rows.kinds import SENTENCE
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.readouts import REDUCTIONS, Convolution, widened
from sentkit.model.transformer.transformers_model import TransformersModel
from sentkit.training.base import Base
from sentkit.training.data.batches import Batch
from sentkit.training.data.examples import Reads
from sentkit.training.method import Method, Needs, Outputs, Term, mean_of
from sentkit.training.methods import recipes

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
    def reads(cls, base: Base, settings: recipes.ISBERT) -> Reads:
        return Reads((SENTENCE,))

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
