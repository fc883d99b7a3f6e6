"""Fine-tuning of BERT (arXiv 1810.04805): a classifier of sentences or pairs, or a predictor of scores.

The presets `sg-bert-glue` and `sg-bert-glue-cola` are for table 10 of SG-BERT (arXiv 2106.07345): the first
tenth of each GLUE development set is for validation and the rest is the test. The learning rate, batch and
epochs of this fine-tuning are not stated, so the presets have those of BERT.
"""

from typing import ClassVar

import numpy as np
from torch.nn import functional as F

from sentkit.errors import UsageError
from sentkit.formats.rows.kinds import PAIR, SENTENCE
from sentkit.model.checkpoint.heads import ClassifierHead, classifier_config, classifier_tensors, move_to_head
from sentkit.model.text.tokenizer import SegmentTokenizer
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.device import to_device
from sentkit.model.transformer.packed import pack
from sentkit.model.transformer.readouts import widened
from sentkit.training.base import Base
from sentkit.training.data.batches import Batch
from sentkit.training.data.corpus import Corpus, check_labels
from sentkit.training.data.examples import Classes, Reads, Scores
from sentkit.training.method import Finished, Needs, Outputs, PackedMethod, Term, mean_of
from sentkit.training.methods import recipes


class Classify(PackedMethod):
    Settings: ClassVar = recipes.Classify
    needs: ClassVar = Needs(packed="a classification head of a known family", row_wise=True, labels=True)

    def __init__(
        self, body: Bert, settings: recipes.Classify, head: ClassifierHead, labels: tuple[str, ...]
    ) -> None:
        super().__init__(body, settings)
        self.head = head
        self.labels = labels
        self.second_type = 0  # token type of the second segment

    @classmethod
    def check(cls, base: Base, settings: recipes.Classify) -> None:
        if not base.packed.kind.classifies:
            raise UsageError(f"train classify does not support {base.packed.family}")

    @classmethod
    def build(cls, base: Base, settings: recipes.Classify) -> "Classify":
        body = cls.bert(base, settings)
        outputs = len(base.labels) if settings.objective == "classification" else 1
        head = move_to_head(body, outputs, base.checkpoint, settings.dropout)
        method = cls(body, settings, head, base.labels)
        if body.architecture.types > 1:
            method.second_type = SegmentTokenizer(base.checkpoint, settings.max_length).second_type
        return method

    @classmethod
    def reads(cls, base: Base, settings: recipes.Classify) -> Reads:
        tokenize = SegmentTokenizer(base.checkpoint, settings.max_length)
        if settings.objective == "regression":
            return Reads((PAIR, SENTENCE), "score", Scores(), tokenize=tokenize)
        return Reads((PAIR, SENTENCE), "label", Classes(), tokenize=tokenize)

    @classmethod
    def check_rows(cls, corpus: Corpus, settings: recipes.Classify, source: str) -> None:
        check_labels(corpus, source, "score" if settings.objective == "regression" else "label")

    @classmethod
    def readouts(cls, settings: recipes.Classify) -> tuple[str, ...]:
        return ("cls",)

    def encode(self, batch: Batch) -> Outputs:
        first = batch.texts[0]
        if len(batch.texts) == 1:
            packed = self.pack(first)
        else:
            whole = [np.concatenate(segments) for segments in zip(*batch.texts, strict=True)]
            second = [len(text) for text in first] if self.second_type else None
            packed = pack(whole, self.device, second=second)
        outputs = {"logits": self.head(self.vectors(packed, "cls"))}
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
