"""ConSERT (arXiv 2105.11741): a contrast between two augmented views of each sentence in the batch.

With labelled pairs (premise, hypothesis), it trains a classifier of pairs instead of the contrast
or with it.

The host draws one array for each sentence of the whole batch, so that a process can apply the
arrays of its sentences. A shuffle changes the positions. A cut changes X(0), after the norm and
dropout of the embeddings. The attention mask does not change: attention and averages still include
cut tokens. A window removes tokens.

Axes: b sentences, n tokens, l tokens of one sentence, d the width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import ClassVar

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor, nn
from torch.nn import functional as F

from sentkit.formats.rows.kinds import PAIR, SENTENCE
from sentkit.model.transformer.bert import Bert
from sentkit.model.transformer.device import to_device
from sentkit.model.transformer.packed import Packed, first_tokens
from sentkit.model.transformer.readouts import Disturb, at_least_float32
from sentkit.papers.consert import paper
from sentkit.training.base import Base
from sentkit.training.data.corpus import Batch, Ids
from sentkit.training.data.examples import NLI, Labels, Reads
from sentkit.training.losses import paired_contrast
from sentkit.training.method import (
    Draw,
    Needs,
    Outputs,
    PackedMethod,
    Term,
    mean_of,
    share,
)
from sentkit.training.methods.pairs import pair_features

Drawn = Sequence[np.ndarray]  # the drawn numbers of each sentence


class View:
    """The base class is the view without a change. A new view overrides `draw` and `apply`."""

    def draw(
        self, random: Generator, lengths: Sequence[int], width: int, rate: float
    ) -> list[np.ndarray]:
        """Return one array for each sentence. `lengths` are in tokens; only cuts use `rate`."""
        return [np.empty(0, dtype=np.int64) for _ in lengths]

    def apply(self, packed: Packed, drawn: Drawn) -> tuple[Packed, Disturb | None]:
        """Return the changed batch and its `disturb` function, or None if X(0) does not change."""
        assert len(drawn) == len(packed.lengths), "a draw for other sentences"
        return packed, None


class Shuffle(View):
    """Permutes the positions of each sentence, including special tokens; the order of its tokens
    stays.
    """

    def draw(
        self, random: Generator, lengths: Sequence[int], width: int, rate: float
    ) -> list[np.ndarray]:
        return [random.permutation(length) for length in lengths]

    def apply(self, packed: Packed, drawn: Drawn) -> tuple[Packed, Disturb | None]:
        assert len(drawn) == len(packed.lengths), "a draw for other sentences"
        rows = np.concatenate(drawn) + np.repeat(first_tokens(packed.lengths), packed.lengths)
        return replace(packed, positions=packed.positions[packed.to_device(rows)]), None


@dataclass(frozen=True, slots=True)
class Cut(View):
    """Sets a share of X(0) to 0: rows (`tokens`), columns (`features`), or single entries if both
    are true.

    The paper drops each entry with a probability. Its code drops an exact number, as this class
    does.
    """

    tokens: bool = False
    features: bool = False

    def shape(self, length: int, width: int) -> tuple[int, int]:
        """Return the number of rows and columns that are cut independently in a sentence."""
        rows = length if self.tokens else 1
        columns = width if self.features else 1
        return rows, columns

    def draw(
        self, random: Generator, lengths: Sequence[int], width: int, rate: float
    ) -> list[np.ndarray]:
        """Return indexes into the flattened `shape` of each sentence."""
        counts = [
            rows * columns for rows, columns in (self.shape(length, width) for length in lengths)
        ]
        return [random.choice(n, share(rate, n), replace=False, shuffle=False) for n in counts]

    def apply(self, packed: Packed, drawn: Drawn) -> tuple[Packed, Disturb | None]:
        assert len(drawn) == len(packed.lengths), "a draw for other sentences"

        def disturb(states: Tensor) -> Tensor:  # (n, d) -> (n, d)
            masks = []
            for indexes, length in zip(drawn, packed.lengths, strict=True):
                rows_and_columns = self.shape(length, states.shape[-1])  # (l or 1, d or 1)
                mask = np.zeros(rows_and_columns, dtype=bool)
                mask.flat[indexes] = True
                masks.append(np.broadcast_to(mask, (length, mask.shape[1])))
            # Unlike a product, a fill keeps the bits of the other entries. Unlike dropout, it does
            # not scale.
            return states.masked_fill(packed.to_device(np.concatenate(masks)), 0.0)

        return packed, disturb


class Window(View):
    """Keeps a window of consecutive tokens with their positions; it is not in the paper.

    The window has floor(length * (1 - rate)) tokens, and at least one.
    """

    def draw(
        self, random: Generator, lengths: Sequence[int], width: int, rate: float
    ) -> list[np.ndarray]:
        sizes = [max(int((1 - Decimal(str(rate))) * length), 1) for length in lengths]
        return [
            random.integers(0, length - size + 1) + np.arange(size)
            for length, size in zip(lengths, sizes, strict=True)
        ]

    def apply(self, packed: Packed, drawn: Drawn) -> tuple[Packed, Disturb | None]:
        assert len(drawn) == len(packed.lengths), "a draw for other sentences"
        lengths = tuple(map(len, drawn))
        rows = packed.to_device(
            np.concatenate(drawn) + np.repeat(first_tokens(packed.lengths), lengths)
        )
        return replace(
            packed, ids=packed.ids[rows], positions=packed.positions[rows], lengths=lengths
        ), None


VIEWS = {
    "none": View(),
    "shuffle": Shuffle(),
    "token-cutoff": Cut(tokens=True),
    "feature-cutoff": Cut(features=True),
    "span-cutoff": Window(),
    "dropout": Cut(tokens=True, features=True),
}


class ConSERT(PackedMethod):
    Settings: ClassVar = paper.Settings
    needs: ClassVar = Needs(packed="first states that a view may change")

    def __init__(self, body: Bert, settings: paper.Settings) -> None:
        super().__init__(body, settings)
        self.classifier: nn.Linear | None = None
        if settings.mode != "unsup":
            blocks = len(settings.pair_features)  # a letter for each: u, v, |u - v| and max(u, v)^2
            self.classifier = nn.Linear(blocks * body.width, len(NLI))

    @classmethod
    def reads(cls, base: Base, settings: paper.Settings) -> Reads:
        """In mode unsup, the texts of a pair are paraphrases. Each view is of one of them."""
        if settings.mode == "unsup":
            return Reads((SENTENCE, PAIR))
        return Reads((PAIR,), "label", Labels(NLI), varied=True)

    @classmethod
    def dev_readout(cls, settings: paper.Settings) -> str:
        """Return the readout used in training: `mean` for mean-last2, as in the paper."""
        [name] = cls.readouts(settings)
        return "mean" if name == "mean-last2" else name

    def seen(self, batch: Batch) -> dict[str, tuple[Sequence[Ids], ...]]:
        """Return the texts of each view: one sequence for each text of a row."""
        if self.settings.mode == "unsup":
            return {"a": batch.texts[:1], "b": batch.texts[-1:]}
        return dict.fromkeys(self.settings.views, batch.texts)

    def view(self, name: str) -> tuple[View, float]:
        """Return a view and its rate."""
        kind = self.settings.views[name]
        if kind == paper.ADVERSARIAL:
            return VIEWS["none"], 0.0
        if kind not in paper.RATES:
            return VIEWS[kind], 0.0
        setting = paper.RATES[kind][0]
        return VIEWS[kind], getattr(self.settings, setting)

    def draw(self, batch: Batch, random: Draw) -> Mapping[str, Drawn]:
        draws: dict[str, Drawn] = {}
        for name, sides in self.seen(batch).items():
            view, rate = self.view(name)
            for side, texts in enumerate(sides):
                key = f"{name}{side}"
                lengths = [len(text) for text in texts]
                draws[key] = view.draw(random(f"view {key}"), lengths, self.body.width, rate)
        return draws

    def encode(self, batch: Batch) -> Outputs:
        if self.settings.views.get("b") == paper.ADVERSARIAL:
            return self.attacked(batch)
        outputs: Outputs = {}
        for name in self.settings.views:
            outputs |= self.encoded(batch, name)
        if self.classifier is not None:
            outputs |= self.classified(outputs, batch)
        return outputs

    def encoded(self, batch: Batch, name: str, change: Disturb | None = None) -> Outputs:
        """Return the vectors of a view, for each text of a row. `change` is applied to X(0) of the
        view.
        """
        sides = self.seen(batch)[name]
        keys = [f"{name}{side}" for side in range(len(sides))]
        view, _ = self.view(name)
        drawn = [numbers for key in keys for numbers in batch.draws[key]]
        texts = [text for side in sides for text in side]
        packed, disturb_of_view = view.apply(self.pack(texts), drawn)
        changes = [disturb for disturb in (disturb_of_view, change) if disturb is not None]

        def apply_changes(states: Tensor) -> Tensor:
            for disturb in changes:
                states = disturb(states)
            return states

        disturb = None
        if changes:
            disturb = apply_changes
        readout = self.dev_readout(self.settings)
        vectors = self.vectors(packed, readout, disturb=disturb)  # (sides * b, d)
        return dict(zip(keys, vectors.chunk(len(sides)), strict=True))

    def classified(self, outputs: Outputs, batch: Batch) -> Outputs:
        assert self.classifier is not None, "mode unsup has no classifier"
        premises = outputs["a0"]
        hypotheses = outputs["a1"]
        features = pair_features(premises, hypotheses)
        if "m" in self.settings.pair_features:  # of the released code
            features = torch.cat([features, torch.maximum(premises, hypotheses).square()], 1)
        assert batch.targets is not None, "pairs without labels"
        labels = to_device(batch.targets, self.device).long()
        return {"logits": self.classifier(features), "labels": labels}

    def attacked(self, batch: Batch) -> Outputs:
        """Return both views. The second adds to X(0) the direction in which the label loss grows
        fastest.

        The direction of a row depends only on this row, because the sum of the losses has no shared
        terms.
        """
        first: list[Tensor] = []  # X(0) of the first view

        def hold(states: Tensor) -> Tensor:
            """Keep X(0), so that the loss has a gradient for it."""
            if not states.requires_grad:  # with LoRA, whose embeddings are constant
                states = states.detach().requires_grad_()
            first.append(states)
            return states

        needs_gradient = torch.is_grad_enabled()
        with torch.enable_grad():  # also in the pass of a chunk without gradient
            outputs = self.encoded(batch, "a", hold)
            outputs |= self.classified(outputs, batch)
            loss = F.cross_entropy(
                at_least_float32(outputs["logits"]), outputs["labels"], reduction="sum"
            )
            [slopes] = torch.autograd.grad(loss, first, retain_graph=needs_gradient)
        if not needs_gradient:
            outputs = {name: value.detach() for name, value in outputs.items()}
        change = self.settings.adv_eps * direction(slopes, self.settings.adv_form)
        return outputs | self.encoded(batch, "b", lambda states: states + change)

    def loss(self, outputs: Outputs) -> dict[str, Term]:
        settings = self.settings
        terms: dict[str, Term] = {}
        if settings.mode == "unsup":
            values = paired_contrast(outputs["a0"], outputs["b0"], settings.temperature)
            terms["contrast"] = mean_of(values, settings.loss_scale)
        elif settings.mode == "joint":
            # Premises and hypotheses are contrasted separately: a premise is not a negative of a
            # hypothesis.
            of_premises = paired_contrast(outputs["a0"], outputs["b0"], settings.temperature)
            of_hypotheses = paired_contrast(outputs["a1"], outputs["b1"], settings.temperature)
            terms["contrast"] = mean_of(torch.cat([of_premises, of_hypotheses]), settings.alpha)
        if settings.mode != "unsup":
            logits = at_least_float32(outputs["logits"])
            values = F.cross_entropy(logits, outputs["labels"], reduction="none")
            terms["label"] = mean_of(values)
        return terms


def direction(slopes: Tensor, form: str) -> Tensor:
    """Return the unit gradient of each token, the sign of each number, or the gradient,
    (n, d) -> (n, d).
    """
    if form == "fgsm":
        return slopes.sign()
    if form == "raw":
        return slopes
    return slopes / (slopes.norm(dim=-1, keepdim=True) + 1e-10)
