"""SimCSE without labels (arXiv 2104.08821): contrasts two encodings of a sentence with different dropout."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from sentkit.formats.checkpoints.modules import Pooler
from sentkit.formats.rows.kinds import PAIR, SENTENCE
from sentkit.model.transformer.adapter import Adapter
from sentkit.model.transformer.bert import Bert
from sentkit.training.base import Base
from sentkit.training.data.batches import Batch
from sentkit.training.data.examples import Reads
from sentkit.training.losses.losses import in_batch_contrast
from sentkit.training.method import Method, Outputs, Term, mean_of
from sentkit.training.recipe import Recipe
from sentkit.training.settings import paper, readout, released


class SimCSE(Method):
    @dataclass(frozen=True, kw_only=True)
    class Settings(Recipe):
        temperature: float = paper(0.05, "divisor of the cosines", above=0)
        readout: str = readout("cls")  # before the head, which is only used in training
        batch: int = paper(64)
        lr: float = paper(3e-5)
        max_length: int = released(32)
        optimizer: str = released("adamw")
        schedule: str = released("linear")
        clip: float = released(1.0)
        eval_every: int = released(125)

    presets: ClassVar = {
        "bert-base": {},
        "bert-large": {"lr": 1e-5},
        "roberta-base": {"batch": 512, "lr": 1e-5},
        "roberta-large": {"batch": 512, "lr": 3e-5},
    }

    def __init__(self, body: Bert | Adapter, settings: Settings) -> None:
        super().__init__(body, settings)
        self.head = nn.Linear(body.width, body.width)

    @classmethod
    def reads(cls, base: Base, settings: Settings) -> Reads:
        """Return the kinds of rows. The two texts of a pair replace the two encodings of one sentence."""
        return Reads((SENTENCE, PAIR))

    def encode(self, batch: Batch) -> Outputs:
        # Both texts are in one pass, because each row of a pass has a different dropout mask.
        first, second = batch.texts[0], batch.texts[-1]
        states = self.trained_vectors(self.pack([*first, *second]))
        one, other = torch.tanh(self.head(states)).chunk(2)
        return {"one": one, "other": other}

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        terms = in_batch_contrast(outputs["one"], outputs["other"], self.settings.temperature)
        return {"contrast": mean_of(terms)}

    def pooler(self) -> nn.Linear | None:
        """Return the head for cls and mean, as in the released checkpoints. Other poolers do not exist."""
        return self.head if self.readout(self.settings) in ("cls", "mean") else None

    def pooler_note(self) -> Pooler:
        return Pooler(readout=f"pooler:{self.readout(self.settings)}")
