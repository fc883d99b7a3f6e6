"""Losses in float32 or float64. Axes: b sentences, d dimensions, l layers; m candidates of an
anchor.

A docstring states the shapes of input and output. Most losses return one value for each anchor or
pair. Losses of one method are in its file or folder.
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
from sentkit.model.transformer.readouts import at_least_float32

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
    return F.normalize(at_least_float32(rows), dim=-1, eps=SHORTEST)


def cosines(a: Tensor, b: Tensor) -> Tensor:
    """Cosines of each row of a with each row of b: (n, d), (m, d) -> (n, m)."""
    with torch.autocast(a.device.type, enabled=False):  # autocast uses half precision
        return unit(a) @ unit(b).T


def diagonal_mask(similarities: Tensor) -> Tensor:
    """Return a mask (n, m) that is true on the main diagonal."""
    return torch.eye(*similarities.shape, dtype=torch.bool, device=similarities.device)


def diagonal_cross_entropy(similarities: Tensor) -> Tensor:
    """Cross entropy with column i as the target of row i: (b, m) -> (b,)."""
    columns = torch.arange(len(similarities), device=similarities.device)
    return F.cross_entropy(similarities, columns, reduction="none")


def in_batch_contrast(
    queries: Tensor, keys: Tensor, temperature: float, negatives: Tensor | None = None
) -> Tensor:
    """Contrast of query i with key i against all keys: (b, d), (b, d) -> (b,).

    SimCSE eq. 1, arXiv 2104.08821. ESimCSE, arXiv 2109.04380, has more `negatives` (m, d) for all
    queries.
    """
    if negatives is not None:
        keys = torch.cat([keys, negatives])
    return diagonal_cross_entropy(cosines(queries, keys) / temperature)


def triplet_contrast(
    anchors: Tensor,
    positives: Tensor,
    negatives: Tensor,
    temperature: float,
    negative_weight: float = 0.0,
) -> Tensor:
    """Contrast of anchor i with positive i against all positives and negatives: three (b, d) ->
    (b,).

    Supervised SimCSE, arXiv 2104.08821. `negative_weight` is added to the logit of negative i, as
    in the released code. This multiplies that term of the denominator by exp(negative_weight).
    """
    positive_logits = cosines(anchors, positives) / temperature  # (b, b)
    negative_logits = cosines(anchors, negatives) / temperature
    is_hard_negative = diagonal_mask(negative_logits)  # negative i of anchor i
    negative_logits = torch.where(
        is_hard_negative, negative_logits + negative_weight, negative_logits
    )
    return diagonal_cross_entropy(torch.cat([positive_logits, negative_logits], 1))


def paired_contrast(a: Tensor, b: Tensor, temperature: float) -> Tensor:
    """Contrast of each row with its partner against all 2b - 1 others: (b, d), (b, d) -> (2b,), a
    first.

    NT-Xent: the loss of ConSERT, arXiv 2105.11741, and the base loss of SG-BERT, arXiv 2106.07345.
    """
    rows = torch.cat([a, b])
    similarities = cosines(rows, rows) / temperature  # (2b, 2b)
    similarities = similarities.masked_fill(diagonal_mask(similarities), -torch.inf)
    partners = torch.arange(len(rows), device=rows.device).roll(len(a))
    return F.cross_entropy(similarities, partners, reduction="none")


def negative_log_share(positive: Tensor, negative: Tensor) -> Tensor:
    """Return -log(e^positive / (e^positive + e^negative)). It is 0 for negative = -inf (no
    negatives).
    """
    return -F.logsigmoid(positive - negative)  # softplus is only a linear approximation above 20


def entailment_contrast(
    a: Tensor,
    b: Tensor,
    is_positive: Tensor,
    temperature: float,
    *,
    weighting: str,
    detach: bool = False,
) -> Tensor:
    """Contrast of each text of p positive pairs with its partner: two (b, d), (b,) -> (2p,), a
    first.

    PairSupCon, arXiv 2109.05424: eq. 1 and 2 with `weighting` "none", eq. 3 with the others. The
    rows of all other pairs are negatives of an anchor. Their weight is alpha = e^similarity / (mean
    of e^similarity over the negatives). As in the authors' code, alpha has a gradient unless
    `detach` is true.
    """
    rows = torch.cat([a, b])
    count = len(a)
    anchors_on_host = is_positive.cpu().repeat(2).nonzero()
    anchors = to_device(anchors_on_host.numpy(), rows.device)  # (2p, 1)
    similarities = cosines(rows[anchors[:, 0]], rows) / temperature  # (2p, 2b)
    # The partner is b positions after the anchor. All rows except the anchor and the partner are
    # negatives.
    before_partner = torch.arange(1, count, device=rows.device)
    after_partner = torch.arange(count + 1, 2 * count, device=rows.device)
    steps = torch.cat([before_partner, after_partner])
    negatives = similarities.gather(1, (anchors + steps) % (2 * count))  # (2p, 2b - 2)
    positives = similarities.gather(1, (anchors + count) % (2 * count))[:, 0]
    # log_softmax, because the gradient of log(softmax) is NaN if alpha underflows.
    log_alpha = negatives.log_softmax(1) + math.log(max(1, negatives.shape[1]))
    if detach:
        log_alpha = log_alpha.detach()
    weighted = WEIGHTINGS[weighting](negatives, log_alpha)
    return negative_log_share(positives, weighted.logsumexp(1))


def cosine_regression(a: Tensor, b: Tensor, targets: Tensor) -> Tensor:
    """Squared error of the cosine of each pair: (b, d), (b, d), (b,) -> (b,). SBERT, arXiv
    1908.10084.
    """
    return ((unit(a) * unit(b)).sum(1) - targets).square()


def squared_error(vectors: Tensor, targets: Tensor) -> Tensor:
    """Mean squared difference from the target: (b, d), (b, d) -> (b,)."""
    return (at_least_float32(vectors) - at_least_float32(targets)).square().mean(1)


def relational_divergence(vectors: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL divergence of the similarities of row i with all other rows, teacher from student: ->
    (b,).

    The similarities of a row are the softmax of its cosines with the other rows, divided by the
    temperature.
    """

    def similarities(rows: Tensor) -> Tensor:
        among = cosines(rows, rows) / temperature  # (b, b)
        return among[~diagonal_mask(among)].view(len(rows), len(rows) - 1).log_softmax(1)

    target = similarities(teacher)
    return F.kl_div(similarities(vectors), target, reduction="none", log_target=True).sum(1)


