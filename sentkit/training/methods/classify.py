"""A classifier of sentences or pairs, or a predictor of scores, as BERT is fine-tuned (arXiv
1810.04805).

The presets `sg-bert-glue` and `sg-bert-glue-cola` are for table 10 of SG-BERT (arXiv 2106.07345):
the first tenth of each GLUE development set is for validation and the rest is the test. The
learning rate, batch and epochs of this fine-tuning are not stated, so the presets have those of
BERT.
"""

from typing import Any, ClassVar, Self

import numpy as np
from torch.nn import functional as F

from sentkit.formats.rows.kinds import PAIR, SENTENCE
from sentkit.model.checkpoint.heads import (
    ClassifierHead,
    classifier_config,
    classifier_tensors,
    move_to_head,
)
from sentkit.model.checkpoint_model import PairTokenizer
from sentkit.model.transformer.device import to_device
from sentkit.model.transformer.packed import pack
from sentkit.model.transformer.readouts import at_least_float32
from sentkit.training.base import Base
from sentkit.training.data.corpus import Batch
from sentkit.training.data.examples import Classes, Reads, Scores
from sentkit.training.method import Finished, Needs, Outputs, PackedMethod, Term, mean_of
from sentkit.training.methods import recipes


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
        outputs = 1
        if settings.objective == "classification":
            outputs = len(base.labels)
        method.head = move_to_head(
            method.body, outputs, base.checkpoint, base.stored, settings.dropout
        )
        method.labels = base.labels
        method.second_type = pair_tokenizer(base, settings).second_type
        return method

    @classmethod
    def reads(cls, base: Base, settings: recipes.Classify) -> Reads:
        tokenize = pair_tokenizer(base, settings).columns
        if settings.objective == "regression":
            return Reads((PAIR, SENTENCE), "score", Scores(), varied=True, tokenize=tokenize)
        return Reads((PAIR, SENTENCE), "label", Classes(), varied=True, tokenize=tokenize)

    @classmethod
    def readouts(cls, settings: recipes.Classify) -> tuple[str, ...]:
        return ("cls",)

    @classmethod
    def identity(cls, base: Base, settings: recipes.Classify) -> dict[str, Any]:
        """A run on the first token has no such field, so a state of sentkit 0.1 can be resumed."""
        if base.packed.pooling == "cls":
            return {}
        return {"pooling": base.packed.pooling}

    def encode(self, batch: Batch) -> Outputs:
        first_texts = batch.texts[0]
        if len(batch.texts) == 1:
            packed = self.pack(first_texts)
        else:
            pairs = [np.concatenate(texts) for texts in zip(*batch.texts, strict=True)]
            second_starts = None
            if self.second_type:
                second_starts = [len(text) for text in first_texts]
            packed = pack(pairs, self.device, second_segment_starts=second_starts)
        vectors = self.vectors(packed, self.body.architecture.pooling)
        outputs = {"logits": self.head(vectors)}
        if batch.targets is not None:
            outputs["target"] = to_device(batch.targets, self.device)
        return outputs

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        logits = at_least_float32(outputs["logits"])
        target = outputs["target"]
        if self.settings.objective == "regression":
            return {"regression": mean_of((logits[:, 0] - target.to(logits)) ** 2)}
        return {"classification": mean_of(F.cross_entropy(logits, target.long(), reduction="none"))}

    def finished(self) -> Finished:
        """Return a classifier: the head is part of the model."""
        architecture = self.body.architecture
        pooler = None
        if architecture.family == "bert":
            pooler = self.head.dense
        return Finished(
            heads={},
            tensors=classifier_tensors(self.body, self.head),
            whole=True,
            config=classifier_config(architecture, self.labels),
            pooler=pooler,
        )


def pair_tokenizer(base: Base, settings: recipes.Classify) -> PairTokenizer:
    return PairTokenizer(base.checkpoint, settings.max_length, base.packed.types)
