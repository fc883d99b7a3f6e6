"""Distillation: an encoder learns the vectors that a teacher gave to the same texts.

The rows contain these vectors, so the model of the teacher is not needed in training.
"""

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from sentkit.formats.rows.kinds import SENTENCE
from sentkit.model.transformer.device import to_device
from sentkit.model.transformer.packed import Packed
from sentkit.training.base import Base, Body
from sentkit.training.data.corpus import Batch, Corpus
from sentkit.training.data.examples import Reads
from sentkit.training.losses import relational_divergence, squared_error, unit
from sentkit.training.method import (
    Finished,
    Method,
    Needs,
    Outputs,
    Term,
    mean_of,
    tensors_of_heads,
)
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
        """Make the map from the width of the encoder to that of the teacher. It begins as the
        identity.
        """
        assert corpus.vectors is not None, "reads asks for vectors"
        width = self.body.width
        teacher_width = corpus.vectors.shape[1]
        self.map_is_kept = width != teacher_width
        if self.map_is_kept or self.settings.map == "on":
            weight = torch.eye(teacher_width, width).to(next(self.parameters()))
            self.map = nn.Linear(width, teacher_width, bias=False, device="meta")
            self.map.weight = nn.Parameter(weight)

    def encode(self, batch: Batch) -> Outputs:
        [texts] = batch.texts
        assert batch.vectors is not None, "reads asks for vectors"
        vectors = self.vectors(self.pack(texts))
        mapped = vectors  # with a map that is kept, `vectors` has applied it
        if self.map is not None and not self.map_is_kept:
            mapped = self.map(vectors)
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
        settings = self.settings
        mapped = outputs["mapped"]
        teacher = outputs["teacher"]
        if settings.loss == "cosine":
            cosines = (unit(mapped) * unit(teacher)).sum(1)
            terms = {"cosine": mean_of(1 - cosines)}
        else:
            terms = {"mse": mean_of(squared_error(mapped, teacher))}
        if settings.relational:
            values = relational_divergence(outputs["vectors"], teacher, settings.temperature)
            terms["relational"] = mean_of(values, settings.relational)
        return terms

    def finished(self) -> Finished:
        if self.map is None or not self.map_is_kept:
            return Finished(heads=tensors_of_heads(self))
        weight = self.map.weight.detach().float().cpu().numpy()
        bias = np.zeros(len(weight), np.float32)
        return Finished(heads={}, steps=[Linear(weight, bias)])
