"""SimCSE (arXiv 2104.08821) without and with labels.

SimCSE contrasts two encodings of a sentence with different dropout; with labels, entailments with
contradictions as hard negatives.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from sentkit.errors import UsageError
from sentkit.formats.checkpoints.modules import Pooler
from sentkit.formats.checkpoints.readout import POOLED, Readout, parse_readout
from sentkit.formats.rows.kinds import PAIR, SENTENCE, TRIPLET
from sentkit.model.checkpoint.heads import head_tensors
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.packed import Packed
from sentkit.model.transformer.weights import canonical
from sentkit.training.base import Base, Body
from sentkit.training.data.corpus import Batch
from sentkit.training.data.examples import Reads
from sentkit.training.losses import in_batch_contrast, triplet_contrast
from sentkit.training.method import (
    Draw,
    Finished,
    Method,
    Needs,
    Outputs,
    Term,
    mean_of,
    readout_of,
    tensors_of_heads,
)
from sentkit.training.methods import recipes
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
            raise UsageError(
                f"mlm_weight needs a language model head; this is not supported, because {why}"
            )
        check_prediction(base, "own", "sentkit train mlm --set head=fresh trains one")

    @classmethod
    def build(cls, base: Base, settings: Any) -> Self:
        method = cls(base.body(settings), settings)
        if settings.mlm_weight:
            method.tokens = TokenPrediction(base, settings.mlm_rate)
        return method

    @classmethod
    def reads(cls, base: Base, settings: recipes.SimCSE) -> Reads:
        """Return the kinds of rows. The two texts of a pair replace the two encodings of one
        sentence.
        """
        return Reads((SENTENCE, PAIR))

    def draw(self, batch: Batch, random: Draw) -> Mapping[str, Sequence[Any]]:
        if self.tokens is None:
            return {}
        return self.tokens.draw(batch, random)

    def encode(self, batch: Batch) -> Outputs:
        outputs = self.views(batch)
        if self.tokens is not None:
            outputs |= self.tokens.outputs(self.packed, batch, self.device)
        return outputs

    def views(self, batch: Batch) -> Outputs:
        # Both texts are in one pass, because each row of a pass has a different dropout mask.
        states = self.vectors(self.pack([*batch.texts[0], *batch.texts[-1]]))
        one, other = torch.tanh(self.head(states)).chunk(2)
        return {"one": one, "other": other}

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        terms = {"contrast": mean_of(self.contrast(outputs))}
        if self.tokens is not None:
            masked_tokens = float(outputs["masked"].sum())
            terms["mlm"] = Term(
                outputs["nll"].sum(), masked_tokens, self.settings.mlm_weight, of_vectors=False
            )
        return terms

    def contrast(self, outputs: Outputs) -> Tensor:
        return in_batch_contrast(outputs["one"], outputs["other"], self.settings.temperature)

    def finished(self) -> Finished:
        """Return the head as pooler for cls and mean, as in the released checkpoints; no other
        exists.
        """
        readout = readout_of(self)
        readout = POOLED.get(parse_readout(readout).reduction, readout)
        heads = tensors_of_heads(self, "head.")
        tensors: dict[str, Tensor] = {}
        if self.tokens is not None:
            tensors = head_tensors(self.tokens.head, self.packed.architecture)
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

    needs: ClassVar = Needs(
        reductions=("cls", "mean", "max", *POOLED), static=True, vectors=TRIPLET.text_names
    )

    def __init__(self, body: Body, settings: recipes.SimCSE) -> None:
        """Keep the head for pooler readouts only. Their checkpoint uses it."""
        super().__init__(body, settings)
        self.parsed = parse_readout(readout_of(self))
        if not self.parsed.pooled:
            del self.head

    @classmethod
    def build(cls, base: Base, settings: Any) -> Self:
        """Build the method. The head is the base's pooler if the base declares it, else a new
        layer.
        """
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
        return dict(zip(TRIPLET.text_names, vectors, strict=True))

    def vectors(self, packed: Packed, readout: str | None = None, **more: Any) -> Tensor:
        """Return vectors (b, d). The checkpoint has the head as its pooler."""
        if readout is not None or not self.parsed.pooled:
            return super().vectors(packed, readout, **more)
        states = super().vectors(packed, POOLED[self.parsed.reduction], **more)
        return torch.tanh(self.head(states))

    def contrast(self, outputs: Outputs) -> Tensor:
        anchors, positives, negatives = (outputs[name] for name in TRIPLET.text_names)
        settings = self.settings
        return triplet_contrast(
            anchors, positives, negatives, settings.temperature, settings.hard_negative_weight
        )


def continues(base: Base, readout: Readout) -> bool:
    """Return true if the base declares this readout and its pooler has the form of this method's
    head.
    """
    declared = base.declared
    if declared is None or declared.reduction != readout.reduction or base.architecture is None:
        return False
    has_pooler = "pooler.dense.weight" in canonical(base.stored, base.architecture)
    return has_pooler and base.architecture.pooler_activation == "tanh"