def triplet_margin(anchors: Tensor, positives: Tensor, negatives: Tensor, margin: float) -> Tensor:
    """Return max(0, distance to positive - distance to negative + margin): three (b, d) -> (b,).

    SBERT's triplet objective, arXiv 1908.10084, with Euclidean distances.
    """
    # The gradient of vector_norm at 0 is 0. F.triplet_margin_loss would add 1e-6 to each
    # difference.
    near = torch.linalg.vector_norm(at_least_float32(anchors) - at_least_float32(positives), dim=1)
    far = torch.linalg.vector_norm(at_least_float32(anchors) - at_least_float32(negatives), dim=1)
    return F.relu(near - far + margin)


MAX_COSINES = 1 << 22  # of the anchors of a span with all candidates


@dataclass(frozen=True, slots=True)
class Texts:
    vectors: Tensor  # (n, d)
    ids: Tensor  # (n,): equal texts have equal numbers
    rows: Tensor  # (n,): the row of each text
    guide: Tensor | None = None  # (n, e): vectors that decide which negatives are false

    def span(self, start: int, stop: int) -> "Texts":
        guide = None
        if self.guide is not None:
            guide = self.guide[start:stop]
        return Texts(self.vectors[start:stop], self.ids[start:stop], self.rows[start:stop], guide)

    def joined(self, texts: Self) -> "Texts":
        guide = None
        if self.guide is not None and texts.guide is not None:
            guide = torch.cat([self.guide, texts.guide])
        return Texts(
            torch.cat([self.vectors, texts.vectors]),
            torch.cat([self.ids, texts.ids]),
            torch.cat([self.rows, texts.rows]),
            guide,
        )


@dataclass(frozen=True, slots=True)
class Filter:
    """Which candidates are not negatives, although they belong to another row or another text."""

    equal_texts: bool = True  # leave out candidates with the text of the anchor or of its positive
    # of the cosine of the pair by the guide, above which a candidate is left out
    margin: float = 0.0
    relative: bool = False


