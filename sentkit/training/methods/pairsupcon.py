"""PairSupCon (arXiv 2109.05424): classifies pairs and contrasts the partners of entailment pairs."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from sentkit.formats.rows.kinds import PAIR
from sentkit.model.transformer.readouts import widened
from sentkit.training.base import Base, Body
from sentkit.training.data.batches import Batch
from sentkit.training.data.corpus import Corpus, check_labels
from sentkit.training.data.examples import Labels, Reads
from sentkit.training.loop.optimizers import NamedGroup
from sentkit.training.losses.losses import entailment_contrast
from sentkit.training.method import Method, Needs, Outputs, Term, mean_of, trained
from sentkit.training.methods.sbert import pair_features
from sentkit.training.recipe import Recipe
from sentkit.training.settings import paper, readout, refuse_idle, released

RELATIONS = Labels({"entailment": 1, "contradiction": 0, "neutral": None})
OF_ALPHA = ("hard_negative_form", "detach_alpha")
OF_CONTRAST = ("beta", "temperature", "hard_negatives", *OF_ALPHA, "id_average", "head_width")


class PairSupCon(Method):
    @dataclass(frozen=True, kw_only=True)
    class Settings(Recipe):
        objective: str = paper(
            "both", "cls: classify pairs; id: contrast partners", choices=("both", "id", "cls")
        )
        beta: float = paper(1.0, "weight of the id term", above=0)
        temperature: float = paper(0.05, "divisor of the cosines", above=0)
        hard_negatives: bool = paper(True, "give near negatives more weight, by alpha")
        hard_negative_form: str = released(
            "code",
            "code: alpha multiplies the exponential; exponent: alpha multiplies the cosine",
            choices=("code", "exponent"),
        )
        detach_alpha: bool = released(False, "no gradient through alpha")
        id_average: str = released(
            "anchors",
            "anchors: mean over both sides of each entailment; pairs, as in the formula: twice that",
            choices=("anchors", "pairs"),
        )
        head_width: int = released(128, "width of the vectors of the id term", least=1)
        head_lr_factor: float = paper(
            100.0, "learning rate of the heads, divided by that of the encoder", above=0
        )
        readout: str = readout("mean")
        batch: int = paper(1024)
        lr: float = paper(5e-6)
        optimizer: str = paper("adam")
        schedule: str = released("constant")
        clip: float = released(0.0)
        epochs: int = released(3)
        max_length: int = released(32)
        eval_every: int = released(250)

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.objective == "cls":
                refuse_idle(self, OF_CONTRAST, "objective=cls")
            if not self.hard_negatives:
                refuse_idle(self, OF_ALPHA, "hard_negatives=off")

    presets: ClassVar = {
        "paper": {},
        "cls": {"objective": "cls"},
        "id": {"objective": "id"},
        "id-plain": {"objective": "id", "hard_negatives": False},
        "plain": {"hard_negatives": False},
    }
    needs: ClassVar = Needs(static=True)

    def __init__(self, body: Body, settings: Settings) -> None:
        super().__init__(body, settings)
        contrasts, tells = settings.objective != "cls", settings.objective != "id"
        self.contrast = contrast_head(body.width, settings.head_width) if contrasts else None
        self.relation = nn.Linear(3 * body.width, 2, bias=False) if tells else None

    @classmethod
    def reads(cls, base: Base, settings: Settings) -> Reads:
        return Reads((PAIR,), "label", RELATIONS)

    @classmethod
    def check_rows(cls, corpus: Corpus, settings: Settings, source: str) -> None:
        if settings.objective == "cls":
            check_labels(corpus, source)

    def encode(self, batch: Batch) -> Outputs:
        assert batch.targets is not None, "pairs without labels"
        left, right = self.vectors(self.pack([*batch.texts[0], *batch.texts[1]])).chunk(2)
        outputs = {"label": torch.from_numpy(batch.targets).to(left.device, torch.long)}
        if self.contrast is not None:
            outputs |= {"left": self.contrast(left), "right": self.contrast(right)}
        if self.relation is not None:
            outputs["logits"] = self.relation(pair_features(left, right))
        return outputs

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        terms: dict[str, Term] = {}
        if "logits" in outputs:
            logits = widened(outputs["logits"])
            terms["cls"] = mean_of(F.cross_entropy(logits, outputs["label"], reduction="none"))
        if "left" in outputs:
            terms["id"] = self.partners(outputs)
        return terms

    def partners(self, outputs: Outputs) -> Term:
        """Return the contrast of both texts of each entailment pair, or 0 without such pairs."""
        wanted = self.settings
        values = entailment_contrast(
            outputs["left"],
            outputs["right"],
            outputs["label"] == 1,
            wanted.temperature,
            weighting=wanted.hard_negative_form if wanted.hard_negatives else "none",
            detach=wanted.detach_alpha,
        )
        sides = 2 if wanted.id_average == "pairs" else 1
        return Term(values.sum(), len(values) / sides, wanted.beta)

    def groups(self) -> list[NamedGroup]:
        heads = [(name, weight) for name, weight in trained(self) if not name.startswith("body.")]
        rate = self.settings.lr
        return [
            {"params": list(trained(self, "body.")), "lr": rate},
            {"params": heads, "lr": rate * self.settings.head_lr_factor},
        ]


def contrast_head(width: int, to: int) -> nn.Sequential:
    """Return a head without biases. The loss normalizes its outputs."""
    return nn.Sequential(nn.Linear(width, width, bias=False), nn.ReLU(), nn.Linear(width, to, bias=False))
