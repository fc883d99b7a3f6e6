"""Losses in float32 or float64. Axes: b sentences, d dimensions, l layers; m candidates of an anchor.

A docstring states the shapes of input and output. Most losses return one value for each anchor or pair.
Losses of one method are in its file or folder.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from sentkit.model.transformer.device import to_device
from sentkit.model.transformer.readouts import widened

SHORTEST = 1e-8  # minimum divisor when a row is divided by its norm

Weigh = Callable[[Tensor, Tensor], Tensor]  # similarities and log alpha -> weighted similarities

# PairSupCon eq. 3. In the authors' code, alpha multiplies the exponential ("code").
# In the other interpretation, alpha multiplies the similarity ("exponent").
WEIGHTINGS: dict[str, Weigh] = {
    "none": lambda similarities, log_alpha: similarities,
    "code": lambda similarities, log_alpha: similarities + log_alpha,
    "exponent": lambda similarities, log_alpha: similarities * log_alpha.exp(),
}


def unit(rows: Tensor) -> Tensor:
    return F.normalize(widened(rows), dim=-1, eps=SHORTEST)


def cosines(left: Tensor, right: Tensor) -> Tensor:
    """Cosines of each left row with each right row: (n, d), (m, d) -> (n, m)."""
    with torch.autocast(left.device.type, enabled=False):  # autocast uses half precision
        return unit(left) @ unit(right).T


def diagonal(similarities: Tensor) -> Tensor:
    """Return a mask (n, m) that is true on the main diagonal."""
    return torch.eye(*similarities.shape, dtype=torch.bool, device=similarities.device)


def diagonal_cross_entropy(similarities: Tensor) -> Tensor:
    """Cross entropy with column i as the target of row i: (b, m) -> (b,)."""
    own = torch.arange(len(similarities), device=similarities.device)
    return F.cross_entropy(similarities, own, reduction="none")


def in_batch_contrast(
    queries: Tensor, keys: Tensor, temperature: float, negatives: Tensor | None = None
) -> Tensor:
    """Contrast of query i with key i against all keys: (b, d), (b, d) -> (b,).

    SimCSE eq. 1, arXiv 2104.08821. ESimCSE, arXiv 2109.04380, has more `negatives` (m, d) for all queries.
    """
    rows = keys if negatives is None else torch.cat([keys, negatives])
    return diagonal_cross_entropy(cosines(queries, rows) / temperature)


def triplet_contrast(
    anchors: Tensor, positives: Tensor, negatives: Tensor, temperature: float, negative_weight: float = 0.0
) -> Tensor:
    """Contrast of anchor i with positive i against all positives and negatives: three (b, d) -> (b,).

    Supervised SimCSE, arXiv 2104.08821. `negative_weight` is added to the logit of negative i, as in the
    released code. This multiplies that term of the denominator by exp(negative_weight).
    """
    agreeing = cosines(anchors, positives) / temperature  # (b, b)
    opposing = cosines(anchors, negatives) / temperature
    weighted = torch.where(diagonal(opposing), opposing + negative_weight, opposing)
    return diagonal_cross_entropy(torch.cat([agreeing, weighted], 1))


def paired_contrast(left: Tensor, right: Tensor, temperature: float) -> Tensor:
    """Contrast of each row with its partner against all 2b - 1 others: (b, d), (b, d) -> (2b,), left first.

    NT-Xent: the loss of ConSERT, arXiv 2105.11741, and the base loss of SG-BERT, arXiv 2106.07345.
    """
    rows = torch.cat([left, right])
    similarities = cosines(rows, rows) / temperature  # (2b, 2b)
    others = similarities.masked_fill(diagonal(similarities), -torch.inf)
    partners = torch.arange(len(rows), device=rows.device).roll(len(left))
    return F.cross_entropy(others, partners, reduction="none")


def negative_log_share(own: Tensor, foreign: Tensor) -> Tensor:
    """Return -log(e^own / (e^own + e^foreign)). It is 0 for foreign = -inf (no negatives)."""
    return -F.logsigmoid(own - foreign)  # softplus is only a linear approximation above 20


def entailment_contrast(
    left: Tensor, right: Tensor, positive: Tensor, temperature: float, *, weighting: str, detach: bool = False
) -> Tensor:
    """Contrast of each text of p positive pairs with its partner: two (b, d), (b,) -> (2p,), left first.

    PairSupCon, arXiv 2109.05424: eq. 1 and 2 with `weighting` "none", eq. 3 with the others. The rows of all
    other pairs are negatives of an anchor. Their weight is alpha = e^similarity / (mean of e^similarity over
    the negatives). As in the authors' code, alpha has a gradient unless `detach` is true.
    """
    rows, count = torch.cat([left, right]), len(left)
    anchors = to_device(positive.cpu().repeat(2).nonzero().numpy(), rows.device)  # (2p, 1)
    similarities = cosines(rows[anchors[:, 0]], rows) / temperature  # (2p, 2b)
    # The partner is b positions after the anchor. All rows except the anchor and the partner are negatives.
    steps = torch.cat(
        [torch.arange(start, start + count - 1, device=rows.device) for start in (1, count + 1)]
    )
    foreign = similarities.gather(1, (anchors + steps) % (2 * count))  # (2p, 2b - 2)
    own = similarities.gather(1, (anchors + count) % (2 * count))[:, 0]
    # log_softmax, because the gradient of log(softmax) is NaN if alpha underflows
    log_alpha = foreign.log_softmax(1) + math.log(max(1, foreign.shape[1]))
    weighted = WEIGHTINGS[weighting](foreign, log_alpha.detach() if detach else log_alpha)
    return negative_log_share(own, weighted.logsumexp(1))


def cosine_regression(left: Tensor, right: Tensor, targets: Tensor) -> Tensor:
    """Squared error of the cosine of each pair: (b, d), (b, d), (b,) -> (b,). SBERT, arXiv 1908.10084."""
    return ((unit(left) * unit(right)).sum(1) - targets).square()


def squared_error(vectors: Tensor, targets: Tensor) -> Tensor:
    """Mean squared difference from the target: (b, d), (b, d) -> (b,)."""
    return (widened(vectors) - widened(targets)).square().mean(1)


def relational_divergence(vectors: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL divergence of the similarities of row i with all other rows, teacher from student: -> (b,).

    The similarities of a row are the softmax of its cosines with the other rows, divided by the temperature.
    """

    def similarities(rows: Tensor) -> Tensor:
        among = cosines(rows, rows) / temperature  # (b, b)
        return among[~diagonal(among)].view(len(rows), len(rows) - 1).log_softmax(1)

    target = similarities(teacher)
    return F.kl_div(similarities(vectors), target, reduction="none", log_target=True).sum(1)


