"""DefSent+ (arXiv 2405.16153): predicts the entry of a definition by products with all entry vectors."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
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
from sentkit.training.method import Finished, Needs, Outputs, PackedMethod, Term, mean_of, own_tensors
from sentkit.training.methods.projection import Projection, projection_from, projection_of
from sentkit.training.recipe import Recipe
from sentkit.training.settings import (
    AS_BASE,
    base_or,
    chosen_readout,
    ours,
    paper,
    readout,
    refuse_idle,
    released,
    with_readout_of_base,
)

POOLINGS = ("cls", "mean")
ROBERTA_BASE, ROBERTA_LARGE = "FacebookAI/roberta-base", "FacebookAI/roberta-large"
STEPS = ("", "-step2", "-step3")


def by_step(name: str, rates: tuple[float, ...], **more: Any) -> dict[str, dict[str, Any]]:
    """Return one preset for each progressive step. The learning rate never increases between steps."""
    return {name + step: {"lr": rate, **more} for step, rate in zip(STEPS, rates, strict=False)}


class DefSentPlus(PackedMethod):
    @dataclass(frozen=True, kw_only=True)
    class Settings(Recipe):
        readout: str = readout("mean,cls,prompt")  # --dev selects one; the first is evaluated during training
        pooling: str = base_or(
            POOLINGS, "input of the pooler; base: as the base declares, else cls as in the paper for BERT"
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
    needs: ClassVar = Needs(
        packed="a pooler that it can train",
        reductions=("cls", "mean", "max", "token"),
        row_wise=True,
        entries=True,
    )
    entries: Tensor  # (n, d)

    def __init__(self, body: Bert, settings: Settings, projection: Projection, entries: Entries) -> None:
        super().__init__(body, with_readout_of_base(settings, None))
        self.projection = projection.layer
        self.activation = projection.activation
        self.space = entries.space
        # It is not a parameter and not in the state. A resumed run reads the file again.
        self.register_buffer("entries", torch.from_numpy(entries.vectors), persistent=False)

    @classmethod
    def build(cls, base: Base, settings: Settings) -> "DefSentPlus":
        assert base.entries is not None, "check refuses it before"
        return cls(cls.bert(base, settings), settings, cls.first_projection(base, settings), base.entries)

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
        projection = cls.first_projection(base, settings)
        if projection.layer.in_features != base.packed.width:
            problem = f"its layer takes {projection.layer.in_features} dimensions"
            problem += f", but the encoder has {base.packed.width}"
            raise UsageError(f"projection_from={settings.projection_from}: {problem}")
        width = base.entries.vectors.shape[1]
        if width != projection.layer.out_features:
            problem = (
                f"the entries have {width} numbers, but the pooler gives {projection.layer.out_features}"
            )
            raise DataError(problem, source=base.entries.path)
        for name in cls.readouts(settings):
            parse_readout(name).resolved(base.packed.depth)
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
    def other_checkpoints(cls, settings: Settings) -> dict[str, str | None]:
        return {"projection_from": settings.projection_from}

    @classmethod
    def identity(cls, base: Base, settings: Settings) -> dict[str, Any]:
        if settings.projection_from is None:
            return {}
        return {"projection_hash": projection_from(settings.projection_from, settings.pooler).hash}

    def encode(self, batch: Batch) -> Outputs:
        vectors = self.vectors(self.pack(batch.texts[0]), self.settings.pooling)
        read = ACTIVATIONS[self.activation](self.projection(vectors))
        assert batch.targets is not None, "each definition has its entry"
        places = torch.from_numpy(batch.targets).to(self.device).long()
        # Autocast would copy all entries to bfloat16 in each step.
        with torch.autocast(self.device.type, enabled=False):
            return {"nll": F.cross_entropy(widened(read) @ self.entries.T, places, reduction="none")}

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        return {"entry": mean_of(outputs["nll"])}

    def finished(self) -> Finished:
        note = Pooler(self.activation, f"pooler:{self.settings.pooling}", self.space)
        return Finished(heads=own_tensors(self), pooler=self.projection, pooler_note=note)
