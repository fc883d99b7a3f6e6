"""The settings and presets of the general methods, by the names of their classes. It imports no
torch.
"""

from collections.abc import Collection
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

from sentkit.errors import UsageError
from sentkit.training.recipe import FORMS, Dims, Recipe
from sentkit.training.settings import ours, paper, readout, refuse_idle, released

# Values of the setting `guide` that are not checkpoints. Those of `Contrast`: no filter, and the
# encoder in training; that of `RankEncoder`: a copy of the base.
KEEP_ALL = "none"
ITSELF = "self"
COPY = "copy"
LEAST_RANKED = 3  # rows: the rank similarity of two texts is the correlation of their ranks


def check_guide(guide: str, guides: Collection[str]) -> None:
    """Raise a UsageError for a value that only another method has besides checkpoints."""
    if guide in (KEEP_ALL, ITSELF, COPY) and guide not in guides:
        advice = f"use {', '.join(guides)} or a checkpoint; a folder with this name is ./{guide}"
        raise UsageError(f"guide={guide}: this method has no such guide", advice=advice)


@dataclass(frozen=True, kw_only=True)
class MaskedLanguageModel(Recipe):
    mask_rate: float = paper(0.15, "share of the tokens of a text to predict", above=0, most=1)
    mask_share: float = paper(
        0.8, "share of the predicted tokens that the mask token replaces", least=0, most=1
    )
    random_share: float = paper(
        0.1, "share of the predicted tokens that a random token replaces", least=0, most=1
    )
    head: str = ours(
        "own",
        "own: the head of the base; fresh: a new head with random weights",
        choices=("own", "fresh"),
    )
    # common for an encoder without a trained readout
    readout: str = readout("mean", of_paper=False)
    lr: float = paper(1e-4)
    weight_decay: float = paper(0.01)
    schedule: str = paper("linear")
    warmup: float = ours(0.1)
    max_length: int = paper(128)
    clip: float = released(1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mask_share + self.random_share > 1 + 1e-9:
            raise UsageError("mask_share and random_share together are more than 1")

    # The preset trains from random weights on long texts. The defaults are for adapting a
    # checkpoint.
    presets: ClassVar = {
        "bert": {
            "batch": 256,
            "epochs": 40,
            "warmup": 0.01,
            "optimizer": "adamw-bert",
            "eval_every": 0,
        }
    }


@dataclass(frozen=True, kw_only=True)
class SimCSE(Recipe):
    temperature: float = paper(0.05, "divisor of the cosines", above=0)
    mlm_weight: float = released(
        0.0, "weight of predicting masked tokens; the paper tries 0.1", least=0
    )
    mlm_rate: float = released(
        0.15, "share of the tokens to predict, with mlm_weight", above=0, most=1, needs="mlm_weight"
    )
    readout: str = readout("cls")  # before the head, which is only used in training
    batch: int = paper(64)
    lr: float = paper(3e-5)
    max_length: int = released(32)
    optimizer: str = released("adamw")
    schedule: str = released("linear")
    clip: float = released(1.0)
    eval_every: int | None = released(125)

    presets: ClassVar = {
        "bert-base": {},
        "bert-large": {"lr": 1e-5},
        "roberta-base": {"batch": 512, "lr": 1e-5},
        "roberta-large": {"batch": 512, "lr": 3e-5},
    }

    @property
    def views_need_dropout(self) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class SupervisedSimCSE(SimCSE, Dims):
    hard_negative_weight: float = released(
        0.0, "added to the logit of the negative of the same row"
    )
    readout: str = readout("pooler")
    batch: int = paper(512)
    lr: float = paper(5e-5)
    epochs: int | None = paper(3)

    presets: ClassVar = {
        "bert-base": {},
        "bert-large": {"lr": 1e-5},
        "roberta-base": {},
        "roberta-large": {"lr": 1e-5},
    }


@dataclass(frozen=True, kw_only=True)
class ESimCSE(SimCSE):
    repeat_rate: float = paper(0.32, "largest share of the tokens to repeat", least=0, most=1)
    repeat_range: str = released(
        "code",
        "number of repetitions, for a text of n tokens; code: 0 to min(10, rate n) - 1; "
        "paper: 0 to max(2, rate n)",
        choices=("code", "paper"),
        needs="repeat_rate",
    )
    queue_size: int = paper(160, "vectors of earlier steps as negatives; 0: none", least=0)
    momentum: float = paper(
        0.995, "share that the momentum encoder keeps", least=0, most=1, needs="queue_size"
    )

    presets: ClassVar = {
        "bert-base": {},
        "bert-large": {"lr": 1e-5},
        "roberta-base": {"repeat_rate": 0.3, "lr": 1e-5},
        "roberta-large": {"repeat_rate": 0.28, "lr": 1e-5, "queue_size": 128, "dropout": 0.15},
    }

    @property
    def views_need_dropout(self) -> bool:
        return self.repeat_rate == 0


@dataclass(frozen=True, kw_only=True)
class RankEncoder(SimCSE):
    guide: str = ours(
        COPY,
        "encoder that ranks; copy: a frozen copy of the base; or a checkpoint, in the paper of "
        "SimCSE",
    )
    rank_corpus: int = released(
        10_000, "number of rows that the frozen encoder ranks", least=LEAST_RANKED
    )
    rank_weight: float = paper(0.05, "weight of the rank similarities", above=0)
    rank_low: float = paper(0.5, "least rank similarity of a pair of the batch", least=-1, most=1)
    rank_high: float = paper(
        0.9999, "greatest rank similarity of a pair of the batch", least=-1, most=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_guide(self.guide, self.guides)
        if self.rank_high < self.rank_low:
            raise UsageError(
                f"rank_high={self.rank_high:g} is lower than rank_low={self.rank_low:g}"
            )

    guides: ClassVar = (COPY,)
    presets: ClassVar = {
        "bert-base": {
            "guide": "princeton-nlp/unsup-simcse-bert-base-uncased",
            "rank_corpus": 100_000,
        }
    }


SUPERVISED = {"objective": "triplets", "batch": 512, "lr": 5e-5, "epochs": 3}


@dataclass(frozen=True, kw_only=True)
class PromptBERT(Recipe):
    template: str = paper(
        "promptbert-1",
        "first template, also of the checkpoint: a name, or text with [X] and [MASK]",
    )
    template_b: str = paper("promptbert", "second template")
    objective: str = paper(
        "templates",
        "templates: contrast a sentence in both templates; triplets: contrast a positive with "
        "negatives, all in the first template",
        choices=("templates", "triplets"),
    )
    denoise: bool = paper(True, "subtract the states of the templates without a sentence")
    head: str = paper(
        "fresh",
        "layer between states and loss; fresh: new, with tanh; own: the first layers of the "
        "base's prediction head",
        choices=("own", "fresh"),
    )
    freeze_denoise: bool = released(False, "no gradient through these states", needs="denoise")
    temperature: float = paper(0.05, "divisor of the cosines", above=0)
    batch: int = paper(256)
    lr: float = paper(1e-5)
    # 32 of the sentence, as in the released code, and 10 of the template
    max_length: int = ours(42)
    eval_every: int | None = released(125)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.objective == "triplets":
            refuse_idle(self, ("template_b",), "objective=triplets")

    presets: ClassVar = {
        "bert-base": {},
        "roberta-base": {"template": "promptroberta", "template_b": "promptroberta-1"},
        "sup-bert-base": {"head": "own", **SUPERVISED},
        "sup-roberta-base": {"template": "promptroberta", **SUPERVISED},
    }


@dataclass(frozen=True, kw_only=True)
class SNCSE(Recipe):
    template: str = paper(
        "sncse",
        "template of the sentence, also of the checkpoint: a name, or text with [X] and [MASK]",
    )
    template_b: str = paper("sncse-1", "template of the positive and of the negation")
    margin: float = paper(
        0.1, "least difference of the two cosines", least=0, needs="margin_weight"
    )
    margin_high: float = paper(
        0.3, "greatest difference of the two cosines", least=0, needs="margin_weight"
    )
    margin_weight: float = paper(1e-3, "weight of the term of the negations", least=0)
    temperature: float = paper(0.05, "divisor of the cosines", above=0)
    batch: int = paper(256)
    lr: float = paper(1e-5)
    max_length: int = released(32)
    eval_every: int | None = released(125)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.margin_high < self.margin:
            raise UsageError(
                f"margin_high={self.margin_high:g} is lower than margin={self.margin:g}"
            )

    presets: ClassVar = {
        "bert-base": {},
        "bert-large": {"batch": 128, "lr": 5e-6},
        "roberta-base": {"margin_weight": 5e-4},
        "roberta-large": {"margin_weight": 5e-4, "batch": 128, "lr": 5e-6},
    }


@dataclass(frozen=True, kw_only=True)
class ContrastiveTension(Recipe):
    negatives: int = paper(7, "other sentences for each sentence, drawn in each step", least=1)
    readout: str = readout("mean")
    batch: int = paper(2)  # 16 pairs
    lr: float = paper(1e-5)
    optimizer: str = paper("rmsprop")
    beta2: float = released(0.9)
    epsilon: float | None = released(1e-7)
    schedule: str = paper("ct")
    clip: float = released(0.0)
    dropout: float | None = paper(0.0)
    max_length: int = released(75)
    eval_every: int | None = released(500)


@dataclass(frozen=True, kw_only=True)
class ISBERT(Recipe):
    channels: int = paper(
        256, "features of n-grams of one length; there are three lengths", least=1
    )
    batch: int = released(32)
    lr: float = released(2e-6)
    optimizer: str = released("adamw-bert")
    epsilon: float | None = released(1e-7)
    weight_decay: float = released(0.01)
    schedule: str = released("linear")
    warmup: float = released(0.1)
    clip: float = released(1.0)
    max_length: int = released(128)
    eval_every: int | None = released(1000)


@dataclass(frozen=True, kw_only=True)
class TSDAE(Recipe):
    deletion: float = paper(
        0.6, "share of the words to delete; at least one stays", least=0, most=1
    )
    head: str = ours(
        "auto",
        "prediction head of the decoder; auto: that of the base, else a new one",
        choices=("auto", "fresh"),
    )
    readout: str = readout("cls")
    batch: int = paper(8)
    lr: float = paper(3e-5)
    schedule: str = paper("constant")
    weight_decay: float = released(0.0)
    max_length: int = ours(128)


@dataclass(frozen=True, kw_only=True)
class Contrast(Dims):
    temperature: float = ours(
        0.05, "divisor of the cosines; 0.01 to 0.02 for large models", above=0
    )
    form: str = ours(
        "one-way",
        "one-way: anchors choose positives; symmetric: also the reverse; full: all texts in one "
        "sum",
        choices=FORMS,
    )
    equal_texts: bool = ours(True, "a text equal to the anchor or its positive is not a negative")
    guide: str = ours(
        KEEP_ALL,
        "self, or a checkpoint: negatives that it finds nearer than positive minus margin are "
        "ignored",
    )
    margin: float = ours(
        0.0, "a negative is used if its cosine is below that of the positive minus margin", least=0
    )
    margin_kind: str = ours(
        "absolute",
        "relative: the margin is a share of that cosine",
        choices=("absolute", "relative"),
        needs="margin",
    )
    readout: str = readout("mean", of_paper=False)
    lr: float = ours(2e-5)
    warmup: float = ours(0.1)
    max_length: int = ours(128)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_guide(self.guide, self.guides)
        if self.guide == KEEP_ALL:
            refuse_idle(self, ("margin", "margin_kind"), "guide=none")

    guides: ClassVar = (KEEP_ALL, ITSELF)
    presets: ClassVar = {"gte": {"form": "full", "temperature": 0.01}}


@dataclass(frozen=True, kw_only=True)
class CLEAR(Recipe):
    temperature: float = ours(0.1, "divisor of the cosines", above=0)
    mlm_weight: float = paper(1.0, "weight of predicting masked tokens", above=0)
    mlm_rate: float = paper(0.15, "share of the tokens to predict", above=0, most=1)
    head: str = ours(
        "own",
        "own: the prediction head of the base; fresh: a new head with random weights",
        choices=("own", "fresh"),
    )
    readout: str = readout("mean")
    lr: float = ours(1e-4)
    weight_decay: float = ours(0.01)
    warmup: float = ours(0.1)
    max_length: int = ours(128)


IDLE = {  # settings of the other objectives
    "softmax": ("scale", "margin", "dims"),
    "regression": ("margin",),
    "triplet": ("scale",),
}


@dataclass(frozen=True, kw_only=True)
class SBERT(Dims):
    objective: str = paper(
        "softmax", "for pairs with a label, pairs with a score, or triplets", choices=tuple(IDLE)
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
    optimizer: str = ours("adamw-hf")  # with bias correction, which the released code lacked
    weight_decay: float = released(0.01)
    clip: float = released(1.0)
    epochs: int | None = paper(1)
    max_length: int = ours(128)

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_idle(self, IDLE[self.objective], f"objective={self.objective}")

    presets: ClassVar = {
        "nli": {"eval_every": 1000},
        "stsb": {"objective": "regression", "epochs": 4, "eval_every": 1000},
        "sections": {"objective": "triplet", "eval_every": 1000},
    }


@dataclass(frozen=True, kw_only=True)
class CoSENT(Dims):
    temperature: float = released(0.05, "divisor of the cosines: 1 / 20", above=0)
    readout: str = readout("mean", of_paper=False)
    batch: int = released(32)
    lr: float = released(2e-5)
    warmup: float = ours(0.1)
    max_length: int = ours(128)


@dataclass(frozen=True, kw_only=True)
class AnglE(CoSENT):
    temperature: float = released(0.05, "divisor of the similarities in all three terms", above=0)
    cosine_weight: float = released(
        1.0, "weight of CoSENT; the code of later releases has 0", least=0
    )
    contrast_weight: float = released(1.0, "weight of the contrast of positive pairs", least=0)
    angle_weight: float = released(0.02, "weight of CoSENT on the angle", least=0)
    positive_score: float = ours(
        4.0, "least score of a positive pair of the contrast", needs="contrast_weight"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.cosine_weight + self.contrast_weight + self.angle_weight:
            raise UsageError("cosine_weight, contrast_weight and angle_weight are all 0")


METRICS = {  # of --dev by objective
    "classification": ("accuracy", "f1", "matthews"),
    "regression": ("pearson", "spearman"),
}


@dataclass(frozen=True, kw_only=True)
class Classify(Recipe):
    objective: str = paper(
        "classification",
        'predict the field "label", or regression: "score"',
        choices=tuple(METRICS),
    )
    metric: str | None = ours(
        None,
        "score of --dev; none: accuracy, or pearson for regression; f1: of the second label, or of "
        "more than two the mean",
        choices=tuple(chain(*METRICS.values())),
    )
    batch: int = paper(32)
    lr: float = paper(2e-5)
    epochs: int | None = paper(3)
    warmup: float = released(0.1)
    weight_decay: float = released(0.01)
    schedule: str = released("linear")
    clip: float = released(1.0)
    max_length: int = released(128)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.metric is not None and self.metric not in METRICS[self.objective]:
            able = ", ".join(METRICS[self.objective])
            problem = f"metric={self.metric} is not for objective={self.objective}"
            raise UsageError(problem, advice=f"use one of: {able}")

    @property
    def metric_name(self) -> str:
        return self.metric or METRICS[self.objective][0]

    presets: ClassVar = {
        "sg-bert-glue": {"eval_every": 0},
        "sg-bert-glue-cola": {"metric": "matthews", "eval_every": 0},
        "stsb": {"objective": "regression", "eval_every": 0},
    }


@dataclass(frozen=True, kw_only=True)
class Distill(Recipe):
    loss: str = ours(
        "cosine",
        "cosine: 1 minus the cosine with the teacher's vector; mse: mean squared difference",
        choices=("cosine", "mse"),
    )
    map: str = ours(
        "auto",
        "linear map before the loss; auto: if the widths differ, and the checkpoint has it; "
        "on: also if they are equal, but only in training",
        choices=("auto", "on"),
    )
    relational: float = ours(
        0.0, "weight of the divergence between the similarities of a text with the others", least=0
    )
    temperature: float = ours(
        0.05, "divisor of these similarities, with relational", above=0, needs="relational"
    )
    readout: str = readout("mean", of_paper=False)
    lr: float = ours(1e-4)
    warmup: float = ours(0.1)
    max_length: int = ours(128)

    presets: ClassVar = {"static": {"batch": 256, "lr": 0.01}}  # for the table of a static model
