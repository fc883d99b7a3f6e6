"""ConSERT: settings, presets and citation."""

from dataclasses import dataclass
from typing import ClassVar

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.readout import parse_readout
from sentkit.training.listings import Listing, Paper
from sentkit.training.recipe import Recipe
from sentkit.training.settings import (
    AS_BASE,
    Presets,
    ours,
    paper,
    readout,
    refuse_idle,
    released,
)

VIEWS = ("none", "shuffle", "token-cutoff", "feature-cutoff", "span-cutoff", "dropout")
# features of a pair for the classifier: of the paper, and of the released code
FEATURES = (
    "uvd",
    "uvdm",
)
IDLE = {  # mode -> settings of other modes, without effect here
    "unsup": ("alpha", "pair_features"),
    "sup": ("view_b", "temperature", "alpha", "loss_scale"),
    "joint": ("loss_scale",),
}
# the second view of mode joint, made from the gradient of the label loss
ADVERSARIAL = "adversarial"
RATES = {  # view -> settings of this view
    ADVERSARIAL: ("adv_eps", "adv_form"),
    "token-cutoff": ("token_cutoff_rate",),
    "feature-cutoff": ("feature_cutoff_rate",),
    "span-cutoff": ("span_cutoff_rate",),
    "dropout": ("view_dropout_rate",),
}

# The presets follow the released scripts. Only one of these scripts disables the encoder's dropout.
RELEASED = {"optimizer": "adamw-bert"}
WITH_DROPOUT = RELEASED | {"dropout": None}
LABELLED = WITH_DROPOUT | {
    "view_a": "none",
    "lr": 2e-5,
    "epochs": 1,
    "patience": 0,
    "pair_features": "uvdm",
}
SUP = LABELLED | {"mode": "sup"}
JOINT = LABELLED | {"mode": "joint", "view_b": "token-cutoff", "token_cutoff_rate": 0.1}
AFTER_SUP = WITH_DROPOUT | {
    "view_a": "none",
    "view_b": "feature-cutoff",
    "feature_cutoff_rate": 0.1,
}
AFTER_JOINT = WITH_DROPOUT | {"view_a": "none"}
AS_WRITTEN = {"alpha": 0.15, "pair_features": "uvd"}  # the formulas as printed in the paper
PRESETS: Presets = {
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


@dataclass(frozen=True, kw_only=True)
class Settings(Recipe):
    presets: ClassVar = PRESETS
    mode: str = paper(
        "unsup", "unsup: contrast two views; sup: classify pairs; joint: both", choices=tuple(IDLE)
    )
    view_a: str = paper(
        "feature-cutoff",
        "change that makes the first view; the classifier uses it too",
        choices=VIEWS,
    )
    view_b: str = paper(
        "shuffle", "change that makes the second view", choices=(*VIEWS, ADVERSARIAL)
    )
    token_cutoff_rate: float = paper(
        0.15, "share of the tokens that token-cutoff removes", least=0, most=1
    )
    feature_cutoff_rate: float = paper(
        0.2, "share of the features that feature-cutoff removes", least=0, most=1
    )
    view_dropout_rate: float = paper(
        0.2, "share of all numbers that dropout removes", least=0, most=1
    )
    span_cutoff_rate: float = ours(
        0.15, "share of the tokens outside of the window of span-cutoff", least=0, most=1
    )
    adv_eps: float = released(
        1.0,
        "length of the change of each token by adversarial; with adv_form=raw a factor",
        above=0,
    )
    adv_form: str = paper(
        "fgv",
        "fgv: along the gradient; fgsm: along the sign of each number; raw: the gradient itself",
        choices=("fgv", "fgsm", "raw"),
    )
    temperature: float = paper(0.1, "divisor of the cosines", above=0)
    # The released code multiplies a sum of two means by 0.15. This equals 0.3 times the mean over
    # both views. In joint mode it adds such a sum for each text: 0.6 times the average of the two
    # texts.
    loss_scale: float = released(
        0.3, "unsup: weight of the contrast; with Adam it matters only for clip", above=0
    )
    alpha: float = released(
        0.6, "joint: weight of the contrast, averaged over the two texts", least=0
    )
    pair_features: str = paper(
        "uvd", "input of the classifier: u, v, |u-v|; with m also max(u, v)^2", choices=FEATURES
    )
    readout: str = readout("mean-last2")
    epochs: int | None = released(10)
    batch: int = paper(96)
    lr: float = paper(5e-7)
    optimizer: str = ours("adamw-hf")  # the presets use that of the released code
    weight_decay: float = released(0.01)
    schedule: str = released("linear")
    warmup: float = paper(0.1)
    clip: float = released(1.0)
    max_length: int = paper(64)
    dropout: float | None = paper(0.0)
    eval_every: int | None = paper(200)
    patience: int = released(10)

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_idle(self, IDLE[self.mode], f"mode={self.mode}")
        if self.view_b == ADVERSARIAL and self.mode != "joint":
            raise UsageError(f"view_b=adversarial needs mode=joint, not mode={self.mode}")
        if self.view_b == ADVERSARIAL and self.view_a == "span-cutoff":
            raise UsageError("view_b=adversarial and view_a=span-cutoff cannot be used together")
        if "span-cutoff" in self.views.values() and reads_one_token(self.readout):
            problem = f"span-cutoff can leave out the token that readout={self.readout} reads"
            raise UsageError(problem, advice="use readout=mean, or another view")
        unused_rates: list[str] = []
        for augmentation, names in RATES.items():
            if augmentation not in self.views.values():
                unused_rates += names
        views = [f"view_{view}={augmentation}" for view, augmentation in self.views.items()]
        refuse_idle(self, unused_rates, " and ".join(views))

    @property
    def views(self) -> dict[str, str]:
        """The augmentation of each view that is encoded."""
        if self.mode == "sup":
            return {"a": self.view_a}
        return {"a": self.view_a, "b": self.view_b}

    @property
    def views_need_dropout(self) -> bool:
        return self.mode == "unsup" and self.views == {"a": "none", "b": "none"}


def reads_one_token(name: str) -> bool:
    """Whether a readout reads a token at a fixed place, such as [CLS] or the last one."""
    if name == AS_BASE:  # another one than that of ConSERT is refused with the base
        return False
    reductions = {joined.reduction for joined in parse_readout(name).joined_readouts}
    return not reductions.isdisjoint(("cls", "last", "pooler", "token"))


PAPER = Paper(
    "consert",
    "ConSERT",
    "consert",
    methods={
        "consert": Listing(
            "contrast two views; classify pairs",
            "sentkit.papers.consert.method:ConSERT",
            "2105.11741",
            "The adversarial view draws the dropout of the embeddings again. The released code "
            "changes the states of the first view. Without dropout, which is the default, both are "
            "equal.",
            settings=Settings,
        )
    },
)
