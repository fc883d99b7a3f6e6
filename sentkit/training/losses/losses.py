"""Losses: one value for each anchor, in float32 or better. Axes: b sentences, d dimensions, l layers."""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from sentkit.model.transformer.readouts import widened

SHORTEST = 1e-8  # a row is divided by its norm, or by this if its norm is less

Weigh = Callable[[Tensor, Tensor], Tensor]  # similarities and log alpha -> weighted similarities

# PairSupCon eq. 3, as the authors' code reads it: alpha multiplies the exponential ("code").
# Another reading puts it before the similarity itself ("exponent").
WEIGHTINGS: dict[str, Weigh] = {
    "none": lambda similarities, log_alpha: similarities,
    "code": lambda similarities, log_alpha: similarities + log_alpha,
    "exponent": lambda similarities, log_alpha: similarities * log_alpha.exp(),
}


def unit(rows: Tensor) -> Tensor:
    return F.normalize(widened(rows), dim=-1, eps=SHORTEST)


def cosines(left: Tensor, right: Tensor) -> Tensor:
    """Every row of the left with every row of the right: (n, d), (m, d) -> (n, m)."""
    with torch.autocast(left.device.type, enabled=False):  # it would multiply in half precision
        return unit(left) @ unit(right).T


def diagonal(similarities: Tensor) -> Tensor:
    """True where row and column have the same number: (n, m)."""
    return torch.eye(*similarities.shape, dtype=torch.bool, device=similarities.device)


def own_column(similarities: Tensor) -> Tensor:
    """Cross entropy of choosing column i in row i: (b, m) -> (b,)."""
    own = torch.arange(len(similarities), device=similarities.device)
    return F.cross_entropy(similarities, own, reduction="none")


def in_batch_contrast(queries: Tensor, keys: Tensor, temperature: float) -> Tensor:
    """Each query finds its own key among all: (b, d), (b, d) -> (b,). SimCSE eq. 1, arXiv 2104.08821.

    Also SG-BERT's opt2, arXiv 2106.07345, where the keys are the guide's views.
    """
    return own_column(cosines(queries, keys) / temperature)


def triplet_contrast(
    anchors: Tensor, positives: Tensor, negatives: Tensor, temperature: float, negative_weight: float = 0.0
) -> Tensor:
    """Each anchor finds its positive among all positives and all negatives: three (b, d) -> (b,).

    Supervised SimCSE, arXiv 2104.08821. As in its code, `negative_weight` is added to the logit of an
    anchor's own negative, which multiplies that term of the denominator by its exponential.
    """
    agreeing = cosines(anchors, positives) / temperature  # (b, b)
    opposing = cosines(anchors, negatives) / temperature
    weighted = torch.where(diagonal(opposing), opposing + negative_weight, opposing)
    return own_column(torch.cat([agreeing, weighted], 1))


def paired_contrast(left: Tensor, right: Tensor, temperature: float) -> Tensor:
    """Each of the 2b rows finds its partner among the others: (b, d), (b, d) -> (2b,), left rows first.

    NT-Xent: the loss of ConSERT, arXiv 2105.11741, and the base loss of SG-BERT, arXiv 2106.07345.
    """
    rows = torch.cat([left, right])
    similarities = cosines(rows, rows) / temperature  # (2b, 2b)
    others = similarities.masked_fill(diagonal(similarities), -torch.inf)
    partners = torch.arange(len(rows), device=rows.device).roll(len(left))
    return F.cross_entropy(others, partners, reduction="none")


def guided_opt1(queries: Tensor, views: Tensor, temperature: float) -> Tensor:
    """Each query finds its own view among all views and the other queries: (b, d), (b, d) -> (b,).

    SG-BERT's opt1, arXiv 2106.07345.
    """
    across = cosines(queries, views) / temperature  # (b, b)
    among = cosines(queries, queries) / temperature
    return own_column(torch.cat([across, among.masked_fill(diagonal(among), -torch.inf)], 1))


