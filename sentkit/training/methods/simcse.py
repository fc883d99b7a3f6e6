"""SimCSE (arXiv 2104.08821) without and with labels, ESimCSE and RankEncoder.

SimCSE contrasts two encodings of a sentence with different dropout; with labels, entailments with
contradictions as hard negatives. ESimCSE (arXiv 2109.04380) repeats tokens in one view, and has a queue of
more negatives: vectors of earlier steps from the momentum encoder, a slow average of the encoder.

RankEncoder (arXiv 2209.04333) also brings cosines close to the rank similarities of a frozen encoder, a copy
of the base or a trained checkpoint as in the paper. It ranks the sentences of a corpus, which are some of the
rows, by their similarity to a sentence. The rank similarity of two sentences is the correlation of these
rankings.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from sentkit.errors import DataError, UsageError
from sentkit.formats.checkpoints.modules import Pooler
from sentkit.formats.checkpoints.readout import POOLED, Readout, parse_readout
from sentkit.formats.rows.kinds import PAIR, SENTENCE, TRIPLET
from sentkit.model.checkpoint.heads import head_tensors
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.packed import Packed
from sentkit.model.transformer.readouts import apply_readouts, widened
from sentkit.model.transformer.transformers_model import TransformersModel
from sentkit.model.transformer.weights import canonical
from sentkit.training.base import Base, Body
from sentkit.training.data.corpus import Batch, Corpus, chunks, stream
from sentkit.training.data.examples import Reads
from sentkit.training.losses import cosines, in_batch_contrast, triplet_contrast, unit
from sentkit.training.method import (
    Draw,
    Finished,
    Method,
    Needs,
    Outputs,
    Term,
    mean_of,
    own_tensors,
    readout_of,
    share,
)
from sentkit.training.methods import recipes
from sentkit.training.methods.contrast import Guided, guide_of
from sentkit.training.methods.mlm import TokenPrediction, check_prediction


class SimCSE(Method):
    Settings: ClassVar = recipes.SimCSE

    def __init__(self, body: Body, settings: recipes.SimCSE) -> None:
        super().__init__(body, settings)
        self.head = nn.Linear(body.width, body.width)
        self.tokens: TokenPrediction | None = None

    @classmethod
    def check(cls, base: Base, settings: recipes.SimCSE) -> None:
        if not settings.mlm_weight:
            return
        if why := base.why_no_head:
            raise UsageError(f"mlm_weight needs a language model head; this is not supported, because {why}")
        check_prediction(base, "own", "sentkit train mlm --set head=fresh trains one")

    @classmethod
    def build(cls, base: Base, settings: Any) -> Self:
        method = cls(base.body(settings), settings)
        if settings.mlm_weight:
            method.tokens = TokenPrediction(base, settings.mlm_rate)
        return method

    @classmethod
    def reads(cls, base: Base, settings: recipes.SimCSE) -> Reads:
        """Return the kinds of rows. The two texts of a pair replace the two encodings of one sentence."""
        return Reads((SENTENCE, PAIR))

    def draw(self, batch: Batch, random: Draw) -> Mapping[str, Sequence[Any]]:
        return {} if self.tokens is None else self.tokens.draw(batch, random)

    def encode(self, batch: Batch) -> Outputs:
        outputs = self.views(batch)
        if self.tokens is not None:
            outputs |= self.tokens.outputs(self.packed, batch, self.device)
        return outputs

    def views(self, batch: Batch) -> Outputs:
        # Both texts are in one pass, because each row of a pass has a different dropout mask.
        first, second = batch.texts[0], batch.texts[-1]
        states = self.vectors(self.pack([*first, *second]))
        one, other = torch.tanh(self.head(states)).chunk(2)
        return {"one": one, "other": other}

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        terms = {"contrast": mean_of(self.contrast(outputs))}
        if self.tokens is not None:
            weight = float(outputs["masked"].sum())
            terms["mlm"] = Term(outputs["nll"].sum(), weight, self.settings.mlm_weight, of_vectors=False)
        return terms

    def contrast(self, outputs: Outputs) -> Tensor:
        return in_batch_contrast(outputs["one"], outputs["other"], self.settings.temperature)

    def finished(self) -> Finished:
        """Return the head as pooler for cls and mean, as in the released checkpoints; no other exists."""
        readout = readout_of(self)
        readout = POOLED.get(parse_readout(readout).reduction, readout)
        heads = own_tensors(self, "head.")
        tensors = {} if self.tokens is None else head_tensors(self.tokens.head, self.packed.architecture)
        if readout not in ("cls", "mean") or not heads:
            return Finished(heads=heads, tensors=tensors)
        note = Pooler(readout=f"pooler:{readout}")
        return Finished(heads=heads, tensors=tensors, pooler=self.head, pooler_note=note)

    @property
    def packed(self) -> Bert:
        assert isinstance(self.body, Bert), "check refuses others with mlm_weight"
        return self.body


class SupervisedSimCSE(SimCSE):
    Settings: ClassVar = recipes.SupervisedSimCSE

    needs: ClassVar = Needs(reductions=("cls", "mean", "max", *POOLED), static=True, vectors=TRIPLET.texts)

    def __init__(self, body: Body, settings: recipes.SimCSE) -> None:
        """Keep the head for pooler readouts only. Their checkpoint uses it."""
        super().__init__(body, settings)
        self.parsed = parse_readout(readout_of(self))
        if not self.parsed.pooled:
            del self.head

    @classmethod
    def build(cls, base: Base, settings: Any) -> Self:
        """Build the method. The head is the base's pooler if the base declares it, else a new layer."""
        method = super().build(base, settings)
        if method.parsed.pooled and continues(base, method.parsed):
            assert isinstance(method.body, Bert), "continues checks it"
            assert method.body.pooler is not None, "continues checks it"
            method.head.load_state_dict(method.body.pooler.state_dict())
        return method

    @classmethod
    def check(cls, base: Base, settings: recipes.SimCSE) -> None:
        super().check(base, settings)
        if parse_readout(cls.readouts(settings)[0]).pooled:
            base.check_pooler()

    @classmethod
    def reads(cls, base: Base, settings: recipes.SimCSE) -> Reads:
        return Reads((TRIPLET,))

    def views(self, batch: Batch) -> Outputs:
        texts = [text for column in batch.texts for text in column]
        vectors = self.vectors(self.pack(texts)).chunk(len(batch.texts))
        return dict(zip(TRIPLET.texts, vectors, strict=True))

    def vectors(self, packed: Packed, readout: str | None = None, **more: Any) -> Tensor:
        """Return vectors (b, d). The checkpoint has the head as its pooler."""
        if readout is not None or not self.parsed.pooled:
            return super().vectors(packed, readout, **more)
        return torch.tanh(self.head(super().vectors(packed, POOLED[self.parsed.reduction], **more)))

    def contrast(self, outputs: Outputs) -> Tensor:
        anchors, positives, negatives = (outputs[name] for name in TRIPLET.texts)
        wanted = self.settings
        return triplet_contrast(
            anchors, positives, negatives, wanted.temperature, wanted.hard_negative_weight
        )


