"""PairSupCon (arXiv 2109.05424): classifies pairs and contrasts the partners of entailment
pairs.
"""

from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from sentkit.errors import DataError
from sentkit.formats.rows.kinds import PAIR
from sentkit.model.transformer.device import to_device
from sentkit.model.transformer.readouts import at_least_float32
from sentkit.papers.pairsupcon import paper
from sentkit.training.base import Base, Body
from sentkit.training.data.corpus import Batch, Corpus
from sentkit.training.data.examples import Labels, Reads
from sentkit.training.loop.optimizers import Group
from sentkit.training.losses import entailment_contrast
from sentkit.training.method import Method, Needs, Outputs, Term, mean_of, trained_parameters
from sentkit.training.methods.pairs import pair_features

RELATIONS = Labels({"entailment": 1, "contradiction": 0, "neutral": None})


class PairSupCon(Method):
    Settings: ClassVar = paper.Settings
    needs: ClassVar = Needs(static=True)

    def __init__(self, body: Body, settings: paper.Settings) -> None:
        super().__init__(body, settings)
        self.contrast: nn.Sequential | None = None
        self.relation: nn.Linear | None = None
        if settings.objective != "cls":  # the loss normalizes its outputs
            first = nn.Linear(body.width, body.width, bias=False)
            last = nn.Linear(body.width, settings.head_width, bias=False)
            self.contrast = nn.Sequential(first, nn.ReLU(), last)
        if settings.objective != "id":
            self.relation = nn.Linear(3 * body.width, 2, bias=False)

    @classmethod
    def reads(cls, base: Base, settings: paper.Settings) -> Reads:
        return Reads((PAIR,), "label", RELATIONS, varied=settings.objective != "id")

    @classmethod
    def check_rows(cls, corpus: Corpus, settings: paper.Settings, source: str) -> None:
        assert corpus.targets is not None, "reads asks for labels"
        if not (corpus.targets == 1).any():
            problem = f"no pair of {len(corpus)} is an entailment, so no text has a partner"
            raise DataError(problem, source=source)

    def encode(self, batch: Batch) -> Outputs:
        assert batch.targets is not None, "pairs without labels"
        texts_a, texts_b = batch.texts
        vectors_a, vectors_b = self.vectors(self.pack([*texts_a, *texts_b])).chunk(2)
        outputs = {"label": torch.from_numpy(batch.targets).long()}  # on the host, as `loss` counts
        if self.contrast is not None:
            outputs["a"] = self.contrast(vectors_a)
            outputs["b"] = self.contrast(vectors_b)
        if self.relation is not None:
            outputs["logits"] = self.relation(pair_features(vectors_a, vectors_b))
        return outputs

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        terms: dict[str, Term] = {}
        if "logits" in outputs:
            logits = at_least_float32(outputs["logits"])
            label = to_device(outputs["label"].numpy(), logits.device)
            terms["cls"] = mean_of(F.cross_entropy(logits, label, reduction="none"))
        if "a" in outputs:
            terms["id"] = self.partners(outputs)
        return terms

    def partners(self, outputs: Outputs) -> Term:
        """Return the contrast of both texts of each entailment pair, or 0 without such pairs."""
        settings = self.settings
        weighting = "none"
        if settings.hard_negatives:
            weighting = settings.hard_negative_form
        values = entailment_contrast(
            outputs["a"],
            outputs["b"],
            outputs["label"] == 1,
            settings.temperature,
            weighting=weighting,
            detach=settings.detach_alpha,
        )
        weight = float(len(values))  # two values for each entailment pair
        if settings.id_average == "pairs":
            weight = len(values) / 2
        return Term(values.sum(), weight, settings.beta)

    def groups(self) -> list[Group]:
        heads = [
            (name, weight)
            for name, weight in trained_parameters(self)
            if not name.startswith("body.")
        ]
        rate = self.settings.lr
        return [
            {"params": list(trained_parameters(self, "body.")), "lr": rate},
            {"params": heads, "lr": rate * self.settings.head_lr_factor},
        ]
