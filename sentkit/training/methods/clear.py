"""CLEAR (arXiv 2012.15466): contrasts two variants of a sentence and predicts masked tokens of both.

`sentkit augment` makes the variants: deletion of words or spans, reordering of spans, synonyms.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import nn

from sentkit.formats.rows.kinds import PAIR
from sentkit.model.transformer.bert import Bert
from sentkit.training.base import Base
from sentkit.training.data.batches import Batch
from sentkit.training.data.examples import Reads
from sentkit.training.losses import paired_contrast
from sentkit.training.method import Draw, Finished, Needs, Outputs, PackedMethod, Term, mean_of, own_tensors
from sentkit.training.methods import recipes
from sentkit.training.methods.mlm import TokenPrediction, with_language_head


class CLEAR(PackedMethod):
    Settings: ClassVar = recipes.CLEAR
    needs: ClassVar = Needs(packed="a language model's head", random_start=True)

    def __init__(self, body: Bert, settings: recipes.CLEAR, tokens: TokenPrediction) -> None:
        super().__init__(body, settings)
        self.tokens = tokens
        width = body.width
        self.projection = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    @classmethod
    def check(cls, base: Base, settings: recipes.CLEAR) -> None:
        TokenPrediction.check(base, "clear", settings.head)

    @classmethod
    def build(cls, base: Base, settings: recipes.CLEAR) -> "CLEAR":
        return cls(
            cls.bert(base, settings), settings, TokenPrediction.build(base, settings.mlm_rate, settings.head)
        )

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
        masked = float(outputs["masked"].sum())
        return {
            "contrast": mean_of(values),
            "mlm": Term(outputs["nll"].sum(), masked, self.settings.mlm_weight),
        }

    def finished(self) -> Finished:
        heads = own_tensors(self, "projection.")
        return with_language_head(self.tokens.head, self.body.architecture, heads)
