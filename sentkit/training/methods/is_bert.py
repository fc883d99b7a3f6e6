"""IS-BERT (arXiv 2009.12061): the vector of a sentence has much information about its own n-grams.

A convolution computes features of n-grams from the token states, and the vector of a sentence is
their mean. The loss increases the mutual information of a sentence and its n-grams, in contrast to
those of the other sentences of the batch. The convolution is part of the checkpoint.
"""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.readout import CONV
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.readouts import REDUCTIONS, Convolution, at_least_float32
from sentkit.model.transformer.transformers_model import TransformersModel
from sentkit.training.base import Base
from sentkit.training.data.corpus import Batch
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
        if not base.checkpoint.declaration.convolution:
            return
        convolution = base.body(None).convolution
        if convolution is not None and convolution.channels != settings.channels:
            channels = convolution.channels
            problem = f"channels={settings.channels}: the convolution of the base has {channels}"
            raise UsageError(problem, advice=f"use --set channels={channels}")

    @classmethod
    def readouts(cls, settings: Any) -> tuple[str, ...]:
        return (CONV,)

    def encode(self, batch: Batch) -> Outputs:
        packed = self.pack(batch.texts[0])
        *_, states = self.body.states(packed)
        assert self.body.convolution is not None, "set at the start"
        features = self.body.convolution(states, packed)  # (n, k)
        # All processes need the same number of columns.
        missing_columns = self.settings.max_length - packed.longest_length
        padded_features = packed.pad(at_least_float32(features))
        is_token = packed.pad(torch.ones_like(packed.ids))
        return {
            "local": F.pad(padded_features, (0, 0, 0, missing_columns)),  # (b, max_length, k)
            "tokens": F.pad(is_token, (0, missing_columns)),  # 0 after the end
            "vectors": REDUCTIONS[CONV](features, packed),
        }

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        is_token = outputs["tokens"] > 0
        same_sentence, other_sentences = local_information(
            outputs["local"], is_token, outputs["vectors"]
        )
        return {"own": mean_of(same_sentence), "others": mean_of(other_sentences)}


def local_information(local: Tensor, is_token: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Bound of the mutual information of n tokens and b sentences: (b, t, d), (b, t), (b, d) ->
    (n,), (m,).

    IS-BERT, arXiv 2009.12061. With the product z of a token's features and a sentence's vector, the
    first values are softplus(-z) - log 2 of each token and its own sentence. The others are
    softplus(z) - log 2 of each token and each other sentence. `is_token` is false at padding. The
    loss is the sum of both means.
    """
    with torch.autocast(local.device.type, enabled=False):  # autocast uses half precision
        products = at_least_float32(local[is_token]) @ at_least_float32(vectors).T  # (n, b)
    sentences = torch.arange(len(vectors), device=vectors.device)
    sentence_of_token = sentences[:, None].expand(is_token.shape)[is_token]  # (n,)
    is_same_sentence = sentence_of_token[:, None] == sentences  # (n, b)
    same_sentence = F.softplus(-products[is_same_sentence]) - math.log(2)
    other_sentences = F.softplus(products[~is_same_sentence]) - math.log(2)
    return same_sentence, other_sentences
