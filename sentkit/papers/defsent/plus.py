"""DefSent+ (arXiv 2405.16153): predicts the entry of a definition by products with all entry vectors."""

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
from sentkit.model.transformer.weights import aligned
from sentkit.papers.defsent import paper
from sentkit.papers.defsent.projection import Projection, projection_from, projection_of
from sentkit.training.base import Base
from sentkit.training.data.batches import Batch
from sentkit.training.data.entries import Entries
from sentkit.training.data.examples import Places, Reads
from sentkit.training.method import Finished, Needs, Outputs, PackedMethod, Term, mean_of, own_tensors
from sentkit.training.settings import (
    with_readout_of_base,
)


class DefSentPlus(PackedMethod):
    Settings: ClassVar = paper.PlusSettings
    presets: ClassVar = paper.PLUS_PRESETS
    needs: ClassVar = Needs(
        packed="a pooler that it can train",
        reductions=("cls", "mean", "max", "token"),
        row_wise=True,
        entries=True,
    )
    entries: Tensor  # (n, d)

    def __init__(
        self, body: Bert, settings: paper.PlusSettings, projection: Projection, entries: Entries
    ) -> None:
        super().__init__(body, with_readout_of_base(settings, None))
        self.projection = projection.layer
        self.activation = projection.activation
        self.space = entries.space
        # It is not a parameter and not in the state. A resumed run reads the file again.
        self.register_buffer("entries", aligned(torch.from_numpy(entries.vectors)), persistent=False)

    @classmethod
    def build(cls, base: Base, settings: paper.PlusSettings) -> "DefSentPlus":
        assert base.entries is not None, "check refuses it before"
        return cls(cls.bert(base, settings), settings, cls.first_projection(base, settings), base.entries)

    @staticmethod
    def first_projection(base: Base, settings: paper.PlusSettings) -> Projection:
        if settings.projection_from is None:
            return projection_of(base, settings.pooler)
        return projection_from(settings.projection_from, settings.pooler)

    @classmethod
    def check(cls, base: Base, settings: paper.PlusSettings) -> None:
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
    def reads(cls, base: Base, settings: paper.PlusSettings) -> Reads:
        places = {} if base.entries is None else base.entries.places
        source = "" if base.entries is None else base.entries.path
        return Reads((ENTRY,), "entry", Places(places, source))

    @classmethod
    def readouts(cls, settings: paper.PlusSettings) -> tuple[str, ...]:
        return paper.readouts_of(settings)

    @classmethod
    def other_checkpoints(cls, settings: paper.PlusSettings) -> dict[str, str | None]:
        return {"projection_from": settings.projection_from}

    @classmethod
    def identity(cls, base: Base, settings: paper.PlusSettings) -> dict[str, Any]:
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
