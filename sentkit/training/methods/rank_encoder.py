"""RankEncoder (arXiv 2209.04333): SimCSE that also learns the rank similarities of a frozen
encoder.

This encoder is a copy of the base, or a trained checkpoint as in the paper. It ranks the sentences
of a corpus, which are some of the rows, by their similarity to a sentence. The rank similarity of
two sentences is the correlation of these rankings.
"""

from collections.abc import Sequence
from copy import deepcopy
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from sentkit.errors import DataError
from sentkit.formats.rows.kinds import SENTENCE
from sentkit.model.transformer.readouts import at_least_float32
from sentkit.training.base import Base
from sentkit.training.data.corpus import Batch, Corpus, Ids, chunks, stream
from sentkit.training.data.examples import Reads
from sentkit.training.losses import cosines, unit
from sentkit.training.method import Needs, Outputs, Term
from sentkit.training.methods import recipes
from sentkit.training.methods.contrast import Guided, guide_of
from sentkit.training.methods.simcse import SimCSE

AT_ONCE = 64  # sentences of the corpus encoded together


class RankEncoder(Guided, SimCSE):
    Settings: ClassVar = recipes.RankEncoder
    needs: ClassVar = Needs(constant=("guide.",))
    rows: Corpus

    @classmethod
    def build(cls, base: Base, settings: Any) -> Self:
        method = super().build(base, settings)
        if method.guide is None:
            method.guide = deepcopy(method.body).requires_grad_(False)
        return method

    @classmethod
    def reads(cls, base: Base, settings: Any) -> Reads:
        """With a checkpoint as guide, each row also has the tokens of its tokenizer."""
        guide = guide_of(settings)
        if guide is None:
            return Reads((SENTENCE,))
        return Reads((SENTENCE,), second_tokenizer=guide.training_tokenizer)

    @classmethod
    def check_rows(cls, corpus: Corpus, settings: Any, source: str) -> None:
        rows = len(corpus)
        needed_rows = recipes.LEAST_RANKED
        if rows < needed_rows:
            problem = f"{rows} rows can be used, but rank-encoder needs at least {needed_rows}"
            raise DataError(problem, source=source)
        if rows < settings.rank_corpus:
            problem = f"{rows} rows, fewer than rank_corpus={settings.rank_corpus}"
            raise DataError(problem, source=source, advice=f"use --set rank_corpus={rows}")

    def prepare(self, corpus: Corpus) -> None:
        self.rows = corpus

    @cached_property
    def corpus(self) -> Tensor:
        """The unit vectors of the corpus (n, d), whose rows do not depend on the seed of the run.

        They are computed in the first step, with the number of threads that a resumed run restores.
        """
        rows = stream(0, 0, "rank corpus").permutation(len(self.rows))[: self.settings.rank_corpus]
        vectors: list[Tensor] = []
        with torch.autocast(self.device.type, enabled=False):
            for chunk in chunks(len(rows), AT_ONCE):
                texts = texts_of_guide(self.rows.batch(rows[chunk]))
                vectors.append(self.guide_vectors(self.pack(texts)))
            return unit(torch.cat(vectors))

    def encode(self, batch: Batch) -> Outputs:
        of_guide = self.guide_vectors(self.pack(texts_of_guide(batch)))
        ranks = rank_vectors(cosines(of_guide, self.corpus))  # (b, n)
        return super().encode(batch) | {"ranks": ranks}

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        settings = self.settings
        ranks = outputs["ranks"].detach()
        similarities = cosines(outputs["one"], outputs["other"])
        values = rank_regression(
            similarities, ranks @ ranks.T, settings.rank_low, settings.rank_high
        )
        rank_term = Term(values.sum(), float(len(values)), settings.rank_weight)
        return {**super().loss(outputs), "rank": rank_term}


def texts_of_guide(batch: Batch) -> Sequence[Ids]:
    """The sentences by the tokenizer of the guide, which can be that of the base."""
    [texts] = batch.second_texts or batch.texts
    return texts


def rank_vectors(similarities: Tensor) -> Tensor:
    """Return unit vectors whose products are the Spearman correlations of the rows: (b, n) -> (b,
    n).

    RankEncoder, arXiv 2209.04333. Ties have their mean rank.
    """
    similarities = at_least_float32(similarities)
    ordered = similarities.sort(1).values
    lower = torch.searchsorted(ordered, similarities, side="left")
    not_higher = torch.searchsorted(ordered, similarities, side="right")
    # Twice the rank minus the mean.
    ranks = (lower + not_higher - similarities.shape[1]).to(similarities.dtype)
    return F.normalize(ranks, dim=1)


def rank_regression(cosines: Tensor, ranks: Tensor, low: float, high: float) -> Tensor:
    """Squared error of the cosines of pairs with a rank similarity in this range: two (b, b) ->
    (p,).

    RankEncoder, arXiv 2209.04333.
    """
    near = (ranks >= low) & (ranks <= high)
    return (at_least_float32(cosines)[near] - ranks[near]).square()
