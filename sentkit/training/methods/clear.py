"""CLEAR (arXiv 2012.15466): contrasts two variants of a sentence and predicts masked tokens of both.

`sentkit augment` makes the variants: deletion of words or spans, reordering of spans, synonyms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from sentkit.formats.rows.kinds import PAIR
from sentkit.model.transformer.bert import Bert
from sentkit.training.base import Base
from sentkit.training.data.batches import Batch
from sentkit.training.data.examples import Reads
from sentkit.training.losses import paired_contrast
from sentkit.training.method import Draw, Finished, Needs, Outputs, PackedMethod, Term, mean_of, own_tensors
from sentkit.training.methods.mlm import TokenPrediction, with_language_head
from sentkit.training.recipe import Recipe
from sentkit.training.settings import ours, paper, readout


class CLEAR(PackedMethod):
    @dataclass(frozen=True, kw_only=True)
    class Settings(Recipe):
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

    needs: ClassVar = Needs(packed="a language model's head", random_start=True)

    def __init__(self, body: Bert, settings: Settings, tokens: TokenPrediction) -> None:
        super().__init__(body, settings)
        self.tokens = tokens
        width = body.width
        self.projection = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    @classmethod
    def check(cls, base: Base, settings: Settings) -> None:
        TokenPrediction.check(base, "clear", settings.head)

    @classmethod
    def build(cls, base: Base, settings: Settings) -> "CLEAR":
        return cls(
            cls.bert(base, settings), settings, TokenPrediction.build(base, settings.mlm_rate, settings.head)
        )

    @classmethod
    def reads(cls, base: Base, settings: Settings) -> Reads:
        return Reads((PAIR,))

    def draw(self, batch: Batch, random: Draw) -> Mapping[str, Sequence[Any]]:
        return self.tokens.draw(batch, random)

    def encode(self, batch: Batch) -> Outputs:
        vectors = self.vectors(self.pack([text for texts in batch.texts for text in texts]))
        one, other = self.projection(vectors).chunk(2)
        return {"one": one, "other": other} | self.tokens.outputs(self.body, batch, self.device)

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        values = paired_contrast(outputs["one"], outputs["other"], self.settings.temperature)
        masked = float(outputs["masked"].sum())
        return {
            "contrast": mean_of(values),
            "mlm": Term(outputs["nll"].sum(), masked, self.settings.mlm_weight),
        }

    def finished(self) -> Finished:
        heads = own_tensors(self, "projection.")
        return with_language_head(self.tokens.head, self.body.architecture, heads)
