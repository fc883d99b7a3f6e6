"""The contrast of anchors with their positives and any number of negatives, without false negatives.

Axes: b anchors, m candidates, d dimensions. A candidate is a positive of the batch or a negative of any row.
"""

from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from sentkit.training.losses.losses import cosines

MAX_COSINES = 1 << 22  # of the anchors of a span with all candidates
FORMS = ("one-way", "symmetric", "full")


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of one role in a batch."""

    vectors: Tensor  # (n, d)
    ids: Tensor  # (n,): equal texts have equal numbers
    rows: Tensor  # (n,): the row of each text
    guide: Tensor | None = None  # (n, e): vectors that decide which negatives are false

    def part(self, start: int, stop: int) -> "Texts":
        guide = None if self.guide is None else self.guide[start:stop]
        return Texts(self.vectors[start:stop], self.ids[start:stop], self.rows[start:stop], guide)

    def joined(self, other: Self) -> "Texts":
        guides = None if self.guide is None or other.guide is None else torch.cat([self.guide, other.guide])
        return Texts(
            torch.cat([self.vectors, other.vectors]),
            torch.cat([self.ids, other.ids]),
            torch.cat([self.rows, other.rows]),
            guides,
        )


@dataclass(frozen=True, slots=True)
class Filter:
    """Which candidates are no negatives, although they belong to another row or another text."""

    equal_texts: bool = True  # leave out candidates with the text of the anchor or of its positive
    margin: float = 0.0
    relative: bool = False

    def limit(self, own: Tensor) -> Tensor:
        """The highest cosine of a negative by the guide, for the cosines of the positives."""
        return own - self.margin * own.abs() if self.relative else own - self.margin


def candidate_contrast(
    anchors: Texts, positives: Texts, negatives: Texts | None, temperature: float, form: str, drop: Filter
) -> Tensor:
    """Return one value per anchor: the cross entropy of its positive among all candidates, (b,).

    one-way: InfoNCE. symmetric: the mean with the contrast of each positive with all anchors. full: all
    anchors are candidates too, and the positive is contrasted with all texts of other rows, in one sum as
    in GTE (arXiv 2308.03281), which counts the cosine of the pair twice.

    A large batch is divided into spans of anchors. The backward pass computes the cosines of a span again, so
    memory has those of one span only.
    """
    candidates = positives if negatives is None else positives.joined(negatives)

    def of_span(start: int, stop: int) -> Tensor:
        contrast = SpanContrast(anchors, positives, start, stop, temperature, drop)
        return contrast.values(candidates, form)

    rows = max(1, MAX_COSINES // max(1, len(candidates.ids)))
    count = len(anchors.ids)
    if count <= rows:
        return of_span(0, count)
    spans = [(start, min(start + rows, count)) for start in range(0, count, rows)]
    values = [checkpoint(of_span, *span, use_reentrant=False, preserve_rng_state=False) for span in spans]
    return torch.cat(values)


class SpanContrast:
    """The contrast of the anchors of some rows of a batch with all candidates."""

    def __init__(
        self, anchors: Texts, positives: Texts, start: int, stop: int, temperature: float, drop: Filter
    ) -> None:
        self.anchors, self.temperature, self.drop = anchors, temperature, drop
        self.rows = torch.arange(start, stop, device=anchors.ids.device)
        self.left, self.right = anchors.part(start, stop), positives.part(start, stop)

    def values(self, candidates: Texts, form: str) -> Tensor:
        left, right = self.left, self.right
        across = self.false_negatives(left, candidates)
        forward = self.logits(left, candidates, across & ~self.own(across))
        if form == "one-way":
            return self.cross_entropy(forward)
        back = self.false_negatives(right, self.anchors)
        backward = self.logits(right, self.anchors, back & ~self.own(back))
        if form == "symmetric":
            return (self.cross_entropy(forward) + self.cross_entropy(backward)) / 2
        among = self.false_negatives(left, self.anchors) | self.own(back)
        same_row = right.rows[:, None] == candidates.rows
        between = self.false_negatives(right, candidates) | same_row
        others = [
            self.logits(left, self.anchors, among),
            backward,
            self.logits(right, candidates, between),
        ]
        return self.cross_entropy(torch.cat([forward, *others], 1))

    def logits(self, left: Texts, right: Texts, hidden: Tensor) -> Tensor:
        return (cosines(left.vectors, right.vectors) / self.temperature).masked_fill(hidden, -torch.inf)

    def false_negatives(self, left: Texts, right: Texts) -> Tensor:
        hidden = torch.zeros(len(left.ids), len(right.ids), dtype=torch.bool, device=left.ids.device)
        if self.drop.equal_texts:
            for texts in (self.left, self.right):
                hidden |= texts.ids[:, None] == right.ids
        if self.left.guide is not None and self.right.guide is not None:
            own = cosines(self.left.guide, self.right.guide).diagonal()
            assert left.guide is not None, "all texts have a guide, or none"
            assert right.guide is not None, "all texts have a guide, or none"
            hidden |= cosines(left.guide, right.guide) > self.drop.limit(own)[:, None]
        return hidden

    def own(self, mask: Tensor) -> Tensor:
        """The columns of the own pairs of these rows."""
        return self.rows[:, None] == torch.arange(mask.shape[1], device=mask.device)

    def cross_entropy(self, logits: Tensor) -> Tensor:
        return F.cross_entropy(logits, self.rows, reduction="none")
