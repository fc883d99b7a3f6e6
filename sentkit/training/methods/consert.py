"""ConSERT (arXiv 2105.11741): a contrast between two augmented views of each sentence in the batch.

With labelled pairs (premise, hypothesis), it trains a classifier of pairs instead of the contrast or with it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sentkit.errors import UsageError
from sentkit.formats.rows.kinds import PAIR, SENTENCE
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.readouts import Disturb, widened
from sentkit.training.base import Base
from sentkit.training.data.batches import Batch, Ids
from sentkit.training.data.corpus import Corpus, check_labels
from sentkit.training.data.examples import NLI, Labels, Reads
from sentkit.training.losses.losses import paired_contrast
from sentkit.training.method import Draw, Needs, Outputs, PackedMethod, Term, mean_of
from sentkit.training.recipe import Recipe
from sentkit.training.settings import ours, paper, readout, refuse_idle, released
from sentkit.training.views import VIEWS, Drawn, View

IDLE = {  # mode -> settings of other modes, without effect here
    "unsup": ("alpha", "pair_features"),
    "sup": ("view_b", "temperature", "alpha", "loss_scale"),
    "joint": ("loss_scale",),
}
ADVERSARIAL = "adversarial"  # the second view of mode joint, made from the gradient of the label loss
RATES = {  # view -> settings of this view
    ADVERSARIAL: ("adv_eps", "adv_form"),
    "token-cutoff": ("token_cutoff_rate",),
    "feature-cutoff": ("feature_cutoff_rate",),
    "span-cutoff": ("span_cutoff_rate",),
    "dropout": ("view_dropout_rate",),
}

Block = Callable[[Tensor, Tensor], Tensor]  # two (b, d) -> (b, d)


def first(one: Tensor, other: Tensor) -> Tensor:
    return one


def second(one: Tensor, other: Tensor) -> Tensor:
    return other


def distance(one: Tensor, other: Tensor) -> Tensor:
    return (one - other).abs()


def greater_squared(one: Tensor, other: Tensor) -> Tensor:
    return torch.maximum(one, other).square()


# Features of a pair u, v for the classifier: those of the paper, and those of the released code.
FEATURES: dict[str, tuple[Block, ...]] = {
    "uvd": (first, second, distance),
    "uvdm": (first, second, distance, greater_squared),
}

# The presets follow the released scripts. Only one of these scripts disables the encoder's dropout.
RELEASED = {"optimizer": "adamw-bert"}
WITH_DROPOUT = RELEASED | {"dropout": None}
LABELLED = WITH_DROPOUT | {"view_a": "none", "lr": 2e-5, "epochs": 1, "patience": 0, "pair_features": "uvdm"}
SUP = LABELLED | {"mode": "sup"}
JOINT = LABELLED | {"mode": "joint", "view_b": "token-cutoff", "token_cutoff_rate": 0.1}
AFTER_SUP = WITH_DROPOUT | {"view_a": "none", "view_b": "feature-cutoff", "feature_cutoff_rate": 0.1}
AFTER_JOINT = WITH_DROPOUT | {"view_a": "none"}
AS_WRITTEN = {"alpha": 0.15, "pair_features": "uvd"}  # the formulas as printed in the paper


class ConSERT(PackedMethod):
    @dataclass(frozen=True, kw_only=True)
    class Settings(Recipe):
        mode: str = paper(
            "unsup", "unsup: contrast two views; sup: classify pairs; joint: both", choices=tuple(IDLE)
        )
        view_a: str = paper(
            "feature-cutoff",
            "change that makes the first view; the classifier uses it too",
            choices=tuple(VIEWS),
        )
        view_b: str = paper("shuffle", "change that makes the second view", choices=(*VIEWS, ADVERSARIAL))
        token_cutoff_rate: float = paper(
            0.15, "share of the tokens that token-cutoff removes", least=0, most=1
        )
        feature_cutoff_rate: float = paper(
            0.2, "share of the features that feature-cutoff removes", least=0, most=1
        )
        view_dropout_rate: float = paper(0.2, "share of all numbers that dropout removes", least=0, most=1)
        span_cutoff_rate: float = ours(
            0.15, "share of the tokens outside of the window of span-cutoff", least=0, most=1
        )
        adv_eps: float = released(1.0, "length of the change of each token by adversarial", above=0)
        adv_form: str = paper(
            "fgv",
            "fgv: along the gradient; fgsm: along the sign of each number",
            choices=("fgv", "fgsm"),
        )
        temperature: float = paper(0.1, "divisor of the cosines", above=0)
        # The released code multiplies a sum of two means by 0.15. This equals 0.3 times the mean over both
        # views. In joint mode it adds such a sum for each text: 0.6 times the average of the two texts.
        loss_scale: float = released(
            0.3, "unsup: weight of the contrast; with Adam it matters only for clip", above=0
        )
        alpha: float = released(0.6, "joint: weight of the contrast, averaged over the two texts", least=0)
        pair_features: str = paper(
            "uvd", "input of the classifier: u, v, |u-v|; with m also max(u, v)^2", choices=tuple(FEATURES)
        )
        readout: str = readout("mean-last2")
        epochs: int = released(10)
        batch: int = paper(96)
        lr: float = released(5e-7)
        optimizer: str = ours("adamw-hf")  # the presets use that of the released code
        weight_decay: float = released(0.01)
        schedule: str = released("linear")
        warmup: float = released(0.1)
        clip: float = released(1.0)
        max_length: int = released(64)
        dropout: float | None = paper(0.0)
        eval_every: int = released(200)
        patience: int = released(10)

        def __post_init__(self) -> None:
            super().__post_init__()
            refuse_idle(self, IDLE[self.mode], f"mode={self.mode}")
            if self.view_b == ADVERSARIAL and self.mode != "joint":
                raise UsageError(f"view_b=adversarial needs mode=joint, not mode={self.mode}")
            if self.view_b == ADVERSARIAL and self.view_a == "span-cutoff":
                raise UsageError("view_b=adversarial and view_a=span-cutoff cannot be used together")
            idle = [name for kind, own in RATES.items() if kind not in self.views.values() for name in own]
            refuse_idle(self, idle, " and ".join(f"view_{each}={kind}" for each, kind in self.views.items()))

        @property
        def views(self) -> dict[str, str]:
            """The augmentation of each view that is encoded."""
            return {"a": self.view_a} if self.mode == "sup" else {"a": self.view_a, "b": self.view_b}

    presets: ClassVar = {
        "unsup-base": RELEASED,
        "unsup-large": WITH_DROPOUT | {"view_a": "none", "epochs": 25, "eval_every": 100},
        "unsup-base-tuned": RELEASED | {"lr": 2e-5, "temperature": 0.05},  # later advice of the authors
        "sup-base": SUP,
        "sup-large": SUP,
        "joint-base": JOINT,
        "joint-large": JOINT | {"max_length": 40},
        "joint-base-paper": JOINT | AS_WRITTEN,
        "joint-large-paper": JOINT | {"max_length": 40} | AS_WRITTEN,
        # The base of these presets is a checkpoint trained with sup or joint.
        "sup-unsup-base": AFTER_SUP | {"epochs": 25},
        "sup-unsup-large": AFTER_SUP | {"epochs": 10},
        "joint-unsup-base": AFTER_JOINT | {"epochs": 25},
        "joint-unsup-large": AFTER_JOINT | {"epochs": 10, "max_length": 40},
    }
    needs: ClassVar = Needs(packed="first states that a view may change")

    def __init__(self, body: Bert, settings: Settings) -> None:
        super().__init__(body, settings)
        self.classifier: nn.Linear | None = None
        if settings.mode != "unsup":
            self.classifier = nn.Linear(len(FEATURES[settings.pair_features]) * body.width, len(NLI))

    @classmethod
    def reads(cls, base: Base, settings: Settings) -> Reads:
        """In mode unsup, the texts of a pair are paraphrases. Each view is of one of them."""
        if settings.mode == "unsup":
            return Reads((SENTENCE, PAIR))
        return Reads((PAIR,), "label", Labels(NLI))

    @classmethod
    def dev_readout(cls, settings: Settings) -> str:
        """Return the readout used in training: `mean` for mean-last2, as in the paper."""
        [name] = cls.readouts(settings)
        return "mean" if name == "mean-last2" else name

    def seen(self, batch: Batch) -> dict[str, tuple[Sequence[Ids], ...]]:
        """Return the texts of each view: one sequence for each text of a row."""
        if self.settings.mode == "unsup":
            return {"a": batch.texts[:1], "b": batch.texts[-1:]}
        return dict.fromkeys(self.settings.views, batch.texts)

    def view(self, name: str) -> tuple[View, float]:
        """Return a view and its rate."""
        kind = self.settings.views[name]
        if kind == ADVERSARIAL:
            return VIEWS["none"], 0.0
        return VIEWS[kind], getattr(self.settings, RATES[kind][0]) if kind in RATES else 0.0

    def draw(self, batch: Batch, random: Draw) -> Mapping[str, Drawn]:
        draws: dict[str, Drawn] = {}
        for name, sides in self.seen(batch).items():
            view, rate = self.view(name)
            for side, texts in enumerate(sides):
                lengths, key = [len(text) for text in texts], f"{name}{side}"
                draws[key] = view.draw(random(f"view {key}"), lengths, self.body.width, rate)
        return draws

    def encode(self, batch: Batch) -> Outputs:
        if self.settings.views.get("b") == ADVERSARIAL:
            return self.attacked(batch)
        outputs: Outputs = {}
        for name in self.settings.views:
            outputs |= self.encoded(batch, name)
        return outputs if self.classifier is None else outputs | self.classified(outputs, batch)

    def encoded(self, batch: Batch, name: str, change: Disturb | None = None) -> Outputs:
        """Return the vectors of a view, for each text of a row. `change` is applied to X(0) of the view."""
        sides = self.seen(batch)[name]
        keys = [f"{name}{side}" for side in range(len(sides))]
        view, _ = self.view(name)
        drawn = [each for key in keys for each in batch.draws[key]]
        packed, disturb = view.apply(self.pack([text for texts in sides for text in texts]), drawn)
        both = [each for each in (disturb, change) if each is not None]

        def changed(states: Tensor) -> Tensor:
            for each in both:
                states = each(states)
            return states

        vectors = self.vectors(
            packed, self.dev_readout(self.settings), disturb=changed if both else None
        )  # (sides * b, d)
        return dict(zip(keys, vectors.chunk(len(sides)), strict=True))

    def classified(self, outputs: Outputs, batch: Batch) -> Outputs:
        assert self.classifier is not None, "mode unsup has no classifier"
        blocks = FEATURES[self.settings.pair_features]
        features = torch.cat([block(outputs["a0"], outputs["a1"]) for block in blocks], 1)
        labels = torch.as_tensor(batch.targets, dtype=torch.long, device=self.device)
        return {"logits": self.classifier(features), "labels": labels}

    def attacked(self, batch: Batch) -> Outputs:
        """Return both views. The second adds to X(0) the direction in which the label loss grows fastest.

        The direction of a row depends only on this row, because the sum of the losses has no shared terms.
        """
        first: list[Tensor] = []  # X(0) of the first view

        def hold(states: Tensor) -> Tensor:
            # With LoRA the embeddings are constant, so their states have no gradient yet.
            first.append(states if states.requires_grad else states.detach().requires_grad_())
            return first[0]

        live = torch.is_grad_enabled()
        with torch.enable_grad():  # also in the pass of a chunk without gradient
            outputs = self.encoded(batch, "a", hold)
            outputs |= self.classified(outputs, batch)
            loss = F.cross_entropy(widened(outputs["logits"]), outputs["labels"], reduction="sum")
            [slopes] = torch.autograd.grad(loss, first, retain_graph=live)
        if not live:
            outputs = {name: value.detach() for name, value in outputs.items()}
        change = self.settings.adv_eps * direction(slopes, self.settings.adv_form)
        return outputs | self.encoded(batch, "b", lambda states: states + change)

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        mode, terms = self.settings.mode, dict[str, Term]()
        if mode != "sup":
            # Premises and hypotheses are contrasted separately: a premise is not a negative of a hypothesis.
            sides = (0, 1) if mode == "joint" else (0,)
            values = [self.contrast(outputs[f"a{side}"], outputs[f"b{side}"]) for side in sides]
            factor = self.settings.alpha if mode == "joint" else self.settings.loss_scale
            terms["contrast"] = mean_of(torch.cat(values), factor)
        if mode != "unsup":
            logits, labels = widened(outputs["logits"]), outputs["labels"]
            terms["label"] = mean_of(F.cross_entropy(logits, labels, reduction="none"))
        return terms

    @classmethod
    def check_rows(cls, corpus: Corpus, settings: Settings, source: str) -> None:
        if settings.mode != "unsup":
            check_labels(corpus, source)

    def contrast(self, one: Tensor, other: Tensor) -> Tensor:
        return paired_contrast(one, other, self.settings.temperature)  # (2b,)


def direction(slopes: Tensor, form: str) -> Tensor:
    """Return the unit gradient of each token, or the sign of each number, (n, d) -> (n, d)."""
    if form == "fgsm":
        return slopes.sign()
    return slopes / (slopes.norm(dim=-1, keepdim=True) + 1e-10)
