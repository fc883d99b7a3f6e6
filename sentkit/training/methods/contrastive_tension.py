"""CT, contrastive tension (ICLR 2021): two encoders agree on a sentence and differ on other
sentences.

Both encoders have the same initial weights, and both are trained. --dev selects one of them;
without --dev, the checkpoint contains the first, which also encodes the other sentences. The log
counts from 1.
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
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.readouts import apply_readouts, at_least_float32
from sentkit.training.data.corpus import Batch, Corpus, Ids
from sentkit.training.method import (
    Draw,
    Finished,
    Needs,
    Outputs,
    PackedMethod,
    Term,
    mean_of,
    readout_of,
)
from sentkit.training.methods import recipes


class ContrastiveTension(PackedMethod):
    Settings: ClassVar = recipes.ContrastiveTension
    needs: ClassVar = Needs(packed="dropout that a setting changes", row_wise=True)
    corpus: Corpus

    def __init__(self, body: Bert, settings: recipes.ContrastiveTension) -> None:
        super().__init__(body, settings)
        # encodes only the rows; `body`, the first encoder, also the negatives
        self.second = deepcopy(body)

    @classmethod
    def check_rows(cls, corpus: Corpus, settings: Any, source: str) -> None:
        if len(corpus) < 2:
            problem = "1 row can be used, but ct needs at least 2: the others are its negatives"
            raise DataError(problem, source=source)
        first_text = corpus.text(0, 0)
        if all(np.array_equal(first_text, corpus.text(row, 0)) for row in range(1, len(corpus))):
            raise DataError(
                f"all {len(corpus)} texts are equal: no other sentence to draw", source=source
            )

    def prepare(self, corpus: Corpus) -> None:
        self.corpus = corpus

    def encoders(self) -> Sequence[Bert]:
        return self.body, self.second

    def draw(self, batch: Batch, random: Draw) -> Mapping[str, Sequence[list[Ids]]]:
        generator = random("negatives")
        return {"negatives": [self.draw_negatives(text, generator) for text in batch.texts[0]]}

    def draw_negatives(self, text: Ids, generator: np.random.Generator) -> list[Ids]:
        """Texts of the corpus that differ from this text."""
        negatives: list[Ids] = []
        while len(negatives) < self.settings.negatives:
            row = int(generator.integers(len(self.corpus)))
            candidate = self.corpus.text(row, 0)
            if not np.array_equal(candidate, text):
                negatives.append(candidate)
        return negatives

    def encode(self, batch: Batch) -> Outputs:
        [texts] = batch.texts
        candidates: list[Ids] = []  # each text and its negatives
        for text, negatives in zip(texts, batch.draws["negatives"], strict=True):
            candidates += [text, *negatives]
        of_candidates = self.vectors(self.pack(candidates))
        readout = parse_readout(readout_of(self))
        [of_texts] = apply_readouts(self.second, self.pack(texts), [readout])
        of_candidates = of_candidates.view(len(texts), -1, of_texts.shape[1])  # (b, k, d)
        return {"products": (of_texts[:, None] * of_candidates).sum(2)}  # (b, k)

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        return {"tension": mean_of(contrastive_tension(outputs["products"]))}

    def finished(self) -> Finished:
        return Finished(heads={})  # the checkpoint contains only one of the encoders


def contrastive_tension(products: Tensor) -> Tensor:
    """-log sigmoid(z) of the first product of a row, and -log sigmoid(-z) of the others: (b, k) ->
    (b, k).

    CT, ICLR 2021. The first product is that of a sentence with itself, the others with other
    sentences.
    """
    products = at_least_float32(products)
    return -F.logsigmoid(torch.cat([products[:, :1], -products[:, 1:]], 1))
