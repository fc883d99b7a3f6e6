"""SBERT, CoSENT and AnglE learn from labels or scores of pairs.

SBERT (arXiv 1908.10084) trains on pairs with a label, pairs with a score, or triplets. CoSENT
(https://spaces.ac.cn/archives/8847) orders the cosines of scored pairs as their scores. Only the
order of the scores matters, so they may have any scale. AnglE (arXiv 2309.12871) adds a contrast of
positive pairs, and CoSENT on an angle in complex space.
"""

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sentkit.errors import DataError, UsageError
from sentkit.formats.rows.kinds import PAIR, TRIPLET
from sentkit.model.transformer.device import to_device
from sentkit.model.transformer.readouts import at_least_float32
from sentkit.training.base import Base, Body
from sentkit.training.data.corpus import Batch, Corpus
from sentkit.training.data.examples import NLI, Labels, Reads, Scores
from sentkit.training.losses import cosine_regression, entailment_contrast, triplet_margin, unit
from sentkit.training.method import Method, Needs, Outputs, Term, mean_of
from sentkit.training.methods import recipes
from sentkit.training.recipe import widths_of


def pair_features(u: Tensor, v: Tensor) -> Tensor:
    """Return the features u, v and |u - v| for a classifier of pairs: two (b, d) -> (b, 3d)."""
    return torch.cat([u, v, (u - v).abs()], 1)


class SBERT(Method):
    Settings: ClassVar = recipes.SBERT
    needs: ClassVar = Needs(
        row_wise=True, static=True, vectors=(*PAIR.text_names, *TRIPLET.text_names)
    )

    def __init__(self, body: Body, settings: recipes.SBERT) -> None:
        super().__init__(body, settings)
        self.classifier: nn.Linear | None = None
        if settings.objective == "softmax":
            self.classifier = nn.Linear(3 * body.width, len(NLI))

    @classmethod
    def reads(cls, base: Base, settings: recipes.SBERT) -> Reads:
        if settings.objective == "softmax":
            return Reads((PAIR,), "label", Labels(NLI), varied=True)
        if settings.objective == "regression":
            return Reads((PAIR,), "score", Scores(settings.scale))
        return Reads((TRIPLET,))

    def encode(self, batch: Batch) -> Outputs:
        texts = [text for column in batch.texts for text in column]
        vectors = self.vectors(self.pack(texts)).chunk(len(batch.texts))
        names = PAIR.text_names
        if self.settings.objective == "triplet":
            names = TRIPLET.text_names
        outputs = dict(zip(names, vectors, strict=True))
        if self.classifier is not None:
            outputs["logits"] = self.classifier(pair_features(*vectors))
        if batch.targets is not None:
            outputs["target"] = to_device(batch.targets, self.device).to(vectors[0])
        return outputs

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        settings = self.settings
        if settings.objective == "softmax":
            labels = outputs["target"].long()
            values = F.cross_entropy(at_least_float32(outputs["logits"]), labels, reduction="none")
        elif settings.objective == "regression":
            target = outputs["target"] / settings.scale
            values = cosine_regression(outputs["text_a"], outputs["text_b"], target)
        else:
            anchors, positives, negatives = (outputs[name] for name in TRIPLET.text_names)
            values = triplet_margin(anchors, positives, negatives, settings.margin)
        return {settings.objective: mean_of(values)}