def guided_opt2_released(queries: Tensor, views: Tensor, temperature: float) -> Tensor:
    """Opt2 as SG-BERT's code computes it, unlike the paper: (b, d), (b, d) -> (b,).

    Its slice of the negatives starts one column late, so that every query loses the first view that is not
    its own. Of two sentences the loss is always 0.
    """
    similarities = cosines(queries, views) / temperature  # (b, b)
    lost = torch.zeros_like(similarities, dtype=torch.bool)
    lost[:1, 1:2] = True
    lost[1:, :1] = True
    return own_column(similarities.masked_fill(lost, -torch.inf))


def guided_opt3(queries: Tensor, layer_views: Tensor, temperature: float) -> Tensor:
    """Each query finds each of its own views among all views of others: (b, d), (b, l, d) -> (b, l).

    SG-BERT's opt3, arXiv 2106.07345. A sentence's other layers are not its negatives.
    """
    count, layers, _ = layer_views.shape
    similarities = cosines(queries, layer_views.flatten(0, 1)).view(count, count, layers) / temperature
    own = diagonal(similarities[:, :, 0])
    foreign = similarities[~own].view(count, (count - 1) * layers)
    return against(similarities[own], foreign.logsumexp(1, keepdim=True))


def against(own: Tensor, foreign: Tensor) -> Tensor:
    """-log of e^own / (e^own + e^foreign): 0 where there is nothing foreign, which is to say -inf."""
    return -F.logsigmoid(own - foreign)  # softplus would be linear, not exact, beyond 20


def entailment_contrast(
    left: Tensor,
    right: Tensor,
    positive: Tensor,
    temperature: float,
    *,
    weighting: str,
    detach: bool = False,
) -> Tensor:
    """Both sides of each of the p positive pairs find their partner: two (b, d), (b,) -> (2p,), left first.

    PairSupCon, arXiv 2109.05424: eq. 1 and 2 with `weighting` "none", eq. 3 with the others. All other pairs'
    rows are negatives of an anchor, and count by alpha = e^similarity / (the mean of that over the
    negatives). The gradient goes through alpha, as in the authors' code, unless `detach`.
    """
    rows, count = torch.cat([left, right]), len(left)
    anchors = positive.repeat(2).nonzero()  # (2p, 1)
    similarities = cosines(rows[anchors[:, 0]], rows) / temperature  # (2p, 2b)
    # By steps from the anchor, its partner is always b steps away, and nothing else is left out.
    steps = torch.arange(1, 2 * count, device=rows.device)
    foreign = similarities.gather(1, (anchors + steps[steps != count]) % (2 * count))  # (2p, 2b - 2)
    own = similarities.gather(1, (anchors + count) % (2 * count))[:, 0]
    # log_softmax, not the logarithm of softmax: the gradient of that is NaN where alpha underflows
    log_alpha = foreign.log_softmax(1) + math.log(max(1, foreign.shape[1]))
    weighted = WEIGHTINGS[weighting](foreign, log_alpha.detach() if detach else log_alpha)
    return against(own, weighted.logsumexp(1))


def cosine_regression(left: Tensor, right: Tensor, targets: Tensor) -> Tensor:
    """The squared error of each pair's cosine: (b, d), (b, d), (b,) -> (b,). SBERT, arXiv 1908.10084."""
    return ((unit(left) * unit(right)).sum(1) - targets).square()


def triplet_margin(anchors: Tensor, positives: Tensor, negatives: Tensor, margin: float) -> Tensor:
    """By how much the positive is not nearer than the negative by the margin: three (b, d) -> (b,).

    SBERT's triplet objective, arXiv 1908.10084, with Euclidean distances.
    """
    # vector_norm has a gradient of 0 at 0; F.triplet_margin_loss adds 1e-6 to every difference instead
    near = torch.linalg.vector_norm(widened(anchors) - widened(positives), dim=1)
    far = torch.linalg.vector_norm(widened(anchors) - widened(negatives), dim=1)
    return F.relu(near - far + margin)


def squared_distance(pairs: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """The sum of squares of all differences, a single number; only the first of a pair has a gradient.

    How far an encoder has drifted from its start: SG-BERT's regulariser, arXiv 2106.07345.
    """
    # mse_loss keeps no difference for the backward pass: that would be another copy of the encoder
    squares = (F.mse_loss(widened(p), widened(start.detach()), reduction="sum") for p, start in pairs)
    return sum(squares, torch.zeros(()))
