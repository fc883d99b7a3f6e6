"""DefSent and DefSent+: settings, presets and citations."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.readout import parse_readout
from sentkit.training.listings import Listing, Paper
from sentkit.training.recipe import Recipe
from sentkit.training.settings import (
    AS_BASE,
    Note,
    Presets,
    chosen_readout,
    ours,
    paper,
    readout,
    refuse_idle,
    released,
)

POOLINGS = ("cls", "mean")
ROBERTA_BASE = "FacebookAI/roberta-base"
ROBERTA_LARGE = "FacebookAI/roberta-large"
STEPS = ("", "-step2", "-step3", "-step4")


def by_step(name: str, rates: tuple[float, ...], **more: Any) -> dict[str, dict[str, Any]]:
    """Return one preset for each progressive step. The learning rate never increases between steps.

    A fourth step made the paper's encoders worse; it has the rate of the third here.
    """
    return {name + step: {"lr": rate, **more} for step, rate in zip(STEPS, rates, strict=False)}


PRESETS: Presets = {
    "bert-base-cls": {},
    "bert-base-mean": {"readout": "mean", "lr": 1.131e-5},
    "bert-base-max": {"readout": "max", "lr": 1.131e-5},
    "bert-large-cls": {},
    "bert-large-mean": {"readout": "mean", "lr": 1.131e-5},
    "bert-large-max": {"readout": "max", "lr": 8e-6},
    "roberta-base-cls": {},
    "roberta-base-mean": {"readout": "mean", "lr": 8e-6},
    "roberta-base-max": {"readout": "max", "lr": 4e-6},
    "roberta-large-cls": {"lr": 4e-6},
    "roberta-large-mean": {"readout": "mean", "lr": 4e-6},
    "roberta-large-max": {"readout": "max"},
}


@dataclass(frozen=True, kw_only=True)
class Settings(Recipe):
    presets: ClassVar = PRESETS
    readout: str = readout("cls", choices=("base", "cls", "mean", "max"))
    part: float = paper(
        0.8, "share of the words to learn from, chosen by a hash of the word", above=0, most=1
    )
    batch: int = paper(16)
    lr: float = paper(5.657e-6)
    schedule: str = paper("warmup-constant")
    warmup: float = paper(0.1)
    optimizer: str = released("adam")
    clip: float = released(0.0)
    max_length: int = ours(128)
    eval_every: int | None = ours(0)


def base_or(choices: tuple[str, ...], meaning: str) -> Any:
    """Declare a setting with the base's readout as default, or the first choice for another
    readout.
    """
    note = Note("our choice", meaning, choices=(AS_BASE, *choices))
    return field(default=AS_BASE, metadata={"note": note, "of_base": choices})


PLUS_PRESETS: Presets = {
    **by_step("bert-base", (5e-5, 4e-5, 3e-5, 3e-5), pooling="cls"),
    **by_step("bert-large", (4e-5, 4e-5, 3e-5, 3e-5), pooling="cls"),
    **by_step("roberta-base", (3e-5, 2e-5, 1e-5, 1e-5), pooling="mean"),
    **by_step("roberta-large", (3e-5, 2e-5, 1e-5, 1e-5), pooling="mean"),
    **by_step("simcse-bert-base", (3e-5,), pooling="cls"),
    **by_step("simcse-bert-large", (1e-5,), pooling="cls"),
    **by_step("simcse-roberta-base", (1e-5,), pooling="mean", projection_from=ROBERTA_BASE),
    **by_step("simcse-roberta-large", (3e-5, 2e-5), pooling="mean", projection_from=ROBERTA_LARGE),
    # One of the two starts of RoBERTa-large, whose name the table lost, trains [CLS] in its first
    # step.
    "simcse-roberta-large": {"lr": 3e-5, "pooling": "cls", "projection_from": ROBERTA_LARGE},
    **by_step("sncse-bert-base", (2e-5,), pooling="cls"),
    **by_step("sncse-bert-large", (1e-5,), pooling="cls"),
    **by_step("sncse-roberta-base", (2e-6,), pooling="mean", projection_from=ROBERTA_BASE),
    **by_step("sncse-roberta-large", (1e-6, 1e-6), pooling="mean", projection_from=ROBERTA_LARGE),
}


@dataclass(frozen=True, kw_only=True)
class PlusSettings(Recipe):
    presets: ClassVar = PLUS_PRESETS
    # --dev selects one; the first is evaluated during training
    readout: str = readout("mean,cls,prompt")
    pooling: str = base_or(
        POOLINGS,
        "input of the pooler; base: as the base declares, else cls as in the paper for BERT",
    )
    pooler: str = ours(
        "auto",
        "initial weights; auto: those of the language model head if the pooler is untrained",
        choices=("auto", "checkpoint", "lm-head"),
    )
    projection_from: str | None = ours(
        None, "checkpoint of the pooler's initial weights; none: the base"
    )
    template: str = released(
        "defsent-plus", "for the readout prompt: a template name, or text with [X] and [MASK]"
    )
    batch: int = paper(32)
    lr: float = paper(5e-5)
    optimizer: str = released("adamw-hf")
    schedule: str = released("linear")
    clip: float = released(1.0)
    max_length: int = ours(160)  # the longest definitions have 138 and 141 tokens
    eval_every: int | None = ours(0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.readout == AS_BASE:
            return
        for name in self.readout.split(","):
            if parse_readout(name.strip()).pooled:
                problem = (
                    f"readout={self.readout}: the pooler cannot be the readout of the training"
                )
                raise UsageError(
                    problem,
                    advice="use another readout; after training, use sentkit encode --readout "
                    "pooler",
                )
        if "prompt" not in readouts_of(self):
            refuse_idle(self, ("template",), f"readout={self.readout}")


def readouts_of(settings: PlusSettings) -> tuple[str, ...]:
    names = [name.strip() for name in chosen_readout(settings).split(",")]
    return tuple(dict.fromkeys(names))


PAPER = Paper(
    "defsent-plus",
    "DefSent+",
    "defsent",
    methods={
        "defsent": Listing(
            "predict the word from its definition",
            "sentkit.papers.defsent.method:DefSent",
            "2105.04339",
            settings=Settings,
        ),
        "defsent-plus": Listing(
            "predict the entry's vector from its definition",
            "sentkit.papers.defsent.plus:DefSentPlus",
            "2405.16153",
            settings=PlusSettings,
        ),
    },
)
