"""SimCSE with labels (arXiv 2104.08821): a premise finds its entailment, among contradictions too."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sentkit.formats.kinds import TRIPLET
from sentkit.model.packed import Packed
from sentkit.training.batches import Batch
from sentkit.training.examples import Reads
from sentkit.training.finish import check_pooler
from sentkit.training.losses import triplet_contrast
from sentkit.training.method import Outputs, Term, mean_of
from sentkit.training.methods.simcse import SimCSE
from sentkit.training.origin import Base
from sentkit.training.settings import paper, released


class SupervisedSimCSE(SimCSE):
    @dataclass(frozen=True, kw_only=True)
    class Settings(SimCSE.Settings):
        hard_negative_weight: float = released(0.0, "added to the logit of a row's own negative")
        batch: int = paper(512)
        lr: float = paper(5e-5)
        epochs: int = paper(3)

    presets: ClassVar = {
        "bert-base": {},
        "bert-large": {"lr": 1e-5},
        "roberta-base": {},
        "roberta-large": {"lr": 1e-5},
    }

    @classmethod
    def check(cls, base: Base, settings: SimCSE.Settings) -> None:
        check_pooler(base)

    @classmethod
    def reads(cls, base: Base, settings: SimCSE.Settings) -> Reads:
        return Reads((TRIPLET,))

    @classmethod
    def readout(cls, settings: SimCSE.Settings) -> str:
        return "pooler"  # unlike without labels, the head stays

    def encode(self, batch: Batch) -> Outputs:
        texts = [text for column in batch.texts for text in column]
        vectors = self.through_head(self.pack(texts)).chunk(len(batch.texts))
        return dict(zip(TRIPLET.texts, vectors, strict=True))

    def through_head(self, packed: Packed) -> Tensor:
        return torch.tanh(self.head(self.vectors(packed, "cls")))

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        anchors, positives, negatives = (outputs[name] for name in TRIPLET.texts)
        wanted = self.settings
        terms = triplet_contrast(
            anchors, positives, negatives, wanted.temperature, wanted.hard_negative_weight
        )
        return {"contrast": mean_of(terms)}

    def dev_vectors(self, packed: Packed) -> Tensor:
        return self.through_head(packed)
