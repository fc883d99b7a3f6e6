"""SimCSE with labels (arXiv 2104.08821): a contrast of entailments with contradictions as hard negatives."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from sentkit.formats.checkpoints.readout import POOLED, Readout, parse_readout
from sentkit.formats.rows.kinds import TRIPLET
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.packed import Packed
from sentkit.model.transformer.weights import canonical
from sentkit.training.base import Base, Body
from sentkit.training.data.batches import Batch
from sentkit.training.data.examples import Reads
from sentkit.training.losses.losses import triplet_contrast
from sentkit.training.method import Finished, Needs, Outputs, readout_of
from sentkit.training.methods.simcse import SimCSE
from sentkit.training.recipe import Dims
from sentkit.training.settings import paper, readout, released


class SupervisedSimCSE(SimCSE):
    @dataclass(frozen=True, kw_only=True)
    class Settings(SimCSE.Settings, Dims):
        hard_negative_weight: float = released(0.0, "added to the logit of the negative of the same row")
        readout: str = readout("pooler")
        batch: int = paper(512)
        lr: float = paper(5e-5)
        epochs: int = paper(3)

    presets: ClassVar = {
        "bert-base": {},
        "bert-large": {"lr": 1e-5},
        "roberta-base": {},
        "roberta-large": {"lr": 1e-5},
    }

    needs: ClassVar = Needs(reductions=("cls", "mean", "max", *POOLED), static=True, vectors=TRIPLET.texts)

    def __init__(self, body: Body, settings: SimCSE.Settings) -> None:
        """Keep the head for pooler readouts only. Their checkpoint uses it."""
        super().__init__(body, settings)
        self.parsed = parse_readout(readout_of(self))
        if not self.parsed.pooled:
            del self.head

    @classmethod
    def build(cls, base: Base, settings: Any) -> Self:
        """Build the method. The head is the base's pooler if the base declares it, else a new layer."""
        method = super().build(base, settings)
        if method.parsed.pooled and continues(base, method.parsed):
            assert isinstance(method.body, Bert), "continues checks it"
            assert method.body.pooler is not None, "continues checks it"
            method.head.load_state_dict(method.body.pooler.state_dict())
        return method

    @classmethod
    def check(cls, base: Base, settings: SimCSE.Settings) -> None:
        super().check(base, settings)
        if parse_readout(cls.readouts(settings)[0]).pooled:
            base.check_pooler()

    @classmethod
    def reads(cls, base: Base, settings: SimCSE.Settings) -> Reads:
        return Reads((TRIPLET,))

    def views(self, batch: Batch) -> Outputs:
        texts = [text for column in batch.texts for text in column]
        vectors = self.vectors(self.pack(texts)).chunk(len(batch.texts))
        return dict(zip(TRIPLET.texts, vectors, strict=True))

    def vectors(self, packed: Packed, readout: str | None = None, **more: Any) -> Tensor:
        """Return vectors (b, d). The checkpoint has the head as its pooler."""
        if readout is not None or not self.parsed.pooled:
            return super().vectors(packed, readout, **more)
        return torch.tanh(self.head(super().vectors(packed, POOLED[self.parsed.reduction], **more)))

    def finished(self) -> Finished:
        return self.finished_as(f"pooler:{POOLED[self.parsed.reduction]}" if self.parsed.pooled else None)

    def contrast(self, outputs: Outputs) -> Tensor:
        anchors, positives, negatives = (outputs[name] for name in TRIPLET.texts)
        wanted = self.settings
        return triplet_contrast(
            anchors, positives, negatives, wanted.temperature, wanted.hard_negative_weight
        )


def continues(base: Base, readout: Readout) -> bool:
    """Return true if the base declares this readout and its pooler has the form of this method's head."""
    declared = base.declared
    if declared is None or declared.reduction != readout.reduction or base.architecture is None:
        return False
    has = "pooler.dense.weight" in canonical(base.stored, base.architecture)
    return has and base.architecture.pooler_activation == "tanh"
