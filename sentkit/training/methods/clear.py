"""CLEAR (arXiv 2012.15466): contrast two variants of a sentence, and predict masked tokens of both.

`sentkit augment` makes the variants: deletion of words or spans, reordering of spans, synonyms.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from torch import nn

from sentkit.formats.rows.kinds import PAIR
from sentkit.training.base import Base
from sentkit.training.data.corpus import Batch
from sentkit.training.data.examples import Reads
from sentkit.training.losses import paired_contrast
from sentkit.training.method import (
    Draw,
    Finished,
    Needs,
    Outputs,
    PackedMethod,
    Term,
    mean_of,
    tensors_of_heads,
)
from sentkit.training.methods import recipes
from sentkit.training.methods.mlm import TokenPrediction, check_prediction, with_language_head


class CLEAR(PackedMethod):
    Settings: ClassVar = recipes.CLEAR
    needs: ClassVar = Needs(packed="a language model's head", head=True)

    tokens: TokenPrediction
    projection: nn.Sequential

    @classmethod
    def check(cls, base: Base, settings: recipes.CLEAR) -> None:
        check_prediction(base, settings.head)

    @classmethod
    def build(cls, base: Base, settings: recipes.CLEAR) -> Self:
        method = super().build(base, settings)
        method.tokens = TokenPrediction(base, settings.mlm_rate, settings.head)
        width = method.body.width
        method.projection = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)
        )
        return method

    @classmethod
    def reads(cls, base: Base, settings: recipes.CLEAR) -> Reads:
        return Reads((PAIR,))

    def draw(self, batch: Batch, random: Draw) -> Mapping[str, Sequence[Any]]:
        return self.tokens.draw(batch, random)

    def encode(self, batch: Batch) -> Outputs:
        vectors = self.vectors(self.pack([text for texts in batch.texts for text in texts]))
        one, other = self.projection(vectors).chunk(2)
        return {"one": one, "other": other} | self.tokens.outputs(self.body, batch, self.device)

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        values = paired_contrast(outputs["one"], outputs["other"], self.settings.temperature)
        masked_tokens = float(outputs["masked"].sum())
        return {
            "contrast": mean_of(values),
            "mlm": Term(outputs["nll"].sum(), masked_tokens, self.settings.mlm_weight),
        }

    def finished(self) -> Finished:
        heads = tensors_of_heads(self, "projection.")
        return with_language_head(self.tokens.head, self.body.architecture, heads)