def continues(base: Base, readout: Readout) -> bool:
    """Return true if the base declares this readout and its pooler has the form of this method's head."""
    declared = base.declared
    if declared is None or declared.reduction != readout.reduction or base.architecture is None:
        return False
    has = "pooler.dense.weight" in canonical(base.stored, base.architecture)
    return has and base.architecture.pooler_activation == "tanh"


MOST_REPEATED = 10  # of the released code


class ESimCSE(SimCSE):
    Settings: ClassVar = recipes.ESimCSE
    body: Bert | TransformersModel
    queue: Tensor  # (size, d), the oldest first
    filled: Tensor  # number of vectors in the queue

    def __init__(self, body: Bert | TransformersModel, settings: recipes.ESimCSE) -> None:
        super().__init__(body, settings)
        self.slow = deepcopy(body).requires_grad_(False) if settings.queue_size else None
        self.register_buffer("queue", torch.zeros(settings.queue_size, body.width))
        self.register_buffer("filled", torch.tensor(0))

    @classmethod
    def reads(cls, base: Base, settings: recipes.SimCSE) -> Reads:
        return Reads((SENTENCE,))

    def draw(self, batch: Batch, random: Draw) -> Mapping[str, Sequence[Any]]:
        dice = random("repeat")
        repeated = [self.places(len(text), dice) for text in batch.texts[0]]
        return {**super().draw(batch, random), "repeated": repeated}

    def places(self, length: int, dice: np.random.Generator) -> NDArray[np.int64]:
        """Draw the tokens to repeat. The first and the last are special tokens and are excluded."""
        most = share(self.settings.repeat_rate, length)
        if self.settings.repeat_range == "code":
            most = max(min(MOST_REPEATED, most) - 1, 0)
        elif self.settings.repeat_rate:
            most = max(2, most)
        room = min(length - 2, self.body.max_tokens - length)
        count = min(int(dice.integers(0, most + 1)), max(room, 0))
        return 1 + dice.choice(max(length - 2, 0), count, replace=False, shuffle=False)

    def views(self, batch: Batch) -> Outputs:
        [texts] = batch.texts
        longer = [repeated(*each) for each in zip(texts, batch.draws["repeated"], strict=True)]
        outputs = super().views(replace(batch, texts=(texts, longer)))
        if self.slow is not None:
            with torch.no_grad():
                [states] = apply_readouts(self.slow, self.pack(texts), [parse_readout(readout_of(self))])
                outputs["slow"] = torch.tanh(self.head(states))
        return outputs

    def contrast(self, outputs: Outputs) -> Tensor:
        """Return the contrast of each text with its longer view. The queue is empty in the first step."""
        queue = self.queue[: int(self.filled)]
        return in_batch_contrast(outputs["one"], outputs["other"], self.settings.temperature, queue)

    @torch.no_grad()
    def after_step(self, outputs: Outputs) -> None:
        """Append the vectors of this step to the queue, and move the momentum encoder towards the encoder."""
        if self.slow is not None:
            for slow, own in zip(self.slow.parameters(), self.body.parameters(), strict=True):
                slow.lerp_(own, 1 - self.settings.momentum)
            new = outputs["slow"].to(self.queue)
            rows = torch.cat([self.queue[: int(self.filled)], new])[-len(self.queue) :]
            self.queue[: len(rows)] = rows
            self.filled.fill_(len(rows))


def repeated(ids: NDArray[np.int32], places: NDArray[np.int64]) -> NDArray[np.int32]:
    times = np.ones(len(ids), np.int64)
    times[places] = 2
    return np.repeat(ids, times)


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
        return Reads((SENTENCE,), second=None if guide is None else guide.training_tokenizer)

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
            return unit(torch.cat([self.guide_vectors(self.pack(batch.texts[-1])) for batch in parts]))

    def views(self, batch: Batch) -> Outputs:
        ranks = rank_vectors(cosines(self.guide_vectors(self.pack(batch.texts[-1])), self.corpus))  # (b, n)
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
