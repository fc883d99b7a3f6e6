"""CT, contrastive tension (ICLR 2021): the product of two encoders tells a sentence from other sentences.

Both encoders have the same initial weights and are trained. --dev selects one of them; without --dev, the
checkpoint contains the first, which also encodes the other sentences. The log counts from 1.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from sentkit.errors import DataError
from sentkit.formats.checkpoints.readout import parse_readout
from sentkit.formats.rows.kinds import SENTENCE
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.readouts import apply_readouts, widened
from sentkit.training.base import Base
from sentkit.training.data.batches import Batch, Ids
from sentkit.training.data.corpus import Corpus
from sentkit.training.data.examples import Reads
from sentkit.training.method import Draw, Finished, Needs, Outputs, PackedMethod, Term, mean_of, readout_of
from sentkit.training.methods import recipes


class ContrastiveTension(PackedMethod):
    Settings: ClassVar = recipes.ContrastiveTension
    needs: ClassVar = Needs(packed="dropout that a setting changes", row_wise=True)
    corpus: Corpus

    def __init__(self, body: Bert, settings: recipes.ContrastiveTension) -> None:
        super().__init__(body, settings)
        self.second = deepcopy(body)  # encodes only the rows; `body`, the first encoder, also the drawn texts

    @classmethod
    def reads(cls, base: Base, settings: recipes.ContrastiveTension) -> Reads:
        return Reads((SENTENCE,))

    @classmethod
    def check_rows(cls, corpus: Corpus, settings: Any, source: str) -> None:
        first = corpus.text(0, 0)
        if all(np.array_equal(first, corpus.text(row, 0)) for row in range(1, len(corpus))):
            raise DataError(f"all {len(corpus)} texts are equal: no other sentence to draw", source=source)

    def prepare(self, corpus: Corpus) -> None:
        self.corpus = corpus

    def encoders(self) -> Sequence[Bert]:
        return self.body, self.second

    def draw(self, batch: Batch, random: Draw) -> Mapping[str, Sequence[list[Ids]]]:
        dice = random("negatives")
        return {"negatives": [self.others(text, dice) for text in batch.texts[0]]}

    def others(self, text: Ids, dice: np.random.Generator) -> list[Ids]:
        """Draw texts of the corpus that differ from this text."""
        others: list[Ids] = []
        while len(others) < self.settings.negatives:
            other = self.corpus.text(int(dice.integers(len(self.corpus))), 0)
            if not np.array_equal(other, text):
                others.append(other)
        return others

    def encode(self, batch: Batch) -> Outputs:
        [texts] = batch.texts
        rows = zip(texts, batch.draws["negatives"], strict=True)
        candidates = [text for own, others in rows for text in (own, *others)]
        right = self.vectors(self.pack(candidates))
        [left] = apply_readouts(self.second, self.pack(texts), [parse_readout(readout_of(self))])
        return {"products": products(left, right)}

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        return {"tension": mean_of(contrastive_tension(outputs["products"]))}

    def finished(self) -> Finished:
        return Finished(heads={})  # the checkpoint contains only one of the encoders


def products(left: Tensor, right: Tensor) -> Tensor:
    """Return the products of each left row with its k right rows: (b, d), (b * k, d) -> (b, k)."""
    return (left[:, None] * right.view(len(left), -1, left.shape[1])).sum(2)


def contrastive_tension(products: Tensor) -> Tensor:
    """-log sigmoid(z) of the first product of a row, and -log sigmoid(-z) of the others: (b, k) -> (b, k).

    CT, ICLR 2021. The first product is that of a sentence with itself, the others with other sentences.
    """
    products = widened(products)
    return -F.logsigmoid(torch.cat([products[:, :1], -products[:, 1:]], 1))
