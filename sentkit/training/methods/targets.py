"""Fine-tuning of BERT predicts labels or scores; distillation learns the vectors of a teacher.

Classify (arXiv 1810.04805) is a classifier of sentences or pairs, or a predictor of scores. The presets
`sg-bert-glue` and `sg-bert-glue-cola` are for table 10 of SG-BERT (arXiv 2106.07345): the first tenth of each
GLUE development set is for validation and the rest is the test. The learning rate, batch and epochs of this
fine-tuning are not stated, so the presets have those of BERT.

Distill trains an encoder to give the vectors that a teacher gave to the same texts. The rows contain these
vectors, so the model of the teacher is not needed in training.
"""

from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sentkit.formats.rows.kinds import PAIR, SENTENCE
from sentkit.model.checkpoint.heads import ClassifierHead, classifier_config, classifier_tensors, move_to_head
from sentkit.model.checkpoint_model import SegmentTokenizer
from sentkit.model.transformer.device import to_device
from sentkit.model.transformer.packed import Packed, pack
from sentkit.model.transformer.readouts import widened
from sentkit.training.base import Base, Body
from sentkit.training.data.corpus import Batch, Corpus
from sentkit.training.data.examples import Classes, Reads, Scores
from sentkit.training.losses import relational_divergence, squared_error, unit
from sentkit.training.method import Finished, Method, Needs, Outputs, PackedMethod, Term, mean_of, own_tensors
from sentkit.training.methods import recipes
from sentkit.transforms.steps import Linear


class Classify(PackedMethod):
    Settings: ClassVar = recipes.Classify
    needs: ClassVar = Needs(
        packed="a classification head of a known family", head=True, row_wise=True, labels=True
    )

    head: ClassifierHead
    labels: tuple[str, ...]
    second_type = 0  # token type of the second segment

    @classmethod
    def build(cls, base: Base, settings: recipes.Classify) -> Self:
        method = super().build(base, settings)
        outputs = len(base.labels) if settings.objective == "classification" else 1
        method.head = move_to_head(method.body, outputs, base.checkpoint, base.stored, settings.dropout)
        method.labels = base.labels
        if base.packed.types > 1:
            method.second_type = SegmentTokenizer(base.checkpoint, settings.max_length).second_type
        return method

    @classmethod
    def reads(cls, base: Base, settings: recipes.Classify) -> Reads:
        tokenize = SegmentTokenizer(base.checkpoint, settings.max_length)
        if settings.objective == "regression":
            return Reads((PAIR, SENTENCE), "score", Scores(), varied=True, tokenize=tokenize)
        return Reads((PAIR, SENTENCE), "label", Classes(), varied=True, tokenize=tokenize)

    @classmethod
    def readouts(cls, settings: recipes.Classify) -> tuple[str, ...]:
        return ("cls",)

    @classmethod
    def identity(cls, base: Base, settings: recipes.Classify) -> dict[str, Any]:
        """A run on the first token has no such field, so a state of sentkit 0.1 can be resumed."""
        return {} if base.packed.pooling == "cls" else {"pooling": base.packed.pooling}

    def encode(self, batch: Batch) -> Outputs:
        first = batch.texts[0]
        if len(batch.texts) == 1:
            packed = self.pack(first)
        else:
            whole = [np.concatenate(segments) for segments in zip(*batch.texts, strict=True)]
            second = [len(text) for text in first] if self.second_type else None
            packed = pack(whole, self.device, second=second)
        outputs = {"logits": self.head(self.vectors(packed, self.body.architecture.pooling))}
        if batch.targets is not None:
            outputs["target"] = to_device(batch.targets, self.device)
        return outputs

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        logits, target = widened(outputs["logits"]), outputs["target"]
        if self.settings.objective == "regression":
            return {"regression": mean_of((logits[:, 0] - target.to(logits)) ** 2)}
        return {"classification": mean_of(F.cross_entropy(logits, target.long(), reduction="none"))}

    def finished(self) -> Finished:
        """Return a classifier: the head is part of the model."""
        architecture = self.body.architecture
        return Finished(
            heads={},
            tensors=classifier_tensors(self.body, self.head),
            whole=True,
            config=classifier_config(architecture, self.labels),
            pooler=self.head.dense if architecture.family == "bert" else None,
        )


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
