"""SBERT (arXiv 1908.10084): trains on pairs with a label, pairs with a score, or triplets."""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sentkit.formats.rows.kinds import PAIR, TRIPLET
from sentkit.model.transformer.device import to_device
from sentkit.model.transformer.readouts import widened
from sentkit.training.base import Base, Body
from sentkit.training.data.batches import Batch
from sentkit.training.data.corpus import Corpus, check_labels
from sentkit.training.data.examples import NLI, Labels, Reads, Scores
from sentkit.training.losses import cosine_regression, triplet_margin
from sentkit.training.method import Method, Needs, Outputs, Term, mean_of
from sentkit.training.methods import recipes


def pair_features(left: Tensor, right: Tensor) -> Tensor:
    """Return the features u, v and |u - v| for a classifier of pairs: two (b, d) -> (b, 3d)."""
    return torch.cat([left, right, (left - right).abs()], 1)


class SBERT(Method):
    Settings: ClassVar = recipes.SBERT
    needs: ClassVar = Needs(row_wise=True, static=True, vectors=(*PAIR.texts, *TRIPLET.texts))

    def __init__(self, body: Body, settings: recipes.SBERT) -> None:
        super().__init__(body, settings)
        classifies = settings.objective == "softmax"
        self.classifier = nn.Linear(3 * body.width, len(NLI)) if classifies else None

    @classmethod
    def reads(cls, base: Base, settings: recipes.SBERT) -> Reads:
        if settings.objective == "softmax":
            return Reads((PAIR,), "label", Labels(NLI))
        if settings.objective == "regression":
            return Reads((PAIR,), "score", Scores(settings.scale))
        return Reads((TRIPLET,))

    @classmethod
    def check_rows(cls, corpus: Corpus, settings: recipes.SBERT, source: str) -> None:
        if settings.objective == "softmax":
            check_labels(corpus, source)

    def encode(self, batch: Batch) -> Outputs:
        texts = [text for column in batch.texts for text in column]
        vectors = self.vectors(self.pack(texts)).chunk(len(batch.texts))
        names = TRIPLET.texts if self.settings.objective == "triplet" else PAIR.texts
        outputs = dict(zip(names, vectors, strict=True))
        if self.classifier is not None:
            outputs["logits"] = self.classifier(pair_features(*vectors))
        if batch.targets is not None:
            outputs["target"] = to_device(batch.targets, self.device).to(vectors[0])
        return outputs

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        settings = self.settings
        if settings.objective == "softmax":
            logits, target = widened(outputs["logits"]), outputs["target"].long()
            values = F.cross_entropy(logits, target, reduction="none")
        elif settings.objective == "regression":
            target = outputs["target"] / settings.scale
            values = cosine_regression(outputs["text_a"], outputs["text_b"], target)
        else:
            anchors, positives, negatives = (outputs[name] for name in TRIPLET.texts)
            values = triplet_margin(anchors, positives, negatives, settings.margin)
        return {settings.objective: mean_of(values)}