class CoSENT(Method):
    Settings: ClassVar = recipes.CoSENT
    needs: ClassVar = Needs(static=True, vectors=("a", "b"))

    @classmethod
    def reads(cls, base: Base, settings: recipes.CoSENT) -> Reads:
        return Reads((PAIR,), "score", Scores())

    @classmethod
    def check_rows(cls, corpus: Corpus, settings: Any, source: str) -> None:
        assert corpus.targets is not None, "reads asks for scores"
        if corpus.targets.min() == corpus.targets.max():
            problem = f'"score" is the same in all {len(corpus)} rows: no order to learn'
            raise DataError(problem, source=source)

    def encode(self, batch: Batch) -> Outputs:
        texts_a, texts_b = batch.texts
        vectors_a, vectors_b = self.vectors(self.pack([*texts_a, *texts_b])).chunk(2)
        assert batch.targets is not None, "pairs without scores"
        # on the host, which orders them; in float64, because float32 joins large scores
        scores = torch.from_numpy(batch.targets)
        return {"a": vectors_a, "b": vectors_b, "score": scores}

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        cosines = (unit(outputs["a"]) * unit(outputs["b"])).sum(1)
        value = ranked_pairs(cosines, outputs["score"], self.settings.temperature)
        return {"cosine": Term(value, 1.0)}


class AnglE(CoSENT):
    Settings: ClassVar = recipes.AnglE

    def __init__(self, body: Body, settings: recipes.AnglE) -> None:
        super().__init__(body, settings)
        for width in (body.width, *widths_of(settings)):
            if width % 2:
                raise UsageError(f"angle needs vectors of even width, not {width}")

    @classmethod
    def check_rows(cls, corpus: Corpus, settings: Any, source: str) -> None:
        assert corpus.targets is not None, "reads asks for scores"
        if settings.cosine_weight or settings.angle_weight:
            super().check_rows(corpus, settings, source)
        if settings.contrast_weight and corpus.targets.max() < settings.positive_score:
            limit = f"positive_score={settings.positive_score:g}"
            problem = f"all scores are below {limit}, so there are no positive pairs"
            raise DataError(
                problem, source=source, advice="use a lower positive_score, or contrast_weight=0"
            )

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        settings = self.settings
        vectors_a = outputs["a"]
        vectors_b = outputs["b"]
        scores = outputs["score"]
        terms: dict[str, Term] = {}
        if settings.cosine_weight:
            cosine = super().loss(outputs)["cosine"]
            terms["cosine"] = Term(cosine.sum, cosine.weight, settings.cosine_weight)
        if settings.contrast_weight:
            is_positive = scores >= settings.positive_score
            values = entailment_contrast(
                vectors_a, vectors_b, is_positive, settings.temperature, weighting="none"
            )
            # The released code divides by all rows of both columns, also by those that are no
            # anchors.
            terms["contrast"] = Term(values.sum(), 2.0 * len(scores), settings.contrast_weight)
        if settings.angle_weight:
            agreement = complex_agreement(vectors_a, vectors_b)
            value = ranked_pairs(agreement, scores, settings.temperature)
            terms["angle"] = Term(value, 1.0, settings.angle_weight)
        return terms


def ranked_pairs(similarities: Tensor, scores: Tensor, temperature: float) -> Tensor:
    """Return log(1 + sum of e^((s_k - s_i) / temperature)), over i, k with score i > score k: two
    (b,) -> ().

    CoSENT, and the two ranking terms of AnglE, arXiv 2309.12871. The loss is 0 if all scores are
    equal.
    """
    similarities = at_least_float32(similarities)
    differences = (similarities[None, :] - similarities[:, None]) / temperature  # (i, k)
    scores_on_host = scores.detach().cpu().numpy()
    is_higher = scores_on_host[:, None] > scores_on_host[None, :]
    higher, lower = to_device(np.array(np.nonzero(is_higher)), differences.device)
    ordered = differences[higher, lower]
    return torch.cat([ordered.new_zeros(1), ordered]).logsumexp(0)


def complex_agreement(u: Tensor, v: Tensor) -> Tensor:
    """Return |sum of the real and imaginary parts of u / v| of unit rows: two (b, d) -> (b,).

    AnglE, arXiv 2309.12871. The first half of a vector contains the real parts of a complex vector,
    the second half the imaginary parts. The result is 1 for equal vectors.
    """
    a, b = unit(u).chunk(2, 1)  # u = a + ib
    c, d = unit(v).chunk(2, 1)  # v = c + id
    return (a * c + b * d + b * c - a * d).sum(1).abs()