def false_negatives(
    anchors: Texts, positives: Texts, side: Texts, candidates: Texts, drop: Filter
) -> Tensor:
    """Return which candidates are not negatives of one side of these pairs, (n, m)."""
    is_false = torch.zeros(
        len(anchors.ids), len(candidates.ids), dtype=torch.bool, device=anchors.ids.device
    )
    if drop.equal_texts:
        is_false |= anchors.ids[:, None] == candidates.ids
        is_false |= positives.ids[:, None] == candidates.ids
    if side.guide is not None and candidates.guide is not None:
        assert anchors.guide is not None, "all texts have a guide, or none"
        assert positives.guide is not None, "all texts have a guide, or none"
        of_pairs = cosines(anchors.guide, positives.guide).diagonal()
        limits = of_pairs - drop.margin
        if drop.relative:
            limits = of_pairs - drop.margin * of_pairs.abs()
        is_false |= cosines(side.guide, candidates.guide) > limits[:, None]
    return is_false


@dataclass(frozen=True, slots=True)
class SpanLogits:
    """The logits of some consecutive pairs."""

    pairs: Tensor  # (n,): their indices among all pairs
    anchors: Texts
    positives: Texts
    temperature: float
    drop: Filter

    def of(self, side: Texts, texts: Texts, is_of_pair: Tensor, *, keep_pair: bool) -> Tensor:
        """Return the logits of one side of these pairs with the texts, (n, m); -inf if left out.

        `is_of_pair` (n, m) are texts of the pair itself, which are all kept or all left out.
        """
        is_false = false_negatives(self.anchors, self.positives, side, texts, self.drop)
        is_left_out = (is_false & ~is_of_pair) if keep_pair else (is_false | is_of_pair)
        similarities = cosines(side.vectors, texts.vectors) / self.temperature
        return similarities.masked_fill(is_left_out, -torch.inf)

    def is_same_pair(self, texts: Texts) -> Tensor:
        """Return whether text i is of pair i, (n, m)."""
        return self.pairs[:, None] == torch.arange(len(texts.ids), device=self.pairs.device)

    def is_same_row(self, texts: Texts) -> Tensor:
        """Return whether a text is of the row of the pair, (n, m)."""
        return self.positives.rows[:, None] == texts.rows


def candidate_contrast(
    anchors: Texts,
    positives: Texts,
    negatives: Texts | None,
    temperature: float,
    form: str,
    drop: Filter,
) -> Tensor:
    """Return one value per anchor: the cross entropy of its positive among all candidates, (b,).

    one-way: InfoNCE. symmetric: the mean with the contrast of each positive with all anchors. full:
    all anchors are candidates too, and the positive is contrasted with all texts of other rows, in
    one sum as in GTE (arXiv 2308.03281), which counts the cosine of the pair twice.

    A large batch is divided into spans of anchors. The backward pass computes the cosines of a span
    again, so memory has those of one span only.
    """
    candidates = positives
    if negatives is not None:
        candidates = positives.joined(negatives)
    anchors_per_span = max(1, MAX_COSINES // max(1, len(candidates.ids)))
    count = len(anchors.ids)

    def of_span(start: int, stop: int) -> Tensor:
        span = SpanLogits(
            pairs=torch.arange(start, stop, device=anchors.ids.device),
            anchors=anchors.span(start, stop),
            positives=positives.span(start, stop),
            temperature=temperature,
            drop=drop,
        )

        def cross_entropy(logits: Tensor) -> Tensor:
            return F.cross_entropy(logits, span.pairs, reduction="none")  # column i of pair i

        # Anchors against all candidates. The pair itself counts in both directions.
        forward = span.of(
            span.anchors, candidates, is_of_pair=span.is_same_pair(candidates), keep_pair=True
        )
        if form == "one-way":
            return cross_entropy(forward)

        # Positives against all anchors.
        backward = span.of(
            span.positives, anchors, is_of_pair=span.is_same_pair(anchors), keep_pair=True
        )
        if form == "symmetric":
            return (cross_entropy(forward) + cross_entropy(backward)) / 2

        # Anchors against anchors, and positives against candidates, without those of their own row.
        among_anchors = span.of(
            span.anchors, anchors, is_of_pair=span.is_same_pair(anchors), keep_pair=False
        )
        of_positives = span.of(
            span.positives, candidates, is_of_pair=span.is_same_row(candidates), keep_pair=False
        )
        # `forward` is first, because its column i is the target of pair i.
        return cross_entropy(torch.cat([forward, among_anchors, backward, of_positives], 1))

    if count <= anchors_per_span:
        return of_span(0, count)
    values: list[Tensor] = []
    for start in range(0, count, anchors_per_span):
        stop = min(start + anchors_per_span, count)
        values.append(
            checkpoint(of_span, start, stop, use_reentrant=False, preserve_rng_state=False)
        )
    return torch.cat(values)
