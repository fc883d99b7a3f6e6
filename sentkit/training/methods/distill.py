"""Distillation: trains an encoder to give the vectors that a teacher gave to the same texts.

The rows contain the vectors of the teacher, so its model is not needed in training.
"""

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from sentkit.formats.rows.kinds import SENTENCE
from sentkit.model.transformer.device import to_device
from sentkit.model.transformer.packed import Packed
from sentkit.training.base import Base, Body
from sentkit.training.data.batches import Batch
from sentkit.training.data.corpus import Corpus
from sentkit.training.data.examples import Reads
from sentkit.training.losses import relational_divergence, squared_error, unit
from sentkit.training.method import Finished, Method, Needs, Outputs, Term, mean_of, own_tensors
from sentkit.training.methods import recipes
from sentkit.transforms.steps import Linear


class Distill(Method):
    Settings: ClassVar = recipes.Distill
    needs: ClassVar = Needs(static=True)

    def __init__(self, body: Body, settings: recipes.Distill) -> None:
        super().__init__(body, settings)
        self.map: nn.Linear | None = None
        self.map_is_kept = False

    @classmethod
    def reads(cls, base: Base, settings: recipes.Distill) -> Reads:
        return Reads((SENTENCE,), vectors=True)

    def prepare(self, corpus: Corpus) -> None:
        """Make the map from the width of the encoder to that of the teacher. It begins as the identity."""
        assert corpus.vectors is not None, "reads asks for vectors"
        own, theirs = self.body.width, corpus.vectors.shape[1]
        self.map_is_kept = own != theirs
        if self.map_is_kept or self.settings.map == "on":
            weight = torch.eye(theirs, own).to(next(self.parameters()))
            self.map = nn.Linear(own, theirs, bias=False, device="meta")
            self.map.weight = nn.Parameter(weight)

    def encode(self, batch: Batch) -> Outputs:
        [texts] = batch.texts
        assert batch.vectors is not None, "reads asks for vectors"
        vectors = self.vectors(self.pack(texts))
        mapped = vectors if self.map is None or self.map_is_kept else self.map(vectors)
        return {
            "vectors": vectors,
            "mapped": mapped,
            "teacher": to_device(batch.vectors, self.device).to(vectors),
        }

    def vectors(self, packed: Packed, readout: str | None = None, **more: Any) -> Tensor:
        """Return vectors (b, d). The checkpoint has the map as a step after its readout."""
        vectors = super().vectors(packed, readout, **more)
        if readout is not None or self.map is None or not self.map_is_kept:
            return vectors
        return self.map(vectors)

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        settings, own, teacher = self.settings, outputs["mapped"], outputs["teacher"]
        if settings.loss == "cosine":
            terms = {"cosine": mean_of(1 - (unit(own) * unit(teacher)).sum(1))}
        else:
            terms = {"mse": mean_of(squared_error(own, teacher))}
        if settings.relational:
            values = relational_divergence(outputs["vectors"], teacher, settings.temperature)
            terms["relational"] = mean_of(values, settings.relational)
        return terms

    def finished(self) -> Finished:
        if self.map is None or not self.map_is_kept:
            return Finished(heads=own_tensors(self))
        weight = self.map.weight.detach().float().cpu().numpy()
        return Finished(heads={}, steps=[Linear(weight, np.zeros(len(weight), np.float32))])
