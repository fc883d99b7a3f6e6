"""RankEncoder (arXiv 2209.04333): SimCSE, with cosines close to the rank similarities of a frozen encoder.

The frozen encoder is a copy of the base, or a trained checkpoint as in the paper. It ranks the sentences of a
corpus, which are some of the rows, by their similarity to a sentence. The rank similarity of two sentences is
the correlation of these rankings.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from sentkit.errors import DataError
from sentkit.formats.checkpoints.readout import Readout, parse_readout
from sentkit.formats.rows.kinds import SENTENCE
from sentkit.model.transformer.readouts import apply_readouts, widened
from sentkit.training.base import Base, Body
from sentkit.training.data.batches import Batch, chunks, stream
from sentkit.training.data.corpus import Corpus
from sentkit.training.data.examples import Reads
from sentkit.training.losses import cosines, unit
from sentkit.training.method import Draw, Needs, Outputs, Term, readout_of
from sentkit.training.methods import recipes
from sentkit.training.methods.contrast import open_guide
from sentkit.training.methods.simcse import SimCSE

AT_ONCE = 64  # sentences of the corpus encoded together


def guide_of(settings: Any) -> Base | None:
    return None if settings.guide == recipes.COPY else open_guide(settings.guide, settings.max_length)


class RankEncoder(SimCSE):
    Settings: ClassVar = recipes.RankEncoder
    needs: ClassVar = Needs(constant=("guide.",))
    rows: Corpus
    guide: Body
    guide_readout: Readout

    @classmethod
    def build(cls, base: Base, settings: Any) -> Self:
        method, guide = super().build(base, settings), guide_of(settings)
        method.guide = (deepcopy(method.body) if guide is None else guide.body(None)).requires_grad_(False)
        declared = None if guide is None else guide.declared
        method.guide_readout = declared or parse_readout(readout_of(method))
        return method

    @classmethod
    def reads(cls, base: Base, settings: Any) -> Reads:
        """With a checkpoint as guide, each row also has the tokens of its tokenizer."""
        guide = guide_of(settings)
        return Reads((SENTENCE,), second=None if guide is None else guide.training_tokenizer)

    @classmethod
    def other_checkpoints(cls, settings: recipes.RankEncoder) -> dict[str, str | None]:
        return {"guide": None if settings.guide == recipes.COPY else settings.guide}

    @classmethod
    def identity(cls, base: Base, settings: recipes.RankEncoder) -> dict[str, Any]:
        guide = guide_of(settings)
        if guide is None:
            return {}
        return {"guide_hash": guide.hash, "guide_readout": guide.declared.name if guide.declared else None}

    @classmethod
    def check_rows(cls, corpus: Corpus, settings: Any, source: str) -> None:
        if len(corpus) < settings.rank_corpus:
            problem = f"{len(corpus)} rows, fewer than rank_corpus={settings.rank_corpus}"
            raise DataError(problem, source=source, advice=f"use --set rank_corpus={len(corpus)}")

    def prepare(self, corpus: Corpus) -> None:
        self.rows = corpus

    @cached_property
    def corpus(self) -> Tensor:
        """The unit vectors of the corpus (n, d), whose rows do not depend on the seed of the run.

        They are computed in the first step, with the number of threads that a resumed run restores.
        """
        rows = stream(0, 0, "rank corpus").permutation(len(self.rows))[: self.settings.rank_corpus]
        parts = [self.rows.batch(rows[part]) for part in chunks(len(rows), AT_ONCE)]
        with torch.autocast(self.device.type, enabled=False):
            return unit(torch.cat([self.guide_vectors(batch) for batch in parts]))

    @torch.no_grad()
    def guide_vectors(self, batch: Batch) -> Tensor:
        return apply_readouts(self.guide, self.pack(batch.texts[-1]), [self.guide_readout])[0]

    def views(self, batch: Batch) -> Outputs:
        ranks = rank_vectors(cosines(self.guide_vectors(batch), self.corpus))  # (b, n)
        return super().views(replace(batch, texts=batch.texts[:1])) | {"ranks": ranks}

    def draw(self, batch: Batch, random: Draw) -> Mapping[str, Sequence[Any]]:
        return super().draw(replace(batch, texts=batch.texts[:1]), random)

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        wanted, ranks = self.settings, outputs["ranks"].detach()
        values = rank_regression(
            cosines(outputs["one"], outputs["other"]), ranks @ ranks.T, wanted.rank_low, wanted.rank_high
        )
        return {**super().loss(outputs), "rank": Term(values.sum(), float(len(values)), wanted.rank_weight)}


def rank_vectors(similarities: Tensor) -> Tensor:
    """Return unit vectors whose products are the Spearman correlations of the rows: (b, n) -> (b, n).

    RankEncoder, arXiv 2209.04333. Ties have their mean rank.
    """
    similarities = widened(similarities)
    ordered = similarities.sort(1).values
    below, until = (torch.searchsorted(ordered, similarities, side=side) for side in ("left", "right"))
    ranks = (below + until - similarities.shape[1]).to(similarities.dtype)  # twice the rank minus the mean
    return F.normalize(ranks, dim=1)


def rank_regression(cosines: Tensor, ranks: Tensor, low: float, high: float) -> Tensor:
    """Squared error of the cosines of pairs with a rank similarity in this range: two (b, b) -> (p,).

    RankEncoder, arXiv 2209.04333.
    """
    near = (ranks >= low) & (ranks <= high)
    return (widened(cosines)[near] - ranks[near]).square()
