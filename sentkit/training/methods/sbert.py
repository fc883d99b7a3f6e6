"""SBERT (arXiv 1908.10084): trains on pairs with a label, pairs with a score, or triplets."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sentkit.formats.rows.kinds import PAIR, TRIPLET
from sentkit.model.transformer.readouts import widened
from sentkit.training.base import Base, Body
from sentkit.training.data.batches import Batch
from sentkit.training.data.corpus import Corpus, check_labels
from sentkit.training.data.examples import NLI, Labels, Reads, Scores
from sentkit.training.losses.losses import cosine_regression, triplet_margin
from sentkit.training.method import Method, Needs, Outputs, Term, mean_of
from sentkit.training.recipe import Dims
from sentkit.training.settings import ours, paper, readout, refuse_idle, released


def softmax(outputs: Outputs, settings: Any) -> Tensor:
    logits, target = widened(outputs["logits"]), outputs["target"].long()
    return F.cross_entropy(logits, target, reduction="none")


def regression(outputs: Outputs, settings: Any) -> Tensor:
    return cosine_regression(outputs["text_a"], outputs["text_b"], outputs["target"] / settings.scale)


def triplet(outputs: Outputs, settings: Any) -> Tensor:
    return triplet_margin(outputs["anchor"], outputs["positive"], outputs["negative"], settings.margin)


@dataclass(frozen=True, slots=True)
class Objective:
    reads: Callable[[Any], Reads]  # takes the settings
    loss: Callable[[Outputs, Any], Tensor]  # (b,)
    idle: tuple[str, ...]  # settings of the other objectives


OBJECTIVES = {
    "softmax": Objective(
        lambda settings: Reads((PAIR,), "label", Labels(NLI)), softmax, ("scale", "margin", "dims")
    ),
    "regression": Objective(
        lambda settings: Reads((PAIR,), "score", Scores(settings.scale)), regression, ("margin",)
    ),
    "triplet": Objective(lambda settings: Reads((TRIPLET,)), triplet, ("scale",)),
}


def pair_features(left: Tensor, right: Tensor) -> Tensor:
    """Return the features u, v and |u - v| for a classifier of pairs: two (b, d) -> (b, 3d)."""
    return torch.cat([left, right, (left - right).abs()], 1)


class SBERT(Method):
    @dataclass(frozen=True, kw_only=True)
    class Settings(Dims):
        objective: str = paper(
            "softmax", "for pairs with a label, pairs with a score, or triplets", choices=tuple(OBJECTIVES)
        )
        scale: float = released(5.0, "regression: divisor of the scores", above=0)
        margin: float = paper(
            1.0, "triplet: margin by which the positive must be nearer; the library has 5", least=0
        )
        readout: str = readout("mean")
        batch: int = paper(16)
        lr: float = paper(2e-5)
        warmup: float = paper(0.1)
        schedule: str = released("linear")
        optimizer: str = released("adamw-hf")  # early versions of the library had no bias correction
        weight_decay: float = released(0.01)
        clip: float = released(1.0)
        epochs: int = paper(1)
        max_length: int = ours(128)
        eval_every: int = released(1000)

        def __post_init__(self) -> None:
            super().__post_init__()
            refuse_idle(self, OBJECTIVES[self.objective].idle, f"objective={self.objective}")

    presets: ClassVar = {
        "nli": {},
        "stsb": {"objective": "regression", "epochs": 4},
        "sections": {"objective": "triplet"},
    }
    needs: ClassVar = Needs(row_wise=True, static=True, vectors=(*PAIR.texts, *TRIPLET.texts))

    def __init__(self, body: Body, settings: Settings) -> None:
        super().__init__(body, settings)
        classifies = settings.objective == "softmax"
        self.classifier = nn.Linear(3 * body.width, len(NLI)) if classifies else None

    @classmethod
    def reads(cls, base: Base, settings: Settings) -> Reads:
        return OBJECTIVES[settings.objective].reads(settings)

    @classmethod
    def check_rows(cls, corpus: Corpus, settings: Settings, source: str) -> None:
        if settings.objective == "softmax":
            check_labels(corpus, source)

    def encode(self, batch: Batch) -> Outputs:
        texts = [text for column in batch.texts for text in column]
        vectors = self.vectors(self.pack(texts)).chunk(len(batch.texts))
        names = OBJECTIVES[self.settings.objective].reads(self.settings).kinds[0].texts
        outputs = dict(zip(names, vectors, strict=True))
        if self.classifier is not None:
            outputs["logits"] = self.classifier(pair_features(*vectors))
        if batch.targets is not None:
            outputs["target"] = torch.from_numpy(batch.targets).to(vectors[0])
        return outputs

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        values = OBJECTIVES[self.settings.objective].loss(outputs, self.settings)
        return {self.settings.objective: mean_of(values)}
