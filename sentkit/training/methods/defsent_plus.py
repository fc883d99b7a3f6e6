"""DefSent+ (arXiv 2405.16153): predicts the entry of a definition by products with all entry vectors."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sentkit.errors import DataError, UsageError
from sentkit.formats.checkpoints.modules import Pooler
from sentkit.formats.checkpoints.readout import parse_readout
from sentkit.formats.rows.kinds import ENTRY
from sentkit.model.transformer.bert import ACTIVATIONS, Bert
from sentkit.model.transformer.readouts import widened
from sentkit.training.base import Base
from sentkit.training.data.batches import Batch
from sentkit.training.data.entries import Entries
from sentkit.training.data.examples import Places, Reads
from sentkit.training.method import Method, Outputs, Term, chosen_readout, mean_of
from sentkit.training.methods.projection import Projection, projection_from, projection_of
from sentkit.training.recipe import Recipe
from sentkit.training.settings import AS_BASE, ours, paper, readout, refuse_idle, released

POOLINGS = ("cls", "mean")
ROBERTA_BASE, ROBERTA_LARGE = "FacebookAI/roberta-base", "FacebookAI/roberta-large"
STEPS = ("", "-step2", "-step3")


def by_step(name: str, rates: tuple[float, ...], **more: Any) -> dict[str, dict[str, Any]]:
    """Return one preset for each progressive step. The learning rate never increases between steps."""
    return {name + step: {"lr": rate, **more} for step, rate in zip(STEPS, rates, strict=False)}


class DefSentPlus(Method):
    @dataclass(frozen=True, kw_only=True)
    class Settings(Recipe):
        readout: str = readout("mean,cls,prompt")  # --dev selects one; the first is evaluated during training
        pooling: str = ours(
            "base",
            "input of the pooler; base: as the base declares, else cls as in the paper for BERT",
            choices=("base", *POOLINGS),
        )
        pooler: str = ours(
            "auto",
            "initial weights; auto: those of the language model head if the pooler is untrained",
            choices=("auto", "checkpoint", "lm-head"),
        )
        projection_from: str | None = ours(None, "checkpoint of the pooler's initial weights; none: the base")
        template: str = released(
            "defsent-plus", "for the readout prompt: a template name, or text with [X] and [MASK]"
        )
        batch: int = paper(32)
        lr: float = paper(5e-5)
        optimizer: str = released("adamw-hf")
        schedule: str = released("linear")
        clip: float = released(1.0)
        max_length: int = ours(160)  # the longest definitions have 138 and 141 tokens

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.readout == AS_BASE:
                return
            for name in self.readout.split(","):
                if parse_readout(name.strip()).pooled:
                    problem = f"readout={self.readout}: the pooler cannot be the readout of the training"
                    raise UsageError(
                        problem,
                        advice="use another readout; after training, use sentkit encode --readout pooler",
                    )
            if "prompt" not in DefSentPlus.readouts(self):
                refuse_idle(self, ("template",), f"readout={self.readout}")

    presets: ClassVar = {
        **by_step("bert-base", (5e-5, 4e-5, 3e-5), pooling="cls"),
        **by_step("bert-large", (4e-5, 4e-5, 3e-5), pooling="cls"),
        **by_step("roberta-base", (3e-5, 2e-5, 1e-5), pooling="mean"),
        **by_step("roberta-large", (3e-5, 2e-5, 1e-5), pooling="mean"),
        **by_step("simcse-bert-base", (3e-5,), pooling="cls"),
        **by_step("simcse-bert-large", (1e-5,), pooling="cls"),
        **by_step("simcse-roberta-base", (1e-5,), pooling="mean", projection_from=ROBERTA_BASE),
        **by_step("simcse-roberta-large", (3e-5, 2e-5), pooling="mean", projection_from=ROBERTA_LARGE),
        **by_step("sncse-bert-base", (2e-5,), pooling="cls"),
        **by_step("sncse-bert-large", (1e-5,), pooling="cls"),
        **by_step("sncse-roberta-base", (2e-6,), pooling="mean", projection_from=ROBERTA_BASE),
        **by_step("sncse-roberta-large", (1e-6, 1e-6), pooling="mean", projection_from=ROBERTA_LARGE),
    }
    row_wise: ClassVar = True
    takes_entries: ClassVar = True
    reductions: ClassVar = ("cls", "mean", "max", "token")
    needs_packed: ClassVar = "a pooler that it can train"
    body: Bert
    entries: Tensor  # (n, d)

    def __init__(self, body: Bert, settings: Settings, projection: Projection, entries: Entries) -> None:
        super().__init__(body, settings)
        self.projection = projection.layer
        self.activation = projection.activation
        self.space = entries.space
        # It is not a parameter and not in the state. A resumed run reads the file again.
        self.register_buffer("entries", torch.from_numpy(entries.vectors), persistent=False)

    @classmethod
    def build(cls, base: Base, settings: Settings) -> "DefSentPlus":
        assert base.entries is not None, "check refuses it before"
        body = base.body(settings)
        assert isinstance(body, Bert), "needs_packed is refused before"
        return cls(body, settings, cls.first_projection(base, settings), base.entries)

    @staticmethod
    def first_projection(base: Base, settings: Settings) -> Projection:
        if settings.projection_from is None:
            return projection_of(base, settings.pooler)
        return projection_from(settings.projection_from, settings.pooler)

    @classmethod
    def check(cls, base: Base, settings: Settings) -> None:
        if base.entries is None:
            advice = "make the file with sentkit build-entries -o FILE, then add --entries FILE"
            raise UsageError("defsent-plus needs --entries", advice=advice)
        assert base.architecture is not None, "needs_packed is refused before"
        projection = cls.first_projection(base, settings)
        if projection.layer.in_features != base.architecture.width:
            problem = f"its layer takes {projection.layer.in_features} dimensions"
            problem += f", but the encoder has {base.architecture.width}"
            raise UsageError(f"projection_from={settings.projection_from}: {problem}")
        width = base.entries.vectors.shape[1]
        if width != projection.layer.out_features:
            problem = (
                f"the entries have {width} numbers, but the pooler gives {projection.layer.out_features}"
            )
            raise DataError(problem, source=base.entries.path)
        for name in cls.readouts(settings):
            parse_readout(name).resolved(base.architecture.depth)
        if "prompt" in cls.readouts(settings):
            base.final_tokenizer_with(settings.template)

    @classmethod
    def reads(cls, base: Base, settings: Settings) -> Reads:
        places = {} if base.entries is None else base.entries.places
        source = "" if base.entries is None else base.entries.path
        return Reads((ENTRY,), "entry", Places(places, source))

    @classmethod
    def readouts(cls, settings: Settings) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name.strip() for name in chosen_readout(settings).split(",")))

    @classmethod
    def settled(cls, settings: Settings, base: Base) -> Settings:
        declared = None if base.declared is None else base.declared.name
        given = declared if settings.pooling == AS_BASE and declared in POOLINGS else cls.given(settings)
        return replace(settings, pooling=given)

    @staticmethod
    def given(settings: Settings) -> str:
        """Return the readout of the pooler's input."""
        return POOLINGS[0] if settings.pooling == AS_BASE else settings.pooling

    @classmethod
    def other_checkpoints(cls, settings: Settings) -> dict[str, str | None]:
        return {"projection_from": settings.projection_from}

    @classmethod
    def identity(cls, base: Base, settings: Settings) -> dict[str, Any]:
        if settings.projection_from is None:
            return {}
        return {"projection_hash": projection_from(settings.projection_from, settings.pooler).hash}

    @classmethod
    def template(cls, settings: Settings) -> str:
        return settings.template

    def encode(self, batch: Batch) -> Outputs:
        vectors = self.vectors(self.pack(batch.texts[0]), self.given(self.settings))
        read = ACTIVATIONS[self.activation](self.projection(vectors))
        assert batch.targets is not None, "each definition has its entry"
        places = torch.from_numpy(batch.targets).to(self.device).long()
        # Autocast would copy all entries to bfloat16 in each step.
        with torch.autocast(self.device.type, enabled=False):
            return {"nll": F.cross_entropy(widened(read) @ self.entries.T, places, reduction="none")}

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        return {"entry": mean_of(outputs["nll"])}

    def pooler(self) -> nn.Linear:
        return self.projection

    def pooler_note(self) -> Pooler:
        return Pooler(self.activation, f"pooler:{self.given(self.settings)}", self.space)
