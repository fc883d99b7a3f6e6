"""The formulas of all losses as loops over rows, as the papers state them, and the inputs to
compare.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain

import pytest
import torch
from torch import Tensor

from sentkit.papers.sg_bert.method import guided_opt1, guided_opt2_released, guided_opt3
from sentkit.training.losses import (
    cosine_regression,
    entailment_contrast,
    in_batch_contrast,
    paired_contrast,
    relational_divergence,
    squared_error,
    triplet_contrast,
    triplet_margin,
    unit,
)
from sentkit.training.methods.contrastive_tension import contrastive_tension
from sentkit.training.methods.pairs import complex_agreement, ranked_pairs
from sentkit.training.methods.promptbert import soft_negatives

WIDTH = 3
HALF = 0.5  # the temperature of the examples worked by hand


def mean(values):
    return sum(values) / max(len(values), 1)


def dot(x, y):
    return (x * y).sum()


def cosine(x, y):
    return dot(x, y) / torch.sqrt(dot(x, x) * dot(y, y))


def distance(x, y):
    return torch.sqrt(((x - y) ** 2).sum())


def share(logit, other_logits):
    """-log of what e^logit is of the whole."""
    return torch.stack([logit, *other_logits]).logsumexp(0) - logit


def without(rows, *omitted):
    return [row for index, row in enumerate(rows) if index not in omitted]


def attraction(anchor, positive, other_rows, heat):
    return share(
        cosine(anchor, positive) / heat, [cosine(anchor, row) / heat for row in other_rows]
    )


def loop_in_batch(queries, keys, heat):
    return [attraction(query, keys[i], without(keys, i), heat) for i, query in enumerate(queries)]


def loop_triplet(anchors, positives, negatives, heat, weight=0.0):
    total = []
    for i, anchor in enumerate(anchors):
        logits = [cosine(anchor, row) / heat for row in without(positives, i)]
        logits += [
            cosine(anchor, row) / heat + (weight if j == i else 0)
            for j, row in enumerate(negatives)
        ]
        total.append(share(cosine(anchor, positives[i]) / heat, logits))
    return total


def loop_paired(rows_a, rows_b, heat):
    rows = [*rows_a, *rows_b]
    total = []
    for m, row in enumerate(rows):
        partner = (m + len(rows_a)) % len(rows)
        total.append(attraction(row, rows[partner], without(rows, m, partner), heat))
    return total


def loop_opt1(queries, views, heat, first=0):
    candidates = [[*without(queries, i), *without(views, i)][first:] for i in range(len(views))]
    return [attraction(query, views[i], candidates[i], heat) for i, query in enumerate(queries)]


def loop_opt2_released(queries, views, heat):
    """Its negatives of a query are a row of b - 1 queries and b - 1 views, of which it reads from b
    on.
    """
    return loop_opt1(queries, views, heat, first=len(views))


def loop_opt3(queries, layer_views, heat):
    """The other layers of a sentence are not negatives."""
    total = []
    for i, query in enumerate(queries):
        foreign = [*chain.from_iterable(without(layer_views, i))]
        total.append(
            torch.stack([attraction(query, view, foreign, heat) for view in layer_views[i]])
        )
    return total


def negatives_of(anchor, rows, heat):
    partner = (anchor + len(rows) // 2) % len(rows)
    negatives = [cosine(rows[anchor], row) for row in without(rows, anchor, partner)]
    return cosine(rows[anchor], rows[partner]), negatives


def alphas_of(anchor, rows, heat):
    raised = [torch.exp(c / heat) for c in negatives_of(anchor, rows, heat)[1]]
    return [value / mean(raised) for value in raised]


def loop_entailment(rows_a, rows_b, positive, heat, weighting, alphas=None):
    """`alphas`, by anchor, are computed unless they are given."""
    rows = [*rows_a, *rows_b]
    total = []
    for anchor in (n for n in range(len(rows)) if positive[n % len(rows_a)]):
        positive_cosine, negative_cosines = negatives_of(anchor, rows, heat)
        alpha = (alphas or {}).get(anchor) or alphas_of(anchor, rows, heat)
        foreign = {
            "none": [c / heat for c in negative_cosines],
            "code": [torch.log(a) + c / heat for a, c in zip(alpha, negative_cosines, strict=True)],
            "exponent": [a * c / heat for a, c in zip(alpha, negative_cosines, strict=True)],
        }[weighting]
        total.append(share(positive_cosine / heat, foreign))
    return total


def loop_regression(rows_a, rows_b, targets):
    return [(cosine(a, b) - y) ** 2 for a, b, y in zip(rows_a, rows_b, targets, strict=True)]


def loop_margin(anchors, positives, negatives, margin):
    rows = zip(anchors, positives, negatives, strict=True)
    return [torch.clamp(distance(a, p) - distance(a, n) + margin, min=0) for a, p, n in rows]


def loop_ranked(similarities, scores, heat=0.05):
    pairs = [
        (i, k) for i in range(len(scores)) for k in range(len(scores)) if scores[i] > scores[k]
    ]
    raised = [torch.exp((similarities[k] - similarities[i]) / heat) for i, k in pairs]
    return torch.log(double(1.0) + sum(raised))


def loop_agreement(rows_a, rows_b):
    """By the division of complex numbers of length 1, summed over both parts."""
    agreements = []
    for x, y in zip(rows_a, rows_b, strict=True):
        z, w = (torch.complex(*row.chunk(2)) for row in (x, y))
        quotients = z * w.conj()
        agreements.append(
            abs((quotients.real + quotients.imag).sum()) / torch.sqrt(dot(x, x) * dot(y, y))
        )
    return agreements


def loop_tension(products):
    """-log of the sigmoid, of the first product, and of 1 minus the sigmoid of the others."""
    return [
        -torch.log(torch.stack([torch.sigmoid(row[0]), *(torch.sigmoid(-z) for z in row[1:])]))
        for row in products
    ]


def loop_soft_negatives(anchors, positives, negatives):
    """The difference of the cosines is to be between -0.3 and -0.1."""
    rows = zip(anchors, positives, negatives, strict=True)
    differences = [cosine(x, z) - cosine(x, y) for x, y, z in rows]
    return [torch.clamp(d + 0.1, min=0) + torch.clamp(-d - 0.3, min=0) for d in differences]


def loop_squares(vectors, targets):
    return [((x - y) ** 2).sum() / len(x) for x, y in zip(vectors, targets, strict=True)]


def loop_relational(vectors, teacher, heat=0.05):
    """The sum of p log(p / q) over the other rows."""

    def similarities(rows, i):
        raised = [torch.exp(cosine(rows[i], row) / heat) for row in without(rows, i)]
        return [value / sum(raised) for value in raised]

    total = []
    for i in range(len(vectors)):
        probabilities = zip(similarities(teacher, i), similarities(vectors, i), strict=True)
        total.append(sum((p * torch.log(p / q) for p, q in probabilities), double(0.0)))
    return total


def loop_information(local, vectors):
    """Of the tokens of each sentence with its own vector, and with the others (IS-BERT)."""
    of_own_sentence = []
    of_other_sentences = []
    for i, sentence in enumerate(local):
        for token in sentence:
            for j, vector in enumerate(vectors):
                z = dot(token, vector)
                value = torch.log(1 + torch.exp(-z)) - math.log(2)
                (of_own_sentence if i == j else of_other_sentences).append(
                    value if i == j else value + z
                )
    return of_own_sentence, of_other_sentences


@dataclass(frozen=True)
class Case:
    name: str
    loss: Callable[..., Tensor]
    loop: Callable
    shapes: tuple[tuple[int, ...], ...]  # of a sentence's part of each input


def rows(count):
    return ((WIDTH,),) * count


def positives(count):
    """Of one pair it is positive, of more every third is not."""
    return [i % 3 != 1 for i in range(count)]


def entailment_case(weighting, heat):
    return Case(
        f"entailment-{weighting}-{heat}",
        lambda a, b: entailment_contrast(
            a, b, torch.tensor(positives(len(a))), heat, weighting=weighting
        ),
        lambda a, b: loop_entailment(a, b, positives(len(a)), heat, weighting),
        rows(2),
    )


def case(loss, loop, shapes, heat, *more):
    def heated(function):
        return lambda *values: function(*values, heat, *more)

    return Case(
        "-".join(map(str, (loss.__name__, heat, *more))), heated(loss), heated(loop), shapes
    )


def contrasts(heat):
    return [
        case(in_batch_contrast, loop_in_batch, rows(2), heat),
        case(triplet_contrast, loop_triplet, rows(3), heat),
        case(triplet_contrast, loop_triplet, rows(3), heat, 0.7),
        case(paired_contrast, loop_paired, rows(2), heat),
        case(guided_opt1, loop_opt1, rows(2), heat),
        case(guided_opt2_released, loop_opt2_released, rows(2), heat),
        *(case(guided_opt3, loop_opt3, ((WIDTH,), (layers, WIDTH)), heat) for layers in (2, 3, 4)),
        *(entailment_case(weighting, heat) for weighting in ("none", "code", "exponent")),
    ]


def scores_of(count):
    """With ties."""
    return [float(i * i % 3) for i in range(count)]


OTHERS = [
    Case(
        "ranked_pairs",
        lambda a, b: ranked_pairs((unit(a) * unit(b)).sum(1), double(scores_of(len(a))), HALF),
        lambda a, b: loop_ranked([*map(cosine, a, b)], scores_of(len(a)), HALF),
        rows(2),
    ),
    Case(
        "contrastive_tension",
        lambda a, b: contrastive_tension((a[:, None] * b).sum(2)),
        lambda a, b: loop_tension(
            [[dot(x, y) for y in row_of_b] for x, row_of_b in zip(a, b, strict=True)]
        ),
        ((WIDTH,), (4, WIDTH)),
    ),
    Case(
        "soft_negatives",
        lambda a, b, c: soft_negatives((unit(a) * (unit(c) - unit(b))).sum(1), 0.1, 0.3),
        loop_soft_negatives,
        rows(3),
    ),
    Case("complex_agreement", complex_agreement, loop_agreement, ((4,), (4,))),
    Case("cosine_regression", cosine_regression, loop_regression, ((WIDTH,), (WIDTH,), ())),
    case(triplet_margin, loop_margin, rows(3), 1.0),
    Case("squared_error", squared_error, loop_squares, rows(2)),
    case(relational_divergence, loop_relational, rows(2), HALF),
]
CONTRASTS = contrasts(HALF)
named = partial(pytest.mark.parametrize, ids=lambda case_of_loss: case_of_loss.name)
every_loss = named("loss_case", [*CONTRASTS, *OTHERS])
every_weighting = pytest.mark.parametrize("weighting", ["none", "code", "exponent"])
half_types = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])


def drawn(case_of_loss, count, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(count, *shape, generator=generator, dtype=dtype)
        for shape in case_of_loss.shapes
    ]


def double(values):
    return torch.tensor(values, dtype=torch.float64)


def pair_of(count):
    generator = torch.Generator().manual_seed(count)
    return torch.randn(2, count, WIDTH, generator=generator, dtype=torch.float64).unbind()


def gradients(loss, values):
    values = [value.clone().requires_grad_() for value in values]
    return torch.autograd.grad(loss(*values).sum(), values)