def triplet_margin(anchors: Tensor, positives: Tensor, negatives: Tensor, margin: float) -> Tensor:
    """Return max(0, distance to positive - distance to negative + margin): three (b, d) -> (b,).

    SBERT's triplet objective, arXiv 1908.10084, with Euclidean distances.
    """
    # The gradient of vector_norm at 0 is 0. F.triplet_margin_loss would add 1e-6 to each difference.
    near = torch.linalg.vector_norm(widened(anchors) - widened(positives), dim=1)
    far = torch.linalg.vector_norm(widened(anchors) - widened(negatives), dim=1)
    return F.relu(near - far + margin)


MAX_COSINES = 1 << 22  # of the anchors of a span with all candidates


@dataclass(frozen=True, slots=True)
class Texts:
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
    margin: float = 0.0  # of the cosine of the pair by the guide, above which a candidate is left out
    relative: bool = False


def false_negatives(pair: tuple[Texts, Texts], one: Texts, others: Texts, drop: Filter) -> Tensor:
    """Return which of the other texts are no negatives of a side of these pairs, (n, m)."""
    left, right = pair
    hidden = torch.zeros(len(left.ids), len(others.ids), dtype=torch.bool, device=left.ids.device)
    if drop.equal_texts:
        hidden |= (left.ids[:, None] == others.ids) | (right.ids[:, None] == others.ids)
    if one.guide is not None and others.guide is not None:
        assert left.guide is not None, "all texts have a guide, or none"
        assert right.guide is not None, "all texts have a guide, or none"
        own = cosines(left.guide, right.guide).diagonal()
        margin = drop.margin * own.abs() if drop.relative else drop.margin
        hidden |= cosines(one.guide, others.guide) > (own - margin)[:, None]
    return hidden


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
    at_once = max(1, MAX_COSINES // max(1, len(candidates.ids)))
    count = len(anchors.ids)

    def of_span(start: int, stop: int) -> Tensor:
        rows = torch.arange(start, stop, device=anchors.ids.device)
        left, right = pair = anchors.part(start, stop), positives.part(start, stop)

        def logits(one: Texts, others: Texts, hidden: Tensor) -> Tensor:
            return (cosines(one.vectors, others.vectors) / temperature).masked_fill(hidden, -torch.inf)

        def own_pairs(columns: int) -> Tensor:
            return rows[:, None] == torch.arange(columns, device=rows.device)

        def cross_entropy(values: Tensor) -> Tensor:
            return F.cross_entropy(values, rows, reduction="none")

        across = false_negatives(pair, left, candidates, drop)
        forward = logits(left, candidates, across & ~own_pairs(len(candidates.ids)))
        if form == "one-way":
            return cross_entropy(forward)
        back = false_negatives(pair, right, anchors, drop)
        backward = logits(right, anchors, back & ~own_pairs(count))
        if form == "symmetric":
            return (cross_entropy(forward) + cross_entropy(backward)) / 2
        among = false_negatives(pair, left, anchors, drop) | own_pairs(count)
        between = false_negatives(pair, right, candidates, drop) | (right.rows[:, None] == candidates.rows)
        others = [logits(left, anchors, among), backward, logits(right, candidates, between)]
        return cross_entropy(torch.cat([forward, *others], 1))

    if count <= at_once:
        return of_span(0, count)
    spans = [(start, min(start + at_once, count)) for start in range(0, count, at_once)]
    values = [checkpoint(of_span, *span, use_reentrant=False, preserve_rng_state=False) for span in spans]
    return torch.cat(values)
